"""Finds the fields of records, format 2, in one pass over the records sections of many batches (`DefaultRecord`).

A column of bytes is found as `Slices` of the data, or copied by the scan while its bytes are in the nearest cache.
An array of size 0 stands for a column that is not wanted. Every length is compared with its enclosing end before use.

Records are first read quickly, with integers of up to four bytes and without checking for each whether the data
ends. From the first record of a section that does not end well, they are read carefully; only that tells what is
wrong.
"""

from __future__ import annotations

import numpy as np

from distlog.core.kernel_tuples import HeaderPlaces, RecordFields, ScanProgress, Slices
from distlog.core.kernels.batch_scan import CRC_START, HEADER_SIZE
from distlog.core.kernels.crc import crc32c_of
from distlog.core.kernels.native.jit import fill_kernel, inlined
from distlog.core.kernels.native.memory import put_at
from distlog.core.kernels.slices import put_slice
from distlog.core.kernels.varint import SLACK, read_short, read_varint, read_varlong

SMALLEST_RECORD = 7
NOT_APPEND_TIME = -(2**63)
CHECKED = -1

OK, BAD_LENGTH, BAD_KEY, BAD_VALUE, BAD_HEADERS, BAD_BODY, BAD_OFFSET, BAD_END, BAD_CRC = range(9)

#: The records of one batch: bytes [start, end), fields of its header, and which offsets are wanted. The scan writes
#: how many records it `emitted`, with how many headers. `append_time` is the timestamp of every record, or
#: NOT_APPEND_TIME. `crc` is the checksum that the batch must have, its header included, or CHECKED.
SECTION = np.dtype(
    [
        ("start", np.int64),
        ("end", np.int64),
        ("record_count", np.int64),
        ("base_offset", np.int64),
        ("last_offset_delta", np.int64),
        ("base_timestamp", np.int64),
        ("append_time", np.int64),
        ("crc", np.int64),
        ("start_offset", np.int64),
        ("end_offset", np.int64),
        ("emitted", np.int64),
        ("header_count", np.int64),
    ]
)


@inlined
def _read_int(data: np.ndarray, position: int, end: int, careful: bool) -> tuple[int, int]:
    return read_varint(data, position, end) if careful else read_short(data, position, end)


@inlined
def _read_long(data: np.ndarray, position: int, end: int, careful: bool) -> tuple[int, int]:
    return read_varlong(data, position, end) if careful else read_short(data, position, end)


@inlined
def _skip_headers(data: np.ndarray, position: int, end: int, count: int, careful: bool) -> int:
    """The position after `count` headers, or `end` + 1 if they are malformed."""
    for _ in range(count):
        key_size, position = _read_int(data, position, end, careful)
        if key_size < 0 or key_size > end - position:
            return end + 1
        value_size, position = _read_int(data, position + key_size, end, careful)
        if value_size > end - position:
            return end + 1
        position += max(value_size, 0)
    return position


@inlined
def read_record(data: np.ndarray, position: int, end: int, careful: bool) -> tuple[int, RecordFields]:
    """The status of the record at `position`, in a section up to `end`, and the record.

    A field that is cut off ends beyond the record, and so does all that follows; comparing the lengths finds that.
    """
    nothing = RecordFields(0, 0, 0, 0, 0, 0, 0, 0, 0)
    size, body = _read_int(data, position, end, careful)
    if size < 1 or size > end - body:
        return BAD_LENGTH, nothing
    record_end = body + size
    timestamp_delta, at = _read_long(data, body + 1, end, careful)
    offset_delta, at = _read_int(data, at, end, careful)
    key_size, key_at = _read_int(data, at, end, careful)
    if key_size > record_end - key_at:
        return BAD_KEY, nothing
    value_size, value_at = _read_int(data, key_at + max(key_size, 0), end, careful)
    if value_size > record_end - value_at:
        return BAD_VALUE, nothing
    headers_at = value_at + max(value_size, 0)
    headers, at = _read_int(data, headers_at, end, careful)
    if headers:
        if headers < 0 or headers > record_end - at:
            return BAD_HEADERS, nothing
        at = _skip_headers(data, at, record_end, headers, careful)
    record = RecordFields(
        record_end, offset_delta, timestamp_delta, key_at, key_size, value_at, value_size, headers_at, headers
    )
    return OK if at == record_end else BAD_BODY, record


