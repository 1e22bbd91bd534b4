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

from distlog.core.arrays import MAX_INT, MAX_LONG, Flags, byte_array, table_of_rows
from distlog.core.commits.commit_log import MAX_CLOCK_AHEAD_MS
from distlog.core.commits.segment_table import NO_OFFSET, UNDETERMINED_OFFSET, SegmentInfo, SegmentTable
from distlog.core.commits.snapshot import PartitionState, Snapshot
from distlog.core.config import TopicConfig
from distlog.core.display import Displayable, counted
from distlog.core.errors import StorageError
from distlog.core.format.indexes import AbortedTransaction
from distlog.core.format.kernels.compaction import RETAINED, choose_records
from distlog.core.format.record_batch import APPEND_TIME, CONTROL, DELETE_HORIZON, HEADER_SIZE, TRANSACTIONAL
from distlog.core.maintain.group_rewrite import (
    MAX_SEGMENTS,
    FilteredBatches,
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
from distlog.core.maintain.survivors import (
    SECRET_BYTES,
    MapSurvivors,
    OffsetMap,
    ScannedRecords,
    Survivors,
    Verdicts,
    build_map,
    checked_chunks,
    judge,
    scan_records,
)
from distlog.core.segments.chunks import Chunk
from distlog.core.segments.producer_states import last_stable_offset
from distlog.core.segments.segment_reader import TopicHandle

#: The default memory for the keys of a round, at 24 bytes a key (Kafka's log.cleaner.dedupe.buffer.size).
DEDUPE_BUFFER_BYTES = 128 << 20
#: One round (see `compact`) cleans partitions of up to this many bytes, so that small partitions share a commit.
ROUND_BYTES = 64 << 20
#: Runs one round over at least one of the due partitions; the last parameter is the memory for keys, in bytes.
CleanRound = Callable[
    [TopicHandle, Snapshot, Sequence["Cleanable"], int], Sequence[RewrittenPartition | RewriteFailure]
]


# A round collects the keys of a partition's dirty range, as many as fit in memory. It rewrites the segments up to the
# last record whose key did fit, drops superseded records (a later record has their key), and commits.
def compact(
    handle: TopicHandle,
    snapshot: Snapshot,
    clean: CleanRound | None = None,
    *,
    partitions: Collection[int] | None = None,
    dedupe_buffer_bytes: int = DEDUPE_BUFFER_BYTES,
    dry_run: bool = False,
) -> tuple[CompactionReport, Snapshot]:
    """Compact the partitions that are due, of `partitions` if given, in rounds. Returns the report and new state."""
    snapshot_before = snapshot_after = handle.log.refresh(snapshot)
    numbers = range(len(snapshot_before.partitions)) if partitions is None else partitions
    stable_offsets, failure_reasons = dict[int, int](), dict[int, str]()
    for number in numbers:
        state = snapshot_before.partitions[number]
        stable_offset = result_or_failure(number, partial(last_stable_offset, handle.reader, state))
        if isinstance(stable_offset, RewriteFailure):
            failure_reasons[number] = stable_offset.reason
        else:
            stable_offsets[number] = stable_offset
    logs = plan_compaction(snapshot_before, handle.trusted_ms(), stable_offsets)  # now, or the store's time
    rounds = _Rounds([log for log in logs if log.partition in numbers], failure_reasons)
    while not dry_run and (dirty_logs := list(rounds.dirty_logs(snapshot_after))):
        results = (clean or clean_dirtiest)(handle, snapshot_after, dirty_logs, dedupe_buffer_bytes)
        cleaned = [result for result in results if isinstance(result, RewrittenPartition)]
        skipped_groups, snapshot_after = commit_rewrite(handle, snapshot_after, cleaned)
        rounds.add(cleaned, skipped_groups, [result for result in results if isinstance(result, RewriteFailure)])
    results_by_partition = tuple(rounds.results(snapshot_before, snapshot_after))
    notes = _notes(snapshot_before, stable_offsets)
    return CompactionReport(results_by_partition, dry_run, tuple(notes)), snapshot_after


_COUNTED = ("segments", "bytes", "records")


@dataclass(frozen=True, slots=True)
class PartitionCompaction:
    """Counts of a partition below `end_offset` before and after the compaction, which are equal in a dry run.

    `unkeyed_records` were dropped because they have no key. Another process changed `skipped_groups` concurrently:
    the next compaction retries them. `error`: why the partition is not clean.
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
class CompactionReport(Displayable):
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
    """A group of adjacent segments, and all that its cleaning needs except the map of keys."""

    group: SegmentGroup
    verdicts: Verdicts  # on the group's batches of transactions and producers
    end_offset: int  # of the plan's dirty range, even if the map of keys became full before it
    now_ms: int
    config: TopicConfig
    read_version: int


@dataclass(frozen=True, slots=True)
class CleaningPlan:
    """The plan of a partition's round: drop older records of the keys in the dirty range [start_offset, end_offset).

    `segments` has all segments of the partition, because transactions depend on them. Segments from row `first_live`
    on reach above the log start. `read_version`, which was committed at `timestamp_ms`, has these segments and the
    topic's `config`. A plan can be pickled, so Spark tasks need not read commits.
    """

    partition: int
    start_offset: int
    end_offset: int
    segments: list[SegmentInfo]
    first_live: int
    config: TopicConfig
    read_version: int
    timestamp_ms: int

    @classmethod
    def of(cls, snapshot: Snapshot, log: Cleanable) -> CleaningPlan:
        """The plan of one round over the dirty range, with as many segments as one commit can replace."""
        state = snapshot.partitions[log.partition]
        segments, first_live = list(state.segments), state.segments.find(state.log_start_offset)
        start, end = first_dirty_offset(state), log.first_uncleanable_offset
        if len(segments) > first_live + MAX_SEGMENTS:  # more than one commit can replace
            end = min(end, segments[first_live + MAX_SEGMENTS].base_offset)
        read_version, config = snapshot.version, snapshot.config
        return cls(log.partition, start, end, segments, first_live, config, read_version, snapshot.timestamp_ms)

    def now_ms(self, handle: TopicHandle) -> int:
        """The time for delete horizons (when tombstones may go): now, or the commit's time if the clock is slow."""
        now_ms = handle.trusted_ms()
        # a correct clock may also show an earlier time than the commit's, since the committer's clock may be ahead
        return now_ms if now_ms >= self.timestamp_ms - MAX_CLOCK_AHEAD_MS else self.timestamp_ms

    @property
    def segments_to_clean(self) -> list[SegmentInfo]:
        """The segments that reach above the log start, and begin below `end_offset`."""
        return [segment for segment in self.segments[self.first_live :] if segment.base_offset < self.end_offset]

    @property
    def dirty_segments(self) -> list[SegmentInfo]:
        return [segment for segment in self.segments_to_clean if segment.next_offset > self.start_offset]

    @property
    def dirty_records(self) -> int:
        """The number of records, and so the largest number of keys, in the dirty segments."""
        return sum(segment.record_count for segment in self.dirty_segments)

    @property
    def log_bytes(self) -> int:
        return sum(segment.log_bytes for segment in self.segments_to_clean)

    def groups(self, verdicts: Verdicts, now_ms: int, clean_end: int) -> list[GroupToClean]:
        """Group the segments below `clean_end`, up to which the map has all keys. A group becomes one segment."""
        segments = [segment for segment in self.segments_to_clean if segment.base_offset < clean_end]
        groups = [SegmentGroup(SegmentTable.of(part)) for part in group_segments(segments, self.config)]
        end, config, version = self.end_offset, self.config, self.read_version
        return [
            GroupToClean(group, verdicts.within(group.base_offset, group.next_offset), end, now_ms, config, version)
            for group in groups
        ]


@dataclass(frozen=True, slots=True)
class Cleanable:
    """A partition's dirty range, [first_dirty_offset, first_uncleanable_offset), and the bytes before and in it.

    As in Kafka, both numbers of bytes include a segment that `first_dirty_offset` cuts. The log is overdue if a dirty
    record is older than `max.compaction.lag.ms`.
    """

    partition: int
    first_dirty_offset: int
    first_uncleanable_offset: int
    clean_bytes: int
    dirty_bytes: int
    is_overdue: bool

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
    stable_offsets = last_stable_offsets or {}
    logs = (
        cleanable(number, state, config, now_ms, stable_offsets.get(number, state.log_end_offset))
        for number, state in enumerate(snapshot.partitions)
    )
    min_ratio = config.min_cleanable_dirty_ratio
    due_logs = [log for log in logs if log.dirty_bytes and (log.is_overdue or log.dirty_ratio > min_ratio)]
    return sorted(due_logs, key=lambda log: -log.dirty_ratio)


def cleanable(
    partition: int, state: PartitionState, config: TopicConfig, now_ms: int, last_stable_offset: int
) -> Cleanable:
    """The cleanable range of one partition, at any dirty ratio."""
    table = state.segments
    start = first_dirty_offset(state)
    end = max(start, _first_uncleanable_offset(state, start, config, now_ms, last_stable_offset))
    first_row, end_row = table.find(start), int(np.searchsorted(table.base_offsets, end))  # overlap [start, end)
    timestamps = table.array("first_timestamp")[first_row:]
    # as in Kafka, 0 means no time; a log without times is not overdue
    oldest_ms = int(timestamps[timestamps > 0].min(initial=MAX_LONG))
    return Cleanable(
        partition=partition,
        first_dirty_offset=start,
        first_uncleanable_offset=end,
        clean_bytes=int(table.log_bytes[: np.searchsorted(table.base_offsets, start)].sum()),
        dirty_bytes=int(table.log_bytes[first_row:end_row].sum()),
        is_overdue=oldest_ms < now_ms - config.max_compaction_lag_ms,
    )


def _first_uncleanable_offset(
    state: PartitionState, start: int, config: TopicConfig, now_ms: int, last_stable_offset: int
) -> int:
    table = state.segments
    end = min(last_stable_offset, state.log_end_offset)
    if config.min_compaction_lag_ms > 0:
        first = table.find(start)
        # a segment's age counts from its largest timestamp, or without timestamps from its creation
        newest_ms = np.where(table.max_timestamps >= 0, table.max_timestamps, table.array("created_ms"))
        is_young = newest_ms[first:] > now_ms - config.min_compaction_lag_ms
        if is_young.any():
            end = min(end, int(table.base_offsets[first + is_young.argmax()]))
    row = table.find(end)  # no segment is cleaned in part
    return min(end, int(table.base_offsets[row])) if row < len(table) else end


def group_segments(segments: Iterable[SegmentInfo], config: TopicConfig) -> list[list[SegmentInfo]]:
    """Group adjacent `segments` greedily, as Kafka's `groupSegmentsBySize`. A group becomes one segment."""
    groups: list[list[SegmentInfo]] = []
    log_bytes = offset_index_bytes = time_index_bytes = 0
    for segment in segments:
        log_bytes += segment.log_bytes
        offset_index_bytes += segment.offset_index_bytes
        time_index_bytes += segment.time_index_bytes
        fits = log_bytes <= config.segment_size
        fits &= max(offset_index_bytes, time_index_bytes) <= config.segment_index_bytes
        if groups and segment.log_bytes:
            # an index has int32 offsets, relative to the base offset; a segment without bytes has no index entry
            fits &= segment.next_offset - 1 - groups[-1][0].base_offset <= MAX_INT
        if groups and fits:
            groups[-1].append(segment)
            continue
        groups.append([segment])
        log_bytes, offset_index_bytes = segment.log_bytes, segment.offset_index_bytes
        time_index_bytes = segment.time_index_bytes
    return groups


# A batch that loses no record is copied. A batch that loses some records keeps its base offset, last offset and base
# sequence. A batch that loses all records is dropped, or stays as a header of 61 bytes if its offsets or its
# producer's sequence number are needed. A tombstone, or the end marker of a transaction without data, first gets a
# delete horizon (KIP-534), `delete.retention.ms` from now. A compaction at or after that horizon drops it.

_COLUMNS = ("key", "value")
_KEPT_WHEN_EMPTY = APPEND_TIME | TRANSACTIONAL | CONTROL  # the attributes that a batch keeps without its records


@dataclass(frozen=True, slots=True)
class BatchFilter:
    """Decides which records and batches of a group stay. Offsets are as readers get them: stored ones + `shift`."""

    survivors: Survivors
    verdicts: Verdicts
    end_offset: int
    now_ms: int
    delete_retention_ms: int
    keeps_all: ClassVar[bool] = False  # see `Filter`

    @property
    def aborted(self) -> Sequence[AbortedTransaction]:
        return self.verdicts.aborted

    def with_input_fields(self, output: SegmentInfo, inputs: SegmentTable) -> SegmentInfo:
        return dataclasses.replace(
            output,
            leader_epoch=inputs[-1].leader_epoch,
            compacted=True,
            has_transactions=output.has_transactions or output.has_producers,
            first_unstable_offset=self._first_unstable_offset(output.next_offset, inputs),
        )

    def _first_unstable_offset(self, next_offset: int, inputs: SegmentTable) -> int:
        """Return the first offset of the oldest transaction that is open at `next_offset`, the output's end."""
        unstable_offsets = [segment.first_unstable_offset for segment in inputs if segment.has_transactions]
        # all transactions below the end of the dirty range have ended
        if next_offset <= self.end_offset or not unstable_offsets:
            return NO_OFFSET
        # unknown if the output ends before its inputs, or if the transaction in their metadata has ended (see above)
        if next_offset < inputs[-1].next_offset or 0 <= unstable_offsets[-1] < self.end_offset:
            return UNDETERMINED_OFFSET
        return unstable_offsets[-1]

    def apply(self, chunk: Chunk) -> Iterator[FilteredBatches]:
        """Yield the batches that stay of a checked chunk of one segment, in one part for each scan of records."""
        flags = self._flags(chunk)
        # the rows of batches with records that may stay. Each step scans the first rows, as many as fit in memory,
        # and yields the part of the chunk up to the next row
        start, rows = 0, np.flatnonzero(~flags.drops_all_records & (chunk.batches["record_count"] > 0))
        while start < len(chunk.batches):
            scanned = scan_records(chunk.selection(), rows, _COLUMNS) if len(rows) else None
            scanned_rows, rows = np.split(rows, [len(scanned.sections) if scanned else 0])
            end = int(rows[0]) if len(rows) else len(chunk.batches)
            yield self._filtered(chunk, slice(start, end), flags.part(start, end), scanned_rows - start, scanned)
            start = end

    def _flags(self, chunk: Chunk) -> _BatchFlags:
        batches = chunk.batches
        base_offsets = batches["base_offset"] + chunk.ranges[0].slice.segment.shift
        ends = base_offsets + batches["last_offset_delta"] + 1
        is_control = batches["attributes"] & CONTROL != 0
        has_horizon = batches["attributes"] & DELETE_HORIZON != 0  # then the base timestamp is the delete horizon
        is_past_horizon = has_horizon & (batches["base_timestamp"] <= self.now_ms)
        is_discardable = self.verdicts.is_discardable(base_offsets)  # aborted data, or an obsolete marker
        return _BatchFlags(
            drops_all_records=is_discardable & (is_past_horizon | ~is_control),
            # as in Kafka, a producer's last batch stays, and the range's, so that the log's offsets reach its end
            stays_empty=self.verdicts.is_last(base_offsets) | (ends == self.end_offset),
            is_control=is_control,
            has_horizon=has_horizon,
            is_past_horizon=is_past_horizon,
            is_obsolete_marker=is_discardable & is_control,
        )

    def _filtered(
        self,
        chunk: Chunk,
        part: slice,
        flags: _BatchFlags,
        scanned_rows: npt.NDArray[np.intp],
        scanned: ScannedRecords | None,
    ) -> FilteredBatches:
        """Return what stays of the chunk's batches in `part`. Those in its `scanned_rows` have `scanned` records."""
        batches = chunk.batches[part]
        retained, is_kept, unkeyed_records = self._choose(flags, scanned_rows, scanned)
        has_records = retained["records"] > 0
        gets_horizon = has_records & ~flags.has_horizon
        gets_horizon &= (retained["tombstones"] > 0) | flags.is_obsolete_marker
        has_create_times = batches["attributes"] & APPEND_TIME == 0
        # the record with the header's largest timestamp does not stay, or does not exist
        loses_max = has_create_times & (batches["max_timestamp"] != retained["max_timestamp"])
        # a batch is copied, rewritten, emptied (only its header stays), or else dropped
        is_copied = has_records & (retained["records"] == batches["record_count"]) & ~gets_horizon & ~loses_max
        is_rewritten, is_emptied = has_records & ~is_copied, ~has_records & flags.stays_empty
        headers = batches.copy()
        headers["record_count"] = retained["records"]
        # the base timestamp of a changed batch: its delete horizon if it has one, else its first record's time or -1
        gets_max, gets_base = is_rewritten & has_create_times, is_rewritten & ~flags.has_horizon
        headers["max_timestamp"][gets_max] = retained["max_timestamp"][gets_max]
        headers["base_timestamp"][gets_base] = retained["first_timestamp"][gets_base]
        headers["base_timestamp"][gets_horizon] = min(self.now_ms + self.delete_retention_ms, MAX_LONG)
        headers["attributes"][gets_horizon] |= DELETE_HORIZON
        headers["size"][is_emptied] = HEADER_SIZE
        headers["base_timestamp"][is_emptied] = -1
        headers["attributes"][is_emptied] &= _KEPT_WHEN_EMPTY
        records, rows = RecordBytes(), np.flatnonzero(is_rewritten)
        if scanned is not None and len(rows):
            # the rewritten batches: their records in the scan, and the number of the first one
            sections = scanned.sections[np.searchsorted(scanned_rows, rows)]
            first_records, base_times = retained["first_record"][rows], headers["base_timestamp"][rows]
            data, ends = scanned.rewrite(sections, first_records, sections["base_offset"], base_times, is_kept)
            starts = np.append(0, ends[:-1])
            # at the codec's default level, as Kafka does it
            records = RecordBytes(data, starts, ends - starts).compressed(headers[rows], levels={})
        data, stored = lay_out(byte_array(chunk.data), headers, is_copied, is_emptied, is_rewritten, records)
        segment = chunk.ranges[0].slice.segment
        offsets_of_max = np.where(has_records, retained["offset_of_max"], -1)[is_copied | is_emptied | is_rewritten]
        return FilteredBatches(
            data,
            stored,
            base_offsets=stored["base_offset"] + segment.shift,
            offsets_of_max_timestamp=np.where(stored["max_timestamp"] < 0, -1, offsets_of_max),
            min_timestamps=np.full(len(stored), segment.min_timestamp),  # lower bounds are enough
            is_unchanged=bool((is_copied | (is_emptied & (batches["record_count"] == 0))).all()),
            drops_deletes=bool((flags.is_past_horizon & ~is_copied).any()),  # tombstones or markers
            unkeyed_records=unkeyed_records,
        )

    def _choose(
        self, flags: _BatchFlags, scanned_rows: npt.NDArray[np.intp], scanned: ScannedRecords | None
    ) -> tuple[np.ndarray, Flags, int]:
        """Return (a RETAINED row per batch, whether each scanned record stays, number of dropped unkeyed records)."""
        all_retained = np.zeros(len(flags.is_control), RETAINED)
        if scanned is None:
            return all_retained, np.empty(0, bool), 0
        retained, is_kept = np.empty(len(scanned_rows), RETAINED), np.empty(scanned.count, bool)
        unkeyed_records = choose_records(
            scanned.sections["emitted"].copy(),  # the number of records of each batch, as a contiguous array
            flags.is_control[scanned_rows],
            flags.is_past_horizon[scanned_rows],
            self.survivors.latest_offset,
            self.survivors.is_current(scanned),
            scanned.has_key,
            scanned.fields.value.valid[: scanned.count],
            scanned.offsets,
            scanned.timestamps,
            is_kept,
            retained,
        )
        all_retained[scanned_rows] = retained
        return all_retained, is_kept, unkeyed_records


@dataclass(frozen=True, slots=True)
class _BatchFlags:
    """Flags of each batch that do not depend on its records."""

    drops_all_records: Flags  # aborted data, or an obsolete marker after its delete horizon
    stays_empty: Flags  # its header stays even if its records do not
    is_control: Flags
    has_horizon: Flags
    is_past_horizon: Flags
    is_obsolete_marker: Flags  # the end marker of a transaction without data

    def part(self, start: int, end: int) -> _BatchFlags:
        return _BatchFlags(*(getattr(self, spec.name)[start:end] for spec in fields(self)))


def clean_partition(
    handle: TopicHandle, plan: CleaningPlan, dedupe_buffer_bytes: int = DEDUPE_BUFFER_BYTES
) -> RewrittenPartition:
    """Run the round `plan`, up to the offset at which the memory for keys is full."""
    now_ms = plan.now_ms(handle)
    verdicts = judge(handle.reader, plan.segments, handle.trusted_ms(), handle.producer_expiration_ms)
    keys = OffsetMap.within(dedupe_buffer_bytes, plan.dirty_records)
    secret = handle.random.randbytes(SECRET_BYTES)  # without it, a writer could make two keys with one hash
    build_map(handle.reader, plan.dirty_segments, plan.start_offset, plan.end_offset, verdicts, keys, secret)
    survivors, end = MapSurvivors(keys, secret), keys.latest_offset + 1
    groups = (clean_group(handle, group, survivors) for group in plan.groups(verdicts, now_ms, end))
    return RewrittenPartition(plan.partition, tuple(groups), plan.start_offset, end)


def clean_or_failure(
    handle: TopicHandle, plan: CleaningPlan, dedupe_buffer_bytes: int
) -> RewrittenPartition | RewriteFailure:
    return result_or_failure(plan.partition, lambda: clean_partition(handle, plan, dedupe_buffer_bytes))


def clean_group(handle: TopicHandle, due: GroupToClean, survivors: Survivors) -> RewrittenGroup:
    config, segments = due.config, due.group.segments
    batch_filter = BatchFilter(survivors, due.verdicts, due.end_offset, due.now_ms, config.delete_retention_ms)
    chunks = chain.from_iterable(checked_chunks(handle.reader, segment) for segment in segments)
    return rewrite_group(handle, due.group, batch_filter, chunks, config=config, read_version=due.read_version)


def clean_dirtiest(
    handle: TopicHandle, snapshot: Snapshot, logs: Sequence[Cleanable], dedupe_buffer_bytes: int
) -> list[RewrittenPartition | RewriteFailure]:
    """Clean the first of `logs` in this process: as many as have ROUND_BYTES together, or one larger log."""
    results: list[RewrittenPartition | RewriteFailure] = []
    round_bytes = 0
    for log in logs:
        plan = CleaningPlan.of(snapshot, log)
        round_bytes += plan.log_bytes
        if results and round_bytes > ROUND_BYTES:
            break
        try:
            results.append(clean_or_failure(handle, plan, dedupe_buffer_bytes))
        except StorageError:
            # commit the partitions before this one first: the next round begins with this one, and raises
            if not results:
                raise
            break
    return results


def _notes(snapshot: Snapshot, stable_offsets: Mapping[int, int]) -> Iterator[str]:
    for number, offset in stable_offsets.items():
        state = snapshot.partitions[number]
        if "compact" in snapshot.config.cleanup_policy and offset < state.log_end_offset:
            text = "is open, and nothing after its start is cleaned; `distlog transactions` shows its producer"
            yield f"partition {number}: a transaction from offset {offset} on {text}"


class _Rounds:
    """The partitions that are due, and the rounds that were done for each."""

    def __init__(self, logs: Sequence[Cleanable], failure_reasons: Mapping[int, str]) -> None:
        self._logs, self._failure_reasons = logs, dict(failure_reasons)
        self._rounds: dict[int, list[RewrittenPartition]] = {log.partition: [] for log in logs}
        self._skipped_groups = dict.fromkeys(self._rounds, 0)

    def add(
        self,
        cleaned: Sequence[RewrittenPartition],
        skipped_groups: Mapping[int, int],
        failures: Sequence[RewriteFailure],
    ) -> None:
        for partition in cleaned:
            self._rounds[partition.partition].append(partition)
            self._skipped_groups[partition.partition] += skipped_groups[partition.partition]
        self._failure_reasons |= {failure.partition: failure.reason for failure in failures}

    def dirty_logs(self, snapshot: Snapshot) -> Iterator[Cleanable]:
        """Yield the partitions that have more to clean, and whose last round made progress."""
        for log in self._logs:
            start, rounds = first_dirty_offset(snapshot.partitions[log.partition]), self._rounds[log.partition]
            has_progress = not rounds or start > rounds[-1].start_offset
            if log.partition not in self._failure_reasons and start < log.first_uncleanable_offset and has_progress:
                yield log

    def results(self, snapshot_before: Snapshot, snapshot_after: Snapshot) -> Iterator[PartitionCompaction]:
        for log in self._logs:
            number, end, rounds = log.partition, log.first_uncleanable_offset, self._rounds[log.partition]
            yield PartitionCompaction(
                partition=number,
                end_offset=end,
                **_totals(snapshot_before.partitions[number], end, "before"),
                **_totals(snapshot_after.partitions[number], end, "after"),
                rounds=len(rounds),
                unkeyed_records=sum(group.unkeyed_records for cleaned in rounds for group in cleaned.groups),
                skipped_groups=self._skipped_groups[number],
                error=self._failure_reasons.get(number),
            )


def _totals(state: PartitionState, end_offset: int, when: str) -> dict[str, int]:
    table = state.segments
    is_below = table.base_offsets < end_offset
    totals = is_below.sum(), table.log_bytes[is_below].sum(), table.record_counts[is_below].sum()
    return {f"{name}_{when}": int(total) for name, total in zip(_COUNTED, totals, strict=True)}
