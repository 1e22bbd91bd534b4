"""Lays out batches, of which some are copied and others have new records: what compaction and merging write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from distlog.core.batches import compression
from distlog.core.batches.record_batch import CODEC_MASK, HEADER_SIZE
from distlog.core.batches.record_encoder import write_headers
from distlog.core.buffers import byte_array, new_array
from distlog.core.kernels.record_filter import copy_slices

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_NONE: Longs = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class RecordBytes:
    """The records of some batches, as they stand behind the headers: `sizes` bytes of `data` from `starts` on."""

    data: Bytes = field(default_factory=lambda: np.zeros(0, np.uint8))
    starts: Longs = field(default_factory=lambda: _NONE)
    sizes: Longs = field(default_factory=lambda: _NONE)

    def compressed(self, batches: np.ndarray, levels: Mapping[int, int | None]) -> RecordBytes:
        """The same for these BATCH rows, which name the codecs; a codec without a level has its default."""
        codecs = batches["attributes"] & CODEC_MASK
        if not codecs.any():
            return self
        rows = zip(codecs.tolist(), self.starts.tolist(), (self.starts + self.sizes).tolist(), strict=True)
        parts = [compression.compress(codec, self.data[start:end], levels.get(codec)) for codec, start, end in rows]
        sizes = np.array([len(part) for part in parts], np.int64)
        return RecordBytes(byte_array(b"".join(parts)), np.cumsum(sizes) - sizes, sizes)

    def of_rows(self, rows: Flags) -> RecordBytes:
        """Those of some of the batches."""
        return RecordBytes(self.data, self.starts[rows], self.sizes[rows])


def lay_out(
    source: Bytes, headers: np.ndarray, whole: Flags, emptied: Flags, rewritten: Flags, records: RecordBytes
) -> tuple[Bytes, np.ndarray]:
    """The batches that stay, back to back, and their BATCH rows.

    Of `headers`, one BATCH row for each batch of `source`, the `whole` ones are copied from there, the `emptied` ones
    are a header alone, the `rewritten` ones get the `records`; all others are left out.
    """
    stays = whole | emptied | rewritten
    batches = headers[stays]
    batches["size"][rewritten[stays]] = HEADER_SIZE + records.sizes
    batches["position"] = np.cumsum(batches["size"]) - batches["size"]
    data = new_array(int(batches["size"].sum()), np.uint8)
    copied = batches[whole[stays]]
    copy_slices(data, copied["position"].copy(), source, headers["position"][whole], copied["size"].copy())
    places = batches["position"][rewritten[stays]] + HEADER_SIZE
    copy_slices(data, places, records.data, records.starts, records.sizes)
    changed = batches[~whole[stays]]
    write_headers(data.data, changed)
    batches[~whole[stays]] = changed
    return data, batches
