"""Compaction: keeps the last record of each key, at its offset (Kafka's `LogCleaner`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from itertools import chain
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from distlog.core.arrays import byte_array, table_of_rows
from distlog.core.commits.commit_log import AHEAD_MS
from distlog.core.commits.segment_table import NO_OFFSET, NOT_LOOKED, SegmentInfo, SegmentTable
from distlog.core.commits.snapshot import PartitionState, Snapshot
from distlog.core.config import TopicConfig
from distlog.core.display import Shown, counted
from distlog.core.errors import StorageError
from distlog.core.format.indexes import AbortedTransaction
from distlog.core.format.kernels.compaction import RETAINED, choose_records
from distlog.core.format.record_batch import APPEND_TIME, CONTROL, DELETE_HORIZON, HEADER_SIZE, TRANSACTIONAL
from distlog.core.integers import MAX_INT, MAX_LONG
from distlog.core.maintain import record_keys
from distlog.core.maintain.group_rewrite import (
    MOST_SEGMENTS,
    FilteredBatches,
    Flags,
    RecordBytes,
    RewriteFailure,
    RewrittenGroup,
    RewrittenPartition,
    SegmentGroup,
    commit_rewrite,
    first_dirty_offset,
    lay_out,
    result_or_failure,
    rewrite_group,
)
from distlog.core.segments.chunks import Chunk
from distlog.core.segments.producer_states import last_stable_offset
from distlog.core.segments.segment_reader import TopicHandle

#: Memory for the keys of one round, 24 bytes each (Kafka's log.cleaner.dedupe.buffer.size).
DEDUPE_BUFFER_BYTES = 128 << 20
#: Bytes that a round cleans before its commit, so that small partitions share one.
ROUND_BYTES = 64 << 20
#: A round over at least one of the due partitions; the last parameter is the bytes for keys.
Clean = Callable[[TopicHandle, Snapshot, Sequence["Cleanable"], int], Sequence[RewrittenPartition | RewriteFailure]]


# Each round is one commit. It collects the keys of the dirty range of each partition, as many as fit in memory, then
# rewrites all segments up to the end of that range without superseded records.
def compact(
    handle: TopicHandle,
    snapshot: Snapshot,
    clean: Clean | None = None,
    *,
    partitions: Collection[int] | None = None,
    dedupe_buffer_bytes: int = DEDUPE_BUFFER_BYTES,
    dry_run: bool = False,
) -> tuple[CompactionReport, Snapshot]:
    """Compact the `partitions` that are due by the topic's config; returns the report and the new state.

    Each takes as many rounds of `clean` as it needs, by default in this process. A partition that cannot be cleaned
    does not change, and the report names it. Raises CommitConflictError if the topic was dropped,
    TransactionTooOldError if a round took longer than vacuum waits, and CommitStateUnknownError.
    """
    snapshot_before = snapshot_after = handle.log.refresh(snapshot)
    numbers = range(len(snapshot_before.partitions)) if partitions is None else partitions
    stable, failed = dict[int, int](), dict[int, str]()
    for number in numbers:
        state = snapshot_before.partitions[number]
        stable_offset = result_or_failure(number, partial(last_stable_offset, handle.reader, state))
        if isinstance(stable_offset, RewriteFailure):
            failed[number] = stable_offset.reason
        else:
            stable[number] = stable_offset
    logs = [log for log in plan_compaction(snapshot_before, handle.trusted_ms(), stable) if log.partition in numbers]
    rounds = _Rounds(logs, failed)
    while not dry_run and (dirty := list(rounds.dirty(snapshot_after))):
        results = (clean or clean_dirtiest)(handle, snapshot_after, dirty, dedupe_buffer_bytes)
        cleaned = [result for result in results if isinstance(result, RewrittenPartition)]
        left_out, snapshot_after = commit_rewrite(handle, snapshot_after, cleaned)
        rounds.add(cleaned, left_out, [result for result in results if isinstance(result, RewriteFailure)])
    return CompactionReport(
        tuple(rounds.results(snapshot_before, snapshot_after)), dry_run, tuple(_notes(snapshot_before, stable))
    ), snapshot_after


_COUNTED = ("segments", "bytes", "records")


@dataclass(frozen=True, slots=True)
class PartitionCompaction:
    """One partition below `end_offset`, before and after the compaction; in a dry run both are the same.

    `unkeyed_records` were dropped because they have no key. `skipped_groups` were changed by another process
    concurrently: the next compaction retries them. `error`: why the partition is not clean.
    """

    partition: int
    end_offset: int
    segments_before: int
    segments_after: int
    bytes_before: int
    bytes_after: int
    records_before: int
    records_after: int
    rounds: int
    unkeyed_records: int
    skipped_groups: int
    error: str | None = None


@dataclass(frozen=True, slots=True, repr=False)
class CompactionReport(Shown):
    """The results of compaction in each partition, or with `dry_run` the partitions that are due."""

    partitions: tuple[PartitionCompaction, ...]
    dry_run: bool
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """True if every partition that was due is clean now."""
        return all(partition.error is None for partition in self.partitions)

    def __str__(self) -> str:
        sums, failed = self._sums(), [partition for partition in self.partitions if partition.error is not None]
        verb = "would compact" if self.dry_run else "compacted"
        count = len(self.partitions) - len(failed)
        changes = (f"{name} {sums[f'{name}_before']:,} to {sums[f'{name}_after']:,}" for name in _COUNTED)
        text = f"{verb} {counted(count, 'partition')}: {', '.join(changes)}"
        reasons = (f"cannot clean {RewriteFailure(failure.partition, str(failure.error))}" for failure in failed)
        return "; ".join([text, *reasons, *self.notes])

    def to_table(self) -> pa.Table:
        """Return a row per partition that was due."""
        names = [field.name for field in dataclasses.fields(PartitionCompaction)]
        schema = pa.schema([(name, pa.string() if name == "error" else pa.int64()) for name in names])
        return table_of_rows(self._rows(), schema)

    def to_dict(self) -> dict[str, Any]:
        """Return the totals, and the rows of the table."""
        rows, summary = self._rows(), {"ok": self.ok, "dry_run": self.dry_run}
        return {**summary, **self._sums(), "partitions": rows, "notes": list(self.notes)}

    def _rows(self) -> list[dict[str, Any]]:
        return [dataclasses.asdict(partition) for partition in self.partitions]

    def _sums(self) -> dict[str, int]:
        names = (f"{name}_{when}" for name in _COUNTED for when in ("before", "after"))
        return {name: sum(getattr(partition, name) for partition in self.partitions) for name in names}


@dataclass(frozen=True, slots=True)
class GroupToClean:
    """A group of segments, and what decides which of its records stay, besides later records."""

    group: SegmentGroup
    verdicts: record_keys.Verdicts
    end_offset: int
    now_ms: int
    config: TopicConfig
    read_version: int


@dataclass(frozen=True, slots=True)
class CleaningPlan:
    """One round: it removes older records of the keys of the dirty range [start_offset, end_offset).

    `segments` are all of the partition's, since transactions depend on them; those from `first` on reach above the
    log start. They and the topic's `config` are of `read_version`, committed at `timestamp_ms`. A plan pickles, so a
    task reads no commit.
    """

    partition: int
    start_offset: int
    end_offset: int
    segments: list[SegmentInfo]
    first: int
    config: TopicConfig
    read_version: int
    timestamp_ms: int

    @classmethod
    def of(cls, snapshot: Snapshot, log: Cleanable) -> CleaningPlan:
        """The plan of one round over the dirty range, as far as one commit takes its segments."""
        state = snapshot.partitions[log.partition]
        segments, first = list(state.segments), state.segments.find(state.log_start_offset)
        first_excluded = [segment.base_offset for segment in segments[first + MOST_SEGMENTS :][:1]]
        start, end = first_dirty_offset(state), min([log.first_uncleanable_offset, *first_excluded])
        version = snapshot.version, snapshot.timestamp_ms
        return cls(log.partition, start, end, segments, first, snapshot.config, *version)

    def now_ms(self, handle: TopicHandle) -> int:
        """The time for the horizons of tombstones, which a fast or a slow clock would drop too early."""
        now_ms = handle.trusted_ms()
        return now_ms if now_ms >= self.timestamp_ms - AHEAD_MS else self.timestamp_ms

    @property
    def cleaned(self) -> list[SegmentInfo]:
        """The segments that reach above the log start, and begin below `end_offset`."""
        return [segment for segment in self.segments[self.first :] if segment.base_offset < self.end_offset]

    @property
    def dirty(self) -> list[SegmentInfo]:
        """The segments of the dirty range."""
        return [segment for segment in self.cleaned if segment.next_offset > self.start_offset]

    @property
    def dirty_records(self) -> int:
        """The number of records, and so the largest number of keys, in the dirty segments."""
        return sum(segment.record_count for segment in self.dirty)

    @property
    def log_bytes(self) -> int:
        return sum(segment.log_bytes for segment in self.cleaned)

    def groups(self, verdicts: record_keys.Verdicts, now_ms: int, end_offset: int) -> list[GroupToClean]:
        """The groups of adjacent segments below `end_offset`, each to become one segment."""
        below = [segment for segment in self.cleaned if segment.base_offset < end_offset]
        groups = (SegmentGroup(SegmentTable.of(part)) for part in group_segments(below, self.config))
        return [
            GroupToClean(
                group,
                verdicts.within(group.base_offset, group.next_offset),
                self.end_offset,
                now_ms,
                self.config,
                self.read_version,
            )
            for group in groups
        ]


# A partition is clean below its first dirty offset, and dirty from there to its first uncleanable offset (Kafka's
# `LogCleanerManager`).
@dataclass(frozen=True, slots=True)
class Cleanable:
    """The dirty range of one partition, and the bytes before it and in it.

    A segment that `first_dirty_offset` cuts counts in both, as in Kafka. `overdue`: a dirty record is older than
    `max.compaction.lag.ms`.
    """

    partition: int
    first_dirty_offset: int
    first_uncleanable_offset: int
    clean_bytes: int
    dirty_bytes: int
    overdue: bool

    @property
    def dirty_ratio(self) -> float:
        return self.dirty_bytes / max(self.clean_bytes + self.dirty_bytes, 1)


def plan_compaction(
    snapshot: Snapshot, now_ms: int, last_stable_offsets: Mapping[int, int] | None = None
) -> list[Cleanable]:
    """The partitions to compact at `now_ms`, the dirtiest first; none unless `cleanup.policy` has compact."""
    config = snapshot.config
    if "compact" not in config.cleanup_policy:
        return []
    stable = last_stable_offsets or {}
    ranges = (
        cleanable(number, state, config, now_ms, stable.get(number, state.log_end_offset))
        for number, state in enumerate(snapshot.partitions)
    )
    dirty = [
        log
        for log in ranges
        if log.dirty_bytes and (log.overdue or log.dirty_ratio > config.min_cleanable_dirty_ratio)
    ]
    return sorted(dirty, key=lambda log: -log.dirty_ratio)


def cleanable(
    partition: int, state: PartitionState, config: TopicConfig, now_ms: int, last_stable_offset: int
) -> Cleanable:
    """The cleanable range of one partition, at any dirty ratio."""
    table = state.segments
    start = first_dirty_offset(state)
    end = max(start, _first_uncleanable_offset(state, start, config, now_ms, last_stable_offset))
    first, stop = table.find(start), int(np.searchsorted(table.base_offsets, end))
    timestamps = table.array("first_timestamp")[first:]
    oldest_ms = int(timestamps[timestamps > 0].min(initial=MAX_LONG))
    return Cleanable(
        partition=partition,
        first_dirty_offset=start,
        first_uncleanable_offset=end,
        clean_bytes=int(table.log_bytes[: np.searchsorted(table.base_offsets, start)].sum()),
        dirty_bytes=int(table.log_bytes[first:stop].sum()),
        overdue=oldest_ms < now_ms - config.max_compaction_lag_ms,
    )


def _first_uncleanable_offset(
    state: PartitionState, start: int, config: TopicConfig, now_ms: int, last_stable_offset: int
) -> int:
    table = state.segments
    end = min(last_stable_offset, state.log_end_offset)
    if config.min_compaction_lag_ms > 0:
        first = table.find(start)
        # the age is from the largest timestamp, or from the write of a segment without timestamps
        timestamps = state.segments.max_timestamps
        created = state.segments.array("created_ms")
        young = np.where(timestamps >= 0, timestamps, created)[first:] > now_ms - config.min_compaction_lag_ms
        if young.any():
            end = min(end, int(table.base_offsets[first + young.argmax()]))
    index = table.find(end)
    return min(end, int(table.base_offsets[index])) if index < len(table) else end


def group_segments(segments: Iterable[SegmentInfo], config: TopicConfig) -> list[list[SegmentInfo]]:
    """Groups of adjacent `segments`, each to become one segment: Kafka's greedy `groupSegmentsBySize`.

    A group fits `segment.bytes`, `segment.index.bytes` and 2^31 - 1 offsets, which a segment without bytes may
    exceed.
    """
    groups: list[list[SegmentInfo]] = []
    log_bytes = offset_index_bytes = time_index_bytes = 0
    for segment in segments:
        log_bytes += segment.log_bytes
        offset_index_bytes += segment.offset_index_bytes
        time_index_bytes += segment.time_index_bytes
        fits = log_bytes <= config.segment_size
        fits &= max(offset_index_bytes, time_index_bytes) <= config.segment_index_bytes
        if groups and segment.log_bytes:
            fits &= segment.next_offset - 1 - groups[-1][0].base_offset <= MAX_INT
        if groups and fits:
            groups[-1].append(segment)
            continue
        groups.append([segment])
        log_bytes, offset_index_bytes = segment.log_bytes, segment.offset_index_bytes
        time_index_bytes = segment.time_index_bytes
    return groups


# A batch that loses no record is copied. A batch that loses some records keeps its base offset, last offset and base
# sequence. A batch that loses all records is dropped, or stays as 61 bytes if its offsets or its producer's sequence
# are needed. A tombstone, or a marker without records to mark, first gets a delete horizon (KIP-534),
# `delete.retention.ms` from now. A compaction at or after that horizon drops it.

_COLUMNS = ("key", "value")
_KEPT_WHEN_EMPTY = APPEND_TIME | TRANSACTIONAL | CONTROL


@dataclass(frozen=True, slots=True)
class BatchFilter:
    """Decides which records and batches stay; offsets are absolute."""

    survivors: record_keys.Survivors
    verdicts: record_keys.Verdicts
    end_offset: int
    now_ms: int
    delete_retention_ms: int
    keeps_all: ClassVar[bool] = False

    @property
    def aborted(self) -> Sequence[AbortedTransaction]:
        return self.verdicts.aborted

    def described(self, output: SegmentInfo, inputs: SegmentTable) -> SegmentInfo:
        return dataclasses.replace(
            output,
            leader_epoch=inputs[-1].leader_epoch,
            compacted=True,
            has_transactions=output.has_transactions or output.has_producers,
            first_unstable_offset=self._first_unstable_offset(output.next_offset, inputs),
        )

    def _first_unstable_offset(self, next_offset: int, inputs: SegmentTable) -> int:
        """The first unstable offset of the output that ends at `next_offset`."""
        unstable_offsets = [segment.first_unstable_offset for segment in inputs if segment.has_transactions]
        if next_offset <= self.end_offset or not unstable_offsets:
            return NO_OFFSET
        if next_offset < inputs[-1].next_offset or 0 <= unstable_offsets[-1] < self.end_offset:
            return NOT_LOOKED
        return unstable_offsets[-1]

    def apply(self, chunk: Chunk) -> Iterator[FilteredBatches]:
        """The batches that stay of a checked chunk of one segment, in parts if they are compressed."""
        outcomes = self._outcomes(chunk)
        start, rows = 0, np.flatnonzero(~outcomes.discarded & (chunk.batches["record_count"] > 0))
        while start < len(chunk.batches):
            scanned = record_keys.scan_records(chunk.selection(), rows, _COLUMNS) if len(rows) else None
            scanned_rows, rows = np.split(rows, [len(scanned.sections) if scanned else 0])
            end = int(rows[0]) if len(rows) else len(chunk.batches)
            yield self._filtered(chunk, slice(start, end), outcomes.part(start, end), scanned_rows - start, scanned)
            start = end

    def _outcomes(self, chunk: Chunk) -> _BatchOutcomes:
        batches = chunk.batches
        base_offsets = batches["base_offset"] + chunk.ranges[0].slice.segment.shift
        ends = base_offsets + batches["last_offset_delta"] + 1
        control = batches["attributes"] & CONTROL != 0
        has_horizon = batches["attributes"] & DELETE_HORIZON != 0
        expired = has_horizon & (batches["base_timestamp"] <= self.now_ms)
        discardable = self.verdicts.discardable(base_offsets)
        return _BatchOutcomes(
            discarded=discardable & (expired | ~control),
            stays_empty=self.verdicts.last(base_offsets) | (ends == self.end_offset),
            control=control,
            has_horizon=has_horizon,
            expired=expired,
            obsolete=discardable & control,
        )

    def _filtered(
        self,
        chunk: Chunk,
        part: slice,
        outcomes: _BatchOutcomes,
        scanned_rows: npt.NDArray[np.intp],
        scanned: record_keys.ScannedRecords | None,
    ) -> FilteredBatches:
        """Return what stays of a `part` of the chunk's batches, of which those in `scanned_rows` have records."""
        batches = chunk.batches[part]
        retained, is_kept, unkeyed = np.zeros(len(batches), RETAINED), np.empty(0, bool), 0
        if scanned is not None:
            retained_scanned, is_kept = np.empty(len(scanned_rows), RETAINED), np.empty(scanned.count, bool)
            unkeyed = choose_records(
                scanned.sections["emitted"].copy(),
                outcomes.control[scanned_rows],
                outcomes.expired[scanned_rows],
                self.survivors.latest_offset,
                self.survivors.current(scanned),
                scanned.keyed,
                scanned.fields.value.valid[: scanned.count],
                scanned.offsets,
                scanned.timestamps,
                is_kept,
                retained_scanned,
            )
            retained[scanned_rows] = retained_scanned
        has_records = retained["records"] > 0
        wants_horizon = has_records & ~outcomes.has_horizon & ((retained["tombstones"] > 0) | outcomes.obsolete)
        by_record = batches["attributes"] & APPEND_TIME == 0
        mistimed = by_record & (batches["max_timestamp"] != retained["max_timestamp"])
        is_copied = has_records & (retained["records"] == batches["record_count"]) & ~wants_horizon & ~mistimed
        is_rewritten, is_emptied = has_records & ~is_copied, ~has_records & outcomes.stays_empty
        headers = batches.copy()
        headers["record_count"] = retained["records"]
        timed, first = is_rewritten & by_record, is_rewritten & ~outcomes.has_horizon
        headers["max_timestamp"][timed] = retained["max_timestamp"][timed]
        headers["base_timestamp"][first] = retained["first_timestamp"][first]
        headers["base_timestamp"][wants_horizon] = min(self.now_ms + self.delete_retention_ms, MAX_LONG)
        headers["attributes"][wants_horizon] |= DELETE_HORIZON
        headers["size"][is_emptied] = HEADER_SIZE
        headers["base_timestamp"][is_emptied] = -1
        headers["attributes"][is_emptied] &= _KEPT_WHEN_EMPTY
        records, rows = RecordBytes(), np.flatnonzero(is_rewritten)
        if scanned is not None and len(rows):
            sections = scanned.sections[np.searchsorted(scanned_rows, rows)]
            first_records, base_times = retained["first_record"][rows], headers["base_timestamp"][rows]
            data, ends = scanned.rewritten(sections, first_records, sections["base_offset"], base_times, is_kept)
            starts = np.append(0, ends[:-1])
            # at the codec's default level, as Kafka does it
            records = RecordBytes(data, starts, ends - starts).compressed(headers[rows], {})
        data, stored = lay_out(byte_array(chunk.data), headers, is_copied, is_emptied, is_rewritten, records)
        segment = chunk.ranges[0].slice.segment
        offsets_of_max = np.where(has_records, retained["offset_of_max"], -1)[is_copied | is_emptied | is_rewritten]
        return FilteredBatches(
            data,
            stored,
            base_offsets=stored["base_offset"] + segment.shift,
            newest_offsets=np.where(stored["max_timestamp"] < 0, -1, offsets_of_max),
            min_timestamps=np.full(len(stored), segment.min_timestamp),
            unchanged=bool((is_copied | (is_emptied & (batches["record_count"] == 0))).all()),
            forgets=bool((outcomes.expired & ~is_copied).any()),
            unkeyed=unkeyed,
        )


