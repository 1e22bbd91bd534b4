"""Walks the headers of record batches, all formats (Kafka's `ByteBufferLogInputStream`, `DefaultRecordBatch`)."""

from __future__ import annotations

from typing import Any

import numpy as np

from distlog.core.format.kernels.native import COMPILED, fill_kernel, inlined, int_at, pointer_to, put_int_at, read_at
from distlog.core.integers import MAX_LONG

LOG_OVERHEAD = 12
HEADER_SIZE = 61
#: Where the bytes start that the checksum of a batch of format 2 covers.
CRC_START = 21
SMALLEST_PREFIX = 17
SMALLEST_LENGTH = 14
LEGACY_ENTRY_SIZES = (26, 34)
CODEC_MASK = 0x07
LEGACY_ATTRIBUTES = 0x0F
#: Bits of a batch's attributes; the low three (CODEC_MASK) are the codec.
APPEND_TIME, TRANSACTIONAL, CONTROL, DELETE_HORIZON = 0x08, 0x10, 0x20, 0x40

OK, BAD_LENGTH, BAD_MAGIC, BAD_SIZE, BAD_OFFSETS, BAD_COUNT = range(6)

BATCH = np.dtype(
    [
        ("position", np.int64),
        ("size", np.int64),
        ("base_offset", np.int64),
        ("last_offset_delta", np.int32),
        ("leader_epoch", np.int32),
        ("magic", np.int8),
        ("crc", np.uint32),
        ("attributes", np.int16),
        ("base_timestamp", np.int64),
        ("max_timestamp", np.int64),
        ("producer_id", np.int64),
        ("producer_epoch", np.int16),
        ("base_sequence", np.int32),
        ("record_count", np.int32),
    ]
)


@fill_kernel
def count_batches(data: np.ndarray, start: int, end: int) -> tuple[int, int, int]:
    """Walk the complete batches in [start, end): (status, position of the end or the bad batch, earlier batches)."""
    position = start
    count = 0
    while end - position >= SMALLEST_PREFIX:
        length = int_at(data, position + 8, 4)
        magic = int_at(data, position + 16, 1)
        if length < SMALLEST_LENGTH:
            return BAD_LENGTH, position, count
        if magic < 0 or magic > 2:
            return BAD_MAGIC, position, count
        if length > end - position - LOG_OVERHEAD:
            break
        size = LOG_OVERHEAD + length
        if size < (HEADER_SIZE if magic == 2 else LEGACY_ENTRY_SIZES[magic]):
            return BAD_SIZE, position, count
        position += size
        count += 1
    return OK, position, count


@fill_kernel
def read_batches(data: np.ndarray, start: int, batches: np.ndarray) -> tuple[int, int]:
    """Fill `batches`, as many as `count_batches` found: (status, index of the bad batch); a wrapper has count -1."""
    position = start
    for index in range(batches.size):
        row = batches[index]
        read_row(data, position, row)
        if row["record_count"] < (0 if row["magic"] == 2 else -1):
            return BAD_COUNT, index
        # without the compiler, the fields of a row keep their width
        base_offset, last_offset_delta = np.int64(row["base_offset"]), np.int64(row["last_offset_delta"])
        if base_offset < 0 or last_offset_delta < 0 or base_offset > MAX_LONG - last_offset_delta:
            return BAD_OFFSETS, index
        position += row["size"]
    return OK, batches.size


@inlined
def read_row(data: np.ndarray, position: int, row: np.void) -> None:
    """Fill `row` from the header of the batch at `position`, unchecked; a compressed message has record count -1."""
    magic = int_at(data, position + 16, 1)
    row["position"] = position
    row["size"] = LOG_OVERHEAD + int_at(data, position + 8, 4)
    row["magic"] = magic
    row["base_offset"] = int_at(data, position, 8)
    if magic >= 2:
        row["last_offset_delta"] = int_at(data, position + 23, 4)
        row["leader_epoch"] = int_at(data, position + 12, 4)
        row["crc"] = int_at(data, position + 17, 4) & 0xFFFFFFFF
        row["attributes"] = int_at(data, position + 21, 2)
        row["base_timestamp"] = int_at(data, position + 27, 8)
        row["max_timestamp"] = int_at(data, position + 35, 8)
        row["producer_id"] = int_at(data, position + 43, 8)
        row["producer_epoch"] = int_at(data, position + 51, 2)
        row["base_sequence"] = int_at(data, position + 53, 4)
        row["record_count"] = int_at(data, position + 57, 4)
    else:
        attributes = int_at(data, position + 17, 1) & LEGACY_ATTRIBUTES
        timestamp = int_at(data, position + 18, 8) if magic == 1 else -1
        row["last_offset_delta"] = 0
        row["leader_epoch"] = -1
        row["crc"] = int_at(data, position + 12, 4) & 0xFFFFFFFF
        row["attributes"] = attributes
        row["base_timestamp"] = timestamp
        row["max_timestamp"] = timestamp
        row["producer_id"] = -1
        row["producer_epoch"] = -1
        row["base_sequence"] = -1
        row["record_count"] = 1 if attributes & CODEC_MASK == 0 else -1


