"""The LogManager's tasks beside a gateway: of the gateways of a root that maintain it, one runs them at a time.

That saves work and requests. It is a lease, which keeps no task from running twice at once, after a pause of its
process. So it matters that each task may (see distlog.core.log_manager.log_tasks).
"""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from distlog.core.errors import DistlogError
from distlog.core.groups.group_log import GroupLog
from distlog.core.groups.membership import Membership
from distlog.core.log_manager.log_manager import STOP_TIMEOUT_S, LogManager
from distlog.core.log_manager.metrics import Metric
from distlog.core.log_manager.scheduler import Scheduler
from distlog.core.log_manager.task_run import TaskRun
from distlog.core.storage.storage import Storage
from distlog.core.times import elapsed_s
from distlog.gateway.cluster.gateway_lease import ROOT_ID
from distlog.gateway.cluster.node import this_machine

GROUP = "maintenance"
#: Tasks take minutes, and wait for minutes: another gateway may begin as much later.
LEASE_S = 60.0

_log = logging.getLogger("distlog.gateway")


class TaskLease:
    """Whether this process is the one that runs the tasks; one thread calls `keep` and `leave`."""

    def __init__(
        self,
        root: Storage,
        *,
        lease_s: float = LEASE_S,
        clock: Callable[[], float] = elapsed_s,
        new_id: Callable[[], str] = lambda: uuid.uuid4().hex,
    ) -> None:
        name = f"{os.getpid()} on {this_machine()}"
        log = GroupLog(root, ROOT_ID, GROUP, clock=clock)
        self._member = Membership(log, lambda others: name, None, lease_s, clock, new_id)

    @property
    def is_held(self) -> bool:
        """Whether the tasks are this process's to run now."""
        return bool(self._member.owned) and not self._member.is_lapsed

    def keep(self) -> None:
        """Take or keep the lease, if it is time; an error is logged, and the lease lapses unless it passes."""
        try:
            if self._member.due_s(()) <= 0:
                self._member.sync(1, lambda number, added: 0, ())
        except DistlogError as error:
            _log.warning("the lease of the tasks could not be renewed: %s", error)

    def leave(self) -> None:
        """Let another process run the tasks at once."""
        try:
            self._member.leave()
        except DistlogError as error:
            _log.warning("others wait for the lease of the tasks to end: %s", error)


class Maintenance:
    """The tasks of `root` in threads, while this process has their lease. `settings` are Kafka's broker settings.

    `on_run` is that of the LogManager. Raises what that raises.
    """

    def __init__(
        self,
        root: str,
        settings: Mapping[str, object],
        storage_options: Mapping[str, Any],
        on_run: Callable[[TaskRun], None],
        lease_s: float = LEASE_S,
    ) -> None:
        self.lease = TaskLease(Storage(root, storage_options), lease_s=lease_s)
        self._manager = LogManager(
            root,
            config=settings,
            storage_options=storage_options,
            on_run=on_run,
            may_run=lambda: self.lease.is_held,
        )
        self._scheduler = Scheduler()
        self._scheduler.schedule("maintenance-lease", self.lease.keep, delay_ms=0, period_ms=int(lease_s * 1000 / 20))

    def start(self) -> None:
        """Begin the threads; returns at once."""
        self._scheduler.start()
        self._manager.start()

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> bool:
        """End the threads; returns False if some task still runs, and is abandoned."""
        ended = self._manager.stop(timeout_s)
        self._scheduler.stop(timeout_s)
        self.lease.leave()
        return ended

    def metrics(self) -> list[Metric]:
        """Those of the LogManager, and whether the tasks are this process's to run."""
        about, is_held = "1 if this gateway runs the tasks of the root", float(self.lease.is_held)
        return [Metric("distlog_gateway_maintains", "gauge", about, [({}, is_held)]), *self._manager.metrics()]
