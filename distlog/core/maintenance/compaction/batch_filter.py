"""Filters the batches of a chunk and gives those that stay (Kafka's `cleanInto` and `MemoryRecords.filterTo`).

A batch that loses no record is copied as it is. A batch that loses some records keeps its base offset, last offset
and base sequence. A batch that loses all records is dropped, or stays as 61 bytes if its offsets or its producer's
sequence matter. A tombstone first gets a delete horizon (KIP-534), which is `delete.retention.ms` from now; so does a
marker with nothing left to mark. A compaction at or after that horizon drops it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from distlog.core.batches.record_batch import (
    APPEND_TIME,
    CONTROL,
    DELETE_HORIZON,
    HEADER_SIZE,
    TRANSACTIONAL,
)
from distlog.core.batches.rewritten_batches import Flags, Longs, RecordBytes, lay_out
from distlog.core.buffers import byte_array
from distlog.core.kernels.record_filter import KEPT, choose_records
from distlog.core.maintenance.compaction.batch_verdicts import Verdicts
from distlog.core.maintenance.compaction.scanned_records import ScannedRecords, scan_records
from distlog.core.maintenance.compaction.survivors import Survivors
from distlog.core.reading.chunks.chunk import Chunk

_COLUMNS = ("key", "value")
_KEPT_WHEN_EMPTY = APPEND_TIME | TRANSACTIONAL | CONTROL


@dataclass(frozen=True, slots=True)
class FilteredBatches:
    """Batches (BATCH rows) back to back in `data`, and per batch the stored offset of its largest timestamp.

    That offset is -1 if no record has the timestamp: an emptied batch keeps its time. `unchanged` says that the
    batches are those that went in. `unkeyed` is the number of records dropped because they have no key.
    """

    data: npt.NDArray[np.uint8]
    batches: np.ndarray
    offsets_of_max_timestamp: Longs
    unchanged: bool
    unkeyed: int


@dataclass(frozen=True, slots=True)
class BatchFilter:
    """Decides which records and batches stay; times are in ms, offsets are absolute.

    Cleaning ends at `end_offset`; the batch that ends there stays even if it is empty.
    """

    survivors: Survivors
    verdicts: Verdicts
    end_offset: int
    now_ms: int
    delete_retention_ms: int

    def apply(self, chunk: Chunk) -> Iterator[FilteredBatches]:
        """The batches that stay of a checked chunk of one piece; in parts if batches are compressed.

        Raises CorruptRecordError.
        """
        fates = self._fates(chunk)
        start, rows = 0, np.flatnonzero(~fates.discarded & (chunk.batches["record_count"] > 0))
        while start < len(chunk.batches):
            scanned = scan_records(chunk, rows, _COLUMNS) if len(rows) else None
            done, rows = np.split(rows, [len(scanned.sections) if scanned else 0])
            end = int(rows[0]) if len(rows) else len(chunk.batches)
            choice = self._choose(chunk.batches[start:end], fates.part(start, end), done - start, scanned)
            yield _write(chunk, choice, scanned)
            start = end

    def _fates(self, chunk: Chunk) -> _Fates:
        batches = chunk.batches
        base_offsets = batches["base_offset"] + chunk.pieces[0].slice.segment.shift
        ends = base_offsets + batches["last_offset_delta"] + 1
        control = batches["attributes"] & CONTROL != 0
        has_horizon = batches["attributes"] & DELETE_HORIZON != 0
        expired = has_horizon & (batches["base_timestamp"] <= self.now_ms)
        discardable = self.verdicts.discardable(base_offsets)
        return _Fates(
            base_offsets=base_offsets,
            discarded=discardable & (expired | ~control),
            stays_empty=self.verdicts.last(base_offsets) | (ends == self.end_offset),
            control=control,
            has_horizon=has_horizon,
            expired=expired,
            obsolete=discardable & control,
        )

    def _choose(
        self, batches: np.ndarray, fates: _Fates, read: npt.NDArray[np.intp], scanned: ScannedRecords | None
    ) -> _Choice:
        """Decide on `batches`; `read` are the numbers of those whose records were scanned."""
        kept = np.zeros(len(batches), KEPT)
        keep, unkeyed = np.empty(0, bool), 0
        if scanned is not None:
            keep = np.empty(scanned.count, bool)
            chosen = np.empty(len(read), KEPT)
            unkeyed = choose_records(
                scanned.sections["emitted"].copy(),
                fates.control[read],
                fates.expired[read],
                self.survivors.latest_offset,
                self.survivors.current(scanned),
                scanned.keyed,
                scanned.fields.value.valid[: scanned.count],
                scanned.offsets,
                scanned.timestamps,
                keep,
                chosen,
            )
            kept[read] = chosen
        some = kept["records"] > 0
        wants_horizon = some & ~fates.has_horizon & ((kept["tombstones"] > 0) | fates.obsolete)
        whole = some & (kept["records"] == batches["record_count"]) & ~wants_horizon & ~_mistimed(batches, kept)
        headers = batches.copy()
        headers["record_count"] = kept["records"]
        _set_times(headers, kept, some & ~whole, wants_horizon, self.now_ms + self.delete_retention_ms)
        emptied = ~some & fates.stays_empty
        _empty(headers, emptied)
        offsets_of_max = np.where(some, kept["offset_of_max"], -1)
        unchanged = bool((whole | (emptied & (batches["record_count"] == 0))).all())
        return _Choice(headers, kept, keep, read, whole, some & ~whole, emptied, offsets_of_max, unchanged, unkeyed)


@dataclass(frozen=True, slots=True)
class _Fates:
    """Per batch, what is known without its records: whether all are `discarded`, whether it stays if empty, ..."""

    base_offsets: Longs
    discarded: Flags
    stays_empty: Flags
    control: Flags
    has_horizon: Flags
    expired: Flags
    obsolete: Flags

    def part(self, start: int, end: int) -> _Fates:
        return _Fates(*(getattr(self, spec.name)[start:end] for spec in fields(self)))


@dataclass(frozen=True, slots=True)
class _Choice:
    """Per batch: its new header, what is kept (KEPT), and whether it is copied, rewritten, emptied, or dropped.

    `keep` has a flag per record of the batches that were `read`.
    """

    headers: np.ndarray
    kept: np.ndarray
    keep: Flags
    read: npt.NDArray[np.intp]
    whole: Flags
    rewritten: Flags
    emptied: Flags
    offsets_of_max: Longs
    unchanged: bool
    unkeyed: int


def _mistimed(batches: np.ndarray, kept: np.ndarray) -> Flags:
    """The batches whose largest timestamp in the header is not that of their kept records."""
    by_record = batches["attributes"] & APPEND_TIME == 0
    wrong: Flags = by_record & (batches["max_timestamp"] != kept["max_timestamp"])
    return wrong


def _set_times(
    headers: np.ndarray, kept: np.ndarray, rewritten: Flags, wants_horizon: Flags, horizon_ms: int
) -> None:
    by_record = rewritten & (headers["attributes"] & APPEND_TIME == 0)
    headers["max_timestamp"][by_record] = kept["max_timestamp"][by_record]
    first = rewritten & (headers["attributes"] & DELETE_HORIZON == 0)
    headers["base_timestamp"][first] = kept["first_timestamp"][first]
    headers["base_timestamp"][wants_horizon] = horizon_ms
    headers["attributes"][wants_horizon] |= DELETE_HORIZON


def _empty(headers: np.ndarray, emptied: Flags) -> None:
    headers["size"][emptied] = HEADER_SIZE
    headers["base_timestamp"][emptied] = -1
    headers["attributes"][emptied] &= _KEPT_WHEN_EMPTY


def _write(chunk: Chunk, choice: _Choice, scanned: ScannedRecords | None) -> FilteredBatches:
    """Write the batches that stay, in their order."""
    stays = choice.whole | choice.emptied | choice.rewritten
    data, batches = lay_out(
        byte_array(chunk.data),
        choice.headers,
        choice.whole,
        choice.emptied,
        choice.rewritten,
        _records(choice, scanned),
    )
    offsets_of_max = np.where(batches["max_timestamp"] < 0, -1, choice.offsets_of_max[stays])
    return FilteredBatches(data, batches, offsets_of_max, choice.unchanged, choice.unkeyed)


def _records(choice: _Choice, scanned: ScannedRecords | None) -> RecordBytes:
    """The records of the rewritten batches, compressed at the codec's default level, as Kafka does it."""
    rows = np.flatnonzero(choice.rewritten)
    if scanned is None or len(rows) == 0:
        return RecordBytes()
    headers, first_records = choice.headers[rows], choice.kept["first_record"][rows]
    sections = scanned.sections[np.searchsorted(choice.read, rows)]
    rewritten, ends = scanned.rewritten(
        sections, first_records, sections["base_offset"], headers["base_timestamp"], choice.keep
    )
    starts = np.append(0, ends[:-1])
    return RecordBytes(rewritten, starts, ends - starts).compressed(headers, {})
