"""Locks that a fork does not leave locked for ever."""

from __future__ import annotations

import os
import threading
import weakref
from types import TracebackType

_locks: weakref.WeakSet[ProcessLock] = weakref.WeakSet()


class ProcessLock:
    """A reentrant lock for the threads of one process: in a forked child it is free, whoever held it in the parent.

    The child does not have the thread that held it, so nobody there would ever release it. What it guards must make
    sense to the child as the fork found it.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _locks.add(self)

    def renew(self) -> None:
        """Be free, whoever holds it; only for who is alone in the process."""
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()


def _renew_all() -> None:
    for lock in list(_locks):
        lock.renew()


os.register_at_fork(after_in_child=_renew_all)