@inlined
def _scan_section(
    data: np.ndarray,
    section: np.void,
    offsets: np.ndarray,
    timestamps: np.ndarray,
    key: Slices,
    value: Slices,
    headed: HeaderPlaces,
    progress: ScanProgress,
    careful: bool,
) -> tuple[int, ScanProgress]:
    """Continue the scan of a section: (status, progress). It stops before a record that cannot be read."""
    number, position, previous, emitted, key_bytes, value_bytes, places, headers = progress
    status = OK
    end, count = section["end"], section["record_count"]
    # Locals: numba reads array items again after each write to any other array.
    base_offset, last_delta = section["base_offset"], section["last_offset_delta"]
    base_timestamp, append_time = section["base_timestamp"], section["append_time"]
    start_offset, end_offset = section["start_offset"], section["end_offset"]
    while number < count:
        status, record = read_record(data, position, end, careful)
        if status != OK:
            break
        if record.offset_delta <= previous or record.offset_delta > last_delta:
            status = BAD_OFFSET
            break
        number, position, previous = number + 1, record.end, record.offset_delta
        offset = base_offset + record.offset_delta
        if offset < start_offset or offset >= end_offset:
            continue
        put_at(offsets, emitted, offset)
        timestamp = base_timestamp + record.timestamp_delta if append_time == NOT_APPEND_TIME else append_time
        put_at(timestamps, emitted, timestamp)
        if key.valid.size:
            key_bytes = put_slice(key, emitted, key_bytes, data, record.key_at, record.key_size)
        if value.valid.size:
            value_bytes = put_slice(value, emitted, value_bytes, data, record.value_at, record.value_size)
        if record.headers:
            headers += record.headers
            if headed.records.size:
                headed.records[places], headed.positions[places] = emitted, record.headers_at
                places += 1
        emitted += 1
    if number == count and position != end:
        status = BAD_END
    return status, ScanProgress(number, position, previous, emitted, key_bytes, value_bytes, places, headers)


@fill_kernel
def scan_records(
    data: np.ndarray,
    sections: np.ndarray,
    offsets: np.ndarray,
    timestamps: np.ndarray,
    key: Slices,
    value: Slices,
    headed: HeaderPlaces,
) -> tuple[int, int, int]:
    """Scan all `sections` (SECTION rows) into arrays with room for them: (status, section, emitted or bad record)."""
    progress = ScanProgress(0, 0, -1, 0, 0, 0, 0, 0)
    arrays = (offsets, timestamps, key, value, headed)
    for index in range(sections.size):
        section = sections[index]
        if section["crc"] != CHECKED:
            # batch by batch, since the scan then finds the bytes in the cache
            crc = crc32c_of(0, data, section["start"] - HEADER_SIZE + CRC_START, section["end"])
            if crc != section["crc"]:
                return BAD_CRC, index, 0
        before = progress.records
        progress = ScanProgress(0, section["start"], -1, *progress[3:7], 0)
        status = BAD_END
        if section["end"] + SLACK <= data.size:
            status, progress = _scan_section(data, section, *arrays, progress, False)
        if status != OK:
            status, progress = _scan_section(data, section, *arrays, progress, True)
        if status != OK:
            return status, index, progress.number
        section["emitted"], section["header_count"] = progress.records - before, progress.section_headers
    if headed.records.size:
        headed.records[progress.headed] = progress.records
    return OK, sections.size, progress.records


@fill_kernel
def locate_headers(
    data: np.ndarray, headed: HeaderPlaces, count: int, header_offsets: np.ndarray, key: Slices, value: Slices
) -> None:
    """Find the headers of the first `count` records, as listed in `headed`; `scan_records` has checked them.

    The headers of record i are slots header_offsets[i] to header_offsets[i + 1] of `key` and `value`.
    """
    key_bytes = 0
    value_bytes = 0
    place = 0
    first = 0
    for record in range(count):
        header_offsets[record] = first
        if headed.records[place] != record:
            continue
        headers, position = read_varint(data, headed.positions[place], data.size)
        for header in range(first, first + headers):
            size, position = read_varint(data, position, data.size)
            key_bytes = put_slice(key, header, key_bytes, data, position, size)
            size, position = read_varint(data, position + size, data.size)
            value_bytes = put_slice(value, header, value_bytes, data, position, size)
            position += max(size, 0)
        first += headers
        place += 1
    header_offsets[count] = first
