"""Merges the small segments of a topic towards `segment.bytes`, and their small batches towards `batch.bytes`."""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, compress
from typing import Any

import numpy as np
import pyarrow as pa

from distlog.core.arrays import Longs, booleans, join, numbers_of, table_of_numbers
from distlog.core.commits.actions import Action, replacement_actions
from distlog.core.commits.commit_log import TIMEOUT_S, CommitRace
from distlog.core.commits.segment_table import REMOVED_SCHEMA, SegmentInfo, SegmentTable
from distlog.core.commits.snapshot import Snapshot
from distlog.core.config import TopicConfig
from distlog.core.display import Displayable, counted, sums_of
from distlog.core.format.indexes import TIME_ENTRY
from distlog.core.format.kernels.segments import find_groups
from distlog.core.maintain.executor import Executor, LocalExecutor
from distlog.core.maintain.group_rewrite import MAX_SEGMENTS, RewriteFailure, SegmentGroup
from distlog.core.maintain.merge_job import JOB_BYTES, MergedJob, MergeJob, do_job, jobs
from distlog.core.segments.segment_reader import TopicHandle
from distlog.core.segments.segment_writer import LARGEST_PART


def merge(
    handle: TopicHandle,
    snapshot: Snapshot,
    executor: Executor | None = None,
    *,
    dry_run: bool = False,
    job_bytes: int = JOB_BYTES,
) -> tuple[MergeReport, Snapshot]:
    """Merge up to MAX_SEGMENTS segments in one commit. Returns the report and the new state."""
    snapshot = handle.log.refresh(snapshot)
    planned = plan_merge(snapshot)
    total_counts = np.cumsum([len(group.segments) for group in planned])
    groups = planned[: int(total_counts.searchsorted(MAX_SEGMENTS, side="right"))]  # with up to MAX_SEGMENTS together
    if planned and not groups:
        # the first group alone has more segments than a commit takes: begin with its first ones
        groups = [SegmentGroup(planned[0].segments.part(0, MAX_SEGMENTS))]
    if dry_run or not groups:
        report, after = MergeReport(snapshot.version, tuple(groups), dry_run), snapshot
    else:
        report, after = merge_groups(handle, snapshot, groups, executor, job_bytes=job_bytes)
        planned = plan_merge(after)
    backlog = sum(len(group.segments) for group in planned)
    most_segments = int(after.partitions.segment_counts().max(initial=0))
    return dataclasses.replace(report, backlog=backlog, most_segments=most_segments), after


_REPORT_COLUMNS = ("partition", "segments_before", "segments_after", "bytes", "records")


@dataclass(frozen=True, slots=True, repr=False)
class MergeReport(Displayable):
    """The groups that were merged into one segment each, or would be with `dry_run`, and the groups that failed.

    `backlog` segments of `version` are still worth merging. No partition has more than `most_segments`.
    """

    version: int
    groups: tuple[SegmentGroup, ...]
    dry_run: bool
    failed: tuple[RewriteFailure, ...] = ()
    backlog: int = 0
    most_segments: int = 0

    @property
    def ok(self) -> bool:
        """True if no group failed."""
        return not self.failed

    def __str__(self) -> str:
        sums = sums_of(self._rows(), "segments_before", "segments_after", "bytes")
        verb = "would merge" if self.dry_run else "merged"
        merged = f"{counted(sums['segments_before'], 'segment')} into {sums['segments_after']:,}"
        parts = [f"{verb} {merged}, {counted(sums['bytes'], 'byte')}"]
        if self.backlog and not self.dry_run:
            parts.append(f"{counted(self.backlog, 'segment')} left to merge")
        return "; ".join([*parts, *(f"cannot merge {failure}" for failure in self.failed)])

    def to_table(self) -> pa.Table:
        """Return a row per partition with merged segments; other segments are not counted."""
        return table_of_numbers(self._rows(), _REPORT_COLUMNS)

    def to_dict(self) -> dict[str, Any]:
        """Return the totals, the rows of the table, and the groups that cannot be merged."""
        rows, summary = self._rows(), {"version": self.version, "ok": self.ok, "dry_run": self.dry_run}
        summary |= {"backlog": self.backlog, "most_segments": self.most_segments}
        names = "partition", "base_offset", "next_offset", "reason"
        values = ((failure.partition, *(failure.offsets or (None, None)), failure.reason) for failure in self.failed)
        failed = [dict(zip(names, row, strict=True)) for row in values]
        return {**summary, **sums_of(rows, *_REPORT_COLUMNS[1:]), "partitions": rows, "failed": failed}

    def _rows(self) -> list[dict[str, int]]:
        groups: dict[int, list[SegmentGroup]] = defaultdict(list)
        for group in self.groups:
            groups[group.partition].append(group)
        return [
            {
                "partition": partition,
                "segments_before": sum(len(group.segments) for group in partition_groups),
                "segments_after": len(partition_groups),
                "bytes": sum(group.log_bytes for group in partition_groups),
                "records": sum(group.records for group in partition_groups),
            }
            for partition, partition_groups in sorted(groups.items())
        ]


