"""Locks that are free in a forked child."""

from __future__ import annotations

import os
import threading
import weakref
from contextlib import AbstractContextManager
from typing import Any

_locks: weakref.WeakSet[Any] = weakref.WeakSet()
#: The interpreter's own reentrant lock.
_RLOCK = type(threading.RLock())


def process_lock() -> AbstractContextManager[object]:
    """A reentrant lock for the threads of one process; in a forked child it is free, even if the parent holds it.

    The thread that held it does not exist in the child, so nothing there would release it. The data that it guards
    must be valid for the child in any state. It is the interpreter's own lock, which a `with` block takes and gives
    back in one step: between two steps an interrupt, such as Ctrl-C, would leave it held forever.
    """
    lock = threading.RLock()
    if isinstance(lock, _RLOCK):
        _locks.add(lock)
    return lock


def process_locks() -> list[Any]:
    return list(_locks)


def _renew_all() -> None:
    for lock in process_locks():
        lock._at_fork_reinit()


os.register_at_fork(after_in_child=_renew_all)
