"""Merges the small segments of a topic towards `segment.bytes`, and their small batches towards `batch.bytes`.

Appends make one segment per commit and partition. `merge_plan` says which are worth merging, and `merge_job` does it:
small segments stay parts of bundles, which are fewer and larger after each merge, and large ones become files.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial
from itertools import chain

from distlog.core.commits.commit_log import TIMEOUT_S
from distlog.core.commits.format.actions import Action, Add, Remove
from distlog.core.commits.format.segment_info import SegmentInfo
from distlog.core.commits.state.snapshot import Snapshot
from distlog.core.maintenance.merging.merge_job import do_job, jobs
from distlog.core.maintenance.merging.merge_plan import MergeGroup, plan_merge
from distlog.core.maintenance.merging.merge_report import MergeReport, Unmergeable
from distlog.core.maintenance.run import Run, run_here
from distlog.core.topic_handle import TopicHandle


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
    groups: Sequence[MergeGroup],
    run: Run | None = None,
    *,
    timeout_s: float = TIMEOUT_S,
) -> tuple[MergeReport, Snapshot]:
    """`merge` of these groups of `snapshot`; raises CommitConflictError after `timeout_s` of lost races."""
    work = partial(do_job, handle, config=snapshot.config, read_version=snapshot.version)
    planned = jobs(groups)
    made = (run or run_here(handle.storage))(work, planned)
    pairs, failed = list[tuple[MergeGroup, SegmentInfo]](), list[Unmergeable]()
    for group, one in zip(chain.from_iterable(job.groups for job in planned), chain.from_iterable(made), strict=True):
        if isinstance(one, SegmentInfo):
            pairs.append((group, one))
        else:
            first, last = group.segments[0], group.segments[-1]
            failed.append(Unmergeable(group.partition, first.base_offset, last.next_offset, one.reason))
    done, after = commit_merge(handle, snapshot, pairs, timeout_s=timeout_s)
    return MergeReport(after.version, tuple(done), dry_run=False, failed=tuple(failed)), after


def commit_merge(
    handle: TopicHandle,
    snapshot: Snapshot,
    pairs: Sequence[tuple[MergeGroup, SegmentInfo]],
    *,
    timeout_s: float = TIMEOUT_S,
) -> tuple[list[MergeGroup], Snapshot]:
    """Replace each group by its merged segment, made at `snapshot`, if all of the group's segments are still live.

    Returns the groups that were replaced, and the new state.
    """
    done: list[MergeGroup] = []

    def plan(current: Snapshot) -> list[Action] | None:
        live = _live_stems(current, [group for group, _ in pairs])
        left = [(group, merged) for group, merged in pairs if live.issuperset(_stems(group))]
        done[:] = [group for group, _ in left]
        removed = [Remove(group.partition, stem) for group, _ in left for stem in group.stems]
        return [*removed, *(Add(merged) for _, merged in left)] or None

    _, after = handle.log.commit(snapshot, "compact", plan, read_version=snapshot.version, timeout_s=timeout_s)
    return done, after


def _live_stems(snapshot: Snapshot, groups: Sequence[MergeGroup]) -> set[tuple[int, str]]:
    """The groups' segments that are live in the snapshot, as (partition, stem); one look-up per partition."""
    wanted: dict[int, set[str]] = {group.partition: set() for group in groups}
    for group in groups:
        wanted[group.partition].update(group.stems)
    tables = {partition: snapshot.partitions[partition].segments for partition in wanted}
    return {(partition, stem) for partition, stems in wanted.items() for stem in tables[partition].live(stems)}


def _stems(group: MergeGroup) -> set[tuple[int, str]]:
    return {(group.partition, stem) for stem in group.stems}
