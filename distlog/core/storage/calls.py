"""Calls in threads, with results in order; repeated calls of storage, and locks that are free in a forked child."""

from __future__ import annotations

import atexit
import enum
import errno
import logging
import os
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import CancelledError
from contextlib import AbstractContextManager, suppress
from functools import cache, partial
from itertools import chain, islice
from queue import Empty, SimpleQueue
from random import SystemRandom
from types import GeneratorType
from typing import Any, Generic, NoReturn, TypeVar

from distlog.core.errors import (
    CommitStateUnknownError,
    DistlogError,
    InvalidConfigError,
    StorageDeniedError,
    StorageError,
    StorageRefusedError,
)

# Python's executors and futures acquire a lock in several steps: an interrupt between two steps (Ctrl-C) leaves the
# lock held forever. The threads here acquire and release shared state in one step of the interpreter.

#: The most concurrent requests to an object store, and the most concurrent reads, which are mostly of a few kB.
PARALLEL_REQUESTS, PARALLEL_READS = 16, 32
_THREAD_NAME = "distlog-ahead"
_RECHECK_S = 1.0  # how long a thread waits before it checks whether it must still wait, in seconds

T = TypeVar("T")
U = TypeVar("U")

_pools: weakref.WeakSet[WorkerThreads] = weakref.WeakSet()


