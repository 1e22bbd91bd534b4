"""Walks the headers of record batches, all formats (Kafka's `ByteBufferLogInputStream`, `DefaultRecordBatch`)."""

from __future__ import annotations

import numpy as np

from distlog.core.config import MAX_LONG
from distlog.core.kernels.native.jit import fill_kernel, inlined
from distlog.core.kernels.native.memory import item_at

LOG_OVERHEAD = 12
HEADER_SIZE = 61
#: Where the bytes begin that the checksum of a batch of format 2 covers.
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


@inlined
def _read_bytes(data: np.ndarray, position: int, width: int) -> int:
    value = 0
    for index in range(position, position + width):
        value = value << 8 | item_at(data, index)
    return value


@inlined
def read_int(data: np.ndarray, position: int, width: int) -> int:
    """The big-endian two's complement integer of `width` bytes, at most 8."""
    value = _read_bytes(data, position, width)
    sign = 1 << 8 * width - 1
    return (value ^ sign) - sign


@fill_kernel
def count_batches(data: np.ndarray, start: int, end: int) -> tuple[int, int, int]:
    """Walk the whole batches in [start, end): (status, position of the end or of the bad batch, batches before it).

    A partial batch at the end is left out, as in Kafka's readers.
    """
    position = start
    count = 0
    while end - position >= SMALLEST_PREFIX:
        length = read_int(data, position + 8, 4)
        magic = read_int(data, position + 16, 1)
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
    """Fill `batches` (BATCH rows), as many as `count_batches` found: (status, index of the bad one).

    A compressed wrapper of format 0 or 1 gets record count -1, and its last offset as base offset.
    """
    position = start
    for index in range(batches.size):
        row = batches[index]
        read_row(data, position, row)
        if row["record_count"] < (0 if row["magic"] == 2 else -1):
            return BAD_COUNT, index
        # without the compiler, the fields of a row keep their width
        base_offset, last_offset_delta = int(row["base_offset"]), int(row["last_offset_delta"])
        if base_offset < 0 or last_offset_delta < 0 or base_offset > MAX_LONG - last_offset_delta:
            return BAD_OFFSETS, index
        position += int(row["size"])
    return OK, batches.size


@inlined
def read_row(data: np.ndarray, position: int, row: np.void) -> None:
    """Fill `row` with what the batch at `position` says of itself; nothing is checked."""
    magic = read_int(data, position + 16, 1)
    row["position"] = position
    row["size"] = LOG_OVERHEAD + read_int(data, position + 8, 4)
    row["magic"] = magic
    row["base_offset"] = read_int(data, position, 8)
    row["last_offset_delta"] = read_int(data, position + 23, 4) if magic >= 2 else 0
    if magic >= 2:
        _read_header(data, position, row)
    else:
        _read_legacy_header(data, position, magic, row)


@inlined
def _read_header(data: np.ndarray, position: int, row: np.void) -> None:
    """Put into `row` what the header of format 2 at `position` has behind magic and size."""
    row["leader_epoch"] = read_int(data, position + 12, 4)
    row["crc"] = _read_bytes(data, position + 17, 4)
    row["attributes"] = read_int(data, position + 21, 2)
    row["base_timestamp"] = read_int(data, position + 27, 8)
    row["max_timestamp"] = read_int(data, position + 35, 8)
    row["producer_id"] = read_int(data, position + 43, 8)
    row["producer_epoch"] = read_int(data, position + 51, 2)
    row["base_sequence"] = read_int(data, position + 53, 4)
    row["record_count"] = read_int(data, position + 57, 4)


@inlined
def _read_legacy_header(data: np.ndarray, position: int, magic: int, row: np.void) -> None:
    """Put into `row` what a message of formats 0 and 1 has; a compressed one gets record count -1."""
    attributes = read_int(data, position + 17, 1) & LEGACY_ATTRIBUTES
    timestamp = read_int(data, position + 18, 8) if magic == 1 else -1
    row["leader_epoch"] = -1
    row["crc"] = _read_bytes(data, position + 12, 4)
    row["attributes"] = attributes
    row["base_timestamp"] = timestamp
    row["max_timestamp"] = timestamp
    row["producer_id"] = -1
    row["producer_epoch"] = -1
    row["base_sequence"] = -1
    row["record_count"] = 1 if attributes & CODEC_MASK == 0 else -1
