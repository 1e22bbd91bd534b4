"""Threads that work for others; an interrupt cannot leave the others waiting forever.

Python's executors and futures take several steps to take a lock. An interrupt between two of these steps, such as
Ctrl-C in a notebook, leaves the lock held, and all who wait for it wait forever. What the threads here share is taken
and given back in one step of the interpreter.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue

_crews: weakref.WeakSet[Crew] = weakref.WeakSet()


class Crew:
    """Up to `size` threads that do the work that is put, in its order; each is started when there is work for it.

    Threads only help, and nothing may depend on them: if none can be started, as in a process that is ending, nobody
    does the work. In a forked child there are none.
    """

    def __init__(self, size: int, name: str) -> None:
        self._name, self._process = name, os.getpid()
        # one token for each thread that may still be started: several callers may take one at the same time
        self._free: SimpleQueue[None] = SimpleQueue()
        for _ in range(size):
            self._free.put(None)
        self._threads: list[threading.Thread] = []
        self._waiting: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._is_over = False
        _crews.add(self)

    def put(self, work: Callable[[], object]) -> None:
        """Have a thread do `work`; errors that it raises are dropped."""
        if self._is_over or self._process != os.getpid():
            return
        self._waiting.put(work)
        with suppress(Empty):
            self._free.get_nowait()
            self._start()

    def _start(self) -> None:
        thread = threading.Thread(target=_serve, args=(self._waiting,), name=self._name, daemon=True)
        try:
            thread.start()
        except RuntimeError:  # there can be no more threads, or the interpreter is ending
            self._free.put(None)
        else:
            # only now: a thread whose start was interrupted may never run
            self._threads.append(thread)

    def end(self, *, joined: bool) -> None:
        """Drop the waiting work, and let the threads go; when `joined`, wait until they have ended."""
        self._is_over = True
        if self._process != os.getpid():
            return
        with suppress(Empty):
            while True:
                self._waiting.get_nowait()
        self._waiting.put(None)
        if joined:
            for thread in self._threads:
                thread.join()


def _serve(waiting: SimpleQueue[Callable[[], object] | None]) -> None:
    while (work := waiting.get()) is not None:
        with suppress(BaseException):
            work()
        del work
    # tell the next thread to end, too
    waiting.put(None)


def _end_all() -> None:
    for crew in list(_crews):
        crew.end(joined=True)


atexit.register(_end_all)
