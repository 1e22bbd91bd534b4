"""Lays out batches of other batches' records, for compaction, merging and the upgrade of old formats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from distlog.core.arrays import byte_array, new_array, numbers_of
from distlog.core.format import compression
from distlog.core.format.kernels.record_write import copy_slices
from distlog.core.format.record_batch import APPEND_TIME, CODEC_MASK, HEADER_SIZE
from distlog.core.format.record_decoder import decode
from distlog.core.format.record_encoder import encode, write_headers
from distlog.core.integers import MAX_INT

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_NONE: Longs = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class RecordBytes:
    """The records of batches without the headers: `sizes` bytes of `data` from `starts`."""

    data: Bytes = field(default_factory=lambda: np.zeros(0, np.uint8))
    starts: Longs = field(default_factory=lambda: _NONE)
    sizes: Longs = field(default_factory=lambda: _NONE)

    def compressed(self, batches: np.ndarray, levels: Mapping[int, int | None]) -> RecordBytes:
        """Compress the records by the codecs of BATCH rows; a codec without a level has its default."""
        codecs = batches["attributes"] & CODEC_MASK
        if not codecs.any():
            return self
        rows = zip(codecs.tolist(), self.starts.tolist(), (self.starts + self.sizes).tolist(), strict=True)
        parts = [compression.compress(codec, self.data[start:end], levels.get(codec)) for codec, start, end in rows]
        sizes = np.array([len(part) for part in parts], np.int64)
        return RecordBytes(byte_array(b"".join(parts)), np.cumsum(sizes) - sizes, sizes)

    def of_rows(self, rows: Flags) -> RecordBytes:
        return RecordBytes(self.data, self.starts[rows], self.sizes[rows])


def lay_out(
    source: Bytes, headers: np.ndarray, copied: Flags, emptied: Flags, rewritten: Flags, records: RecordBytes
) -> tuple[Bytes, np.ndarray]:
    """Return the batches that stay, back to back, and their BATCH rows.

    `headers` has the batches of `source`. `copied_batches` batches stay unchanged, `emptied` batches become a header
    alone, `rewritten` batches get the `records`; other batches are dropped.
    """
    stays = copied | emptied | rewritten
    batches = headers[stays]
    batches["size"][rewritten[stays]] = HEADER_SIZE + records.sizes
    batches["position"] = np.cumsum(batches["size"]) - batches["size"]
    data = new_array(int(batches["size"].sum()), np.uint8)
    copied_batches = batches[copied[stays]]
    copy_slices(
        data, copied_batches["position"].copy(), source, headers["position"][copied], copied_batches["size"].copy()
    )
    targets = batches["position"][rewritten[stays]] + HEADER_SIZE
    copy_slices(data, targets, records.data, records.starts, records.sizes)
    changed = batches[~copied[stays]]
    write_headers(data.data, changed)
    batches[~copied[stays]] = changed
    return data, batches


# As Kafka's cleaner since 4.0, this rewrites formats 0 and 1. Records of format 0 get the timestamp -1 of type
# CreateTime.

_COLUMNS = ("offset", "timestamp", "key", "value")
_BATCH_BYTES = 1 << 17

Rows = npt.NDArray[Any]


def upgraded(data: Any, batches: Rows, *, file: str = "", file_position: int = 0) -> tuple[memoryview, Rows]:
    """Convert `batches`, which fill `data`, to format 2; returns the bytes and BATCH rows.

    Messages of formats 0 and 1 become batches of about 128 KiB, at the same offsets; a compressed message becomes a
    batch. `file_position` is the position of data[0].
    """
    view, parts = byte_array(data).data, list[tuple[memoryview, Rows]]()
    old = batches["magic"] < 2
    starts = np.flatnonzero(np.diff(old, prepend=~old[:1]))
    for start, end in zip(starts.tolist(), [*starts[1:].tolist(), len(batches)], strict=True):
        run = batches[start:end]
        if old[start]:
            parts += _upgraded(data, run, file, file_position)
        else:
            low, high = int(run["position"][0]), int(run["position"][-1] + run["size"][-1])
            parts.append((view[low:high], run))
    rows = np.concatenate([batches for _, batches in parts])
    rows["position"] = np.cumsum(rows["size"]) - rows["size"]
    return memoryview(b"".join(data for data, _ in parts)), rows


def _upgraded(data: Any, batches: Rows, file: str, file_position: int) -> list[tuple[memoryview, Rows]]:
    records = decode(data, batches, columns=_COLUMNS, file=file, file_position=file_position)
    offsets = numbers_of(records.column(0))
    owner = np.repeat(np.arange(len(batches)), batches["record_count"])
    # a batch has records with adjacent offsets, no codec, and create times
    alone = (batches["attributes"] & (CODEC_MASK | APPEND_TIME) != 0)[owner]
    begins = (np.diff(offsets, prepend=-1) != 1) | (alone & (np.diff(owner, prepend=-1) != 0))
    begins |= np.diff(alone, prepend=~alone[:1])
    firsts = np.flatnonzero(begins)
    ends = [*firsts[1:].tolist(), len(offsets)]
    return [
        _encoded(records.slice(first, end - first), int(offsets[first]), batches[owner[first]])
        for first, end in zip(firsts.tolist(), ends, strict=True)
    ]


def _encoded(records: pa.RecordBatch, base_offset: int, batch: Any) -> tuple[memoryview, Rows]:
    codec, by_append = int(batch["attributes"]) & CODEC_MASK, bool(batch["attributes"] & APPEND_TIME)
    time_ms = int(batch["max_timestamp"])
    encoded = encode(
        records,
        base_offset,
        codec=codec,
        # a compressed message stays one batch of any size
        batch_bytes=MAX_INT if codec else _BATCH_BYTES,
        max_batch_bytes=MAX_INT,
        append_time=(lambda: time_ms) if by_append else None,
    )
    return encoded.data, encoded.batches
