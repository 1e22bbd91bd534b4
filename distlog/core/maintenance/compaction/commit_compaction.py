"""Commits a compaction: rewritten groups of segments replace the segments that they were made from."""

from __future__ import annotations

from collections.abc import Sequence

from distlog.core.commits.actions import Action, Add, Cleaned, Remove
from distlog.core.commits.snapshot import PartitionState, Snapshot
from distlog.core.maintenance.compaction.clean_partition import CleanedRange
from distlog.core.maintenance.compaction.cleanable import first_dirty_offset
from distlog.core.topic_handle import TopicHandle


def commit_compaction(
    handle: TopicHandle, snapshot: Snapshot, cleaned: Sequence[CleanedRange]
) -> tuple[dict[int, int], Snapshot]:
    """Replace the inputs of groups that were rewritten at `snapshot` by the new segments, in one commit.

    Returns how many groups were left out, by partition, and the new state. A group is left out if one of its inputs
    is gone; its partition stays dirty from there. Nothing is committed if the topic is no longer compacted.
    """
    skipped: dict[int, int] = {}

    def plan(current: Snapshot) -> list[Action] | None:
        if "compact" not in current.config.cleanup_policy:
            skipped.update({one.partition: len(one.groups) for one in cleaned})
            return None
        parts = [(one.partition, *_replace(current.partitions[one.partition], one)) for one in cleaned]
        skipped.update({partition: left_out for partition, _, left_out in parts})
        return [action for _, actions, _ in parts for action in actions] or None

    _, after = handle.log.commit(snapshot, "compact", plan, read_version=snapshot.version)
    return skipped, after


def _replace(state: PartitionState, cleaned: CleanedRange) -> tuple[list[Action], int]:
    """The actions for one partition, and how many groups are left out."""
    # a group below the log start must not come back, and need not be clean
    groups = [one for one in cleaned.groups if one.next_offset > state.log_start_offset]
    live = state.segments.live({segment.stem for group in groups for segment in group.inputs})
    stale = [one for one in groups if not live.issuperset(segment.stem for segment in one.inputs)]
    # the keys of the range were not looked for in what replaced a stale group: it is dirty from there, or from before
    clean = min([cleaned.end_offset, *(group.base_offset for group in stale)])
    dirty = max(clean, first_dirty_offset(state))
    # above the clean part, offsets that no segment holds would look like a loss
    gaps = [one for one in groups if not one.outputs and one.next_offset > dirty]
    # without the marker that ends a transaction, a segment before it would again say that the transaction is open
    markers = [one for one in groups if one.forgets_transactions and one.base_offset > dirty]
    left_out = {group.base_offset for group in (*stale, *gaps, *markers)}
    actions: list[Action] = []
    for group in groups:
        if group.changed and group.base_offset not in left_out:
            actions += [Remove(group.partition, segment.stem) for segment in group.inputs]
            actions += [Add(segment) for segment in group.outputs]
    if clean > first_dirty_offset(state):
        actions.append(Cleaned(cleaned.partition, clean))
    return actions, len(left_out)
