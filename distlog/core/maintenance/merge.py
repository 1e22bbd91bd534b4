"""Merges the small segments of a topic towards `segment.bytes`, and their small batches towards `batch.bytes`."""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import Any

import numpy as np
import pyarrow as pa

from distlog.core.arrays import byte_array
from distlog.core.batches.compression import CODEC_NAMES
from distlog.core.batches.record_batch import CODEC_MASK, HEADER_SIZE
from distlog.core.batches.rewritten_batches import Bytes, Flags, Longs, RecordBytes, lay_out
from distlog.core.commits.commit_log import TIMEOUT_S
from distlog.core.commits.segment_info import NO_OFFSET, SegmentInfo
from distlog.core.commits.segment_table import SegmentTable, join, to_segments
from distlog.core.commits.snapshot import PartitionState, Snapshot
from distlog.core.config import MAX_INT, TopicConfig
from distlog.core.display import Shown, counted
from distlog.core.indexes.offset_and_time_index import TIME_ENTRY
from distlog.core.indexes.transaction_index import AbortedTransaction
from distlog.core.kernels.batch_scan import cut_runs
from distlog.core.maintenance.compaction import Clean, CompactionReport, compact
from distlog.core.maintenance.group_rewrite import (
    OF_ITS_FILES,
    FilteredBatches,
    RewriteFailure,
    RewrittenGroup,
    RewrittenPartition,
    SegmentGroup,
    commit_rewrite,
    result_or_failure,
    rewrite_group,
)
from distlog.core.maintenance.record_keys import ScannedRecords, scan_records
from distlog.core.maintenance.run import Run, run_here, sums_of, table_of
from distlog.core.reading.chunks import Chunk
from distlog.core.reading.pipeline import whole_groups, whole_logs
from distlog.core.reading.segment_reader import SegmentReader
from distlog.core.segments.segment_writer import (
    LARGEST_PART,
    Bundles,
    compression_level,
    largest_batch,
    usual_batch,
)
from distlog.core.topic_handle import TopicHandle

# ---
# The report of a merge: as text for a person, as a table, and as JSON.


_MERGE = ("partition", "segments_before", "segments_after", "bytes", "records")


@dataclass(frozen=True, slots=True, repr=False)
class MergeReport(Shown):
    """The groups that were merged into one segment each, or would be with `dry_run`, and the groups that failed.

    `backlog` says how far merging is behind: the segments of `version` that are worth merging, as those that came
    meanwhile. `most_segments` is how many the partition with the most of them has.
    """

    version: int
    groups: tuple[SegmentGroup, ...]
    dry_run: bool
    failed: tuple[RewriteFailure, ...] = ()
    backlog: int = 0
    most_segments: int = 0

    @property
    def ok(self) -> bool:
        """True if every group that was worth it could be merged."""
        return not self.failed

    def __str__(self) -> str:
        sums = sums_of(self._rows(), "segments_before", "segments_after", "bytes")
        verb = "would merge" if self.dry_run else "merged"
        merged = f"{counted(sums['segments_before'], 'segment')} into {sums['segments_after']:,}"
        behind = [f"{counted(self.backlog, 'segment')} left to merge"] if self.backlog and not self.dry_run else []
        failed = (f"cannot merge {failure}" for failure in self.failed)
        return "; ".join([f"{verb} {merged}, {counted(sums['bytes'], 'byte')}", *behind, *failed])

    def to_table(self) -> pa.Table:
        """A row per partition with merged segments; it counts only these segments."""
        return table_of(self._rows(), _MERGE)

    def to_dict(self) -> dict[str, Any]:
        """The totals, the rows of the table, and the groups that cannot be merged."""
        rows, facts = self._rows(), {"version": self.version, "ok": self.ok, "dry_run": self.dry_run}
        facts |= {"backlog": self.backlog, "most_segments": self.most_segments}
        failed = [_failed_group(failure) for failure in self.failed]
        return {**facts, **sums_of(rows, *_MERGE[1:]), "partitions": rows, "failed": failed}

    def _rows(self) -> list[dict[str, int]]:
        groups: dict[int, list[SegmentGroup]] = defaultdict(list)
        for group in self.groups:
            groups[group.partition].append(group)
        return [
            {
                "partition": partition,
                "segments_before": sum(len(group.segments) for group in each),
                "segments_after": len(each),
                "bytes": sum(group.log_bytes for group in each),
                "records": sum(group.records for group in each),
            }
            for partition, each in sorted(groups.items())
        ]


