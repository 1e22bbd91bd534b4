"""Work that threads do while whoever asked for it goes on, or several works at the same time.

Threads help, and nothing depends on them: what none has begun when it is wanted is done by who wants it. So it is
when no thread can be started any more, as in a process that ends.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import cache, partial
from typing import Generic, TypeVar

from distlog.core.errors import StorageError

#: Requests to an object store that are under way at once.
PARALLEL_REQUESTS = 16
_THREADS = 4

T = TypeVar("T")
U = TypeVar("U")


class Task(Generic[T]):
    """Work that is done once: by a thread, or by whoever wants it done before one came to it.

    It is the work of one process: a forked child, which has no such thread, does nothing of it and does not wait.
    """

    def __init__(self, work: Callable[[], T]) -> None:
        self._work, self._is_taken, self._done = work, threading.Lock(), Future[T]()
        self._process = os.getpid()

    def run(self) -> None:
        """Do the work, unless somebody does it already; what it raises is kept for `wait`."""
        if self._process != os.getpid() or not self._is_taken.acquire(blocking=False):
            return
        try:
            result = self._work()
        except BaseException as error:
            self._done.set_exception(error)
        else:
            self._done.set_result(result)

    def begin_in(self, pool: ThreadPoolExecutor) -> None:
        """Have the work done by a thread of `pool`, if one can be had."""
        with suppress(RuntimeError):  # there can be no more threads, or the interpreter is ending
            pool.submit(self.run)

    def wait(self) -> T:
        """What the work returns, when it is done; raises what it raised, and StorageError in a forked child."""
        self.run()
        if self._process != os.getpid() and not self._done.done():
            raise StorageError("this was begun before a fork, in the parent: do it again in this process")
        return self._done.result()

    def when_over(self, call: Callable[[], None]) -> None:
        """Have `call` called when the work is done, or now if nobody has begun it, and nobody will."""
        if self._is_taken.acquire(blocking=False):
            self._done.cancel()
        self._done.add_done_callback(lambda done: call())


def begin(work: Callable[[], T]) -> Task[T]:
    """Have `work` done in the background; safe to call from any thread."""
    task = Task(work)
    task.begin_in(_pool())
    return task


def in_parallel(work: Callable[[T], U], items: Iterable[T]) -> list[U]:
    """`work` of each item, in up to PARALLEL_REQUESTS threads and this one, in the items' order.

    The first error is raised, and what waits is dropped.
    """
    tasks = [Task(partial(work, item)) for item in items]
    if len(tasks) < 2:
        return [task.wait() for task in tasks]
    pool = ThreadPoolExecutor(min(len(tasks), PARALLEL_REQUESTS), thread_name_prefix="distlog-parallel")
    try:
        for task in tasks:
            task.begin_in(pool)
        return [task.wait() for task in tasks]
    finally:
        pool.shutdown(cancel_futures=True)


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_THREADS, thread_name_prefix="distlog-background")


os.register_at_fork(after_in_child=_pool.cache_clear)
