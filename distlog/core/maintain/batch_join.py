"""Joins the small batches that small appends left, into batches of nearly `batch.bytes`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from distlog.core.commits.segment_table import NO_OFFSET, SegmentInfo, SegmentTable
from distlog.core.config import TopicConfig
from distlog.core.format.compression import CODEC_NAMES
from distlog.core.format.kernels.batch_scan import cut_runs
from distlog.core.format.record_batch import CODEC_MASK, HEADER_SIZE
from distlog.core.format.record_decoder import BatchSelection
from distlog.core.format.rewritten_batches import Bytes, Flags, Longs, RecordBytes, lay_out
from distlog.core.format.transaction_index import AbortedTransaction
from distlog.core.maintain.group_rewrite import FilteredBatches
from distlog.core.maintain.record_keys import ScannedRecords, scan_records
from distlog.core.segments.chunks import Chunk
from distlog.core.segments.segment_writer import compression_level, largest_batch, usual_batch

# A read takes time for each batch, so ten thousand micro-batches would be read more slowly than one large append.
# Records keep their offsets, times, keys, values and headers, and batches keep their codec. Only batches of plain
# records are joined: no transactions, no producer with an id, no control batch, no delete horizon, and no
# LogAppendTime, of which a batch has one for all its records.


#: A batch is small if its records are at most this part of `batch.bytes`. So no record is often written again.
_SMALL_PART = 2
#: How many times as large compressed records are taken to be, until they are opened.
_EXPANSION = 4


@dataclass(frozen=True, slots=True)
class BatchJoin:
    """The filter that keeps all: joins batches while their uncompressed records are about `usual_bytes`."""

    usual_bytes: int
    largest: int
    levels: Mapping[int, int | None]
    aborted: Sequence[AbortedTransaction] = ()
    keeps_all: ClassVar[bool] = True

    @classmethod
    def of(cls, config: TopicConfig, aborted: Sequence[AbortedTransaction] = ()) -> BatchJoin:
        """By the topic's `batch.bytes`, `max.message.bytes` and levels of compression."""
        levels = {codec: compression_level(config, name) for codec, name in enumerate(CODEC_NAMES)}
        return cls(usual_batch(config), largest_batch(config), levels, aborted)

    def described(self, output: SegmentInfo, inputs: SegmentTable) -> SegmentInfo:
        transactional, newest = transactional_of(inputs), int(np.argmax(inputs.max_timestamps))
        return dataclasses.replace(
            output,
            offset_of_max_timestamp=int(inputs.array("offset_of_max_timestamp")[newest]),
            compacted=bool(inputs.array("compacted").any()),
            has_transactions=bool(transactional),
            first_unstable_offset=transactional[-1].first_unstable_offset if transactional else NO_OFFSET,
        )

    def apply(self, chunk: Chunk) -> Iterator[FilteredBatches]:
        """Yield all batches of a checked chunk, small ones joined; in parts if they are compressed."""
        segments = [part.slice.segment for part in chunk.ranges]
        shifts = np.full(len(chunk.batches), chunk.per_batch(segment.shift for segment in segments))
        oldest = np.full(len(shifts), chunk.per_batch(segment.min_timestamp for segment in segments))
        for filtered, _ in self.joined(chunk.selection(), chunk.batches["base_offset"] + shifts, oldest):
            yield filtered

    def joined(
        self, source: BatchSelection, base_offsets: Longs, oldest: Longs, begins: Flags | None = None
    ) -> Iterator[tuple[FilteredBatches, Longs]]:
        """Yield all batches of `source`, joined, in parts, with the number of the first input batch of each.

        They are at `base_offsets`, with no record older than `oldest`. A batch that `begins` a group is not joined to
        earlier ones.
        """
        batches, start = source.batches, 0
        joins = self._joins(batches, base_offsets)
        if begins is not None:
            joins &= ~begins
        rows = np.flatnonzero(joins | np.append(joins[1:], False))
        while start < len(batches):
            scanned = scan_records(source, rows, ()) if len(rows) else None
            scanned_rows, rows = np.split(rows, [len(scanned.sections) if scanned else 0])
            end = int(rows[0]) if len(rows) else len(batches)
            part = _Adjacent(batches[start:end], base_offsets[start:end], oldest[start:end])
            runs = self._runs(part, scanned_rows - start, joins[scanned_rows], scanned) if scanned else None
            filtered, stays = part.written(source.data, runs)
            yield filtered, start + stays
            start = end

    def _joins(self, batches: np.ndarray, base_offsets: Longs) -> Flags:
        compressed = batches["attributes"] & CODEC_MASK != 0
        room = np.where(compressed, self.usual_bytes // _EXPANSION, self.usual_bytes) // _SMALL_PART
        plain = (batches["magic"] == 2) & (batches["attributes"] & ~CODEC_MASK == 0) & (batches["producer_id"] < 0)
        ends = base_offsets + batches["last_offset_delta"] + 1
        plain &= (batches["record_count"] > 0) & (base_offsets + batches["record_count"] == ends)
        small = plain & (batches["size"] - HEADER_SIZE <= room)
        joins = np.zeros(len(batches), bool)
        joins[1:] = small[1:] & small[:-1] & (base_offsets[1:] == ends[:-1])
        for name in ("attributes", "leader_epoch"):
            joins[1:] &= batches[name][1:] == batches[name][:-1]
        return joins

    def _runs(self, part: _Adjacent, rows: Longs, joins: Flags, scanned: ScannedRecords) -> _Runs | None:
        """The runs of batches, of `rows` of the part, that become one batch each; None if there are none."""
        sizes = scanned.sections["end"] - scanned.sections["start"]
        firsts = np.empty(len(rows), np.int64)
        firsts = firsts[: cut_runs(joins, sizes, self.usual_bytes, firsts)]
        counts = np.diff(firsts, append=len(rows))
        several = counts > 1
        if not several.any():
            return None
        runs = _Runs.of(part, rows, firsts, counts, several, scanned, self.levels)
        # times that are far apart may take more room than the headers did: these batches do not change
        old_sizes = np.add.reduceat(part.batches["size"][rows], firsts)[several]
        return runs.only(HEADER_SIZE + runs.records.sizes <= np.minimum(old_sizes, self.largest))


@dataclass(frozen=True, slots=True)
class _Runs:
    """Runs of a part's batches [first, first + count), and of each its new header, records and smallest time."""

    firsts: Longs
    counts: Longs
    headers: np.ndarray
    records: RecordBytes
    min_timestamps: Longs

    @classmethod
    def of(
        cls,
        part: _Adjacent,
        rows: Longs,
        firsts: Longs,
        counts: Longs,
        several: Flags,
        scanned: ScannedRecords,
        levels: Mapping[int, int | None],
    ) -> _Runs:
        """The runs with `several` batches; `firsts` and `counts` are of all runs, in `rows`, which were scanned."""
        records = np.cumsum(scanned.sections["emitted"]) - scanned.sections["emitted"]
        begins, ends = records[firsts], np.append(records[firsts[1:]], scanned.count)
        headers = part.batches[rows[firsts]]
        headers["record_count"] = ends - begins
        headers["last_offset_delta"] = ends - begins - 1
        headers["base_timestamp"] = scanned.timestamps[begins]
        headers["max_timestamp"] = np.maximum.reduceat(scanned.timestamps, begins)
        oldest = np.minimum.reduceat(scanned.timestamps, begins)
        joined = np.repeat(several, counts)
        written, stops = scanned.rewritten(
            scanned.sections[joined],
            records[joined],
            np.repeat(part.base_offsets[rows[firsts]], counts)[joined],
            np.repeat(headers["base_timestamp"], counts)[joined],
            np.ones(scanned.count, bool),
        )
        stops = stops[np.cumsum(counts[several]) - 1]
        starts = np.append(0, stops[:-1])
        compressed = RecordBytes(written, starts, stops - starts).compressed(headers[several], levels)
        return cls(rows[firsts[several]], counts[several], headers[several], compressed, oldest[several])

    def only(self, is_chosen: Flags) -> _Runs:
        records = self.records.of_rows(is_chosen)
        return _Runs(
            self.firsts[is_chosen],
            self.counts[is_chosen],
            self.headers[is_chosen],
            records,
            self.min_timestamps[is_chosen],
        )


@dataclass(frozen=True, slots=True)
class _Adjacent:
    batches: np.ndarray
    base_offsets: Longs
    min_timestamps: Longs

    def written(self, source: Bytes, runs: _Runs | None) -> tuple[FilteredBatches, Longs]:
        """The bytes of the batches: the batches of `runs` are joined, and the others copied from `source`."""
        headers, oldest, records = self.batches.copy(), self.min_timestamps.copy(), RecordBytes()
        is_copied, first = np.ones(len(headers), bool), np.zeros(len(headers), bool)
        if runs is not None:
            inner = np.arange(runs.counts.sum()) - np.repeat(np.cumsum(runs.counts) - runs.counts, runs.counts)
            is_copied[np.repeat(runs.firsts, runs.counts) + inner] = False
            first[runs.firsts] = True
            headers[runs.firsts], oldest[runs.firsts], records = runs.headers, runs.min_timestamps, runs.records
        stays = np.flatnonzero(is_copied | first)
        data, batches = lay_out(source, headers, is_copied, np.zeros(len(headers), bool), first, records)
        base_offsets = self.base_offsets[stays]
        # the offset of the largest timestamp is needed for the segment only, not for each batch
        return FilteredBatches(data, batches, base_offsets, base_offsets, oldest[stays]), stays


def transactional_of(segments: SegmentTable) -> list[SegmentInfo]:
    """The segments with transactions; of the others, which may be many, no object is made."""
    return [segments[int(row)] for row in np.flatnonzero(segments.array("has_transactions"))]
