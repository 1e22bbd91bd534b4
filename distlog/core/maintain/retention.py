"""Retention and delete-records: whole segments go from the old end of a partition. They change metadata only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from distlog.core.arrays import table_of_numbers
from distlog.core.commits.actions import MOST_ROWS, Action, Remove, SetLogStartOffset
from distlog.core.commits.commit_log import CommitRace
from distlog.core.commits.segment_table import SegmentTable
from distlog.core.commits.snapshot import PartitionState, Snapshot, check_partition
from distlog.core.config import TopicConfig
from distlog.core.display import Shown, counted, sums_of
from distlog.core.errors import InvalidConfigError, OffsetOutOfRangeError
from distlog.core.integers import MAX_LONG, whole_number
from distlog.core.log.active_partition import ActiveSeals
from distlog.core.log.live_snapshot import with_tails
from distlog.core.log.producers import ProducerSnapshots
from distlog.core.segments.segment_reader import TopicHandle
from distlog.core.times import NO_TIMESTAMP, iso


def retention(
    handle: TopicHandle, snapshot: Snapshot, *, dry_run: bool = False
) -> tuple[list[PartitionRetention], Snapshot]:
    """Remove up to MAX_SEGMENTS expired segments in one commit, unless `dry_run`; returns plans and the new state.

    Raises CommitConflictError if the topic was dropped, StorageError if the lock of an expired active segment is not
    free in time, and CommitStateUnknownError.
    """
    snapshot, now_ms = handle.log.refresh(snapshot), handle.trusted_ms()
    if dry_run:
        return plan_retention(with_tails(handle, snapshot), now_ms, most_segments=MAX_SEGMENTS), snapshot
    snapshot, producers = _seal_expired(handle, snapshot, now_ms), ProducerSnapshots(handle)
    with CommitRace(handle.log, snapshot, "retention") as race:
        for head in race:
            tailed = with_tails(handle, head)
            plans = plan_retention(tailed, now_ms, keep_tails=True, most_segments=MAX_SEGMENTS)
            if not plans:
                break
            # before the commit, after which these logs start later
            producers.store(head, {plan.partition: len(plan.segments) for plan in plans})
            # a commit stores a long run of removals as a table
            stems = ((plan.partition, plan.segments.columns()["stem"].to_pylist()) for plan in plans)
            removals: list[Action] = [Remove(number, stem) for number, removed in stems for stem in removed]
            race.put([*removals, *(SetLogStartOffset(plan.partition, plan.log_start_offset) for plan in plans)])
    return plans, race.after


Longs = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

# The rules match Kafka's `UnifiedLog.deleteOldSegments`: first the segments below the log start offset, then those
# above `retention.bytes`, then those older than `retention.ms`. Each rule stops at the first segment that must stay.
# A topic that is only compacted loses only the segments below its log start offset.
#
# As in Kafka, an active segment is deleted if all its records have expired. It is sealed first, by another commit,
# since a commit cannot remove a segment that it adds. Logs are read only for unstored states of producers.


@dataclass(frozen=True, slots=True)
class PartitionRetention:
    """The segments that retention removes from one partition, how many by each rule, and its new log start offset."""

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


_COLUMNS = (
    *("partition", "segments", "bytes", "records"),
    *("below_log_start", "above_size", "too_old", "log_start_offset"),
)


@dataclass(frozen=True, slots=True, repr=False)
class RetentionReport(Shown):
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
        return table_of_numbers(self._rows(), _COLUMNS)

    def to_dict(self) -> dict[str, Any]:
        """Return the totals, and the rows of the table."""
        rows = self._rows()
        sums = sums_of(rows, "segments", "bytes", "records")
        limits = {name: self.config.all()[name] for name in ("retention.ms", "retention.bytes")}
        return {"version": self.version, "dry_run": self.dry_run, **sums, "config": limits, "partitions": rows}

    def _rows(self) -> list[dict[str, int]]:
        names = ("records", "below_log_start", "above_size", "too_old", "newest_ms", "log_start_offset")
        return [
            {"partition": plan.partition, "segments": len(plan.segments), "bytes": plan.log_bytes}
            | {name: getattr(plan, name) for name in names}
            for plan in self.partitions
        ]


#: Segments that one commit removes; the next run removes more.
MAX_SEGMENTS = MOST_ROWS


def plan_retention(
    snapshot: Snapshot, now_ms: int, *, keep_tails: bool = False, most_segments: int = MAX_LONG
) -> list[PartitionRetention]:
    """Plan the segments to delete at `now_ms` by the topic's config, in partitions that lose some."""
    table = snapshot.partitions
    plain, changed = SegmentTable(table.plain_segments()), table.changed_states
    columns = _Columns.of(plain, changed)
    if not len(columns.firsts):
        return []
    starts, log_ends = table.log_start_offsets, table.log_end_offsets
    below, size, age = _ends(columns, starts, snapshot.config, now_ms)
    plans, remaining = [], most_segments
    for group in np.flatnonzero(age > columns.firsts).tolist():
        first, number = int(columns.firsts[group]), int(columns.partitions[group])
        segments = changed[number].segments if number in changed else plain.part(first, int(columns.ends[group]))
        most = len(segments) - int(keep_tails and number in changed and segments[-1].is_active)
        counts = tuple(min(int(row[group]) - first, most, remaining) for row in (below, size, age))
        if counts[-1]:
            remaining -= counts[-1]
            plans.append(_plan(number, segments, counts, int(starts[number]), int(log_ends[number]), now_ms))
    return sorted(plans, key=attrgetter("partition"))