@dataclass(frozen=True, slots=True)
class _BatchOutcomes:
    """Flags of each batch that do not depend on its records."""

    discarded: Flags
    stays_empty: Flags
    control: Flags
    has_horizon: Flags
    expired: Flags
    obsolete: Flags

    def part(self, start: int, end: int) -> _BatchOutcomes:
        return _BatchOutcomes(*(getattr(self, spec.name)[start:end] for spec in fields(self)))


def clean_partition(
    handle: TopicHandle, plan: CleaningPlan, dedupe_buffer_bytes: int = DEDUPE_BUFFER_BYTES
) -> RewrittenPartition:
    """Clean by `plan`, up to the offset at which the memory for keys is full."""
    now_ms = plan.now_ms(handle)
    verdicts = record_keys.judge(handle.reader, plan.segments, handle.trusted_ms(), handle.producer_expiration_ms)
    keys = record_keys.OffsetMap.within(dedupe_buffer_bytes, plan.dirty_records)
    secret = handle.random.randbytes(record_keys.SECRET_BYTES)
    record_keys.build_map(handle.reader, plan.dirty, plan.start_offset, plan.end_offset, verdicts, keys, secret)
    survivors, end = record_keys.MapSurvivors(keys, secret), keys.latest_offset + 1
    groups = (clean_group(handle, group, survivors) for group in plan.groups(verdicts, now_ms, end))
    return RewrittenPartition(plan.partition, tuple(groups), plan.start_offset, end)


