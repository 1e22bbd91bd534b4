"""The records of batches as a scan found them, for printing: where things are, and nothing copied."""

from __future__ import annotations

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
from distlog.core.buffers import byte_array
from distlog.core.config import MAX_LONG, MIN_LONG
from distlog.core.errors import CorruptRecordError
from distlog.core.kernels.batch_scan import LEGACY_ENTRY_SIZES
from distlog.core.kernels.crc_verdicts import find_valid_messages

Longs = npt.NDArray[np.int64]

#: Where the checksum of a message of formats 0 and 1 is.
_LEGACY_CRC_AT = 12


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
    def checksums(self) -> tuple[Longs, npt.NDArray[np.bool_]]:
        """The checksum in each message of formats 0 and 1, and whether it is that of the message's bytes."""
        crcs, holds = np.full(self.size, -1), np.ones(self.size, bool)
        if self.magic < 2:
            starts = self.fields.key.positions[: self.size] - (LEGACY_ENTRY_SIZES[self.magic == 1] - 4)
            ends = self.fields.value.positions[: self.size] + np.maximum(self.value_sizes, 0)
            find_valid_messages(self.data, starts, ends, _LEGACY_CRC_AT, LEGACY_CRC_START, crcs, holds)
        return crcs, holds


def no_records(batches: npt.NDArray[Any]) -> Scanned:
    """What stands for the records of `batches` that are not wanted, or cannot be read."""
    counts = np.zeros(len(batches), np.int64)
    return Scanned(byte_array(b""), counts, RecordFields.allocate(0, ()), int(batches["magic"][0]), 0)


def scan(
    data: npt.NDArray[np.uint8], batches: npt.NDArray[Any], source: Source, columns: tuple[str, ...], enough: int
) -> tuple[Scanned, CorruptRecordError | None]:
    """The records of the first of `batches` (of one format), until they take `enough` bytes, with `columns`.

    With an error, which says what is wrong: if this is one batch, the records ahead of the first bad one, else none.
    """
    try:
        batches = _readable(data, batches, source)
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


def _readable(data: npt.NDArray[np.uint8], batches: npt.NDArray[Any], source: Source) -> npt.NDArray[Any]:
    """`batches` with what a decoder needs to know of them; as in Kafka, later formats are read as format 2."""
    found = batches.copy()
    found["magic"] = np.minimum(found["magic"], 2)
    if found["magic"][0] < 2:
        resolve_wrappers(data, found, source)
    negative = np.flatnonzero(found["record_count"] < 0)
    if len(negative):
        row = int(negative[0])
        raise source.corrupt("a batch has a negative number of records", row, batches[row])
    return found


def _sizes(slices: Any, count: int) -> Longs:
    sizes = np.diff(slices.offsets[: count + 1]).astype(np.int64)
    return np.where(slices.valid[:count], sizes, -1)
