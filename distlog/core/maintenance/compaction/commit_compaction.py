"""Commits a compaction: rewritten groups of segments replace the segments that they were made from.

Where nothing of the first segments stays, the log begins later: what is known of producers is stored there before.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from distlog.core.commits.format.actions import Action, Add, Cleaned, Remove
from distlog.core.commits.state.snapshot import PartitionState, Snapshot
from distlog.core.config import MAX_LONG
from distlog.core.log.producers.kept_producers import KeptProducers
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
    planned = _Replacement(cleaned, KeptProducers(handle))
    while True:
        _, after = handle.log.commit(snapshot, "compact", planned, read_version=snapshot.version)
        if planned.is_ready:
            return planned.skipped, after
        planned.keep_producers()


class _Replacement:
    """The plan of a compaction's commit: nothing is committed before the producers are stored where the log begins.

    `skipped` says how many groups are left out, by partition.
    """

    def __init__(self, cleaned: Sequence[CleanedRange], producers: KeptProducers) -> None:
        self._cleaned, self._producers = cleaned, producers
        self.skipped: dict[int, int] = {}

    def __call__(self, current: Snapshot) -> list[Action] | None:
        """Plan the replacement in `current`."""
        self._snapshot, self._emptied = current, dict[int, int]()
        if "compact" not in current.config.cleanup_policy:
            self.skipped = {one.partition: len(one.groups) for one in self._cleaned}
            return None
        planned: list[Action] = []
        for one in self._cleaned:
            state = current.partitions[one.partition]
            actions, self.skipped[one.partition] = _replace(state, one)
            if count := _emptied(state, actions):
                self._emptied[one.partition] = count
            planned += actions
        return planned or None if self.is_ready else None

    @property
    def is_ready(self) -> bool:
        """Whether all that was planned may be committed."""
        return self._producers.has(self._snapshot, self._emptied)

    def keep_producers(self) -> None:
        """Store what of producers is still missing."""
        self._producers.keep(self._snapshot, self._emptied)


def _emptied(state: PartitionState, actions: Sequence[Action]) -> int:
    """How many of the first segments go, with nothing in their place."""
    removed = {action.stem for action in actions if isinstance(action, Remove)}
    begin = min((action.segment.base_offset for action in actions if isinstance(action, Add)), default=MAX_LONG)
    gone = takewhile(lambda one: one.base_offset < begin and one.stem in removed, state.segments)
    return sum(1 for _ in gone)


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
