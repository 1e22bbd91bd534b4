"""The groups of a gateway as one service: what its APIs use, started and stopped with it."""

from __future__ import annotations

import threading
import time

from distlog.gateway.groups.classic_group import GroupSettings
from distlog.gateway.groups.committed_offsets import CommittedOffsets
from distlog.gateway.groups.coordinator import GroupCoordinator
from distlog.gateway.groups.group_admin import GroupAdmin
from distlog.gateway.groups.offsets_topic import OffsetsTopic
from distlog.gateway.groups.registry import GroupRegistry

#: How often positions are looked at for expiry, in s: Kafka's `offsets.retention.check.interval.ms`.
_EXPIRY_S = 600.0


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

    def start(self) -> None:
        """Learn what is stored, then let time pass. Raises DistlogError."""
        self._registry.load()
        self._thread.start()

    def stop(self) -> None:
        """Tell those that wait to look for another coordinator, and have all changes on the device."""
        self._is_over = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()
        self._registry.end()
        self._store.close()

    def _run(self) -> None:
        expires_at = time.monotonic() + _EXPIRY_S
        while not self._is_over:
            self._wake.clear()
            self._registry.expire()
            if time.monotonic() >= expires_at:
                self.offsets.expire()
                expires_at = time.monotonic() + _EXPIRY_S
            due_s = min(self._registry.due_s, expires_at - time.monotonic())
            self._wake.wait(max(0.0, due_s))