@inlined
def _smallest(magic: int) -> int:
    if magic >= 2:
        return HEADER_SIZE
    return LEGACY_ENTRY_SIZES[1] if magic == 1 else LEGACY_ENTRY_SIZES[0]


@fill_kernel
def count_frames(data: np.ndarray) -> tuple[int, int, int]:
    """Walk the complete batches of `data`: (status, position of the end or the bad batch, earlier batches)."""
    position = 0
    count = 0
    while data.size - position >= SMALLEST_PREFIX:
        length = int_at(data, position + 8, 4)
        if length < SMALLEST_LENGTH:
            return BAD_LENGTH, position, count
        if length > data.size - position - LOG_OVERHEAD:
            break
        if LOG_OVERHEAD + length < _smallest(int_at(data, position + 16, 1)):
            return BAD_SIZE, position, count
        position += LOG_OVERHEAD + length
        count += 1
    return OK, position, count


@fill_kernel
def read_frames(data: np.ndarray, batches: np.ndarray) -> None:
    """Fill `batches`, as many as `count_frames` found; a compressed message has record count -1."""
    position = 0
    for index in range(batches.size):
        row = batches[index]
        read_row(data, position, row)
        position += row["size"]


#: A run of batches of one file: its first offset (in a segment with gaps a lower bound; -1: unknown); where the
#: segment ends; whether the segment has no gaps; whether the file ends with the run.
RUN = np.dtype([("first_offset", np.int64), ("end_offset", np.int64), ("dense", np.int64), ("ends_file", np.int64)])


@fill_kernel
def first_misplaced(batches: np.ndarray, owner: np.ndarray, runs: np.ndarray) -> int:
    """Return the first misplaced row of `batches` (BATCH), or -1; `owner` has the row in `runs` of each batch."""
    # in a run batches follow each other, without a gap where the segment is dense, and nothing follows its end
    last = -1
    for row in range(batches.size):
        run = runs[owner[row]]
        opens = row == 0 or owner[row] != owner[row - 1]
        closes = run["ends_file"] and (row + 1 == batches.size or owner[row] != owner[row + 1])
        # compare offsets minus one: adding one could overflow
        expected, end = run["first_offset"] - 1 if opens else last, run["end_offset"] - 1
        actual = batches[row]["base_offset"] - 1
        last = batches[row]["base_offset"] + batches[row]["last_offset_delta"]
        exact = run["dense"] and expected >= -1
        if actual < expected or (exact and actual != expected):
            return row
        if last > end or (not closes and last == end):
            return row
        if closes and run["dense"] and last != end:
            return row
    return -1


@fill_kernel
def cut_runs(joins: np.ndarray, sizes: np.ndarray, limit: int, firsts: np.ndarray) -> int:
    """Cut batches into runs of at most `limit` bytes, or of one batch; returns how many, and fills `firsts`."""
    count = 0
    held = 0
    for row in range(sizes.size):
        held += sizes[row]
        if row == 0 or not joins[row] or held > limit:
            firsts[count] = row
            count += 1
            held = sizes[row]
    return count


#: The faults of batches: none; they do not fill their bytes; they have another format than 2, or refused attributes;
#: their offsets do not count from 0.
ALL_FINE, NOT_ALL, BAD_FORMAT, UNFIT_OFFSETS = range(4)

_FORMAT = 2


