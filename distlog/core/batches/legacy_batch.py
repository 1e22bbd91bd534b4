"""Message formats 0 and 1, read only (Kafka's `AbstractLegacyRecordBatch`, `LegacyRecord`).

    0   int64   offset                      18  int64  timestamp, in format 1 only
    8   int32   bytes after this field      ..  int32  length of the key, -1: null
    12  uint32  CRC-32 of all after it      ..         key
    16  int8    magic: 0 or 1               ..  int32  length of the value, -1: null
    17  int8    attributes                  ..         value

An uncompressed entry is a batch of one record. A compressed entry is a wrapper: its value decompresses to entries,
and its offset is that of the last of them. Offsets inside are absolute in format 0, and count from the first in
format 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from distlog.core.batches import compression
from distlog.core.batches.source import Source
from distlog.core.buffers import byte_array
from distlog.core.config import MAX_INT
from distlog.core.errors import CorruptRecordError
from distlog.core.kernels.batch_scan import CODEC_MASK, LEGACY_ENTRY_SIZES
from distlog.core.kernels.legacy_scan import count_entries


@dataclass(frozen=True, slots=True)
class Wrapper:
    """The `record_count` entries of a wrapper; add `base_offset` to the offsets that are stored in them."""

    entries: np.ndarray
    record_count: int
    base_offset: int
    first_offset: int
    last_offset: int


def open_wrapper(data: np.ndarray, batch: Any, *, limit: int = compression.MAX_RECORDS_BYTES) -> Wrapper:
    """Decompress the wrapper that `batch`, a BATCH row, locates in `data`, to at most `limit` bytes.

    Raises CorruptRecordError, without file and position, when there is no value, it is malformed, or has no record.
    """
    magic, wrapper_offset = int(batch["magic"]), int(batch["base_offset"]) + int(batch["last_offset_delta"])
    value = _wrapped_value(data.data[batch["position"] : batch["position"] + batch["size"]], magic)
    codec = int(batch["attributes"]) & CODEC_MASK
    if codec == compression.ZSTD:
        raise CorruptRecordError("zstd does not exist in message formats 0 and 1")
    entries = byte_array(compression.decompress(codec, value, limit=limit, magic=magic))
    status, count, first, last = count_entries(entries, 0, entries.size)
    if status or count == 0:
        raise CorruptRecordError("a compressed message holds no record, or a malformed one")
    base_offset = _inner_base(magic, wrapper_offset, last)
    if not 0 <= last - first <= MAX_INT or base_offset + first < 0:
        raise CorruptRecordError("the offsets in a compressed message do not increase")
    return Wrapper(entries, count, base_offset, base_offset + first, base_offset + last)


def resolve_wrappers(data: np.ndarray, batches: np.ndarray, source: Source) -> None:
    """Fill in first offset, last offset delta and record count in the rows of wrappers, whose headers lack them."""
    for row in np.flatnonzero(batches["record_count"] < 0).tolist():
        batch = batches[row]
        try:
            wrapper = open_wrapper(data, batch)
        except CorruptRecordError as error:
            raise source.corrupt(error.message, row, batch, **error.details) from error
        batch["base_offset"] = wrapper.first_offset
        batch["last_offset_delta"] = wrapper.last_offset - wrapper.first_offset
        batch["record_count"] = wrapper.record_count


def _wrapped_value(entry: memoryview, magic: int) -> memoryview:
    key_at = LEGACY_ENTRY_SIZES[magic] - 4
    key_size = int.from_bytes(entry[key_at - 4 : key_at], "big", signed=True)
    value_at = key_at + max(key_size, 0) + 4
    value_size = int.from_bytes(entry[value_at - 4 : value_at], "big", signed=True)
    if value_size < 0 or value_at + value_size != len(entry):
        raise CorruptRecordError("a compressed message has no value, or one that does not fill it")
    return entry[value_at:]


def _inner_base(magic: int, wrapper_offset: int, last: int) -> int:
    # An old librdkafka left the wrapper's offset at 0; Kafka then uses the inner offsets as they are.
    if magic == 0 or wrapper_offset == 0:
        return 0
    if wrapper_offset < last:
        raise CorruptRecordError("the offset of a compressed message is below that of its last record")
    return wrapper_offset - last
