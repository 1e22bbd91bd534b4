"""Work that a few threads of the process do while whoever asked for it goes on."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import cache

_THREADS = 4


class Task:
    """Work that is done once: by a thread of the background, or by whoever wants it done before one came to it.

    So it is done though no thread can be started, all are busy, or a fork has left them behind.
    """

    def __init__(self, work: Callable[[], None]) -> None:
        self._work, self._is_taken, self._done = work, threading.Lock(), Future[None]()

    def run(self) -> None:
        """Do the work, unless somebody does it already; what it raises is kept for `wait`."""
        if not self._is_taken.acquire(blocking=False):
            return
        try:
            self._work()
        except BaseException as error:
            self._done.set_exception(error)
        else:
            self._done.set_result(None)

    def wait(self) -> None:
        """Return when the work is done; raises what it raised."""
        self.run()
        self._done.result()


def begin(work: Callable[[], None]) -> Task:
    """Have `work` done in the background; safe to call from any thread."""
    task = Task(work)
    with suppress(RuntimeError):  # there can be no more threads, or the interpreter is ending
        _pool().submit(task.run)
    return task


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_THREADS, thread_name_prefix="distlog-background")


os.register_at_fork(after_in_child=_pool.cache_clear)
