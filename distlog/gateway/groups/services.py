"""The groups of a gateway as one service: what its APIs use, started and stopped with it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from distlog.gateway.groups.classic_group import GroupSettings
from distlog.gateway.groups.committed_offsets import CommittedOffsets
from distlog.gateway.groups.coordinator import GroupCoordinator
from distlog.gateway.groups.group_admin import GroupAdmin
from distlog.gateway.groups.offsets_topic import OffsetsTopic
from distlog.gateway.groups.registry import GroupRegistry

#: How often positions are looked at for expiry, in s: Kafka's `offsets.retention.check.interval.ms`.
_EXPIRY_S = 600.0
_PAUSE_S = 1.0
_log = logging.getLogger("distlog.gateway")


class GroupServices:
    """Members, positions and descriptions of groups, kept in `store`; one thread lets time pass for them.

    `retention_ms` is how long the positions of a group without members are kept (`offsets.retention.minutes`).
    """

    def __init__(self, store: OffsetsTopic, settings: GroupSettings, *, retention_ms: int) -> None:
        self._store, self._wake, self._is_over = store, threading.Event(), False
        self._registry = GroupRegistry(store, settings, on_earlier_deadline=self._wake.set)
        self.members = GroupCoordinator(self._registry)
        self.offsets = CommittedOffsets(self._registry, retention_ms=retention_ms)
        self.admin = GroupAdmin(self._registry)
        self._thread = threading.Thread(target=self._run, name="group-timer", daemon=True)

    def partition_of(self, group: str) -> int:
        """The partition of `__consumer_offsets` that has the positions of this group. Raises DistlogError."""
        return self._store.partition_of(group)

    def start(self) -> None:
        """Learn what is stored, then let time pass. Raises DistlogError."""
        self._registry.load()
        self._thread.start()

    def hurry(self) -> None:
        """Tell those that wait for others to look for another coordinator."""
        self._registry.end()

    def stop(self) -> None:
        """End, with all changes on the device."""
        self._is_over = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()
        self._store.close()

    def _run(self) -> None:
        expires_at = time.monotonic() + _EXPIRY_S
        while not self._is_over:
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
