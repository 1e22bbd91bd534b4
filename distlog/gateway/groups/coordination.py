"""Which groups, or transactions, this gateway answers for: its lease holds their partitions, and it has loaded them.

A partition is loaded behind the beginning of a new epoch, so nothing of it is stored behind the load by others. When
the lease does not hold it any more, or did not for a while, what it holds is forgotten, and members that wait are
sent to look for the coordinator. It is given up when all that was on its way is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from collections.abc import Set as AbstractSet
from typing import Generic, Protocol, TypeVar

from kio.schema.errors import ErrorCode

from distlog.gateway.groups.members.exchanges import GroupRefusedError

_UNLOADING = -1
Loaded_co = TypeVar("Loaded_co", covariant=True)
Loaded_contra = TypeVar("Loaded_contra", contravariant=True)
Loaded = TypeVar("Loaded")


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


class LedStore(Protocol[Loaded_co]):
    """Partitions that one gateway at a time writes to; see OffsetsTopic and TransactionLog."""

    def partition_of(self, key: str, /) -> int:
        """The partition that has a group, or a transactional id."""
        ...

    def begin(self, partitions: Collection[int], may_lead: Callable[[], None]) -> None:
        """Lead partitions."""
        ...

    def end(self, partitions: Collection[int]) -> None:
        """Lead them no more."""
        ...

    def lost(self) -> Collection[int]:
        """After a failure, those that must be begun anew."""
        ...

    def settle(self) -> None:
        """Return when nothing is on its way."""
        ...

    def load(self, partitions: Collection[int]) -> Iterable[Loaded_co]:
        """What they hold."""
        ...


class Registry(Protocol[Loaded_contra]):
    """Those that this gateway answers for; see GroupRegistry and TransactionCoordinator."""

    def load(self, found: Iterable[Loaded_contra], /) -> None:
        """Learn what is stored."""
        ...

    def unload(self, is_of: Callable[[str], bool]) -> None:
        """Forget what has these names."""
        ...


class Coordination(Generic[Loaded]):
    """Loads and unloads what is in `store` as the `lease` says. One thread calls `step`, any thread the rest."""

    def __init__(self, lease: Lease, store: LedStore[Loaded]) -> None:
        self._lease, self._store = lease, store
        self._loaded: dict[int, int] = {}

    @property
    def loaded(self) -> AbstractSet[int]:
        """The partitions that must not be given up yet."""
        return self._loaded.keys()

    @property
    def is_loading(self) -> bool:
        """Whether groups are missing that this gateway will answer for soon."""
        return bool(self._lease.held - self._loaded.keys())

    def check(self, key: str) -> None:
        """Raise GroupRefusedError unless this gateway answers for the group, or transactional id, now."""
        number, lease = self._store.partition_of(key), self._lease
        if number not in lease.held:
            raise GroupRefusedError(ErrorCode.not_coordinator)
        if self._loaded.get(number) != lease.term:
            raise GroupRefusedError(ErrorCode.coordinator_load_in_progress)

    def step(self, registry: Registry[Loaded]) -> None:
        """Unload what is not held any more, and load what is new. Raises DistlogError; then step again later."""
        held, term = self._lease.held, self._lease.term
        lost = self._store.lost() if self._loaded else ()
        old = {number for number, of in self._loaded.items() if number not in held or of != term or number in lost}
        if old:
            self._unload(old, registry)
        new = held - self._loaded.keys()
        if new:
            self._load(new, term, registry)

    def _unload(self, partitions: set[int], registry: Registry[Loaded]) -> None:
        kept = {number: term for number, term in self._loaded.items() if number not in partitions}
        # they count as held until nothing of them is on its way
        self._loaded = {**kept, **dict.fromkeys(partitions, _UNLOADING)}
        registry.unload(lambda key: self._store.partition_of(key) in partitions)
        self._store.settle()
        self._store.end(partitions)
        self._loaded = kept

    def _load(self, partitions: frozenset[int], term: int, registry: Registry[Loaded]) -> None:
        def may_lead() -> None:
            if self._lease.term != term or not partitions <= self._lease.held:
                raise GroupRefusedError(ErrorCode.not_coordinator)

        self._store.begin(partitions, may_lead)
        registry.load(self._store.load(partitions))
        self._loaded = {**self._loaded, **dict.fromkeys(partitions, term)}