class WorkerThreads:
    """Up to `size` helper threads; none if they cannot be started, or after a fork."""

    def __init__(self, size: int, name: str) -> None:
        self._name, self._process = name, os.getpid()
        # a token for each thread: True if it may still be started, False if it is idle; idle ones are popped first
        self._tokens = deque([True] * size)
        self._threads: list[threading.Thread] = []
        self._work_queue: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._is_over = False
        _pools.add(self)

    def put(self, work: Callable[[], object]) -> None:
        """Make a thread do `work`, ignoring its errors."""
        if self._is_over or self._process != os.getpid():
            return
        self._work_queue.put(work)
        try:
            is_new = self._tokens.pop()
        except IndexError:
            return  # all threads are busy: the next free one does the work
        if is_new:
            self._start()

    def _start(self) -> None:
        thread = threading.Thread(target=_serve, args=(self._work_queue, self._tokens), name=self._name, daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no more threads are possible, or the interpreter is shutting down
            self._tokens.appendleft(True)
        else:
            # after the start: a thread whose start was interrupted may never run
            self._threads.append(thread)

    def end(self, *, joined: bool) -> None:
        """Drop queued work and stop the threads; if `joined`, wait until they have ended."""
        self._is_over = True
        if self._process != os.getpid():
            return
        while not self._work_queue.empty():
            with suppress(Empty):  # a thread may get it first
                self._work_queue.get_nowait()
        self._work_queue.put(None)
        if joined:
            for thread in self._threads:
                thread.join()


def _serve(work_queue: SimpleQueue[Callable[[], object] | None], tokens: deque[bool]) -> None:
    while (work := work_queue.get()) is not None:
        with suppress(BaseException):
            work()
        del work
        tokens.append(False)
    work_queue.put(None)  # makes the next thread end, too


@atexit.register
def _end_all() -> None:
    for pool in list(_pools):
        pool.end(joined=True)


class Task(Generic[T]):
    """Work that runs once, in a thread or in the first caller that waits, and only in the process that created it."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work, self._start_lock, self._is_over = work, threading.Lock(), False
        self._result: list[T] = []
        self._error: BaseException | None = None
        self._done_callbacks: deque[Callable[[], None]] = deque()
        self._process = os.getpid()

    def run(self) -> None:
        """Do the work, unless it has already started; `wait` raises its error."""
        if self._process != os.getpid() or not self._start_lock.acquire(blocking=False):
            return
        try:
            self._result.append(self._work())
        except BaseException as error:
            self._error = error
            if not isinstance(error, Exception):
                raise  # an interrupt is for the thread that runs this
        finally:
            # the work may hold much memory, and callers may keep the task
            del self._work
            self._end()

    @property
    def is_done(self) -> bool:
        return self._is_over

    def wait(self) -> T:
        """Wait for the work and return its result. Raises the work's error, and StorageError in a forked child."""
        self.run()
        if self._process != os.getpid() and not self.is_done:
            raise started_before_fork()
        if not self.is_done:
            self._wait_for_thread()
        if self._error is not None:
            raise self._error
        return self._result[0]

    def _wait_for_thread(self) -> None:
        # a lock per waiter: an interrupt while it is acquired harms no other waiter
        over = threading.Lock()
        over.acquire()
        self._done_callbacks.appendleft(over.release)  # before the callbacks of `cancel`, which may raise
        if self.is_done:
            self._run_callbacks()
        # without a timeout, Ctrl-C cannot interrupt the wait if a library (polars) has signals restart system calls
        while not over.acquire(timeout=threading.TIMEOUT_MAX):
            pass

    def cancel(self, on_end: Callable[[], None]) -> None:
        """Cancel the work if it has not started. Call `on_end` once the work has ended or is cancelled."""
        if self._start_lock.acquire(blocking=False):
            self._error = CancelledError()
            self._end()
        self._done_callbacks.append(on_end)
        if self.is_done:
            self._run_callbacks()

    def _end(self) -> None:
        self._is_over = True
        self._run_callbacks()

    def _run_callbacks(self) -> None:
        while self._done_callbacks:
            with suppress(IndexError):  # another thread may pop the last callback
                self._done_callbacks.popleft()()


def begin(work: Callable[[], T]) -> Task[T]:
    task = Task(work)
    _background_pool().put(task.run)
    return task


@cache
def _background_pool() -> WorkerThreads:
    return WorkerThreads(4, "distlog-background")


def started_before_fork() -> StorageError:
    return StorageError(
        "the read or write was started in the parent process, before a fork: start it again in this process"
    )


os.register_at_fork(after_in_child=_background_pool.cache_clear)


def cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class _OrderedTasks(Generic[T]):
    """Tasks in order: the next task, which the reader waits for, and up to `buffered` tasks after it."""

    def __init__(self, tasks: Iterable[Callable[[], T]], buffered: int) -> None:
        self._tasks, self._iterator_lock, self._process = iter(tasks), threading.Lock(), os.getpid()
        self._capacity, self._pulled_count = buffered + 1, 0
        #: The number of results that the reader has got, each of which makes room for another task.
        self.returned = 0
        self.queue: deque[Task[T]] = deque()
        self.is_over = False

    def pull(self, *, blocking: bool = True) -> Task[T] | None:
        """Queue the next task, which the caller must run. Returns None if no task or no room is left."""
        if self._process != os.getpid():
            raise started_before_fork()
        while not self._iterator_lock.acquire(blocking, _RECHECK_S if blocking else -1):
            # if an interrupt ended a thread between its `acquire` and its `try`, the lock is never released
            if self.is_over or not blocking:
                return None
        try:
            is_full = self._pulled_count - self.returned == self._capacity
            task = None if self.is_over or is_full else self._next_task()
        finally:
            self._iterator_lock.release()
        if self.is_over:
            self._close()
        return task

    def submit_next(self, pool: WorkerThreads, *, by_thread: bool) -> None:
        """Make a thread of `pool` do the next task; with `by_thread`, the thread also pulls it from the iterator."""
        if self.is_over:
            return
        if by_thread:
            pool.put(self._pull_and_run)
        elif task := self.pull():
            pool.put(task.run)

    def _pull_and_run(self) -> None:
        if task := self.pull():
            task.run()

    def next(self) -> Task[T] | None:
        """Remove and return the task to wait for; None at the end."""
        if not self.queue:
            self.pull()
        return self.queue.popleft() if self.queue else None

    def stop(self) -> None:
        """Pull no more tasks, and close their iterator, now or after the thread that is using it."""
        self.is_over = True
        self._close()

    def _next_task(self) -> Task[T] | None:
        try:
            work = next(self._tasks)
        except StopIteration:
            self.is_over = True
            return None
        except BaseException as error:
            self.is_over = True
            work = partial(_fail, error)
        self._pulled_count += 1
        self.queue.append(Task(work))
        return self.queue[-1]

    def _close(self) -> None:
        if self._process == os.getpid() and self._iterator_lock.acquire(blocking=False):
            try:
                if isinstance(self._tasks, GeneratorType):
                    self._tasks.close()
            finally:
                self._iterator_lock.release()


def in_order(
    tasks: Iterable[Callable[[], T]], buffered: int, *, workers: int | None = None, joined: bool = False
) -> Generator[T, None, None]:
    """Yield the results of `tasks` in order, while threads work on up to `buffered` tasks after the next one.

    Without `workers`, each task in the buffer gets a thread: this is for tasks that wait for storage. With `workers`,
    up to `workers` threads, including the caller, run the tasks: this is for tasks that compute.

    One thread at a time uses the iterator of tasks. At the end it is closed; if `joined`, the threads have ended too.
    """
    computes = workers is not None
    threads = buffered if workers is None else workers - 1
    ordered, pool = _OrderedTasks(tasks, buffered), None
    try:
        # the caller runs the first task, so a single task needs no thread
        if threads and ordered.pull() and (second_task := ordered.pull()):
            pool = WorkerThreads(threads, _THREAD_NAME)
            pool.put(second_task.run)
            for _ in range(buffered - 1):
                ordered.submit_next(pool, by_thread=computes)
        while next_task := ordered.next():
            if pool and computes:
                # run the task; while another thread runs it, run later tasks
                next_task.run()
                while not next_task.is_done and (later_task := ordered.pull(blocking=False)):
                    later_task.run()
            yield next_task.wait()
            ordered.returned += 1
            if pool:
                ordered.submit_next(pool, by_thread=computes)
    finally:
        ordered.stop()
        if pool:
            # the garbage collector may run this in a thread of the pool, which must not wait for the pool
            pool.end(joined=joined and not threading.current_thread().name.startswith(_THREAD_NAME))


def prefetched(items: Iterator[T], count: int) -> Iterator[T]:
    """Return `items`, the first `count` computed now; an error is raised after the items that precede it."""
    ready: list[T] = []
    try:
        ready.extend(islice(items, count))
    except Exception as error:
        return chain(ready, map(_fail, [error]))
    return chain(ready, items)


def in_parallel(work: Callable[[T], U], items: Iterable[T], most: int = PARALLEL_REQUESTS) -> list[U]:
    """Return `work` of all items, in order, by up to `most` threads. Raises the first error."""
    tasks = [partial(work, item) for item in items]
    if len(tasks) < 2:
        return [task() for task in tasks]
    return list(in_order(tasks, min(len(tasks), most), joined=True))


def _fail(error: BaseException) -> NoReturn:
    raise error


_locks: weakref.WeakSet[Any] = weakref.WeakSet()
_RLOCK = type(threading.RLock())


def process_lock() -> AbstractContextManager[object]:
    """A reentrant lock for the threads of one process; in a forked child it is free, even if the parent holds it.

    The child must cope with guarded data that is half changed. An interrupt (Ctrl-C) does not leave the lock held.
    """
    lock = threading.RLock()
    # a tool may replace `threading.RLock` later; only the interpreter's lock can be reset after a fork
    if isinstance(lock, _RLOCK):
        _locks.add(lock)
    return lock


def _reset_locks() -> None:
    for lock in list(_locks):
        lock._at_fork_reinit()


os.register_at_fork(after_in_child=_reset_locks)


#: How long requests are retried. A time limit, since a number of retries would end during a short outage.
RETRY_TIMEOUT_S = 60.0
#: The limit until the server has first answered (see `ObjectStore.retried`): a typo in its name costs seconds.
FIRST_TIMEOUT_S = 5.0
FIRST_PAUSE_S = 0.05
MAX_PAUSE_S = 2.0

_log = logging.getLogger("distlog")


class ErrorKind(enum.Enum):
    MISSING = "the object does not exist"
    REFUSED = "the store refuses the request, and would refuse a retry"
    LAPSED = "the credentials are no longer valid"
    PAST_THE_END = "the range starts past the object's last byte"
    UNCLEAR = "no answer, or an answer that may change, so a retry may succeed"


#: Random numbers for pauses; not by Python's generator, which the program may have seeded.
jitter = SystemRandom().random


class Deadline:
    """The time left for retries, and the pauses between them: random, up to 50 ms at first, doubling up to 2 s."""

    def __init__(
        self,
        timeout_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        random: Callable[[], float] = jitter,
        min_pauses: int = 0,
    ) -> None:
        """Allow `min_pauses` pauses even after the deadline, since the first call may have used all the time."""
        self._clock, self._sleep, self._random, self._guaranteed_pauses = clock, sleep, random, min_pauses
        self._end_s = clock() + timeout_s
        self._max_pause_s = FIRST_PAUSE_S

    @property
    def has_max_pause(self) -> bool:
        return self._max_pause_s == MAX_PAUSE_S

    def pause(self) -> bool:
        """Sleep for a pause and return True, or return False if no time is left."""
        left_s = self._end_s - self._clock()
        if left_s <= 0 and self._guaranteed_pauses <= 0:
            return False
        self._guaranteed_pauses -= 1
        # a guaranteed pause sleeps up to FIRST_PAUSE_S even if no time is left
        self._sleep(min(max(left_s, FIRST_PAUSE_S), self._random() * self._max_pause_s))
        self._max_pause_s = min(self._max_pause_s * 2, MAX_PAUSE_S)
        return True


class ErrorClassifier(ABC):
    """The meanings of the errors of a storage client."""

    @abstractmethod
    def kind(self, error: Exception) -> ErrorKind:
        """Return the kind of `error`."""

    @abstractmethod
    def describe(self, error: Exception) -> str:
        """Return the text of `error`, without secrets."""

    def failure(self, action: str, path: str, error: Exception) -> DistlogError:
        """Return the error to raise instead of `error`, whose text may have a secret."""
        if isinstance(error, (StorageError, InvalidConfigError)):
            return error
        text = f"cannot {action}: {self.describe(error)}"
        if isinstance(error, PermissionError):
            return StorageDeniedError(text, file=path)
        may_change = self.kind(error) is ErrorKind.UNCLEAR
        return (StorageError if may_change else StorageRefusedError)(text, file=path)


def retried(call: Callable[[], T], action: str, path: str, errors: ErrorClassifier, deadline: Deadline) -> T:
    """Return `call()`, repeated while its errors are unclear and time is left."""
    is_logged = False
    while True:
        try:
            return call()
        except Exception as error:  # noqa: PERF203
            kind = errors.kind(error)
            if kind is ErrorKind.MISSING:
                raise FileNotFoundError(errno.ENOENT, "the object does not exist", path) from None
            if kind is not ErrorKind.UNCLEAR or not deadline.pause():
                raise errors.failure(action, path, error) from None
            if deadline.has_max_pause and not is_logged:  # short outages are not logged
                is_logged = True
                _log.warning("cannot %s %s, trying again: %s", action, path, errors.describe(error))


def resolve_put(
    create: Callable[[], bytes],
    read_back: Callable[[], bytes],
    path: str,
    errors: ErrorClassifier,
    deadline: Deadline,
) -> bytes:
    """Put an object if absent, and return the bytes stored at `path`: ours or another writer's.

    After an error of `create`, `read_back` reads the object. The error "it exists" may be about our own put, since
    responses get lost and clients retry. Raises StorageError if the put was refused, and CommitStateUnknownError if
    it may have happened. Expired credentials are not a refusal: an earlier try of the client may have put the object.
    """
    may_be_stored = False
    while True:
        try:
            return create()
        except Exception as error:
            # MISSING refuses the put, since only the bucket or folder of a new object can be missing
            refusal = error if errors.kind(error) in (ErrorKind.MISSING, ErrorKind.REFUSED) else None
            may_be_stored = may_be_stored or refusal is None
        try:
            return read_back()
        except Exception as error:
            if refusal is not None and not may_be_stored:
                raise errors.failure("put", path, refusal) from None
            cannot_read_back = errors.kind(error) in (ErrorKind.REFUSED, ErrorKind.LAPSED)
            # The outcome stays unknown if this put was refused, since an earlier one may have succeeded, if no later
            # read can succeed, or at the timeout. The object can be a commit, which names other files.
            if refusal is not None or cannot_read_back or not deadline.pause():
                raise CommitStateUnknownError(
                    f"unknown whether the storage wrote the file ({errors.describe(refusal or error)}): keep "
                    "all files that it names, and check again later",
                    file=path,
                ) from None
