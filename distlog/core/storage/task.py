"""A piece of work that a thread may do while the caller goes on.

Threads only help, and nothing depends on them: the caller does any work itself that no thread has begun when the
caller wants its result. The same holds when no thread can be started any more, as in a process that is ending.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import suppress
from functools import cache
from typing import Generic, TypeVar

from distlog.core.errors import StorageError
from distlog.core.storage.crew import Crew

_THREADS = 4

T = TypeVar("T")


class Task(Generic[T]):
    """Work that is done once: by a thread, or by the first caller that wants it before a thread has begun it.

    It belongs to one process: a forked child, which has no such thread, neither does the work nor waits for it.
    """

    def __init__(self, work: Callable[[], T]) -> None:
        self._work, self._is_taken, self._is_over = work, threading.Lock(), False
        self._result: list[T] = []
        self._error: BaseException | None = None
        self._calls: deque[Callable[[], None]] = deque()
        self._process = os.getpid()

    def run(self) -> None:
        """Do the work, unless it has been begun already; an error is kept for `wait`."""
        if self._process != os.getpid() or not self._is_taken.acquire(blocking=False):
            return
        try:
            self._result.append(self._work())
        except BaseException as error:
            self._error = error
            if not isinstance(error, Exception):
                # an interrupt is meant for the thread that runs this now, whichever caller wants the result
                raise
        finally:
            self._end()

    @property
    def is_done(self) -> bool:
        """Whether the work is done, so that `wait` returns at once."""
        return self._is_over

    def wait(self) -> T:
        """Wait for the work and return its result. Raises the work's error, and StorageError in a forked child."""
        self.run()
        if self._process != os.getpid() and not self.is_done:
            raise begun_before_fork()
        if not self.is_done:
            self._wait_for_another()
        if self._error is not None:
            raise self._error
        return self._result[0]

    def _wait_for_another(self) -> None:
        # a lock of its own for each who waits: an interrupt that comes just when it is taken harms no other
        over = threading.Lock()
        over.acquire()
        # before the calls of `when_over`, which may raise
        self._calls.appendleft(over.release)
        if self.is_done:
            self._call()
        # with a timeout, or Ctrl-C could not end it where a library has waits restarted, as polars does
        while not over.acquire(timeout=threading.TIMEOUT_MAX):
            pass

    def when_over(self, call: Callable[[], None]) -> None:
        """Call `call` when the work is done. Work that has not begun is cancelled, and `call` is called now."""
        if self._is_taken.acquire(blocking=False):
            self._error = CancelledError()
            self._end()
        self._calls.append(call)
        if self.is_done:
            self._call()

    def _end(self) -> None:
        self._is_over = True
        self._call()

    def _call(self) -> None:
        with suppress(IndexError):  # another thread may call them, too
            while True:
                self._calls.popleft()()


def begin(work: Callable[[], T]) -> Task[T]:
    """Start `work` in the background; safe to call from any thread."""
    task = Task(work)
    _crew().put(task.run)
    return task


@cache
def _crew() -> Crew:
    return Crew(_THREADS, "distlog-background")


def begun_before_fork() -> StorageError:
    """The error of a forked child that waits for what only its parent's threads can do."""
    return StorageError("this was begun before a fork, in the parent: do it again in this process")


os.register_at_fork(after_in_child=_crew.cache_clear)
