"""The records of batches as a scan found them, for printing: where things are, and nothing copied."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from distlog.core.batches.legacy_batch import resolve_wrappers
from distlog.core.batches.record_batch import LEGACY_CRC_START
from distlog.core.batches.record_decoder import scan_sections
from distlog.core.batches.record_fields import RecordFields
from distlog.core.batches.record_sections import AskedBatches, open_sections
from distlog.core.batches.source import Source
from distlog.core.config import MAX_LONG, MIN_LONG
from distlog.core.errors import CorruptRecordError
from distlog.core.kernels.batch_scan import LEGACY_ENTRY_SIZES

Longs = npt.NDArray[np.int64]

#: Where the checksum of a message of formats 0 and 1 is.
_LEGACY_CRC = slice(12, 16)


@dataclass(frozen=True)
class Scanned:
    """The first `size` of `fields`, `counts` of them per batch, and the sections' bytes, `room` of `data`.

    `magic` is the format of all of them.
    """

    data: npt.NDArray[np.uint8]
    counts: Longs
    fields: RecordFields
    magic: int
    room: int

    @cached_property
    def size(self) -> int:
        """The number of records."""
        return int(self.counts.sum())

    @property
    def offsets(self) -> Longs:
        """The offset of each record."""
        return self.fields.offsets[: self.size]

    @property
    def timestamps(self) -> Longs:
        """The timestamp of each record in ms."""
        return self.fields.timestamps[: self.size]

    @cached_property
    def key_sizes(self) -> Longs:
        """The size of each key, -1 for null."""
        return _sizes(self.fields.key, self.size)

    @cached_property
    def value_sizes(self) -> Longs:
        """The size of each value, -1 for null."""
        return _sizes(self.fields.value, self.size)

    @cached_property
    def crcs(self) -> Longs:
        """The checksum in each message of formats 0 and 1."""
        if self.magic >= 2:
            return np.full(self.size, -1)
        stored = [entry[_LEGACY_CRC] for entry in self._entries()]
        return np.frombuffer(b"".join(stored), ">u4").astype(np.int64)

    @cached_property
    def crcs_hold(self) -> npt.NDArray[np.bool_]:
        """Whether each message of formats 0 and 1 has the checksum of its bytes."""
        if self.magic >= 2:
            return np.ones(self.size, bool)
        computed = [zlib.crc32(entry[LEGACY_CRC_START:]) for entry in self._entries()]
        holds: npt.NDArray[np.bool_] = np.array(computed, np.int64) == self.crcs
        return holds

    def _entries(self) -> list[memoryview]:
        key, value, view = self.fields.key, self.fields.value, self.data.data
        begins = key.positions[: self.size] - (LEGACY_ENTRY_SIZES[self.magic == 1] - 4)
        ends = value.positions[: self.size] + np.maximum(self.value_sizes, 0)
        return [view[begin:end] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]


def no_records(batches: npt.NDArray[Any]) -> Scanned:
    """What stands for the records of `batches` that are not wanted, or cannot be read."""
    counts = np.zeros(len(batches), np.int64)
    return Scanned(np.zeros(0, np.uint8), counts, RecordFields.allocate(0, ()), int(batches["magic"][0]), 0)


def scan(
    data: npt.NDArray[np.uint8], batches: npt.NDArray[Any], source: Source, columns: tuple[str, ...], enough: int
) -> tuple[Scanned, CorruptRecordError | None]:
    """The records of the first of `batches` (of one format), until they take `enough` bytes, with `columns`.

    With an error, which says what is wrong: if this is one batch, the records ahead of the first bad one, else none.
    """
    try:
        batches = batches.copy()
        resolve_wrappers(data, batches, source)
        asked = AskedBatches(data, batches, 0, 0, MIN_LONG, MAX_LONG, source)
        buffer, sections = open_sections(asked, enough)
    except CorruptRecordError as error:
        return no_records(batches), error
    room = int((sections["end"] - sections["start"]).sum())
    counts = sections["record_count"].copy()
    fields = RecordFields.allocate(int(counts.sum()), columns)
    magic = int(batches["magic"][0])
    try:
        scan_sections(asked, buffer, sections, fields)
    except CorruptRecordError as error:
        readable = error.details["record"] if len(batches) == 1 else 0
        return Scanned(buffer, np.array([readable] * len(batches)), fields, magic, room), error
    return Scanned(buffer, counts, fields, magic, room), None


def _sizes(slices: Any, count: int) -> Longs:
    sizes = np.diff(slices.offsets[: count + 1]).astype(np.int64)
    return np.where(slices.valid[:count], sizes, -1)
