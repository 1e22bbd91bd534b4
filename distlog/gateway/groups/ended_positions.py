"""Learns how the transactions ended that brought positions, before anybody acts upon these.

Their coordinator may be another gateway, and puts end markers into the partition of the group. So the group's
coordinator reads what has come there.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from typing import Protocol

from kio.schema.errors import ErrorCode

from distlog.core.errors import DistlogError
from distlog.gateway.groups.members.exchanges import GroupRefusedError
from distlog.gateway.groups.offsets.ended_transactions import EndedTransaction
from distlog.gateway.groups.registry import GroupRegistry


class EndMarkers(Protocol):
    """What it needs of the store of groups."""

    def partition_of(self, group: str) -> int:
        """The partition that has a group."""
        ...

    def ended(self, partition: int) -> Iterable[EndedTransaction]:
        """The transactions that have ended in a partition since the last call. Raises DistlogError."""
        ...


class EndedPositions:
    """Shows or forgets the positions of transactions when these have ended; for many threads."""

    def __init__(self, groups: GroupRegistry, markers: EndMarkers) -> None:
        self._groups, self._markers = groups, markers
        self._locks = defaultdict[int, threading.Lock](threading.Lock)

    def learn(self, group: str) -> None:
        """Have what ended before this call counted, for all groups of the partition.

        Raises GroupRefusedError if the storage fails, or while the partition is loaded; nothing is missed by that.
        """
        number = self._markers.partition_of(group)
        with self._locks[number]:
            try:
                for ended in self._markers.ended(number):
                    # those that are not loaded yet would never learn of it
                    self._groups.check(group)
                    self._end(number, ended)
            except DistlogError as error:
                raise GroupRefusedError(ErrorCode.coordinator_not_available) from error

    def _end(self, number: int, ended: EndedTransaction) -> None:
        for name in self._groups.names_with_pending():
            if self._markers.partition_of(name) == number:
                with suppress(GroupRefusedError), self._groups.opened(name) as group:
                    group.positions.end_transaction(ended.producer_id, is_committed=ended.is_committed)
