"""Retention and delete-records: they remove whole segments from the start of a log, and change metadata only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa

from distlog.core.arrays import MAX_LONG, Flags, Longs, table_of_numbers, whole_number
from distlog.core.commits.actions import MAX_COMMIT_ROWS, Action, Remove, SetLogStartOffset
from distlog.core.commits.commit_log import CommitRace
from distlog.core.commits.segment_table import SegmentTable
from distlog.core.commits.snapshot import PartitionState, Snapshot, check_partition
from distlog.core.config import TopicConfig
from distlog.core.display import Displayable, counted, sums_of
from distlog.core.errors import InvalidConfigError, OffsetOutOfRangeError
from distlog.core.log.active_partition import ActiveSeals
from distlog.core.log.live_snapshot import with_tails
from distlog.core.log.producers import ProducerSnapshots
from distlog.core.segments.segment_reader import TopicHandle
from distlog.core.times import NO_TIMESTAMP, iso


def retention(
    handle: TopicHandle, snapshot: Snapshot, *, dry_run: bool = False
) -> tuple[list[PartitionRetention], Snapshot]:
    """Remove up to MAX_SEGMENTS expired segments in one commit, unless `dry_run`. Returns plans and the new state."""
    snapshot, now_ms = handle.log.refresh(snapshot), handle.trusted_ms()
    if dry_run:
        return plan_retention(with_tails(handle, snapshot), now_ms, max_segments=MAX_SEGMENTS), snapshot
    snapshot = _seal_expired(handle, snapshot, now_ms)
    producers = ProducerSnapshots(handle)
    with CommitRace(handle.log, snapshot, "retention") as race:
        for head in race:  # again with the newest state if another commit was first
            # tails are the records of active segments, which no commit has
            plans = plan_retention(with_tails(handle, head), now_ms, keep_tails=True, max_segments=MAX_SEGMENTS)
            if not plans:
                break
            # store these states before the commit, which removes the segments that they are read from
            producers.store(head, {plan.partition: len(plan.segments) for plan in plans})
            # the removals are adjacent, because a commit stores adjacent removals as a table
            stems = ((plan.partition, plan.segments.columns()["stem"].to_pylist()) for plan in plans)
            removals: list[Action] = [Remove(number, stem) for number, removed in stems for stem in removed]
            race.put([*removals, *(SetLogStartOffset(plan.partition, plan.log_start_offset) for plan in plans)])
    return plans, race.snapshot


# The rules match Kafka's `UnifiedLog.deleteOldSegments`: first the segments below the log start offset, then those
# beyond `retention.bytes`, then those older than `retention.ms`. Each rule stops at the first segment that must stay.
# A topic that is only compacted loses only the segments below its log start offset.
#
# As in Kafka, an active segment is deleted if all its records have expired. It is sealed first, by another commit,
# since a commit cannot remove a segment that it adds.


@dataclass(frozen=True, slots=True)
class PartitionRetention:
    """The segments that retention removes from one partition, their number by each rule, and its new log start.

    `newest_ms` is the time of the newest segment that is too old, -1 without one.
    """

    partition: int
    segments: SegmentTable
    below_log_start: int
    above_size: int
    too_old: int
    log_start_offset: int
    newest_ms: int

    @property
    def log_bytes(self) -> int:
        return int(self.segments.log_bytes.sum())

    @property
    def records(self) -> int:
        return int(self.segments.record_counts.sum())


_RULES = ("below_log_start", "above_size", "too_old")
_REPORT_COLUMNS = ("partition", "segments", "bytes", "records", *_RULES, "log_start_offset")


@dataclass(frozen=True, slots=True, repr=False)
class RetentionReport(Displayable):
    """The segments that retention deleted, or would with `dry_run`, of partitions that lose some."""

    version: int
    partitions: tuple[PartitionRetention, ...]
    dry_run: bool
    config: TopicConfig = field(default_factory=TopicConfig)

    def __str__(self) -> str:
        sums = sums_of(self._rows(), "segments", "bytes", "records")
        verb = "would delete" if self.dry_run else "deleted"
        return "; ".join([f"{verb} {', '.join(counted(n, name[:-1]) for name, n in sums.items())}", *self._reasons()])

    def _reasons(self) -> Iterator[str]:
        """Yield each rule with the number of segments that it deletes, and the reason."""
        sums = sums_of(self._rows(), "too_old", "above_size", "below_log_start")
        if sums["too_old"]:
            newest = iso(max(partition.newest_ms for partition in self.partitions))
            yield f"{sums['too_old']:,} by retention.ms={self.config.retention_ms} (the newest record is of {newest})"
        if sums["above_size"]:
            yield f"{sums['above_size']:,} by retention.bytes={self.config.retention_bytes}"
        if sums["below_log_start"]:
            yield f"{sums['below_log_start']:,} below the log start offset, where records were deleted"

    def to_table(self) -> pa.Table:
        """Return a row per partition that loses something: its losses, segments by rule, its new log start offset."""
        return table_of_numbers(self._rows(), _REPORT_COLUMNS)

    def to_dict(self) -> dict[str, Any]:
        """Return the totals, and the rows of the table."""
        rows = self._rows()
        sums = sums_of(rows, "segments", "bytes", "records")
        limits = {name: self.config.all()[name] for name in ("retention.ms", "retention.bytes")}
        return {"version": self.version, "dry_run": self.dry_run, **sums, "config": limits, "partitions": rows}

    def _rows(self) -> list[dict[str, int]]:
        names = ("records", *_RULES, "newest_ms", "log_start_offset")
        return [
            {
                "partition": plan.partition,
                "segments": len(plan.segments),
                "bytes": plan.log_bytes,
                **{name: getattr(plan, name) for name in names},
            }
            for plan in self.partitions
        ]


#: The most segments that one run removes, since a run makes one commit.
MAX_SEGMENTS = MAX_COMMIT_ROWS


def plan_retention(
    snapshot: Snapshot, now_ms: int, *, keep_tails: bool = False, max_segments: int = MAX_LONG
) -> list[PartitionRetention]:
    """Plan the segments to delete at `now_ms`, by partition; with `keep_tails` active segments stay."""
    table = snapshot.partitions
    # most partitions are rows of one table; those with active segments, or that changed alone, have own states
    shared_table, own_states = SegmentTable(table.column_segments()), table.own_states
    columns = _Columns.of(shared_table, own_states)
    if not len(columns.firsts):
        return []
    starts, log_ends = table.log_start_offsets, table.log_end_offsets
    rule_ends = _ends(columns, starts, snapshot.config, now_ms)
    plans, remaining = [], max_segments
    for index in np.flatnonzero(rule_ends[-1] > columns.firsts).tolist():
        first, end, number = int(columns.firsts[index]), int(columns.ends[index]), int(columns.partitions[index])
        has_own_state = number in own_states
        segments = own_states[number].segments if has_own_state else shared_table.part(first, end)
        removable = len(segments) - int(keep_tails and has_own_state and segments[-1].is_active)
        counts = tuple(min(int(ends[index]) - first, removable, remaining) for ends in rule_ends)  # see `_plan`
        if counts[-1]:
            remaining -= counts[-1]
            plans.append(_plan(number, segments, counts, int(starts[number]), int(log_ends[number]), now_ms))
    return sorted(plans, key=attrgetter("partition"))


def _plan(
    number: int, segments: SegmentTable, counts: tuple[int, ...], log_start: int, log_end: int, now_ms: int
) -> PartitionRetention:
    """Plan a partition; `counts[i]` is the number of segments that the first i + 1 rules remove together."""
    below_start, by_size, removed_count = counts
    removed = segments.part(0, removed_count)
    times = _times(removed.max_timestamps, removed.array("created_ms"), now_ms)
    next_start = log_end if removed_count == len(segments) else int(segments.base_offsets[removed_count])
    return PartitionRetention(
        partition=number,
        segments=removed,
        below_log_start=below_start,
        above_size=by_size - below_start,
        too_old=removed_count - by_size,
        log_start_offset=max(log_start, next_start),
        newest_ms=int(times[by_size:].max(initial=NO_TIMESTAMP)),
    )


_RULE_COLUMNS = "next_offset", "log_bytes", "max_timestamp", "created_ms"


@dataclass(frozen=True, slots=True)
class _Columns:
    """Columns of all segments, for the rules: `partitions[i]` has the rows [firsts[i], ends[i])."""

    values: Mapping[str, Longs]
    partitions: Longs
    firsts: Longs
    ends: Longs

    @classmethod
    def of(cls, shared_table: SegmentTable, own_states: Mapping[int, PartitionState]) -> _Columns:
        tables = [shared_table, *(state.segments for state in own_states.values())]
        values = {name: np.concatenate([table.array(name) for table in tables]) for name in _RULE_COLUMNS}
        row_partitions = np.repeat([*own_states], [len(table) for table in tables[1:]]).astype(np.int64)
        row_partitions = np.concatenate([shared_table.array("partition"), row_partitions])
        firsts = np.flatnonzero(np.diff(row_partitions, prepend=-1))
        return cls(values, row_partitions[firsts], firsts, np.append(firsts, len(row_partitions))[1:])

    def first_unflagged(self, flags: Flags, starts: Longs) -> Longs:
        """Return the first row from `starts[i]` on without a flag, or the end, for each partition i."""
        rows = np.arange(len(flags))
        stops = np.where(flags | (rows < self.by_row(starts)), len(flags), rows)
        return np.minimum(np.minimum.reduceat(stops, self.firsts), self.ends)

    def by_row(self, values: Longs) -> Longs:
        return np.repeat(values, self.ends - self.firsts)


def _ends(columns: _Columns, starts: Longs, config: TopicConfig, now_ms: int) -> tuple[Longs, Longs, Longs]:
    """Return, for each partition, the rows at which the rules by log start, by size and by time stop."""
    is_below = columns.values["next_offset"] <= columns.by_row(starts[columns.partitions])
    start_end = columns.first_unflagged(is_below, columns.firsts)
    size_end = time_end = start_end
    if "delete" in config.cleanup_policy and config.retention_bytes >= 0:
        sums = np.append(0, np.cumsum(columns.values["log_bytes"]))
        # a segment is removed if the partition's later segments have at least `retention.bytes`
        excess = sums[columns.ends] - min(config.retention_bytes, MAX_LONG)
        size_end = time_end = columns.first_unflagged(sums[1:] <= columns.by_row(excess), start_end)
    if "delete" in config.cleanup_policy and config.retention_ms >= 0:
        times = _times(columns.values["max_timestamp"], columns.values["created_ms"], now_ms)
        time_end = columns.first_unflagged(times < now_ms - config.retention_ms, size_end)
    return start_end, size_end, time_end


def _times(max_timestamps: Longs, created_ms: Longs, now_ms: int) -> Longs:
    """Return the times that ages count from: largest timestamps, or the creation if these are unknown or future."""
    return np.where((max_timestamps >= 0) & (max_timestamps <= now_ms), max_timestamps, created_ms)


def _seal_expired(handle: TopicHandle, snapshot: Snapshot, now_ms: int) -> Snapshot:
    """Seal the expired active segments, if any, in one commit."""
    if not _expired_active(handle, snapshot, now_ms):
        return snapshot
    with CommitRace(handle.log, snapshot, "seal") as race, ActiveSeals(handle, race) as seals:
        for head in race:
            sealed = seals.seal(head, _expired_active(handle, head, now_ms))
            if sealed is None:
                continue  # `seals` only locked the partitions; it seals them at the next, newest head
            # an append may have made the segment younger before the partition was locked
            if not plan_retention(with_tails(handle, sealed), now_ms, keep_tails=True):
                break
            race.put(seals.actions)
    return race.snapshot


def _expired_active(handle: TopicHandle, snapshot: Snapshot, now_ms: int) -> list[int]:
    if not snapshot.active_partitions:
        return []
    plans = plan_retention(with_tails(handle, snapshot), now_ms)
    return [plan.partition for plan in plans if plan.segments[-1].is_active]


#: Stands for the log end offset (the high watermark in Kafka), to delete all records.
LOG_END = -1


def delete_records(
    handle: TopicHandle, snapshot: Snapshot, offsets: Mapping[int, int]
) -> tuple[dict[int, int], Snapshot]:
    """Delete the records below `offsets[partition]`. Returns the new log start offsets and the new state."""
    if not isinstance(offsets, Mapping):
        raise InvalidConfigError("offsets must be a dict by partition, as in {0: 100}", got=type(offsets).__name__)
    snapshot = handle.log.refresh(snapshot)
    starts = _resolve(with_tails(handle, snapshot), offsets)
    with CommitRace(handle.log, snapshot, "delete-records") as race, ActiveSeals(handle, race) as seals:
        for head in race:
            # in `head` a log ends where its active segment begins: to delete its records, the segment is sealed
            within_active = [n for n, start in starts.items() if start > head.partitions[n].log_end_offset]
            sealed = seals.seal(head, within_active)
            if sealed is None:
                continue  # `seals` only locked the partitions; it seals them at the next, newest head
            states, new_starts = sealed.partitions, _resolve(sealed, starts)
            raised = {n: start for n, start in new_starts.items() if start > states[n].log_start_offset}
            if not raised:
                break
            race.put([*seals.actions, *(SetLogStartOffset(*item) for item in sorted(raised.items()))])
    after = race.snapshot
    return {number: after.partitions[number].log_start_offset for number in sorted(offsets)}, after


@dataclass(frozen=True, slots=True, repr=False)
class DeleteRecordsReport(Displayable):
    """The new log start offsets of the partitions in the request: {partition: log start offset}."""

    version: int
    log_start_offsets: Mapping[int, int]

    def __str__(self) -> str:
        starts = (f"partition {number} starts at {offset}" for number, offset in self.log_start_offsets.items())
        return ", ".join(starts) or "no partitions were given"

    def to_table(self) -> pa.Table:
        """Return a row per partition."""
        return table_of_numbers(self._rows(), ("partition", "log_start_offset"))

    def to_dict(self) -> dict[str, Any]:
        """Return the version, and the rows of the table."""
        return {"version": self.version, "partitions": self._rows()}

    def _rows(self) -> list[dict[str, int]]:
        starts = self.log_start_offsets
        return [{"partition": number, "log_start_offset": starts[number]} for number in starts]


def _resolve(snapshot: Snapshot, offsets: Mapping[int, int]) -> dict[int, int]:
    """Check `offsets`, and replace LOG_END by the log end."""
    if "delete" not in snapshot.config.cleanup_policy:
        raise InvalidConfigError("records can be deleted only if cleanup.policy has delete: set it to compact,delete")
    resolved, count = dict[int, int](), len(snapshot.partitions)
    for partition, offset in offsets.items():
        check_partition(whole_number("partition", partition), count)
        state = snapshot.partitions[partition]
        resolved[partition] = state.log_end_offset if whole_number("offset", offset) == LOG_END else offset
        if not 0 <= resolved[partition] <= state.log_end_offset:
            raise OffsetOutOfRangeError(
                "records can be deleted up to the log end offset; offset=-1 deletes all",
                partition=partition,
                offset=offset,
                log_start_offset=state.log_start_offset,
                log_end_offset=state.log_end_offset,
            )
    return resolved
