"""Does several pieces of work at the same time, in threads, and gives their results in order."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import CancelledError
from contextlib import suppress
from functools import cache, partial
from itertools import chain, islice
from queue import Empty, SimpleQueue
from types import GeneratorType
from typing import Generic, NoReturn, TypeVar

from distlog.core.errors import StorageError

# An interrupt cannot leave others waiting forever. Python's executors and futures take several steps to take a lock:
# an interrupt between two of these, such as Ctrl-C in a notebook, leaves the lock held, and all its waiters wait
# forever. What the threads here share is taken and given back in one step of the interpreter.

_pools: weakref.WeakSet[WorkerThreads] = weakref.WeakSet()


class WorkerThreads:
    """Up to `size` threads that only help: if none can be started, or after a fork, no thread does the work."""

    def __init__(self, size: int, name: str) -> None:
        self._name, self._process = name, os.getpid()
        # a token for each thread that may still be started, above them one for each that is idle: work takes the last
        self._free = deque([True] * size)
        self._threads: list[threading.Thread] = []
        self._waiting: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._is_over = False
        _pools.add(self)

    def put(self, work: Callable[[], object]) -> None:
        """Have a thread do `work`; errors that it raises are dropped."""
        if self._is_over or self._process != os.getpid():
            return
        self._waiting.put(work)
        try:
            is_new = self._free.pop()
        except IndexError:
            return
        if is_new:
            self._start()

    def _start(self) -> None:
        thread = threading.Thread(target=_serve, args=(self._waiting, self._free), name=self._name, daemon=True)
        try:
            thread.start()
        except RuntimeError:  # there can be no more threads, or the interpreter is ending
            self._free.appendleft(True)
        else:
            # only now: a thread whose start was interrupted may never run
            self._threads.append(thread)

    def end(self, *, joined: bool) -> None:
        """Drop the waiting work, and let the threads go; when `joined`, wait until they have ended."""
        self._is_over = True
        if self._process != os.getpid():
            return
        while not self._waiting.empty():
            # a thread may take it first
            with suppress(Empty):
                self._waiting.get_nowait()
        self._waiting.put(None)
        if joined:
            for thread in self._threads:
                thread.join()


def _serve(waiting: SimpleQueue[Callable[[], object] | None], free: deque[bool]) -> None:
    while (work := waiting.get()) is not None:
        with suppress(BaseException):
            work()
        del work
        free.append(False)
    # tell the next thread to end, too
    waiting.put(None)


@atexit.register
def _end_all() -> None:
    for pool in list(_pools):
        pool.end(joined=True)


_THREADS = 4

T = TypeVar("T")


class Task(Generic[T]):
    """Work of one process, done once: by a thread, or by the first caller that wants it before a thread begins."""

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
        # a lock of its own for each waiter: an interrupt that comes just when it is taken harms no other
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
        while self._calls:
            with suppress(IndexError):  # another thread may call them, too
                self._calls.popleft()()


def begin(work: Callable[[], T]) -> Task[T]:
    task = Task(work)
    _crew().put(task.run)
    return task


@cache
def _crew() -> WorkerThreads:
    return WorkerThreads(_THREADS, "distlog-background")


def begun_before_fork() -> StorageError:
    """The error of a forked child that waits for what only its parent's threads can do."""
    return StorageError("this was begun before a fork, in the parent: do it again in this process")


os.register_at_fork(after_in_child=_crew.cache_clear)

#: Requests to an object store that are under way at once.
PARALLEL_REQUESTS = 16
_AHEAD = "distlog-ahead"
#: How long a thread waits before it checks whether what it waits for is still wanted.
_PATIENCE_SECONDS = 1.0

U = TypeVar("U")


def cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class _Line(Generic[T]):
    """Tasks in their order: the next one, which the reader waits for, and up to `ahead` tasks after it."""

    def __init__(self, tasks: Iterable[Callable[[], T]], ahead: int) -> None:
        self._tasks, self._turn, self._process = iter(tasks), threading.Lock(), os.getpid()
        self._room, self._taken, self._given = ahead + 1, 0, 0
        self.begun: deque[Task[T]] = deque()
        self.is_over = False

    def take(self, *, blocking: bool = True) -> Task[T] | None:
        """Take the next task into the line; the caller must run it. None if there is no task or no room."""
        if self._process != os.getpid():
            raise begun_before_fork()
        while not self._turn.acquire(blocking, _PATIENCE_SECONDS if blocking else -1):
            # an interrupt may end a thread between this line and `try`: then the turn is not given back
            if self.is_over or not blocking:
                return None
        try:
            task = None if self.is_over or self._taken - self._given == self._room else self._pull()
        finally:
            self._turn.release()
        if self.is_over:
            self._close()
        return task

    def take_in(self, pool: WorkerThreads, *, by_thread: bool) -> None:
        """Have a thread of `pool` do the next task. With `by_thread` the thread takes it, too, if that is costly."""
        if self.is_over:
            return
        if by_thread:
            pool.put(self._advance)
        elif task := self.take():
            pool.put(task.run)

    def _advance(self) -> None:
        if task := self.take():
            task.run()

    def help(self, task: Task[T]) -> None:
        """Do `task`, or, while another thread does it, tasks that no thread has begun."""
        task.run()
        while not task.is_done and (other := self.take(blocking=False)):
            other.run()

    def next(self) -> Task[T] | None:
        """Remove and return the task to wait for; None at the end."""
        if not self.begun:
            self.take()
        return self.begun.popleft() if self.begun else None

    def give(self) -> None:
        """Make room for one more task: the reader has taken the result of the one that left the line."""
        self._given += 1

    def stop(self) -> None:
        """Take no more tasks, and close their iterator: now, or when the thread that is using it leaves it."""
        self.is_over = True
        self._close()

    def _pull(self) -> Task[T] | None:
        try:
            work = next(self._tasks)
        except StopIteration:
            self.is_over = True
            return None
        except BaseException as error:
            self.is_over = True
            work = partial(_fail, error)
        self._taken += 1
        self.begun.append(Task(work))
        return self.begun[-1]

    def _close(self) -> None:
        if self._process == os.getpid() and self._turn.acquire(blocking=False):
            try:
                if isinstance(self._tasks, GeneratorType):
                    self._tasks.close()
            finally:
                self._turn.release()


def in_order(
    tasks: Iterable[Callable[[], T]], ahead: int, *, workers: int | None = None, joined: bool = False
) -> Generator[T, None, None]:
    """The results of `tasks` in their order, while threads work on up to `ahead` tasks after the next one.

    The caller does the first task. Each of those after it has a thread, since most tasks wait for a storage; tasks
    that compute share `workers`, of which the caller is one. Without threads the caller does each task in its turn.

    One thread at a time uses the iterator of tasks. An error of the iterator or of a task is raised in its turn. At
    the end, after an error and after `close`, no more task is begun, and the iterator is closed; when `joined`, the
    threads have ended too.
    """
    computes = workers is not None
    threads = ahead if workers is None else workers - 1
    line, pool = _Line(tasks, ahead), None
    try:
        if threads and line.take() and line.take():
            pool = WorkerThreads(threads, _AHEAD)
            # the first one is the caller's, who waits for nothing else
            for task in list(line.begun)[1:]:
                pool.put(task.run)
            for _ in range(ahead - 1):
                line.take_in(pool, by_thread=computes)
        while next_task := line.next():
            if pool and computes:
                line.help(next_task)
            yield next_task.wait()
            line.give()
            if pool:
                line.take_in(pool, by_thread=computes)
    finally:
        line.stop()
        if pool:
            # the garbage collector may run this in one of these threads, and none of them can wait for another
            pool.end(joined=joined and not threading.current_thread().name.startswith(_AHEAD))


def begun(items: Iterator[T], count: int) -> Iterator[T]:
    """The same `items`, the first `count` of which are made now; an error is raised after the items before it."""
    made: list[T] = []
    try:
        made.extend(islice(items, count))
    except Exception as error:
        return chain(made, map(_fail, [error]))
    return chain(made, items)


def in_parallel(work: Callable[[T], U], items: Iterable[T]) -> list[U]:
    """The results of `work` for each item, in order, by up to PARALLEL_REQUESTS threads; raises the first error."""
    tasks = [partial(work, item) for item in items]
    if len(tasks) < 2:
        return [task() for task in tasks]
    return list(in_order(tasks, min(len(tasks), PARALLEL_REQUESTS), joined=True))


def _fail(error: BaseException) -> NoReturn:
    raise error
