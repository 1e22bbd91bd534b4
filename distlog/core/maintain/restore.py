"""Restore: brings back what an older version had and vacuum has not deleted, and keeps what came since.

Retention, delete-records and compaction only change metadata; the files stay until vacuum. So their segments can be
named again, in one commit or a few. Vacuum keeps the files of the versions from the gc floor on, so a segment that
was removed by a later commit than the floor is still there.

Where compaction or merging replaced segments, the old ones take the place of the new ones again. That works for whole
groups: if one old segment of a group is gone, or the new one has later records too, or earlier ones that a restore
brought back, the new one stays, and of a compacted topic what is ahead of it: else keys that were deleted would come
back. So it is where segments that came since were compacted twice, so that their tombstones may be gone. Segments
that came and went since the version come back as well: else the log would have a gap.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distlog.core.commits.action_table import MOST_ROWS
from distlog.core.commits.actions import Action, Add, Cleaned, Remove, Restore, SetLogStartOffset
from distlog.core.commits.commit_race import CommitRace
from distlog.core.commits.segment_info import SegmentInfo
from distlog.core.commits.segment_table import SegmentTable
from distlog.core.commits.snapshot import PartitionState, Snapshot
from distlog.core.errors import CommitConflictError, OffsetOutOfRangeError, TopicNotFoundError
from distlog.core.maintain.vacuum import RemovedSince, removed_files_held
from distlog.core.segments.segment_parts import part_of
from distlog.core.segments.topic_handle import TopicHandle
from distlog.core.storage.parallel import in_order

#: How many files are looked for at the same time.
_LOOKUPS = 32
#: So many segments come and leave by one commit, which takes no more rows.
MOST_SEGMENTS = MOST_ROWS


@dataclass(frozen=True, slots=True)
class PartitionRestore:
    """The segments that come back to a partition, and leave for it, how many are lost, and where the log begins.

    It began at `start_before`. A commit adds segments where others leave. So those `beside` a gap that is filled
    leave, and are added again.
    """

    partition: int
    segments: tuple[SegmentInfo, ...]
    replaced: tuple[SegmentInfo, ...]
    lost: int
    start_before: int
    log_start_offset: int
    first_dirty_offset: int
    beside: tuple[SegmentInfo, ...] = ()

    @property
    def records(self) -> int:
        """The number of records that come back, less the records of segments that leave."""
        return sum(one.record_count for one in self.segments) - sum(one.record_count for one in self.replaced)

    @property
    def log_bytes(self) -> int:
        """Bytes of the log files that come back."""
        return sum(one.log_bytes for one in self.segments)

    @property
    def offsets(self) -> int:
        """The number of offsets that are above the log start again."""
        return self.start_before - self.log_start_offset


@dataclass(frozen=True, slots=True)
class _Missing:
    """The segments that a partition has no more, and those whose offsets it may need to be without a gap."""

    segments: list[SegmentInfo]
    filling: list[SegmentInfo]
    cleaned: int
    settled: int


def restore(
    handle: TopicHandle, snapshot: Snapshot, version: int, *, dry_run: bool = False
) -> tuple[list[PartitionRestore], Snapshot]:
    """Bring back what was live at `version`; returns what came back, and the new state.

    It is one commit, or several of whole partitions if one does not take so many segments. With `dry_run` nothing is
    committed. Raises OffsetOutOfRangeError for a version that the topic does not have, TopicNotFoundError if it is of
    another topic, which was dropped, and CommitConflictError for a partition that gets more than MOST_SEGMENTS.
    """
    snapshot = handle.log.refresh(snapshot)
    if not snapshot.log_floor <= version <= snapshot.version:
        text = f"the log has the versions {snapshot.log_floor} to {snapshot.version}"
        raise OffsetOutOfRangeError(text, version=version, log_floor=snapshot.log_floor, head=snapshot.version)
    wanted = handle.log.load(version, include_dropped=True)
    if wanted.topic_id not in (snapshot.topic_id, *snapshot.former_ids):
        raise TopicNotFoundError("the version is of a topic that was dropped, and cannot come back", version=version)
    removed, restored = RemovedSince(version), dict[int, PartitionRestore]()
    removed.read(handle.log, snapshot.version)
    if dry_run:
        plans = plan_restore(handle, snapshot, wanted, removed)
        _in_one_commit(plans)
        return plans, snapshot
    is_complete = False
    with removed_files_held(handle.storage):
        while not is_complete:
            with CommitRace(handle.log, snapshot, "restore") as race:
                for head in race:
                    removed.read(handle.log, head.version)
                    plans = plan_restore(handle, head, wanted, removed)
                    commit_plans = _in_one_commit(plans)
                    changes = [
                        plan
                        for plan in commit_plans
                        if plan.segments or plan.log_start_offset < _start(head, plan.partition)
                    ]
                    if not changes:
                        break
                    race.put([*_actions(changes, max(version, head.gc_floor))])
            # a partition that lost segments is planned again
            restored = {plan.partition: plan for plan in commit_plans} | restored
            snapshot, is_complete = race.after, len(commit_plans) == len(plans)
    return [restored[number] for number in sorted(restored)], snapshot


def _in_one_commit(planned: Sequence[PartitionRestore]) -> Sequence[PartitionRestore]:
    sizes = [len(one.segments) + len(one.replaced) + 2 * len(one.beside) for one in planned]
    for one, size in zip(planned, sizes, strict=True):
        if size > MOST_SEGMENTS:
            raise CommitConflictError(
                f"a commit takes {MOST_SEGMENTS} segments: restore a later version first, with some of them",
                partition=one.partition,
                segments=size,
            )
    return planned[: bisect_right(list(accumulate(sizes)), MOST_SEGMENTS)]


def plan_restore(
    handle: TopicHandle, current: Snapshot, wanted: Snapshot, removed: RemovedSince
) -> list[PartitionRestore]:
    """The part of `wanted` that comes back; partitions that get nothing back, and lost nothing, are left out."""
    # the last to go first
    let_go = sorted(removed.let_go, key=lambda key: removed.removed_at[key], reverse=True)
    gone_since = _by_partition({key: removed.let_go[key] for key in let_go})
    again = _by_partition(removed.cleaned_again)
    emptied = _emptied_since(removed, current.gc_floor)
    found = []
    for number, state in enumerate(wanted.partitions):
        live = current.partitions[number]
        since = _behind(state.log_end_offset, gone_since.get(number, []), live)
        gone = [removed.added.get((number, one.stem), one) for one in _without(state.segments, live.segments)]
        older = [one for one in gone if not _overlaps(one, since[:1])]
        # compaction made it of them, and of what came since
        cleaned = len(gone) - len(older) if since and since[0].compacted else 0
        ends = [one.next_offset for one in again.get(number, [])]
        # up to here compaction may have dropped tombstones that came since
        settled = max((end for end in ends if end > state.log_end_offset), default=0)
        emptied_here = emptied.get(number)
        filling = _filling(max(state.log_end_offset, settled), emptied_here, live, since) if emptied_here else []
        found.append(_Missing([*older, *since], filling, cleaned, settled))
    kept = [
        segment
        for number, one in enumerate(found)
        for segment in (*one.segments, *one.filling)
        if removed.removed_at.get((number, segment.stem), -1) > current.gc_floor
    ]
    there = _there(handle, current.name, kept)
    plans = []
    for number, (state, one) in enumerate(zip(wanted.partitions, found, strict=True)):
        plan = partial(_plan_partition, number, state, current.partitions[number], there=there, settled=one.settled)
        planned = plan(one.segments)
        if planned.segments or planned.offsets:
            # what comes back is dirty, and gaps are right in what is clean only
            filled = [each for each in one.filling if (number, each.stem) in there]
            planned = plan([*one.segments, *filled]) if filled else planned
        plans.append(replace(planned, lost=planned.lost + one.cleaned))
    return [one for one in plans if one.segments or one.lost or one.log_start_offset < _start(current, one.partition)]


def _start(snapshot: Snapshot, partition: int) -> int:
    return snapshot.partitions[partition].log_start_offset


def _behind(end: int, gone: Iterable[SegmentInfo], live: PartitionState) -> list[SegmentInfo]:
    """List the segments from `end` on that went at the old end, in order; of some at one offset, the last to go."""
    first = int(live.segments.base_offsets[0]) if len(live.segments) else live.log_end_offset
    segments: list[SegmentInfo] = []
    for one in gone:
        row = bisect_left(segments, one.next_offset, key=lambda each: each.base_offset)
        if end < one.next_offset <= first and not _overlaps(one, segments[row - 1 : row]):
            segments.insert(row, one)
    return segments


def _by_partition(segments: Mapping[tuple[int, str], SegmentInfo]) -> dict[int, list[SegmentInfo]]:
    found: dict[int, list[SegmentInfo]] = {}
    for (number, _), one in segments.items():
        found.setdefault(number, []).append(one)
    return found


def _emptied_since(removed: RemovedSince, floor: int) -> dict[int, list[SegmentInfo]]:
    """The segments that came since and were replaced behind the version `floor`, by partition, in order."""
    replaced = removed.added.keys() & removed.removed_at.keys() - removed.let_go.keys() - removed.cleaned_again.keys()
    at = {key: removed.removed_at[key] for key in replaced if removed.removed_at[key] > floor}
    ordered = sorted(at, key=lambda key: (removed.added[key].base_offset, -at[key]))
    return _by_partition({key: removed.added[key] for key in ordered})


def _filling(
    end: int, emptied: Iterable[SegmentInfo], live: PartitionState, since: Sequence[SegmentInfo]
) -> list[SegmentInfo]:
    """List the `emptied` segments from `end` on whose offsets no segment has, live or in `since`, which is ahead."""
    ahead = np.array([(one.base_offset, one.next_offset) for one in since], np.int64).reshape(-1, 2)
    bases = np.concatenate([ahead[:, 0], live.segments.base_offsets])
    ends = np.concatenate([ahead[:, 1], live.segments.next_offsets])
    filling: list[SegmentInfo] = []
    for one in emptied:
        row = int(bases.searchsorted(one.next_offset)) - 1
        if one.base_offset >= end and (row < 0 or ends[row] <= one.base_offset):
            filling.append(one)
            end = one.next_offset
    return filling


def _overlaps(one: SegmentInfo, others: Iterable[SegmentInfo]) -> bool:
    return any(one.base_offset < other.next_offset and other.base_offset < one.next_offset for other in others)


def _there(handle: TopicHandle, name: str, segments: Iterable[SegmentInfo]) -> set[tuple[int, str]]:
    """The partitions and stems of those segments whose log files are there as they were."""
    logs = {(one.partition, one.stem): part_of(name, one) for one in segments}

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
    wanted: PartitionState,
    current: PartitionState,
    missing: Sequence[SegmentInfo],
    there: set[tuple[int, str]],
    settled: int,
) -> PartitionRestore:
    """The plan of a partition: of what is ahead of the offset `settled`, nothing comes back."""
    made = [one for one in _without(current.segments, wanted.segments) if one.base_offset < wanted.log_end_offset]
    back: list[SegmentInfo] = []
    leaving: list[SegmentInfo] = []
    gaps: list[int] = []
    merged: list[SegmentInfo] = []
    for old, new in _groups(missing, made):
        if old[0].base_offset < settled:
            continue
        # in the place of what has no other records: earlier ones that came back since, or later ones
        begin, end = old[0].base_offset, wanted.log_end_offset
        is_whole = all(begin <= one.base_offset and one.next_offset <= end for one in new)
        if is_whole and all((number, one.stem) in there for one in old):
            back += old
            leaving += new
            gaps += [old[0].base_offset] if not new else []
        elif not new or any(one.compacted for one in new):
            # what is ahead stays away too: of a gap, since readers would not see that records are missing; of a
            # compacted segment, since it may have dropped the tombstones of keys there
            back, leaving, gaps, settled = [], [], [], max(one.next_offset for one in (*old, *new))
        else:
            # what these hold is there, in segments that hold later records too
            merged += [
                one for one in old if new[0].base_offset <= one.base_offset and one.next_offset <= new[-1].next_offset
            ]
    first = min([one.base_offset for one in (*back, *current.segments[:1])], default=current.log_start_offset)
    first = max(first, min(settled, current.log_start_offset))
    start = min(current.log_start_offset, max(first, wanted.log_start_offset))
    behind = current.segments if settled and wanted.log_start_offset < start else ()
    hidden = [one for one in behind if one.base_offset < start and one.next_offset > wanted.log_start_offset]
    lost = len(missing) - len(back) - sum(one.base_offset >= start for one in merged) + len(hidden)
    # what comes back may have records of keys that have later ones, or tombstones; where compacted segments stay
    # ahead of it, so do their gaps, which are right below this offset only
    ahead = [one.base_offset for one in back[:1] if len(missing) > len(back)]
    dirty = [max([wanted.first_dirty_offset, *ahead])] if back or not missing else []
    return PartitionRestore(
        partition=number,
        segments=tuple(back),
        replaced=tuple(leaving),
        lost=lost,
        start_before=current.log_start_offset,
        log_start_offset=start,
        first_dirty_offset=min([current.first_dirty_offset, *dirty]),
        beside=_beside(current.segments, gaps, leaving),
    )


def _beside(live: SegmentTable, gaps: Iterable[int], leaving: Iterable[SegmentInfo]) -> tuple[SegmentInfo, ...]:
    """The live segments on both sides of the gaps with these offsets; at the front nothing stands in the way."""
    rows = [int(live.base_offsets.searchsorted(offset)) for offset in gaps]
    rows = sorted({near for row in rows if row for near in (row - 1, row) if near < len(live)})
    gone = {one.stem for one in leaving}
    return tuple(one for one in map(live.__getitem__, rows) if one.stem not in gone)


def _without(table: SegmentTable, other: SegmentTable) -> list[SegmentInfo]:
    """The segments of `table` that `other` does not have."""
    columns = table.columns()
    others = pc.is_in(columns["stem"], value_set=pa.array(other.columns()["stem"]))
    return list(SegmentTable(columns.filter(pc.invert(others))))


def _groups(
    old: Iterable[SegmentInfo], new: Iterable[SegmentInfo]
) -> Iterator[tuple[list[SegmentInfo], list[SegmentInfo]]]:
    """The segments by groups that share offsets, in order; a group without old segments is left out."""
    both = [*((one, False) for one in old), *((one, True) for one in new)]
    group: tuple[list[SegmentInfo], list[SegmentInfo]] = ([], [])
    end = 0
    for one, is_new in sorted(both, key=lambda each: each[0].base_offset):
        if one.base_offset >= end and group[0]:
            yield group
        if one.base_offset >= end:
            group = ([], [])
        group[is_new].append(one)
        end = max(end, one.next_offset)
    if group[0]:
        yield group


def _actions(plans: Sequence[PartitionRestore], version: int) -> Iterator[Action]:
    """The actions of all partitions, by their kind: a commit tells those that follow each other in columns."""
    for one in plans:
        yield Restore(one.partition, _first(one), version)
    for one in plans:
        yield from (Remove(one.partition, segment.stem) for segment in (*one.replaced, *one.beside))
    for one in plans:
        yield from map(Add, sorted((*one.segments, *one.beside), key=lambda each: each.base_offset))
    for one in plans:
        if one.log_start_offset > _first(one):
            yield SetLogStartOffset(one.partition, one.log_start_offset)
    yield from (Cleaned(one.partition, one.first_dirty_offset) for one in plans)


def _first(one: PartitionRestore) -> int:
    """From this offset on all are free; the log may begin in the middle of the first segment, or behind it."""
    return min([one.log_start_offset, *(segment.base_offset for segment in (*one.segments, *one.beside))])
