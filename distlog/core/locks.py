"""Locks that are free in a forked child."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

_locks: weakref.WeakSet[ProcessLock] = weakref.WeakSet()
#: The interpreter's own reentrant lock.
_RLock: Any = type(threading.RLock())


class ProcessLock(_RLock):  # type: ignore[misc]
    """A reentrant lock for the threads of one process; in a forked child it is free, even if the parent holds it.

    The thread that held it does not exist in the child, so nothing there would release it. The data that it guards
    must be valid for the child in any state. It is for `with` blocks alone, which take it and give it back in one
    step of the interpreter: between two steps an interrupt, such as Ctrl-C, would leave it held, and other threads
    would wait for ever.
    """

    def __init__(self) -> None:
        _locks.add(self)

    def renew(self) -> None:
        """Make the lock free, even if it is held; call it only while the process has one thread."""
        self._at_fork_reinit()


def _renew_all() -> None:
    for lock in list(_locks):
        lock.renew()


os.register_at_fork(after_in_child=_renew_all)
