"""Finds the fields of records, format 2, in one pass over the records sections of many batches (`DefaultRecord`).

A column of bytes is found as `Slices` of the data, and copied on the way where that is wanted: its bytes are in the
nearest cache then. Arrays of size 0 mean that something is not asked for. No length is used before it is compared
with what encloses it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from distlog.core.kernels.jit import fill_kernel, inlined
from distlog.core.kernels.memory import byte_at, copy_bytes
from distlog.core.kernels.varint import read_varint, read_varlong

SMALLEST_RECORD = 7
NOT_APPEND_TIME = -(2**63)

OK, BAD_LENGTH, BAD_KEY, BAD_VALUE, BAD_HEADERS, BAD_BODY, BAD_OFFSET, BAD_END = range(8)

#: The records of one batch: bytes [start, end), what its header says, and which offsets are asked for. The scan
#: writes how many it `emitted`, with how many headers. `append_time` is every record's timestamp, or NOT_APPEND_TIME.
SECTION = np.dtype(
    [
        ("start", np.int64),
        ("end", np.int64),
        ("record_count", np.int64),
        ("base_offset", np.int64),
        ("last_offset_delta", np.int64),
        ("base_timestamp", np.int64),
        ("append_time", np.int64),
        ("start_offset", np.int64),
        ("end_offset", np.int64),
        ("emitted", np.int64),
        ("header_count", np.int64),
    ]
)


class Slices(NamedTuple):
    """Byte strings in a buffer, one slot each; of `offsets` there is one more, and the first is 0.

    `positions` in the buffer, `offsets` (Arrow's) as if the strings stood back to back, `valid` (False: null).
    `copies` is where they stand back to back, with room for as many bytes as the sections have, or is empty.
    """

    positions: np.ndarray
    offsets: np.ndarray
    valid: np.ndarray
    copies: np.ndarray


@inlined
def put_slice(slices: Slices, index: int, total: int, data: np.ndarray, position: int, size: int) -> int:
    """Put, and copy, the string at `position` into slot `index`, after `total` bytes; a size below 0 is null."""
    length = max(size, 0)
    slices.positions[index] = position
    slices.offsets[index + 1] = total + length
    slices.valid[index] = size >= 0
    if slices.copies.size:
        copy_bytes(slices.copies, total, data, position, length)
    return total + length


@inlined
def read_header_count(data: np.ndarray, position: int, end: int) -> tuple[int, int]:
    """What `read_varint` gives; nearly always it is 0."""
    if position < end and byte_at(data, position) == 0:
        return 0, position + 1
    return read_varint(data, position, end)


@inlined
def skip_headers(data: np.ndarray, position: int, end: int, count: int) -> int:
    """The position after `count` headers, or one after `end` where they are malformed."""
    for _ in range(count):
        key_size, position = read_varint(data, position, end)
        if key_size < 0 or key_size > end - position:
            return end + 1
        value_size, position = read_varint(data, position + key_size, end)
        if value_size > end - position:
            return end + 1
        position += max(value_size, 0)
    return position


@fill_kernel
def scan_records(
    data: np.ndarray,
    sections: np.ndarray,
    offsets: np.ndarray,
    timestamps: np.ndarray,
    key: Slices,
    value: Slices,
) -> tuple[int, int, int]:
    """Scan all `sections` (SECTION rows), copy to slices with room: (status, section, emitted or the bad record)."""
    emitted = 0
    key_bytes = 0
    value_bytes = 0
    for index in range(sections.size):
        section = sections[index]
        position, end = section["start"], section["end"]
        # Locals: what stands in an array is read again after each write to any other.
        base_offset, last_delta = section["base_offset"], section["last_offset_delta"]
        base_timestamp, append_time = section["base_timestamp"], section["append_time"]
        start_offset, end_offset = section["start_offset"], section["end_offset"]
        first, header_count = emitted, 0
        previous = -1
        for number in range(section["record_count"]):
            size, body = read_varint(data, position, end)
            if size < 1 or size > end - body:
                return BAD_LENGTH, index, number
            position = body + size
            # From here on a cut field ends up beyond the record; that is found by one comparison at its end.
            timestamp_delta, at = read_varlong(data, body + 1, end)
            delta, at = read_varint(data, at, end)
            key_size, key_at = read_varint(data, at, end)
            if key_size > position - key_at:
                return BAD_KEY, index, number
            value_size, value_at = read_varint(data, key_at + max(key_size, 0), end)
            if value_size > position - value_at:
                return BAD_VALUE, index, number
            headers, header_at = read_header_count(data, value_at + max(value_size, 0), end)
            if headers < 0 or headers > position - header_at:
                return BAD_HEADERS, index, number
            if skip_headers(data, header_at, position, headers) != position:
                return BAD_BODY, index, number
            if delta <= previous or delta > last_delta:
                return BAD_OFFSET, index, number
            previous = delta
            offset = base_offset + delta
            if offset < start_offset or offset >= end_offset:
                continue
            offsets[emitted] = offset
            timestamps[emitted] = base_timestamp + timestamp_delta if append_time == NOT_APPEND_TIME else append_time
            if key.positions.size:
                key_bytes = put_slice(key, emitted, key_bytes, data, key_at, key_size)
            if value.positions.size:
                value_bytes = put_slice(value, emitted, value_bytes, data, value_at, value_size)
            header_count += headers
            emitted += 1
        if position != end:
            return BAD_END, index, section["record_count"]
        section["emitted"], section["header_count"] = emitted - first, header_count
    return OK, sections.size, emitted


@fill_kernel
def locate_headers(
    data: np.ndarray, values: Slices, count: int, header_offsets: np.ndarray, key: Slices, value: Slices
) -> None:
    """Find and copy the headers of the first `count` records, behind `values`; `scan_records` found them sound.

    Those of record i are slots header_offsets[i] to header_offsets[i + 1] of `key` and `value`.
    """
    key_bytes = 0
    value_bytes = 0
    first = 0
    for record in range(count):
        header_offsets[record] = first
        position = values.positions[record] + (values.offsets[record + 1] - values.offsets[record])
        headers, position = read_varint(data, position, data.size)
        for header in range(first, first + headers):
            size, position = read_varint(data, position, data.size)
            key_bytes = put_slice(key, header, key_bytes, data, position, size)
            size, position = read_varint(data, position + size, data.size)
            value_bytes = put_slice(value, header, value_bytes, data, position, size)
            position += max(size, 0)
        first += headers
    header_offsets[count] = first