def _plan(
    number: int, segments: SegmentTable, counts: tuple[int, ...], log_start: int, log_end: int, now_ms: int
) -> PartitionRetention:
    """Plan a partition; `counts` are the segments that the first rule removes, the first two, and all."""
    below, size, age = counts
    expired = segments.part(0, age)
    times = _times(expired.max_timestamps, expired.array("created_ms"), now_ms)
    return PartitionRetention(
        partition=number,
        segments=expired,
        below_log_start=below,
        above_size=size - below,
        too_old=age - size,
        log_start_offset=max(log_start, log_end if age == len(segments) else int(segments.base_offsets[age])),
        newest_ms=int(times[size:].max(initial=NO_TIMESTAMP)),
    )


_RULE_COLUMNS = "next_offset", "log_bytes", "max_timestamp", "created_ms"


@dataclass(frozen=True, slots=True)
class _Columns:
    """Columns of all segments, for the rules: of `partitions[i]` in the rows from `firsts[i]` to `ends[i]`."""

    values: Mapping[str, Longs]
    partitions: Longs
    firsts: Longs
    ends: Longs

    @classmethod
    def of(cls, plain: SegmentTable, changed: Mapping[int, PartitionState]) -> _Columns:
        tables = [plain, *(state.segments for state in changed.values())]
        values = {name: np.concatenate([table.array(name) for table in tables]) for name in _RULE_COLUMNS}
        owners = np.repeat([*changed], [len(table) for table in tables[1:]]).astype(np.int64)
        owners = np.concatenate([plain.array("partition"), owners])
        firsts = np.flatnonzero(np.diff(owners, prepend=-1))
        return cls(values, owners[firsts], firsts, np.append(firsts, len(owners))[1:])

    def run_ends(self, holds: Flags, begins: Longs) -> Longs:
        """Return the end of the run of flagged rows from `begins[i]` on, for each partition i."""
        rows = np.arange(len(holds))
        stops = np.where(holds | (rows < self.of_each(begins)), len(holds), rows)
        return np.minimum(np.minimum.reduceat(stops, self.firsts), self.ends)

    def of_each(self, values: Longs) -> Longs:
        return np.repeat(values, self.ends - self.firsts)


def _ends(columns: _Columns, starts: Longs, config: TopicConfig, now_ms: int) -> tuple[Longs, Longs, Longs]:
    """Return the row of each partition at which the rules of log start, size and time stop."""
    is_below = columns.values["next_offset"] <= columns.of_each(starts[columns.partitions])
    below = columns.run_ends(is_below, columns.firsts)
    size = age = below
    if "delete" in config.cleanup_policy and config.retention_bytes >= 0:
        sums = np.append(0, np.cumsum(columns.values["log_bytes"]))
        most = sums[columns.ends] - min(config.retention_bytes, MAX_LONG)
        size = age = columns.run_ends(sums[1:] <= columns.of_each(most), below)
    if "delete" in config.cleanup_policy and config.retention_ms >= 0:
        times = _times(columns.values["max_timestamp"], columns.values["created_ms"], now_ms)
        age = columns.run_ends(times < now_ms - config.retention_ms, size)
    return below, size, age


