"""The groups, or transactions, that a gateway coordinates: its lease holds their partitions, which it has loaded.

A partition is loaded after a new epoch has started, so no other gateway stores anything in it after the load. When
the lease does not hold the partition any more, or did not for a while, its contents are forgotten, and waiting
members find the new coordinator. The partition is given up when all changes in flight are stored.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from collections.abc import Set as AbstractSet
from typing import Generic, Protocol, TypeVar

from distlog.core.errors import LockHeldError
from distlog.gateway.cluster import GatewayLease
from distlog.gateway.groups.classic_group import GroupRefusedError
from distlog.gateway.protocol.messages import ErrorCode

Loaded = TypeVar("Loaded")


class Coordination(Generic[Loaded]):
    """Loads and unloads partitions of `store` as the `lease` has them. Only one thread calls `step`."""

    def __init__(self, lease: GatewayLease, store: LeaderStore[Loaded]) -> None:
        self._lease, self._store = lease, store
        self._loaded: dict[int, int] = {}

    @property
    def loaded(self) -> AbstractSet[int]:
        """The partitions that must not be given up yet."""
        return self._loaded.keys()

    @property
    def is_loading(self) -> bool:
        """True if partitions that the lease holds are not loaded yet."""
        return bool(self._held - self._loaded.keys())

    @property
    def _held(self) -> frozenset[int]:
        """The partitions of this store that the lease holds now."""
        return frozenset(number for number in self._lease.held_partitions if number < self._store.partitions)

    def check(self, key: str) -> None:
        """Raise GroupRefusedError unless this gateway coordinates the group, or transactional id, now."""
        number, lease = self._store.partition_of(key), self._lease
        if number not in lease.held_partitions:
            raise GroupRefusedError(ErrorCode.not_coordinator)
        if self._loaded.get(number) != lease.term:
            raise GroupRefusedError(ErrorCode.coordinator_load_in_progress)

    def step(self, registry: Registry[Loaded]) -> None:
        """Unload lost partitions, and load new ones. Raises DistlogError; then step again later."""
        held, term = self._held, self._lease.term
        lost_partitions = self._store.lost_partitions() if self._loaded else ()
        old = {
            number
            for number, of in self._loaded.items()
            if number not in held or of != term or number in lost_partitions
        }
        if old:
            self._unload(old, registry)
        if new := held - self._loaded.keys():
            self._load(new, term, registry)

    def _unload(self, partitions: set[int], registry: Registry[Loaded]) -> None:
        remaining = {number: term for number, term in self._loaded.items() if number not in partitions}
        # they count as loaded until none of their changes is in flight
        self._loaded = {**remaining, **dict.fromkeys(partitions, _UNLOADING)}
        registry.unload(lambda key: self._store.partition_of(key) in partitions)
        self._store.drain()
        self._store.end(partitions)
        self._loaded = remaining

    def _load(self, partitions: frozenset[int], term: int, registry: Registry[Loaded]) -> None:
        try:
            self._load_together(partitions, term, registry)
        except LockHeldError:
            if len(partitions) == 1:
                raise
            # a stopped process holds the lock of one partition, which must not block the rest
            errors = list[LockHeldError]()
            for number in sorted(partitions):
                try:
                    self._load_together(frozenset({number}), term, registry)
                except LockHeldError as error:  # noqa: PERF203 - the others are loaded
                    errors.append(error)
            if errors:
                raise errors[0] from None

    def _load_together(self, partitions: frozenset[int], term: int, registry: Registry[Loaded]) -> None:
        def may_lead() -> None:
            if self._lease.term != term or not partitions <= self._lease.held_partitions:
                raise GroupRefusedError(ErrorCode.not_coordinator)

        self._store.begin(partitions, may_lead)
        registry.load(self._store.load(partitions))
        self._loaded = {**self._loaded, **dict.fromkeys(partitions, term)}


_UNLOADING = -1
Loaded_co = TypeVar("Loaded_co", covariant=True)
Loaded_contra = TypeVar("Loaded_contra", contravariant=True)


class LeaderStore(Protocol[Loaded_co]):
    """Partitions that one gateway at a time writes to; see OffsetsTopic and TransactionLog."""

    @property
    def partitions(self) -> int:
        """Their number; the lease may share more, since all stores have its partitions."""
        ...

    def partition_of(self, key: str, /) -> int:
        """The partition that has a group, or a transactional id."""
        ...

    def begin(self, partitions: Collection[int], may_lead: Callable[[], None]) -> None:
        """Lead partitions."""
        ...

    def end(self, partitions: Collection[int]) -> None:
        """Stop leading them."""
        ...

    def lost_partitions(self) -> Collection[int]:
        """After a failure, the partitions to load again."""
        ...

    def drain(self) -> None:
        """Return when no change is in flight."""
        ...

    def load(self, partitions: Collection[int]) -> Iterable[Loaded_co]:
        """Their stored contents."""
        ...


class Registry(Protocol[Loaded_contra]):
    """The groups or transactions that this gateway coordinates; see GroupRegistry and TransactionCoordinator."""

    def load(self, stored: Iterable[Loaded_contra], /) -> None:
        """Take the stored contents."""
        ...

    def unload(self, is_of: Callable[[str], bool]) -> None:
        """Forget the groups or transactions whose names `is_of` matches."""
        ...
