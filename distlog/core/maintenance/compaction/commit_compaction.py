"""The commit of a compaction: rewritten groups of segments take the place of what they were made of."""

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
    """Put groups that were rewritten at `snapshot` in the place of their inputs, in one commit, and the new state.

    How many groups were left out is counted by partition. A group of which an input is gone is left out, and its
    partition stays dirty from there. Nothing is committed where the topic is not compacted any more.
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
    # what lies below the log start is not brought back, and need not be clean
    groups = [one for one in cleaned.groups if one.next_offset > state.log_start_offset]
    live = state.segments.live({segment.stem for group in groups for segment in group.inputs})
    stale = [one for one in groups if not live.issuperset(segment.stem for segment in one.inputs)]
    # in a stale group the keys of the range were not looked for: it is dirty from there, if not from before
    clean = min([cleaned.end_offset, *(group.base_offset for group in stale)])
    dirty = max(clean, first_dirty_offset(state))
    # where nothing is clean, offsets that no segment holds would look like a loss
    gaps = [one for one in groups if not one.outputs and one.next_offset > dirty]
    # and a segment before it would say again that a transaction is open, of which the marker is gone
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