def _failed_group(failure: RewriteFailure) -> dict[str, Any]:
    base_offset, next_offset = failure.offsets or (None, None)
    facts = {"partition": failure.partition, "base_offset": base_offset, "next_offset": next_offset}
    return {**facts, "reason": failure.reason}


# ---
# Plans which small segments are worth merging, in one pass over a partition's table.


def plan_merge(snapshot: Snapshot) -> list[SegmentGroup]:
    """The groups worth merging; none for a compacted topic, since compaction merges too.

    A group is adjacent segments that fit into one segment without a roll. The limits are `segment.bytes`,
    `segment.index.bytes`, and `segment.ms` counted from the first record's time, so that time retention still sees
    the ages it promises. A group is worth merging when its largest segment is at most half of its bytes. So each copy
    of a record is into a segment of at least twice the size. If one segment is more than half, the segments before it
    and those behind it are tried as groups.
    """
    if "compact" in snapshot.config.cleanup_policy:
        return []
    return [group for state in snapshot.partitions for group in _groups_of(state, snapshot.config)]


def _groups_of(state: PartitionState, config: TopicConfig) -> Iterator[SegmentGroup]:
    table, first = state.segments, state.segments.find(state.log_start_offset)
    sizes = table.log_bytes.tolist()
    for start, end in ranges(table, first, config):
        yield from (SegmentGroup(table.part(*worth)) for worth in worth_it(sizes, start, end))


@dataclass(slots=True)
class _Range:
    """The segments from number `start` on that fit into one segment so far."""

    start: int
    base_offset: int
    begin_ms: int
    size: int
    newest_ms: int
    records: int

    def takes(self, size: int, next_offset: int, newest_ms: int, records: int, config: TopicConfig) -> bool:
        """Take the next segment if it fits; returns whether it does."""
        size, records, newest_ms = self.size + size, self.records + records, max(newest_ms, self.newest_ms)
        if (
            size > config.segment_size
            or next_offset - self.base_offset > MAX_INT
            or newest_ms - self.begin_ms > config.segment_ms
            or _most_entries(size, records, config) >= config.segment_index_bytes // TIME_ENTRY.itemsize
        ):
            return False
        self.size, self.records, self.newest_ms = size, records, newest_ms
        return True


