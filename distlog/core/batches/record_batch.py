"""Finds record batches by walking a buffer: the 61-byte header of format 2 (Kafka's `DefaultRecordBatch`).

    0   int64   base offset              21  int16   attributes              43  int64   producer id
    8   int32   bytes after this field   23  int32   last offset delta       51  int16   producer epoch
    12  int32   partition leader epoch   27  int64   base timestamp          53  int32   base sequence
    16  int8    magic: 2                 35  int64   largest timestamp       57  int32   number of records
    17  uint32  CRC-32C of all after it                                      61  ...     records, compressed as one

The checksum covers neither base offset nor leader epoch, so both can be assigned after a batch is written.
With the delete horizon bit (KIP-534) the base timestamp is that horizon; deltas still count from it.
Formats 0 and 1 (`legacy_batch`) also have their magic at byte 16, and give rows of the same kind.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any

import numpy as np
import pyarrow as pa
from crc32c import crc32c

from distlog.core.batches.legacy_batch import resolve_wrappers
from distlog.core.batches.source import Source
from distlog.core.buffers import byte_array
from distlog.core.config import MAX_INT, MAX_LONG
from distlog.core.errors import CorruptRecordError
from distlog.core.kernels.batch_scan import APPEND_TIME as APPEND_TIME
from distlog.core.kernels.batch_scan import (
    BAD_COUNT,
    BAD_LENGTH,
    BAD_MAGIC,
    BAD_OFFSETS,
    BAD_SIZE,
    OK,
    count_batches,
    read_batches,
)
from distlog.core.kernels.batch_scan import BATCH as BATCH
from distlog.core.kernels.batch_scan import CODEC_MASK as CODEC_MASK
from distlog.core.kernels.batch_scan import CONTROL as CONTROL
from distlog.core.kernels.batch_scan import CRC_START as CRC_START
from distlog.core.kernels.batch_scan import DELETE_HORIZON as DELETE_HORIZON
from distlog.core.kernels.batch_scan import HEADER_SIZE as HEADER_SIZE
from distlog.core.kernels.batch_scan import LOG_OVERHEAD as LOG_OVERHEAD
from distlog.core.kernels.batch_scan import TRANSACTIONAL as TRANSACTIONAL
from distlog.core.kernels.crc import first_mismatch
from distlog.core.kernels.native.crc_instruction import HAS_INSTRUCTION

HEADER = struct.Struct(">qiibIhiqqqhii")
CRC_AT, LEGACY_CRC_START = 17, 16
#: A kernel computes the checksums of batches below this size, all in one call: a call for each would cost more.
#: With the processor's instruction the kernel is as fast for any size.
SHORT_BATCH = MAX_LONG if HAS_INSTRUCTION else 1024

#: Types of control records, the second int16 of their key.
ABORT, COMMIT, LEADER_CHANGE, SNAPSHOT_HEADER, SNAPSHOT_FOOTER, KRAFT_VERSION, KRAFT_VOTERS = range(7)

#: Values of the column `timestamp_type`.
NO_TIMESTAMP, CREATE_TIME, LOG_APPEND_TIME = -1, 0, 1

HEADERS_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
SCHEMA = pa.schema(
    [
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("ms", "UTC")),
        ("timestamp_type", pa.int32()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS_TYPE),
    ]
)
COLUMNS = tuple(SCHEMA.names)

_COMPLAINTS = {
    BAD_LENGTH: "a record batch is shorter than any batch can be",
    BAD_MAGIC: "a record batch has an unknown format; a newer Kafka may have written it",
    BAD_SIZE: "a record batch is shorter than its header",
    BAD_OFFSETS: "a record batch has a negative offset, or a last one before its first",
    BAD_COUNT: "a record batch has a negative number of records",
}


def read_headers(
    data: Any, *, start: int = 0, end: int | None = None, file: str = "", file_position: int = 0
) -> np.ndarray:
    """The headers of the whole batches in data[start:end] as BATCH rows; `position` is relative to `data`.

    A partial batch at the end is left out. No checksum is checked. A compressed message of format 0 or 1 is
    decompressed, since its header tells neither its first offset nor its number of records.
    Raises CorruptRecordError for an impossible length, format, offset or count. `file_position` is the position of
    data[0] in the file.
    """
    array = byte_array(data)
    if start < 0:
        raise ValueError("start must be a position in data")
    source = Source(file, file_position)
    status, position, count = count_batches(array, start, array.size if end is None else min(end, array.size))
    if status != OK:
        raise CorruptRecordError(_COMPLAINTS[status], file=file or None, position=file_position + position)
    batches = np.zeros(count, BATCH)
    status, index = read_batches(array, start, batches)
    if status != OK:
        raise source.corrupt(_COMPLAINTS[status], index, batches[index])
    if count and batches["record_count"].min() < 0:
        resolve_wrappers(array, batches, source)
    return batches


def check_crcs(data: Any, batches: np.ndarray, *, file: Any = "", file_position: Any = 0) -> None:
    """Compare each batch's checksum (CRC-32C; CRC-32 in formats 0 and 1) with its bytes.

    `file`, and `file_position` of data[0], may be given per batch. CorruptRecordError names the first bad batch.
    """
    bad = first_bad_crc(data, batches)
    if bad >= 0:
        raise wrong_crc(Source(file, file_position), bad, batches[bad])


def wrong_crc(source: Source, row: int, batch: Any) -> CorruptRecordError:
    """The error for batch number `row` of `source`, whose checksum is wrong; `batch` is its BATCH row."""
    return source.corrupt("a record batch fails its checksum: verify, then restore it from a copy", row, batch)


def first_bad_crc(data: Any, batches: np.ndarray) -> int:
    """The number of the first of `batches` whose checksum is not that of its bytes, or -1."""
    ends = batches["position"] + batches["size"]
    array = byte_array(data)
    if len(batches) and (batches["position"].min() < 0 or ends.max() > array.size):
        raise ValueError("these batches are not of this data")
    others = (batches["size"] >= SHORT_BATCH) | (batches["magic"] != 2)
    found = (first_mismatch(array, batches, SHORT_BATCH, CRC_START), _first_bad(data, batches, others))
    return min((row for row in found if row >= 0), default=-1)


def _first_bad(data: Any, batches: np.ndarray, chosen: np.ndarray) -> int:
    view, rows = memoryview(data), np.flatnonzero(chosen)
    fields = (batches[name][rows].tolist() for name in ("position", "size", "magic", "crc"))
    for row, position, size, magic, stored in zip(rows.tolist(), *fields, strict=True):
        if magic == 2:
            computed = crc32c(view[position + CRC_START : position + size])
        else:
            computed = zlib.crc32(view[position + LEGACY_CRC_START : position + size])
        if computed != stored:
            return int(row)
    return -1


def increment_sequence(sequence: int, count: Any) -> Any:
    """The producer's sequence number that comes `count` records (an int, or an array of ints) after `sequence`.

    A negative count goes back. After 2^31 - 1 comes 0 (`DefaultRecordBatch.incrementSequence`).
    """
    return (sequence + count) & MAX_INT
