"""Which groups this gateway answers for: those of the partitions that its lease holds, when it has loaded them.

A partition is loaded behind the beginning of a new epoch, so nothing of it is stored behind the load by others. When
the lease does not hold it any more, or did not for a while, its groups are forgotten, and members that wait are sent
to look for the coordinator. It is given up when all that was on its way is stored.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Protocol

from kio.schema.errors import ErrorCode

from distlog.gateway.groups.exchanges import GroupRefusedError
from distlog.gateway.groups.offsets_topic import OffsetsTopic
from distlog.gateway.groups.registry import GroupRegistry

_UNLOADING = -1


class Lease(Protocol):
    """What is asked of a gateway's lease."""

    @property
    def held(self) -> frozenset[int]:
        """The partitions that it answers for now."""
        ...

    @property
    def term(self) -> int:
        """Grows when what it knew of its partitions may be old."""
        ...


class Coordination:
    """Loads and unloads the groups of `store` as the `lease` says. One thread calls `step`, any thread the rest."""

    def __init__(self, lease: Lease, store: OffsetsTopic) -> None:
        self._lease, self._store = lease, store
        self._loaded: dict[int, int] = {}
        self._asked = self._done = 0
        #: Grows with each load: what was done to groups before it may be missing in them.
        self.loads = 0

    @property
    def loaded(self) -> AbstractSet[int]:
        """The partitions that must not be given up yet."""
        return self._loaded.keys()

    @property
    def is_loading(self) -> bool:
        """Whether groups are missing that this gateway will answer for soon."""
        return bool(self._lease.held - self._loaded.keys())

    def ask_to_load_again(self) -> int:
        """Have the next `step` load all anew; returns a number for `has_loaded_again`."""
        self._asked += 1
        return self._asked

    def has_loaded_again(self, number: int) -> bool:
        """Whether all is loaded that was there when this number was given."""
        return self._done >= number and not self.is_loading

    def check(self, group: str) -> None:
        """Raise GroupRefusedError unless this gateway answers for the group now."""
        number, lease = self._store.partition_of(group), self._lease
        if number not in lease.held:
            raise GroupRefusedError(ErrorCode.not_coordinator)
        if self._loaded.get(number) != lease.term:
            raise GroupRefusedError(ErrorCode.coordinator_load_in_progress)

    def step(self, registry: GroupRegistry) -> None:
        """Unload what is not held any more, and load what is new. Raises DistlogError; then step again later."""
        held, term, asked = self._lease.held, self._lease.term, self._asked
        is_asked = asked != self._done
        lost = self._store.lost() if self._loaded else ()
        old = {
            number
            for number, of in self._loaded.items()
            if is_asked or number not in held or of != term or number in lost
        }
        if old:
            self._unload(old, registry)
        new = held - self._loaded.keys()
        if new:
            self._load(new, term, registry)
        self._done = asked

    def _unload(self, partitions: set[int], registry: GroupRegistry) -> None:
        kept = {number: term for number, term in self._loaded.items() if number not in partitions}
        # they count as held until nothing of them is on its way
        self._loaded = {**kept, **dict.fromkeys(partitions, _UNLOADING)}
        registry.unload(lambda name: self._store.partition_of(name) in partitions)
        self._store.settle()
        self._store.end(partitions)
        self._loaded = kept

    def _load(self, partitions: frozenset[int], term: int, registry: GroupRegistry) -> None:
        def may_lead() -> None:
            if self._lease.term != term or not partitions <= self._lease.held:
                raise GroupRefusedError(ErrorCode.not_coordinator)

        self._store.begin(partitions, may_lead)
        registry.load(self._store.load(partitions))
        self.loads += 1
        self._loaded = {**self._loaded, **dict.fromkeys(partitions, term)}