def _most_entries(log_bytes: int, records: int, config: TopicConfig) -> int:
    """The most entries that an index of the group can have: one per interval, and one per batch."""
    return min(log_bytes // (config.index_interval_bytes + 1), records)


def ranges(table: SegmentTable, first: int, config: TopicConfig) -> Iterator[tuple[int, int]]:
    """Ranges [start, end) of segments that fit into one, from the table's segment `first` on.

    The last range may end where the table does; then it may still grow.
    """
    group: _Range | None = None
    for number, row in enumerate(zip(*_columns(table, first), strict=True), first):
        size, base_offset, next_offset, oldest_ms, newest_ms, records = row
        fits = size < config.segment_size
        if group is not None and not (fits and group.takes(size, next_offset, newest_ms, records, config)):
            yield group.start, number
            group = None
        if group is None and fits:
            group = _Range(number, base_offset, oldest_ms, size, newest_ms, records)
    if group is not None:
        yield group.start, len(table)


def _columns(table: SegmentTable, first: int) -> Iterator[list[Any]]:
    """The columns that the plan needs, from segment `first` on; retention counts ages from the same times."""
    starts = table.array("first_timestamp")
    newest = np.where(table.max_timestamps >= 0, table.max_timestamps, table.array("created_ms"))
    oldest = np.where(starts >= 0, starts, newest)
    for column in (table.log_bytes, table.base_offsets, table.next_offsets, oldest, newest, table.record_counts):
        yield column[first:].tolist()


def worth_it(sizes: list[int], start: int, end: int, growth: int = 2) -> Iterator[tuple[int, int]]:
    """The groups worth merging in [start, end): groups of `growth` times the bytes of their largest segment, or more.

    A nested call gets a smaller part of the bytes, by at least one in `growth`, so few nest.
    """
    part = sizes[start:end]
    if len(part) < 2:
        return
    largest = max(part)
    if growth * largest <= sum(part):
        yield start, end
        return
    middle = start + part.index(largest)
    yield from worth_it(sizes, start, middle, growth)
    yield from worth_it(sizes, middle + 1, end, growth)


# ---
# Joins the small batches that small appends left, into batches of nearly `batch.bytes`.
#
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
    """The filter that keeps all: joins batches while their uncompressed records are about `usual_bytes`.

    None becomes larger than `largest`. `aborted` are the aborted transactions of the group.
    """

    usual_bytes: int
    largest: int
    levels: Mapping[int, int | None]
    aborted: Sequence[AbortedTransaction] = ()

    @classmethod
    def of(cls, config: TopicConfig, aborted: Sequence[AbortedTransaction] = ()) -> BatchJoin:
        """By the topic's `batch.bytes`, `max.message.bytes` and levels of compression."""
        levels = {codec: compression_level(config, name) for codec, name in enumerate(CODEC_NAMES)}
        return cls(usual_batch(config), largest_batch(config), levels, aborted)

    @property
    def keeps_all(self) -> bool:
        """True: no record goes."""
        return True

    def described(self, output: SegmentInfo, inputs: SegmentTable) -> SegmentInfo:
        """The segment with what is known of those that it replaces."""
        transactional, newest = _transactional(inputs), int(np.argmax(inputs.max_timestamps))
        return dataclasses.replace(
            output,
            offset_of_max_timestamp=int(inputs.array("offset_of_max_timestamp")[newest]),
            compacted=bool(inputs.array("compacted").any()),
            has_transactions=bool(transactional),
            first_unstable_offset=transactional[-1].first_unstable_offset if transactional else NO_OFFSET,
        )

    def apply(self, chunk: Chunk) -> Iterator[FilteredBatches]:
        """All batches of a checked chunk, some of them joined; in parts if they are compressed.

        Raises CorruptRecordError for records that cannot be read in a batch that should be joined.
        """
        segments = [piece.slice.segment for piece in chunk.pieces]
        shifts = np.full(len(chunk.batches), chunk.per_batch(each.shift for each in segments))
        base_offsets = chunk.batches["base_offset"] + shifts
        oldest = np.full(len(shifts), chunk.per_batch(each.min_timestamp for each in segments))
        joins = self._joins(chunk.batches, base_offsets)
        start, rows = 0, np.flatnonzero(joins | np.append(joins[1:], False))
        while start < len(chunk.batches):
            scanned = scan_records(chunk, rows, ()) if len(rows) else None
            opened, rows = np.split(rows, [len(scanned.sections) if scanned else 0])
            end = int(rows[0]) if len(rows) else len(chunk.batches)
            part = _Adjacent(chunk.batches[start:end], base_offsets[start:end], oldest[start:end])
            runs = self._runs(part, opened - start, joins[opened], scanned) if scanned else None
            yield part.written(byte_array(chunk.data), runs)
            start = end

    def _joins(self, batches: np.ndarray, base_offsets: Longs) -> Flags:
        """Flag the batches that may become one with the batch before them."""
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
        # times that are far apart may take more room than the headers did; such batches stay as they are
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
        made = RecordBytes(written, starts, stops - starts).compressed(headers[several], levels)
        return cls(rows[firsts[several]], counts[several], headers[several], made, oldest[several])

    def only(self, chosen: Flags) -> _Runs:
        """The runs that are chosen."""
        made = self.records.of_rows(chosen)
        return _Runs(
            self.firsts[chosen], self.counts[chosen], self.headers[chosen], made, self.min_timestamps[chosen]
        )


@dataclass(frozen=True, slots=True)
class _Adjacent:
    """Batches of a chunk that follow each other."""

    batches: np.ndarray
    base_offsets: Longs
    min_timestamps: Longs

    def written(self, source: Bytes, runs: _Runs | None) -> FilteredBatches:
        """The bytes of the batches: the batches of `runs` are joined, and the others copied from `source`."""
        headers, oldest, records = self.batches.copy(), self.min_timestamps.copy(), RecordBytes()
        whole, first = np.ones(len(headers), bool), np.zeros(len(headers), bool)
        if runs is not None:
            inner = np.arange(runs.counts.sum()) - np.repeat(np.cumsum(runs.counts) - runs.counts, runs.counts)
            whole[np.repeat(runs.firsts, runs.counts) + inner] = False
            first[runs.firsts] = True
            headers[runs.firsts], oldest[runs.firsts], records = runs.headers, runs.min_timestamps, runs.records
        stays = whole | first
        data, batches = lay_out(source, headers, whole, np.zeros(len(headers), bool), first, records)
        base_offsets = self.base_offsets[stays]
        # the offset of the largest timestamp is needed for the segment only, not for each batch
        return FilteredBatches(data, batches, base_offsets, base_offsets, oldest[stays])


def _transactional(segments: SegmentTable) -> list[SegmentInfo]:
    """The segments with transactions; of the others, which may be many, no object is made."""
    return [segments[int(row)] for row in np.flatnonzero(segments.array("has_transactions"))]


# ---
# The work of a merge, cut into jobs: the groups of a job are read together, and written as one bundle.
#
# The parts of a bundle that go into one job are neighbours, so one request reads them all. Without that a merge
# would cost a request for each part, and files for each partition.


#: A job of several groups has at most so many log bytes: its bundle, with the indexes, is a single PUT of 16 MiB.
JOB_BYTES = 15 << 20
#: And so many segments, each of which takes a kilobyte or two of memory.
JOB_SEGMENTS = 20_000


@dataclass(frozen=True, slots=True)
class MergeJob:
    """Groups of different partitions, in the order of these: one large group, or small ones that share a bundle."""

    groups: tuple[SegmentGroup, ...]

    @property
    def log_bytes(self) -> int:
        """Bytes of log to read."""
        return sum(group.log_bytes for group in self.groups)

    @property
    def segments(self) -> set[str]:
        """The stems of what is read: that of each object."""
        return {stem for group in self.groups for stem in group.stems}


def jobs(groups: Iterable[SegmentGroup]) -> list[MergeJob]:
    """The jobs of `groups`; a partition with several groups has them in different jobs."""
    seen, ranked = Counter[int](), list[tuple[int, int, SegmentGroup]]()
    for group in groups:
        ranked.append((seen[group.partition], group.partition, group))
        seen[group.partition] += 1
    return [MergeJob(tuple(packed)) for packed in _packed(sorted(ranked, key=lambda one: one[:2]))]


def _packed(ranked: Iterable[tuple[int, int, SegmentGroup]]) -> Iterator[list[SegmentGroup]]:
    open_job, rank, size, segments = list[SegmentGroup](), 0, 0, 0
    for number, _, group in ranked:
        if group.log_bytes > LARGEST_PART:
            yield [group]
            continue
        size, segments = size + group.log_bytes, segments + len(group.segments)
        if open_job and (number != rank or size > JOB_BYTES or segments > JOB_SEGMENTS):
            yield open_job
            open_job, size, segments = [], group.log_bytes, len(group.segments)
        rank = number
        open_job.append(group)
    if open_job:
        yield open_job


def do_job(
    handle: TopicHandle, job: MergeJob, *, config: TopicConfig, read_version: int
) -> list[tuple[SegmentInfo, ...] | RewriteFailure]:
    """For each group the segments that replace it, which no commit names yet, or what is wrong with its files.

    Memory is bounded by a few chunks, or, if there are several groups, by JOB_BYTES read and as many written.
    """
    bundles = Bundles(handle.storage, lambda: handle.new_stem(read_version))
    for group in job.groups:
        bundles.join(group.partition)

    def merged(group: SegmentGroup, chunks: Iterable[Chunk]) -> RewrittenGroup:
        transactional = _transactional(group.segments)
        aborted = [each for segment in transactional for each in handle.reader.aborted_transactions(segment)]
        keep_all = BatchJoin.of(config, aborted)
        return rewrite_group(
            handle, group, keep_all, chunks, config=config, read_version=read_version, bundles=bundles
        )

    done = [
        result_or_failure(group.partition, partial(merged, group, chunks))
        for group, chunks in zip(job.groups, _chunks(handle.reader, job.groups), strict=True)
    ]
    bundles.close()
    return [one if isinstance(one, RewriteFailure) else tuple(map(bundles.placed, one.outputs)) for one in done]


def _chunks(reader: SegmentReader, groups: Sequence[SegmentGroup]) -> list[Iterable[Chunk]]:
    """The chunks of each group; where files are damaged, each group tells by itself what is wrong with its own."""
    if len(groups) > 1:
        with suppress(*OF_ITS_FILES):
            return [[chunk] for chunk in whole_groups(reader, _segments(groups))]
    return [whole_logs(reader, group.segments) for group in groups]


def _segments(groups: Sequence[SegmentGroup]) -> list[list[SegmentInfo]]:
    """The segments of each group, made all at once: one by one takes ten times as long."""
    made = iter(to_segments(join([group.segments.columns() for group in groups])))
    return [list(islice(made, len(group.segments))) for group in groups]


# ---
# Merges the small segments of a topic towards `segment.bytes`, and their small batches towards `batch.bytes`.
#
# Appends make one segment per commit and partition. `plan_merge` says which are worth merging, and `do_job` does it:
# small segments stay parts of bundles, which are fewer and larger after each merge, and large ones become
# files.


def merge(
    handle: TopicHandle, snapshot: Snapshot, run: Run | None = None, *, dry_run: bool = False
) -> tuple[MergeReport, Snapshot]:
    """Merge the groups worth merging, in one commit; returns the report and the new state.

    The report says how far merging is behind: a schedule that is often enough keeps that from growing.

    If a segment of a group was removed meanwhile, the group is left out, and its copy stays unreferenced until
    vacuum. A group that cannot be read is named in the report, and the others are merged.
    """
    snapshot = handle.log.refresh(snapshot)
    groups = plan_merge(snapshot)
    if dry_run or not groups:
        report, after = MergeReport(snapshot.version, tuple(groups), dry_run), snapshot
    else:
        report, after = merge_groups(handle, snapshot, groups, run)
        groups = plan_merge(after)
    backlog = sum(len(group.segments) for group in groups)
    most = max((len(state.segments) for state in after.partitions), default=0)
    return dataclasses.replace(report, backlog=backlog, most_segments=most), after


def merge_groups(
    handle: TopicHandle,
    snapshot: Snapshot,
    groups: Sequence[SegmentGroup],
    run: Run | None = None,
    *,
    timeout_s: float = TIMEOUT_S,
) -> tuple[MergeReport, Snapshot]:
    """`merge` of these groups of `snapshot`; raises CommitConflictError after `timeout_s` of lost races."""
    work = partial(do_job, handle, config=snapshot.config, read_version=snapshot.version)
    planned = jobs(groups)
    done = (run or run_here(handle.storage))(work, planned)
    rewritten, failed = defaultdict[int, list[RewrittenGroup]](list), list[RewriteFailure]()
    all_groups = chain.from_iterable(job.groups for job in planned)
    for group, made in zip(all_groups, chain.from_iterable(done), strict=True):
        if isinstance(made, RewriteFailure):
            failed.append(dataclasses.replace(made, offsets=(group.base_offset, group.next_offset)))
        else:
            rewritten[group.partition].append(RewrittenGroup(group, made))
    partitions = [RewrittenPartition(number, tuple(groups)) for number, groups in rewritten.items()]
    replacement, after = commit_rewrite(handle, snapshot, partitions, timeout_s=timeout_s)
    merged = tuple(one.group for one in replacement.groups)
    return MergeReport(after.version, merged, dry_run=False, failed=tuple(failed)), after


# ---
# Merges the small segments at the ends of partitions, a little after each append of a stream.
#
# A group of adjacent segments is merged when it has GROWTH times the bytes of its largest segment, or twice if no
# later segment fits into it any more. So each time that a record is copied, its segment becomes that much larger,
# and a partition has few small segments of each size. Segments do not grow beyond LARGEST_BYTES here; `merge` makes
# larger ones.


LARGEST_BYTES = 128 << 20
GROWTH = 8
#: So many segments of a partition, ahead of those just appended, are looked at. Older small ones are left to `merge`.
WINDOW = 256
#: A merge after one append ends with the group that exceeds this, or what the append itself justifies.
LEAST_BYTES, LEAST_SEGMENTS = LARGEST_BYTES, 512
#: A record is copied about four times on its way from 50 kB to LARGEST_BYTES, and its segment's file is read once.
BYTES_PER_BYTE, SEGMENTS_PER_SEGMENT = 4, 2
#: How long the commit of a merge races with others, in seconds, before it is given up.
COMMIT_TIMEOUT_S = 5.0


def merge_tails(
    handle: TopicHandle, snapshot: Snapshot, appended: Sequence[SegmentInfo]
) -> tuple[MergeReport | None, Snapshot]:
    """Merge in the partitions of the segments that were `appended` just now; None if nothing is worth it yet.

    The work is bounded by constants and a multiple of what was appended. Raises CommitConflictError if the merge lost
    too many races, and what `merge` raises.
    """
    sizes = [segment.log_bytes for segment in appended]
    groups = plan_tail_merge(
        snapshot,
        Counter(segment.partition for segment in appended),
        most_bytes=max(LEAST_BYTES, BYTES_PER_BYTE * sum(sizes)),
        most_segments=max(LEAST_SEGMENTS, SEGMENTS_PER_SEGMENT * len(sizes)),
    )
    if not groups:
        return None, snapshot
    return merge_groups(handle, snapshot, groups, timeout_s=COMMIT_TIMEOUT_S)


def plan_tail_merge(
    snapshot: Snapshot, appended: Mapping[int, int], *, most_bytes: int, most_segments: int
) -> list[SegmentGroup]:
    """The groups worth merging, the smallest first, until they have `most_bytes` or `most_segments`, or more.

    `appended` is the number of segments just appended, by partition; other partitions are not looked at. None for a
    compacted topic, since compaction merges too.
    """
    if "compact" in snapshot.config.cleanup_policy:
        return []
    largest = min(snapshot.config.segment_size, LARGEST_BYTES)
    config = dataclasses.replace(snapshot.config, internal_segment_bytes=largest)
    groups = [
        group
        for number, count in appended.items()
        for group in _groups_at_end(snapshot.partitions[number], WINDOW + count, config)
    ]
    chosen = list[SegmentGroup]()
    size = segments = 0
    for group in sorted(groups, key=lambda group: group.log_bytes):
        if size >= most_bytes or segments >= most_segments:
            break
        chosen.append(group)
        size, segments = size + group.log_bytes, segments + len(group.segments)
    return chosen


def _groups_at_end(state: PartitionState, window: int, config: TopicConfig) -> Iterator[SegmentGroup]:
    table = state.segments
    tail = table.part(max(table.find(state.log_start_offset), len(table) - window), len(table))
    sizes = tail.log_bytes.tolist()
    for start, end in ranges(tail, 0, config):
        growth = GROWTH if end == len(tail) else 2
        yield from (SegmentGroup(tail.part(*worth)) for worth in worth_it(sizes, start, end, growth))


# ---
# The operation `compact`: a compacted topic keeps the last record of each key, any other topic gets larger segments.


CompactReport = CompactionReport | MergeReport


def compact_or_merge(
    handle: TopicHandle,
    snapshot: Snapshot,
    run: Run | None = None,
    clean: Clean | None = None,
    *,
    dry_run: bool = False,
) -> tuple[CompactReport, Snapshot]:
    """Compact the topic, or merge small segments if `cleanup.policy` has no compact.

    Returns the report and the new state. `clean` is for `compact`, `run` for `merge`; raises what these two raise.
    """
    snapshot = handle.log.refresh(snapshot)
    if "compact" in snapshot.config.cleanup_policy:
        return compact(handle, snapshot, clean, dry_run=dry_run)
    return merge(handle, snapshot, run, dry_run=dry_run)
