"""Locks that are free in a forked child."""

from __future__ import annotations

import os
import threading
import weakref

_locks: weakref.WeakSet[ProcessLock] = weakref.WeakSet()


class ProcessLock:
    """A reentrant lock for the threads of one process; in a forked child it is free, even if the parent holds it.

    The thread that held it does not exist in the child, so nothing there would release it. The data that it guards
    must be valid for the child in any state.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _locks.add(self)

    def renew(self) -> None:
        """Make the lock free, even if it is held; call it only while the process has one thread."""
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def _renew_all() -> None:
    for lock in list(_locks):
        lock.renew()


os.register_at_fork(after_in_child=_renew_all)
