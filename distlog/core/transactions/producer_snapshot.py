"""The producer snapshot, `<offset>.snapshot`: what Kafka knew of each producer before that offset.

    position | type | field
    0        | i16  | version, 1
    2        | u32  | CRC-32C of all that follows
    6        | i32  | number of entries, 46 bytes each
    entry 0  | i64  | producer id
    entry 8  | i16  | epoch
    entry 10 | i32  | sequence number of its last record, -1: none
    entry 14 | i64  | offset of its last record, -1: none
    entry 22 | i32  | offset delta of its last batch
    entry 26 | i64  | timestamp of its last batch
    entry 34 | i32  | epoch of the coordinator that ended its last transaction, -1: none
    entry 38 | i64  | first offset of its open transaction, -1: none

Everything is big-endian (Kafka's `ProducerStateManager`). Kafka remembers five batches per producer; only the last
one is in this file.
"""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from distlog.core.errors import CorruptIndexError

ENTRY = np.dtype(
    [
        ("producer_id", ">i8"),
        ("producer_epoch", ">i2"),
        ("last_sequence", ">i4"),
        ("last_offset", ">i8"),
        ("offset_delta", ">i4"),
        ("last_timestamp", ">i8"),
        ("coordinator_epoch", ">i4"),
        ("transaction_first_offset", ">i8"),
    ]
)
_VERSION = 1
_HEADER = struct.Struct(">hIi")
_CRC_START = 6


def read_producer_snapshot(data: bytes, *, file: str = "") -> npt.NDArray[np.void]:
    """The entries (ENTRY rows) of the snapshot `data`.

    Raises CorruptIndexError if the snapshot has another version, is cut off, or does not match its checksum. Kafka
    then takes the snapshot before it.
    """
    if len(data) < _HEADER.size:
        raise CorruptIndexError("a producer snapshot is cut off: delete it", file=file or None)
    version, crc, count = _HEADER.unpack_from(data)
    if version != _VERSION or crc != crc32c(data[_CRC_START:]) or count * ENTRY.itemsize != len(data) - _HEADER.size:
        raise CorruptIndexError("a producer snapshot is corrupt: delete it", file=file or None, version=version)
    return np.frombuffer(data, ENTRY, offset=_HEADER.size)


def write_producer_snapshot(entries: npt.NDArray[np.void]) -> bytes:
    """The bytes of the file that holds `entries`, ENTRY rows."""
    body = struct.pack(">i", len(entries)) + entries.astype(ENTRY).tobytes()
    return struct.pack(">hI", _VERSION, crc32c(body)) + body