def clean_or_failure(
    handle: TopicHandle, plan: CleaningPlan, dedupe_buffer_bytes: int
) -> RewrittenPartition | RewriteFailure:
    return result_or_failure(plan.partition, lambda: clean_partition(handle, plan, dedupe_buffer_bytes))


def clean_group(handle: TopicHandle, due: GroupToClean, survivors: record_keys.Survivors) -> RewrittenGroup:
    """Write the records of the group that stay."""
    config, segments = due.config, due.group.segments
    batch_filter = BatchFilter(survivors, due.verdicts, due.end_offset, due.now_ms, config.delete_retention_ms)
    chunks = chain.from_iterable(record_keys.checked_chunks(handle.reader, segment) for segment in segments)
    return rewrite_group(handle, due.group, batch_filter, chunks, config=config, read_version=due.read_version)


def clean_dirtiest(
    handle: TopicHandle, snapshot: Snapshot, logs: Sequence[Cleanable], dedupe_buffer_bytes: int
) -> list[RewrittenPartition | RewriteFailure]:
    """Clean the first due partitions in one round in this process: ROUND_BYTES of log, or one partition."""
    results: list[RewrittenPartition | RewriteFailure] = []
    room = ROUND_BYTES
    for log in logs:
        plan = CleaningPlan.of(snapshot, log)
        room -= plan.log_bytes
        if results and room < 0:
            break
        try:
            results.append(clean_or_failure(handle, plan, dedupe_buffer_bytes))
        except StorageError:
            # commit the cleaned partitions first: the next round starts with this one, and raises
            if not results:
                raise
            break
    return results