def _times(newest: Longs, written: Longs, now_ms: int) -> Longs:
    """Return the time of each segment's age: its largest timestamp if known and past, else the write time."""
    return np.where((newest >= 0) & (newest <= now_ms), newest, written)


def _seal_expired(handle: TopicHandle, snapshot: Snapshot, now_ms: int) -> Snapshot:
    """Seal the expired active segments, if any, in one commit."""
    if not _expired_active(handle, snapshot, now_ms):
        return snapshot
    with CommitRace(handle.log, snapshot, "seal") as race, ActiveSeals(handle, race) as seals:
        for head in race:
            sealed = seals.seal(head, _expired_active(handle, head, now_ms))
            if sealed is None:
                continue
            # an append may have made a segment younger before the lock
            if not plan_retention(with_tails(handle, sealed), now_ms, keep_tails=True):
                break
            race.put(seals.actions)
    return race.after


def _expired_active(handle: TopicHandle, snapshot: Snapshot, now_ms: int) -> list[int]:
    """Return the partitions whose active segment has expired."""
    if not snapshot.active_partitions:
        return []
    plans = plan_retention(with_tails(handle, snapshot), now_ms)
    return [plan.partition for plan in plans if plan.segments[-1].is_active]


#: Instead of an offset: delete all records (Kafka's high watermark).
LOG_END = -1


def delete_records(
    handle: TopicHandle, snapshot: Snapshot, offsets: Mapping[int, int]
) -> tuple[dict[int, int], Snapshot]:
    """Delete the records below `offsets[partition]`; returns the new log start offsets and the new state.

    An offset within an active segment seals it in the same commit. Raises OffsetOutOfRangeError, TopicNotFoundError,
    InvalidConfigError when `cleanup.policy` is compact alone (Kafka's PolicyViolationException), and StorageError if
    the lock of an active segment is not free in time.
    """
    if not isinstance(offsets, Mapping):
        raise InvalidConfigError("offsets are a dict by partition, as in {0: 100}", got=type(offsets).__name__)
    snapshot = handle.log.refresh(snapshot)
    starts = _resolved(with_tails(handle, snapshot), offsets)
    with CommitRace(handle.log, snapshot, "delete-records") as race, ActiveSeals(handle, race) as seals:
        for head in race:
            within_active = [n for n, start in starts.items() if start > head.partitions[n].log_end_offset]
            sealed = seals.seal(head, within_active)
            if sealed is None:
                continue
            checked = _resolved(sealed, starts)
            raised = {n: start for n, start in checked.items() if start > sealed.partitions[n].log_start_offset}
            if not raised:
                break
            race.put([*seals.actions, *(SetLogStartOffset(*item) for item in sorted(raised.items()))])
    after = race.after
    return {number: after.partitions[number].log_start_offset for number in sorted(offsets)}, after


@dataclass(frozen=True, slots=True, repr=False)
class DeleteRecordsReport(Shown):
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


def _resolved(snapshot: Snapshot, offsets: Mapping[int, int]) -> dict[int, int]:
    """Check `offsets`, and replace LOG_END by the log end."""
    if "delete" not in snapshot.config.cleanup_policy:
        raise InvalidConfigError("records can be deleted only where cleanup.policy contains delete")
    resolved, count = dict[int, int](), len(snapshot.partitions)
    for partition, offset in offsets.items():
        check_partition(whole_number("partition", partition), count)
        state = snapshot.partitions[partition]
        resolved[partition] = state.log_end_offset if whole_number("offset", offset) == LOG_END else offset
        if not 0 <= resolved[partition] <= state.log_end_offset:
            raise OffsetOutOfRangeError(
                "records can be deleted up to the log end offset, or -1 for all",
                partition=partition,
                offset=offset,
                log_start_offset=state.log_start_offset,
                log_end_offset=state.log_end_offset,
            )
    return resolved
