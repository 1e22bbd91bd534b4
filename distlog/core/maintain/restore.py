"""Restores the segments of an older version that vacuum has not deleted, and keeps later segments.

Where compaction or merging replaced old segments by a new one, the old segments replace it again, if all their files
exist and the new segment has only their records. If a compacted segment stays, or was compacted again later, no
earlier segment comes back: deleted keys would return, since it may lack their tombstones. No segment before a gap
comes back either: readers would not notice it. Segments that were added and removed after the version fill gaps.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distlog.core.arrays import table_of_numbers
from distlog.core.commits.actions import (
    MAX_COMMIT_ROWS,
    Action,
    Add,
    Cleaned,
    Remove,
    Restore,
    SetLogStartOffset,
    each_action,
)
from distlog.core.commits.commit_log import CommitLog, CommitRace
from distlog.core.commits.segment_table import SegmentInfo, SegmentTable
from distlog.core.commits.snapshot import PartitionState, Snapshot
from distlog.core.display import Displayable, counted, sums_of
from distlog.core.errors import CommitConflictError, OffsetOutOfRangeError, TopicNotFoundError
from distlog.core.maintain.vacuum import removed_files_held
from distlog.core.segments.segment_parts import part_of
from distlog.core.segments.segment_reader import TopicHandle
from distlog.core.storage.calls import in_order


def restore(
    handle: TopicHandle, snapshot: Snapshot, version: int, *, dry_run: bool = False
) -> tuple[list[PartitionRestore], Snapshot]:
    """Restore the segments that were live at `version`, unless `dry_run`. Returns the plans, and the new state."""
    snapshot = handle.log.refresh(snapshot)
    if not snapshot.log_floor <= version <= snapshot.version:
        text = f"the log has the versions {snapshot.log_floor} to {snapshot.version}: choose one"
        raise OffsetOutOfRangeError(text, version=version, log_floor=snapshot.log_floor, head=snapshot.version)
    old_state = handle.log.load(version, include_dropped=True)
    if old_state.topic_id not in (snapshot.topic_id, *snapshot.former_ids):
        text = "the version is of a dropped topic, which cannot be restored: choose a version of the present topic"
        raise TopicNotFoundError(text, version=version)
    removed = RemovedSegments(version)
    removed.read(handle.log, snapshot.version)
    if dry_run:
        plans = plan_restore(handle, snapshot, old_state, removed)
        _in_one_commit(plans)  # raises the error of a partition that is too large
        return plans, snapshot
    restored, is_complete = dict[int, PartitionRestore](), False
    with removed_files_held(handle.storage):  # so that vacuum on a full disk deletes none concurrently
        while not is_complete:
            with CommitRace(handle.log, snapshot, "restore") as race:
                for head in race:  # again with the newest state if another commit was first
                    removed.read(handle.log, head.version)
                    plans = plan_restore(handle, head, old_state, removed)
                    commit_plans = _in_one_commit(plans)
                    changes = [plan for plan in commit_plans if plan.segments or plan.offsets]
                    if not changes:
                        break
                    race.put([*_actions(changes, max(version, head.gc_floor))])  # older files may be deleted
            # a partition that an earlier commit restored keeps the plan of that commit
            restored = {plan.partition: plan for plan in commit_plans} | restored
            snapshot, is_complete = race.snapshot, len(commit_plans) == len(plans)
    return [restored[number] for number in sorted(restored)], snapshot


#: (partition, stem): together they name a segment's files.
Stem = tuple[int, str]


@dataclass(slots=True)
class RemovedSegments:
    """The segments that commits after a version added and removed. The commits up to `version` were read."""

    version: int
    #: The version of the last commit that removed a segment.
    removed_at: dict[Stem, int] = field(default_factory=dict)
    #: Segments as last added, since a rebuild of indexes adds a segment again.
    added: dict[Stem, SegmentInfo] = field(default_factory=dict)
    #: Segments that a commit removed when it moved the log start, as retention does.
    removed_at_start: dict[Stem, SegmentInfo] = field(default_factory=dict)
    #: Segments that compaction wrote, and that were replaced later.
    recompacted: dict[Stem, SegmentInfo] = field(default_factory=dict)

    def read(self, log: CommitLog, head: int) -> None:
        for commit in log.commits(self.version + 1, head + 1) if head > self.version else ():
            restored = {action.partition for action in commit.actions if isinstance(action, Restore)}
            starts_later = {action.partition for action in commit.actions if isinstance(action, SetLogStartOffset)}
            for action in each_action(commit.actions):
                if isinstance(action, Add):
                    stem = (action.segment.partition, action.segment.stem)
                    self.added[stem] = action.segment
                    # the segment was restored, or a rebuild removed and added it again
                    self.removed_at_start.pop(stem, None)
                    self.recompacted.pop(stem, None)
                elif isinstance(action, Remove):
                    stem = (action.partition, action.stem)
                    self.removed_at[stem] = commit.version
                    # a restore removes segments, too, but it does not expire or compact them
                    if action.partition in restored or stem not in self.added:
                        continue
                    if action.partition in starts_later:
                        self.removed_at_start[stem] = self.added[stem]
                    elif self.added[stem].compacted:
                        self.recompacted[stem] = self.added[stem]
        self.version = max(self.version, head)


_LOOKUPS = 32  # files whose sizes are requested at the same time
MAX_SEGMENTS = MAX_COMMIT_ROWS


@dataclass(frozen=True, slots=True)
class PartitionRestore:
    """The segments that a partition gets and loses, the number that cannot come back, the old and new log start."""

    partition: int
    segments: tuple[SegmentInfo, ...]
    replaced: tuple[SegmentInfo, ...]
    lost_segments: int
    start_before: int
    log_start_offset: int
    first_dirty_offset: int
    #: Live segments next to a filled gap, which are removed and added again: a commit adds only where it removes.
    gap_neighbors: tuple[SegmentInfo, ...] = ()

    @property
    def records(self) -> int:
        replaced_records = sum(segment.record_count for segment in self.replaced)
        return sum(segment.record_count for segment in self.segments) - replaced_records

    @property
    def log_bytes(self) -> int:
        return sum(segment.log_bytes for segment in self.segments)

    @property
    def offsets(self) -> int:
        """The number of offsets that are above the log start again."""
        return self.start_before - self.log_start_offset

    @property
    def first_offset(self) -> int:
        """The lowest base offset of an added segment, or the log start if that is lower."""
        added = (*self.segments, *self.gap_neighbors)
        return min([self.log_start_offset, *(segment.base_offset for segment in added)])


_COLUMNS = ("partition", "segments", "records", "bytes", "lost", "offsets", "log_start_offset")


@dataclass(frozen=True, slots=True, repr=False)
class RestoreReport(Displayable):
    """The segments of version `restored` that came back, or would with `dry_run`."""

    version: int
    restored: int
    partitions: tuple[PartitionRestore, ...]
    expired: int
    dry_run: bool

    def __str__(self) -> str:
        sums = sums_of(self._rows(), "segments", "records", "bytes", "lost")
        missing, verb = sums.pop("lost"), "would restore" if self.dry_run else "restored"
        parts = [f"{verb} {', '.join(counted(number, name[:-1]) for name, number in sums.items())}"]
        offset_counts = [plan.offsets for plan in self.partitions if plan.offsets and not plan.segments]
        if offset_counts:
            where = f"{counted(sum(offset_counts), 'offset')} of {counted(len(offset_counts), 'partition')}"
            parts.append(f"{where} can be read again: only the log start had moved")
        if missing:
            reasons = "their files were deleted, or they were merged into segments that have later records"
            reasons += ", or some of their keys were deleted later, and compaction dropped the deletes"
            parts.append(f"{counted(missing, 'segment')} cannot come back: {reasons}")
        if self.partitions == ():
            parts = [f"nothing to restore: version {self.restored} had no record that is missing now"]
        if self.expired:
            segments = counted(self.expired, "segment")
            parts.append(f"the next retention deletes {segments}: first set retention.ms and retention.bytes higher")
        return "; ".join(parts)

    def to_table(self) -> pa.Table:
        """Return a row per partition: segments that came back or did not, offsets readable again, new log start."""
        return table_of_numbers(self._rows(), _COLUMNS)

    def to_dict(self) -> dict[str, Any]:
        """Return the totals, and the rows of the table."""
        rows = self._rows()
        fields = {name: getattr(self, name) for name in ("version", "restored", "dry_run", "expired")}
        return {**fields, **sums_of(rows, "segments", "records", "bytes", "lost", "offsets"), "partitions": rows}

    def _rows(self) -> list[dict[str, int]]:
        return [
            {
                "partition": plan.partition,
                "segments": len(plan.segments),
                "records": plan.records,
                "bytes": plan.log_bytes,
                "lost": plan.lost_segments,
                "offsets": plan.offsets,
                "log_start_offset": plan.log_start_offset,
            }
            for plan in self.partitions
        ]


@dataclass(frozen=True, slots=True)
class _Candidates:
    """The removed segments of a partition that may come back from `start_offset` on; `filling` only fills gaps."""

    segments: list[SegmentInfo]
    filling: list[SegmentInfo]
    lost_segments: int
    start_offset: int


def _in_one_commit(plans: Sequence[PartitionRestore]) -> Sequence[PartitionRestore]:
    """Return as many of the first `plans` as one commit takes. Raises CommitConflictError if a plan is too large."""
    sizes = [len(plan.segments) + len(plan.replaced) + 2 * len(plan.gap_neighbors) for plan in plans]
    for plan, size in zip(plans, sizes, strict=True):
        if size > MAX_SEGMENTS:
            text = f"a commit takes {MAX_SEGMENTS} segments: restore a later version first, with fewer segments"
            raise CommitConflictError(text, partition=plan.partition, segments=size)
    return plans[: bisect_right(list(accumulate(sizes)), MAX_SEGMENTS)]


def plan_restore(
    handle: TopicHandle, current: Snapshot, old_state: Snapshot, removed: RemovedSegments
) -> list[PartitionRestore]:
    """Plan the restore of `old_state`. Leaves out partitions that do not change and lost nothing."""
    # the last removed segment first, as `_removed_after` needs
    stems = sorted(removed.removed_at_start, key=lambda stem: removed.removed_at[stem], reverse=True)
    removed_at_start = _by_partition({stem: removed.removed_at_start[stem] for stem in stems})
    recompacted = _by_partition(removed.recompacted)
    replaced = _replaced_after(removed, current.gc_floor)
    all_candidates = []
    for number, state in enumerate(old_state.partitions):
        live = current.partitions[number]
        later = _removed_after(state.log_end_offset, removed_at_start.get(number, []), live)
        missing = [removed.added.get((number, old.stem), old) for old in _without(state.segments, live.segments)]
        # only the first of `later` can overlap missing segments: it was merged or compacted from them and later ones
        older = [segment for segment in missing if not _overlaps(segment, later[:1])]
        merged = [segment for segment in missing if _overlaps(segment, later[:1])]
        lost_segments = len(merged) if later and later[0].compacted else 0
        if merged and not lost_segments:
            # the first of `later` has the records of `merged`. If another restore has split it since, its parts were
            # removed last: this search, from a lower offset on, returns them instead
            later = _removed_after(merged[0].base_offset, removed_at_start.get(number, []), live)
        ends = [segment.next_offset for segment in recompacted.get(number, [])]
        # nothing comes back below a segment with later records that was compacted again: it may lack tombstones
        start = max((end for end in ends if end > state.log_end_offset), default=0)
        filling = _filling(max(state.log_end_offset, start), replaced.get(number, []), live, later)
        all_candidates.append(_Candidates([*older, *later], filling, lost_segments, start))
    # vacuum may have deleted the files of segments that were removed up to its horizon
    retained = [
        segment
        for number, candidates in enumerate(all_candidates)
        for segment in (*candidates.segments, *candidates.filling)
        if removed.removed_at.get((number, segment.stem), -1) > current.gc_floor
    ]
    present = _present(handle, current.name, retained)
    plans = []
    for number, (state, candidates) in enumerate(zip(old_state.partitions, all_candidates, strict=True)):
        live, start = current.partitions[number], candidates.start_offset
        plan = partial(_plan_partition, number, state, live, present=present, start_offset=start)
        planned = plan(candidates.segments)
        if planned.segments or planned.offsets:
            # restored segments are dirty, and a dirty range must have no gaps
            filled = [segment for segment in candidates.filling if (number, segment.stem) in present]
            planned = plan([*candidates.segments, *filled]) if filled else planned
        plans.append(replace(planned, lost_segments=planned.lost_segments + candidates.lost_segments))
    return [plan for plan in plans if plan.segments or plan.lost_segments or plan.offsets]


def _removed_after(end: int, candidates: Iterable[SegmentInfo], live: PartitionState) -> list[SegmentInfo]:
    """Return the segments from `end` on that were removed at the log start, in order.

    `candidates` begin with the last removed segment. If segments overlap, the last removed one is returned.
    """
    live_start = int(live.segments.base_offsets[0]) if len(live.segments) else live.log_end_offset
    segments: list[SegmentInfo] = []
    for segment in candidates:
        # only the last segment that begins before the end of this one (none for row 0) can overlap it
        row = bisect_left(segments, segment.next_offset, key=lambda present: present.base_offset)
        if end < segment.next_offset <= live_start and not _overlaps(segment, segments[row - 1 : row]):
            segments.insert(row, segment)
    return segments


def _by_partition(segments: Mapping[Stem, SegmentInfo]) -> dict[int, list[SegmentInfo]]:
    by_partition: dict[int, list[SegmentInfo]] = {}
    for (number, _), segment in segments.items():
        by_partition.setdefault(number, []).append(segment)
    return by_partition


def _replaced_after(removed: RemovedSegments, floor: int) -> dict[int, list[SegmentInfo]]:
    """Return the later segments that were replaced after the version `floor`, by partition, in order."""
    excluded = removed.removed_at_start.keys() | removed.recompacted.keys()
    replaced = (removed.added.keys() & removed.removed_at.keys()) - excluded
    removed_at = {key: removed.removed_at[key] for key in replaced if removed.removed_at[key] > floor}
    ordered = sorted(removed_at, key=lambda key: (removed.added[key].base_offset, -removed_at[key]))
    return _by_partition({key: removed.added[key] for key in ordered})


def _filling(
    end: int, replaced: Sequence[SegmentInfo], live: PartitionState, later: Sequence[SegmentInfo]
) -> list[SegmentInfo]:
    """Return the `replaced` segments from `end` on that share no offset with a live segment or with `later`."""
    if not replaced:
        return []
    ranges = np.array([(segment.base_offset, segment.next_offset) for segment in later], np.int64).reshape(-1, 2)
    bases = np.concatenate([ranges[:, 0], live.segments.base_offsets])
    ends = np.concatenate([ranges[:, 1], live.segments.next_offsets])
    filling: list[SegmentInfo] = []
    for segment in replaced:
        row = int(bases.searchsorted(segment.next_offset)) - 1  # the last segment that begins before this one ends
        if segment.base_offset >= end and (row < 0 or ends[row] <= segment.base_offset):
            filling.append(segment)
            end = segment.next_offset
    return filling


def _overlaps(segment: SegmentInfo, segments: Iterable[SegmentInfo]) -> bool:
    return any(
        segment.base_offset < other.next_offset and other.base_offset < segment.next_offset for other in segments
    )


def _present(handle: TopicHandle, name: str, segments: Iterable[SegmentInfo]) -> set[Stem]:
    """Return the segments whose log files exist with their size."""
    logs = {(segment.partition, segment.stem): part_of(name, segment) for segment in segments}

    def size_of(file: str) -> int:
        try:
            return handle.storage.size(file)
        except FileNotFoundError:
            return -1

    files = dict.fromkeys(log.name for log in logs.values())
    sizes = dict(zip(files, in_order((partial(size_of, file) for file in files), _LOOKUPS), strict=True))
    return {
        key
        for key, log in logs.items()
        if sizes[log.name] == log.size or (not log.is_file and sizes[log.name] >= log.begin + log.size)
    }


def _plan_partition(
    number: int,
    old_state: PartitionState,
    current: PartitionState,
    missing: Sequence[SegmentInfo],
    present: set[Stem],
    start_offset: int,
) -> PartitionRestore:
    """Plan the restore of a partition; nothing below `start_offset` comes back."""
    old_start, old_end = old_state.log_start_offset, old_state.log_end_offset
    newer = [new for new in _without(current.segments, old_state.segments) if new.base_offset < old_end]
    restored, replaced, merged, gaps = list[SegmentInfo](), list[SegmentInfo](), list[SegmentInfo](), list[int]()
    for old, new in _groups(missing, newer):
        begin = old[0].base_offset
        if begin < start_offset:
            continue
        # the new segments must not have other records: past the old log end, or (after a restore) before `begin`
        is_whole = all(begin <= segment.base_offset and segment.next_offset <= old_end for segment in new)
        if is_whole and all((number, segment.stem) in present for segment in old):
            restored += old
            replaced += new
            gaps += [] if new else [begin]
        elif not new or any(segment.compacted for segment in new):
            # earlier segments do not come back either: before a gap, readers would not notice missing records; before
            # a compacted segment, keys would come back because it may have dropped their tombstones
            restored, replaced, gaps = [], [], []
            start_offset = max(segment.next_offset for segment in (*old, *new))
        else:
            # the records of the old segments are live, in segments that also have later records
            low, high = new[0].base_offset, new[-1].next_offset
            merged += [segment for segment in old if low <= segment.base_offset and segment.next_offset <= high]
    starts = [segment.base_offset for segment in (*restored, *current.segments[:1])] or [current.log_start_offset]
    # the new log start is at least the first segment's, and the lower of `start_offset` and the present log start
    least_start = max(min(starts), min(start_offset, current.log_start_offset))
    start = min(current.log_start_offset, max(least_start, old_start))
    # live segments that `start_offset` hides are lost, too; records of `merged` are live, if at or above the start
    live_segments = current.segments if start_offset and old_start < start else ()
    hidden = [segment for segment in live_segments if segment.base_offset < start and segment.next_offset > old_start]
    lost_count = len(missing) - len(restored) - sum(segment.base_offset >= start for segment in merged) + len(hidden)
    # The partition is dirty from the old offset on, since restored segments may have superseded records. If some did
    # not come back, from the first that did: compacted segments before it stay clean, since they may have gaps
    dirty_offset = old_state.first_dirty_offset if restored or not missing else current.first_dirty_offset
    if restored and len(missing) > len(restored):
        dirty_offset = max(dirty_offset, restored[0].base_offset)
    return PartitionRestore(
        partition=number,
        segments=tuple(restored),
        replaced=tuple(replaced),
        lost_segments=lost_count,
        start_before=current.log_start_offset,
        log_start_offset=start,
        first_dirty_offset=min(current.first_dirty_offset, dirty_offset),
        gap_neighbors=_around_gaps(current.segments, gaps, replaced),
    )


def _around_gaps(live: SegmentTable, gaps: Iterable[int], replaced: Iterable[SegmentInfo]) -> tuple[SegmentInfo, ...]:
    """Return the live segments next to the gaps at the offsets `gaps`, but none for a gap at the log start."""
    rows = [int(live.base_offsets.searchsorted(offset)) for offset in gaps]
    rows = sorted({near for row in rows if row for near in (row - 1, row) if near < len(live)})
    replaced_stems = {segment.stem for segment in replaced}
    return tuple(segment for segment in map(live.__getitem__, rows) if segment.stem not in replaced_stems)


def _without(table: SegmentTable, other: SegmentTable) -> list[SegmentInfo]:
    """Return the segments of `table` that `other` does not have."""
    columns = table.columns()
    is_in_other = pc.is_in(columns["stem"], value_set=pa.array(other.columns()["stem"]))
    return list(SegmentTable(columns.filter(pc.invert(is_in_other))))


def _groups(
    old: Iterable[SegmentInfo], new: Iterable[SegmentInfo]
) -> Iterator[tuple[list[SegmentInfo], list[SegmentInfo]]]:
    """Yield the old and the new segments of each group that shares offsets and has old segments, in order."""
    tagged = [*((segment, False) for segment in old), *((segment, True) for segment in new)]
    old_segments, new_segments = list[SegmentInfo](), list[SegmentInfo]()
    end = 0
    for segment, is_new in sorted(tagged, key=lambda pair: pair[0].base_offset):
        if segment.base_offset >= end:
            if old_segments:
                yield old_segments, new_segments
            old_segments, new_segments = [], []
        (new_segments if is_new else old_segments).append(segment)
        end = max(end, segment.next_offset)
    if old_segments:
        yield old_segments, new_segments


def _actions(plans: Sequence[PartitionRestore], version: int) -> Iterator[Action]:
    """Yield the actions of all partitions by kind, since a commit stores adjacent actions of one kind in columns."""
    for plan in plans:
        yield Restore(plan.partition, plan.first_offset, version)
    for plan in plans:
        yield from (Remove(plan.partition, segment.stem) for segment in (*plan.replaced, *plan.gap_neighbors))
    for plan in plans:
        yield from map(Add, sorted((*plan.segments, *plan.gap_neighbors), key=lambda segment: segment.base_offset))
    for plan in plans:
        if plan.log_start_offset > plan.first_offset:
            yield SetLogStartOffset(plan.partition, plan.log_start_offset)
    yield from (Cleaned(plan.partition, plan.first_dirty_offset) for plan in plans)