def _notes(snapshot: Snapshot, stable: Mapping[int, int]) -> Iterator[str]:
    for number, offset in stable.items():
        state = snapshot.partitions[number]
        if "compact" in snapshot.config.cleanup_policy and offset < state.log_end_offset:
            text = "is open, and nothing after its start is cleaned; `distlog transactions` shows its producer"
            yield f"partition {number}: a transaction from offset {offset} on {text}"


class _Rounds:
    """The partitions that are due, and the rounds that were done for each."""

    def __init__(self, logs: Sequence[Cleanable], failed: Mapping[int, str]) -> None:
        self._logs, self._failed = logs, dict(failed)
        self._rounds: dict[int, list[RewrittenPartition]] = {log.partition: [] for log in logs}
        self._skipped = dict.fromkeys(self._rounds, 0)

    def add(
        self, cleaned: Sequence[RewrittenPartition], left_out: Mapping[int, int], failed: Sequence[RewriteFailure]
    ) -> None:
        for partition in cleaned:
            self._rounds[partition.partition].append(partition)
            self._skipped[partition.partition] += left_out[partition.partition]
        self._failed |= {failure.partition: failure.reason for failure in failed}

    def dirty(self, snapshot: Snapshot) -> Iterator[Cleanable]:
        """Yield the partitions that have more to clean, and whose last round made progress."""
        for log in self._logs:
            start, rounds = first_dirty_offset(snapshot.partitions[log.partition]), self._rounds[log.partition]
            has_progress = not rounds or start > rounds[-1].start_offset
            if log.partition not in self._failed and start < log.first_uncleanable_offset and has_progress:
                yield log

    def results(self, snapshot_before: Snapshot, snapshot_after: Snapshot) -> Iterator[PartitionCompaction]:
        for log in self._logs:
            number, end = log.partition, log.first_uncleanable_offset
            yield PartitionCompaction(
                partition=number,
                end_offset=end,
                **_totals(snapshot_before.partitions[number], end, "before"),
                **_totals(snapshot_after.partitions[number], end, "after"),
                rounds=len(self._rounds[number]),
                unkeyed_records=sum(group.unkeyed for cleaned in self._rounds[number] for group in cleaned.groups),
                skipped_groups=self._skipped[number],
                error=self._failed.get(number),
            )


def _totals(state: PartitionState, end_offset: int, when: str) -> dict[str, int]:
    table = state.segments
    below = table.base_offsets < end_offset
    totals = below.sum(), table.log_bytes[below].sum(), table.record_counts[below].sum()
    return {f"{name}_{when}": int(total) for name, total in zip(_COUNTED, totals, strict=True)}