def merge_groups(
    handle: TopicHandle,
    snapshot: Snapshot,
    groups: Sequence[SegmentGroup],
    executor: Executor | None = None,
    *,
    timeout_s: float = TIMEOUT_S,
    job_bytes: int = JOB_BYTES,
) -> tuple[MergeReport, Snapshot]:
    """Merge groups of `snapshot`. Raises CommitConflictError after conflicts for `timeout_s`."""
    work = partial(do_job, handle, config=snapshot.config, read_version=snapshot.version, job_bytes=job_bytes)
    planned = jobs(groups, job_bytes)
    executor = executor or LocalExecutor(handle.storage)
    merged = MergedJob.joined(list(executor.map(work, planned)))
    replacement, replaced = _Replacement(planned, merged), tuple[SegmentGroup, ...]()
    # the history shows a merge as compact, which is the name of the command
    race = CommitRace(handle.log, snapshot, "compact", read_version=snapshot.version, timeout_s=timeout_s)
    with race:
        for head in race:  # again with the newest state if another commit was first
            replaced, actions = replacement.for_head(head)
            if not actions:
                break
            race.put(actions)
    return MergeReport(race.snapshot.version, replaced, dry_run=False, failed=merged.failed), race.snapshot


def job_bytes_of(memory: int, workers: int) -> int:
    """The bytes that a job of a merge reads at once if `workers` jobs together hold `memory` bytes."""
    # a job holds the bytes that it reads, what it makes from them, and the bytes to write
    return max(JOB_BYTES, memory // (3 * workers))


class _Replacement:
    """Replaces the `_counts[i]` segments of group i of all `jobs` by `merged.counts[i]` new ones; 0 if it failed."""

    def __init__(self, jobs: Sequence[MergeJob], merged: MergedJob) -> None:
        self._jobs, self._merged = jobs, merged
        self._counts = np.concatenate([job.counts for job in jobs])
        # select the needed columns, since there may be hundreds of thousands of segments
        self._inputs = join([job.inputs.columns().select(REMOVED_SCHEMA.names) for job in jobs])
        self._partitions = np.concatenate([job.inputs.array("partition")[job.firsts] for job in jobs])
        self._next_offsets = np.concatenate([job.inputs.next_offsets[job.firsts + job.counts - 1] for job in jobs])

    def for_head(self, head: Snapshot) -> tuple[tuple[SegmentGroup, ...], list[Action]]:
        """Return the groups that are replaced at `head`, and the actions that replace them."""
        table, firsts = head.partitions, np.cumsum(self._counts) - self._counts
        # not groups that failed, that lost a segment since, or that are below the log start, which retention removes
        is_replaced = np.logical_and.reduceat(table.has_segments(self._inputs), firsts) & (self._merged.counts > 0)
        is_replaced &= self._next_offsets > table.log_start_offsets[self._partitions]
        groups = chain.from_iterable(job.groups for job in self._jobs)
        removed = self._inputs.filter(booleans(np.repeat(is_replaced, self._counts)))
        added = self._merged.segments.columns().filter(booleans(np.repeat(is_replaced, self._merged.counts)))
        actions = replacement_actions(removed, added) if len(added) else []
        return tuple(compress(groups, is_replaced.tolist())), actions


#: The largest segment that a merge after an append makes; `plan_merge` makes larger ones.
MAX_TAIL_SEGMENT_BYTES = 128 << 20
#: A merge after an append takes the smallest groups, until they have this many bytes or segments. After a large
#: append it takes more: the next two constants, multiplied by the appended bytes and segments.
TAIL_MERGE_BYTES, TAIL_MERGE_SEGMENTS = MAX_TAIL_SEGMENT_BYTES, 512
#: Each copy of a record makes its segment LARGE_GROWTH (8) times larger, so four copies are enough from 50 kB to
#: MAX_TAIL_SEGMENT_BYTES. A merge at least halves the segments: 1 + 1/2 + 1/4 + ... = 2 are read per appended one.
MERGED_PER_APPENDED_BYTE, MERGED_PER_APPENDED_SEGMENT = 4, 2
#: How long a merge after an append retries its commit after conflicts, in seconds.
COMMIT_TIMEOUT_S = 5.0


def merge_tails(
    handle: TopicHandle, snapshot: Snapshot, appended: Sequence[SegmentInfo]
) -> tuple[MergeReport | None, Snapshot]:
    """Merge segments near those that were just `appended`. Returns None if no group is worth merging."""
    sizes = [segment.log_bytes for segment in appended]
    groups = plan_tail_merge(
        snapshot,
        Counter(segment.partition for segment in appended),
        max_bytes=max(TAIL_MERGE_BYTES, MERGED_PER_APPENDED_BYTE * sum(sizes)),
        max_segments=max(TAIL_MERGE_SEGMENTS, MERGED_PER_APPENDED_SEGMENT * len(sizes)),
    )
    if not groups:
        return None, snapshot
    return merge_groups(handle, snapshot, groups, timeout_s=COMMIT_TIMEOUT_S)


#: A group is merged if it has MIN_GROWTH times the bytes of its largest segment. Later segments may join the group at
#: a log's end: above LARGEST_PART bytes, it needs LARGE_GROWTH times, since readers gain little by larger segments.
MIN_GROWTH, LARGE_GROWTH = 2, 8

#: The columns of segments that decide which groups are worth merging.
_COLUMNS = "log_bytes", "base_offset", "next_offset", "first_timestamp", "max_timestamp", "created_ms", "record_count"


def plan_merge(snapshot: Snapshot) -> list[SegmentGroup]:
    """The groups worth merging; none for a compacted topic, since compaction merges too.

    A group is adjacent segments that fit into one without a roll, by `segment.bytes`, `segment.index.bytes`, and
    `segment.ms` from the first record's time, so that retention by time stays exact. It is worth merging if its
    largest segment has at most half of its bytes (MIN_GROWTH, LARGE_GROWTH): each copy moves a record to a segment of
    at least twice the size. If a segment has more than half, the segments before and after it are tried as groups.
    """
    if "compact" in snapshot.config.cleanup_policy:
        return []
    table, limits = snapshot.partitions, limits_of(snapshot.config)
    segments = SegmentTable(table.column_segments())
    row_partitions = numbers_of(segments.columns()["partition"])
    ranges = groups_of(segments, row_partitions, table.log_start_offsets, limits)
    groups = [SegmentGroup(segments.part(first, end)) for first, end in ranges]
    # a partition that changed alone has its own state, instead of rows in the table
    for state in table.own_states.values():
        groups += _groups_in(state.segments, state.log_start_offset, limits)
    return sorted(groups, key=lambda group: group.partition) if table.own_states else groups


def limits_of(config: TopicConfig, *, of_tails: bool = False) -> Longs:
    """The limits of a plan, for `groups_of`; with `of_tails` any group that may grow needs LARGE_GROWTH."""
    entries = config.segment_index_bytes // TIME_ENTRY.itemsize
    sizes = config.segment_size, config.segment_ms, entries, config.index_interval_bytes
    large_bytes = -1 if of_tails else LARGEST_PART
    return np.array([*sizes, MIN_GROWTH, LARGE_GROWTH, large_bytes])


def groups_of(table: SegmentTable, row_partitions: Longs, log_starts: Longs, limits: Longs) -> list[tuple[int, int]]:
    """Return (first row, end row) of each group worth merging. `row_partitions` has the partition of each row."""
    sizes, base_offsets, next_offsets, first_times, newest, created, records = map(table.array, _COLUMNS)
    newest = np.where(newest >= 0, newest, created)  # retention counts ages from the same times
    oldest = np.where(first_times >= 0, first_times, newest)
    offsets, times = (base_offsets, next_offsets), (oldest, newest)
    scratch, ranges = np.empty((2, len(row_partitions) + 1, 2), np.int64)  # `find_groups` fills both
    count = find_groups(row_partitions, sizes, *offsets, *times, records, log_starts, limits, scratch, ranges)
    # segments without bytes have nothing to write
    return [(first, end) for first, end in ranges[:count].tolist() if sizes[first:end].any()]


def _groups_in(segments: SegmentTable, log_start: int, limits: Longs) -> list[SegmentGroup]:
    ranges = groups_of(segments, np.zeros(len(segments), np.int64), np.array([log_start]), limits)
    return [SegmentGroup(segments.part(first, end)) for first, end in ranges]


#: The number of segments before the appended ones of a partition that a merge after an append considers.
TAIL_SEGMENTS = 256


def plan_tail_merge(
    snapshot: Snapshot, appended_counts: Mapping[int, int], *, max_bytes: int, max_segments: int
) -> list[SegmentGroup]:
    """The smallest groups worth merging near the appended segments, up to `max_bytes` or `max_segments`."""
    if "compact" in snapshot.config.cleanup_policy:
        return []
    segment_bytes = min(snapshot.config.segment_size, MAX_TAIL_SEGMENT_BYTES)
    limits = limits_of(dataclasses.replace(snapshot.config, internal_segment_bytes=segment_bytes), of_tails=True)
    groups: list[SegmentGroup] = []
    for number, count in appended_counts.items():
        state = snapshot.partitions[number]
        first = max(0, len(state.segments) - TAIL_SEGMENTS - count)
        groups += _groups_in(state.segments.part(first, len(state.segments)), state.log_start_offset, limits)
    return _smallest(groups, max_bytes, max_segments)


def _smallest(groups: Sequence[SegmentGroup], max_bytes: int, max_segments: int) -> list[SegmentGroup]:
    smallest = list[SegmentGroup]()
    log_bytes = segments = 0
    for group in sorted(groups, key=lambda group: group.log_bytes):
        if log_bytes >= max_bytes or segments >= max_segments:
            break
        smallest.append(group)
        log_bytes, segments = log_bytes + group.log_bytes, segments + len(group.segments)
    return smallest
