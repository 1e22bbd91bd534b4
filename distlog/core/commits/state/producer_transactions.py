"""The transactions of producers while commits are folded: only one of each transactional id is not complete."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from distlog.core.commits.format.actions import COMPLETE, ONGOING, ProducerTransaction


class ProducerTransactionDraft:
    """A private, mutable copy of a snapshot's `producer_transactions`."""

    def __init__(self, standing: Mapping[str, ProducerTransaction]) -> None:
        self._standing = dict(standing)

    def change(self, action: ProducerTransaction, timestamp_ms: int, partitions: int) -> None:
        """Take an action of a commit of that time, of a topic with so many partitions.

        Raises ValueError for a change that the state before does not allow.
        """
        name, before = action.transactional_id, self._standing.get(action.transactional_id)
        if any(partition >= partitions for partition in action.partitions):
            raise ValueError(f"the transaction of {name!r} names a partition that does not exist")
        if before is None or before.place < action.place:
            self._begin(action, before, timestamp_ms)
        elif before.place != action.place or not _may_follow(action, before):
            raise ValueError(f"the transaction of {name!r} cannot become {action.state} after {before.state}")
        elif action.state == COMPLETE:
            del self._standing[name]
        else:
            self._standing[name] = replace(action, started_ms=before.started_ms)

    def finish(self) -> Mapping[str, ProducerTransaction]:
        """The transactions that are not complete, by transactional id."""
        return self._standing

    def _begin(self, action: ProducerTransaction, before: ProducerTransaction | None, timestamp_ms: int) -> None:
        name = action.transactional_id
        if action.state != ONGOING or (before is not None and not before.is_decided):
            raise ValueError(f"a transaction of {name!r} cannot begin: the one before it is not decided")
        self._standing[name] = replace(action, started_ms=timestamp_ms)


def _may_follow(action: ProducerTransaction, before: ProducerTransaction) -> bool:
    if action.state == ONGOING:
        return before.state == ONGOING and set(action.partitions) >= set(before.partitions)
    return (before.is_decided if action.state == COMPLETE else before.state == ONGOING) and (
        action.partitions == before.partitions
    )