@fill_kernel
def inspect_batches(batches: np.ndarray, size: int, refused: int) -> tuple[int, int, int, int, bool]:
    """Check that `batches` (BATCH rows) fill `size` bytes, with offsets from 0 and without the attributes `refused`.

    Returns the fault, the size of the largest batch, the next offset, the largest timestamp, and whether any batch
    has a producer id. `batches` must not be empty.
    """
    fault = ALL_FINE
    position = 0
    end_offset = 0
    largest = 0
    newest = batches[0]["max_timestamp"]
    has_producers = False
    for row in range(batches.size):
        batch = batches[row]
        if batch["position"] != position or not HEADER_SIZE <= batch["size"] <= size - position:
            return NOT_ALL, largest, end_offset, newest, has_producers
        if batch["magic"] != _FORMAT or batch["attributes"] & refused:
            fault = BAD_FORMAT
        elif batch["base_offset"] != end_offset and fault == ALL_FINE:
            fault = UNFIT_OFFSETS
        position += batch["size"]
        end_offset = batch["base_offset"] + batch["last_offset_delta"] + 1
        largest = max(largest, batch["size"])
        newest = max(newest, batch["max_timestamp"])
        has_producers |= batch["producer_id"] >= 0
    return (fault if position == size else NOT_ALL), largest, end_offset, newest, has_producers


@fill_kernel
def move_batches(data: np.ndarray, batches: np.ndarray, first_offset: int, moved: np.ndarray) -> None:
    """Fill `moved` with `batches`, which `inspect_batches` checked, at offsets from `first_offset`."""
    for row in range(batches.size):
        moved[row] = batches[row]
        base_offset = batches[row]["base_offset"] + first_offset
        moved[row]["base_offset"] = base_offset
        put_int_at(data, batches[row]["position"], 8, base_offset)


#: The bytes of one read from a header: it holds several headers of small batches.
WINDOW_BYTES = 4096
_NONE = -1, -1, -1


@fill_kernel
def _find_batches(
    file: int, part: tuple[int, int], segment: tuple[int, int, bool], target: tuple[int, int, int], window: np.ndarray
) -> tuple[int, int, int]:
    position, log_end = part
    following, segment_end, is_dense = segment
    first_offset, end_offset, room = target
    begin = end = next_offset = -1
    window_begin = window_end = position
    while position < log_end and (begin < 0 or position - begin < room):
        if window_end - position < HEADER_SIZE:
            window_begin = position
            window_end = position + read_at(
                file, pointer_to(window, 0), min(window.size, log_end - position), position
            )
            if window_end - position < HEADER_SIZE:
                return _NONE
        header = position - window_begin
        base_offset, last_offset_delta = int_at(window, header, 8), int_at(window, header + 23, 4)
        size, record_count = LOG_OVERHEAD + int_at(window, header + 8, 4), int_at(window, header + 57, 4)
        if int_at(window, header + 16, 1) != 2 or not HEADER_SIZE <= size <= log_end - position:
            return _NONE
        if base_offset < max(following, 0) or last_offset_delta < 0 or record_count < 0:
            return _NONE
        if is_dense and following >= 0 and base_offset != following:
            return _NONE
        if base_offset > segment_end - 1 - last_offset_delta:
            return _NONE
        if following < 0 and base_offset > first_offset:
            return _NONE
        following = base_offset + last_offset_delta + 1
        if base_offset >= end_offset or (begin >= 0 and position + size - begin > room):
            break
        position += size
        if following > first_offset:
            begin = position - size if begin < 0 else begin
            end, next_offset = position, following
    return begin, end, next_offset


def _find_none(
    file: int, part: tuple[int, int], segment: tuple[int, int, bool], target: tuple[int, int, int], window: np.ndarray
) -> tuple[int, int, int]:
    return _NONE


#: `find_batches(file, (position, log_end), (following, segment_end, is_dense), (first_offset, end_offset, room),
#: window)`: the start and end of the batches of an open log with offsets in [`first_offset`, `end_offset`), as many
#: as fit into `room` bytes but at least one; and the next offset. A batch starts at `position`, at the offset
#: `following`, or if that is -1, at most at `first_offset`. The segment ends before the offset `segment_end` and the
#: position `log_end`; if it `is_dense`, its offsets have no gaps. All are -1 if there are no batches, after a bad
#: header, and for batches of formats 0 and 1. `window` has WINDOW_BYTES. Without a compiler it finds none.
find_batches: Any = _find_batches if COMPILED else _find_none
