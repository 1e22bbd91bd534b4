"""The groups of a gateway as one service: what its APIs use, started and stopped with it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from distlog.core.commits.state.snapshot import Snapshot
from distlog.core.errors import DistlogError
from distlog.gateway.cluster.gateway_lease import GatewayLease
from distlog.gateway.group_settings import GroupSettings
from distlog.gateway.groups.committed_offsets import CommittedOffsets
from distlog.gateway.groups.coordination import Coordination
from distlog.gateway.groups.coordinator import GroupCoordinator
from distlog.gateway.groups.ended_positions import EndedPositions
from distlog.gateway.groups.group_admin import GroupAdmin
from distlog.gateway.groups.members.exchanges import GroupRefusedError
from distlog.gateway.groups.offsets.offsets_topic import OffsetsTopic
from distlog.gateway.groups.registry import GroupRegistry

#: How often positions are looked at for expiry, in s: Kafka's `offsets.retention.check.interval.ms`.
_EXPIRY_S = 600.0
#: After an error, and how often the loader looks whether others lead what this gateway leads.
_PAUSE_S = 1.0
_log = logging.getLogger("distlog.gateway")


class GroupServices:
    """Members, positions and descriptions of the groups that the `lease` gives to this gateway, kept in `store`.

    One thread lets time pass for them, one keeps the lease, one loads and unloads them. `retention_ms` is how long
    the positions of a group without members are kept (`offsets.retention.minutes`).
    """

    def __init__(
        self, store: OffsetsTopic, lease: GatewayLease, settings: GroupSettings, *, retention_ms: int
    ) -> None:
        self._store, self._lease, self._is_over = store, lease, threading.Event()
        self._wake, self._changed, self._unloaded = threading.Event(), threading.Event(), threading.Event()
        self.coordination = Coordination(lease, store)
        self._sharing: list[tuple[Coordination[Any], threading.Event]] = [(self.coordination, self._changed)]
        self._registry = GroupRegistry(
            store, settings, check=self.coordination.check, on_earlier_deadline=self._wake.set
        )
        self.members = GroupCoordinator(self._registry)
        ended = EndedPositions(self._registry, store)
        self.offsets = CommittedOffsets(self._registry, ended, retention_ms=retention_ms)
        self.admin = GroupAdmin(self._registry)
        self._has_failed = set[str]()
        self._threads = [
            threading.Thread(target=self._pass_time, name="group-timer", daemon=True),
            threading.Thread(target=self._keep_lease, name="gateway-lease", daemon=True),
            threading.Thread(target=self._load, name="group-loader", daemon=True),
        ]

    def fence(self, partition: int) -> Callable[[Snapshot], None]:
        """What refuses to append to a partition of `__consumer_offsets` when this gateway leads it no more."""
        return self._store.fence(partition)

    def share(self, coordination: Coordination[Any], changed: threading.Event) -> threading.Event:
        """Have something else coordinated by the same lease: `changed` is set when that has changed.

        Returns what is to be set when something was unloaded.
        """
        self._sharing.append((coordination, changed))
        return self._unloaded

    @property
    def partitions(self) -> int:
        """How many partitions `__consumer_offsets` has."""
        return self._store.partitions

    def start(self) -> None:
        """Be one of the root's gateways, and learn what is stored; what fails is logged, and tried again."""
        if self._tried("is no gateway of the root yet", self._sync):
            self._tried("does not coordinate groups yet", self._step)
        for thread in self._threads:
            thread.start()

    def partition_of(self, key: str) -> int:
        """The partition of `__consumer_offsets` that has a group."""
        return self._store.partition_of(key)

    def coordinates(self, group: str) -> bool:
        """Whether this gateway answers for a group now."""
        with suppress(GroupRefusedError):
            self.coordination.check(group)
            return True
        return False

    def hurry(self) -> None:
        """Tell those that wait for others to look for another coordinator."""
        self._registry.end()

    def stop(self) -> None:
        """End, with all changes on the device; other gateways may coordinate the groups at once."""
        self._is_over.set()
        for event in (self._wake, self._changed, self._unloaded):
            event.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()
        self._store.close()
        self._tried("did not sign off; others wait for its lease to end", self._lease.leave)

    def _pass_time(self) -> None:
        expires_at = time.monotonic() + _EXPIRY_S
        while not self._is_over.is_set():
            self._wake.clear()
            pause_s = self._guarded(self._registry.expire)
            if time.monotonic() >= expires_at:
                self._guarded(self.offsets.expire)
                expires_at = time.monotonic() + _EXPIRY_S
            due_s = min(self._registry.due_s, expires_at - time.monotonic())
            self._wake.wait(max(pause_s, due_s))

    def _guarded(self, work: Callable[[], None]) -> float:
        """Do it; returns how long to wait after it in s. A mistake in one group must not end the time of all."""
        try:
            work()
        except Exception:
            _log.exception("time did not pass for all groups")
            return _PAUSE_S
        return 0.0

    def _keep_lease(self) -> None:
        while not self._is_over.is_set():
            self._unloaded.clear()
            due_s = self._lease.due_s(self._loaded)
            if due_s > 0:
                self._unloaded.wait(due_s)
            elif not self._tried("could not renew its lease", self._sync):
                self._is_over.wait(_PAUSE_S)

    def _sync(self) -> None:
        if self._lease.sync(self._store.open(), self._loaded):
            for _, changed in self._sharing:
                changed.set()

    @property
    def _loaded(self) -> set[int]:
        """The partitions that must not be given up yet."""
        return set[int]().union(*(coordination.loaded for coordination, _ in self._sharing))

    def _load(self) -> None:
        while not self._is_over.is_set():
            self._changed.wait(_PAUSE_S)
            self._changed.clear()
            self._tried("could not load groups", self._step)

    def _step(self) -> None:
        before = self.coordination.loaded
        try:
            self.coordination.step(self._registry)
        finally:
            if before - self.coordination.loaded:
                self._unloaded.set()

    def _tried(self, what: str, work: Callable[[], None]) -> bool:
        """Do it; whether that went well. What fails again and again is logged once."""
        try:
            work()
        except GroupRefusedError:
            # the lease is another one by now
            return False
        except Exception as error:
            if what not in self._has_failed:
                _log.error("the gateway %s: %s", what, error, exc_info=not isinstance(error, DistlogError))
            self._has_failed.add(what)
            return False
        self._has_failed.discard(what)
        return True
