"""Does several pieces of work at the same time, in threads, and gives their results in order.

As with each `Task`, threads only help: what none of them has begun the caller does itself.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from itertools import chain, islice
from typing import Generic, NoReturn, TypeVar

from distlog.core.storage.crew import Crew
from distlog.core.storage.task import Task, begun_before_fork

#: Requests to an object store that are under way at once.
PARALLEL_REQUESTS = 16
_AHEAD = "distlog-ahead"
#: How long a thread waits before it checks whether what it waits for is still wanted.
_PATIENCE_SECONDS = 1.0

T = TypeVar("T")
U = TypeVar("U")


def cores() -> int:
    """How many cores this process may use, at least 1."""
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
        """Take the next task into the line; the caller must run it.

        Returns None if there is no task or no room, or, unless `blocking`, if another thread is taking one. An error
        of the iterator becomes a task that fails.
        """
        if self._process != os.getpid():
            raise begun_before_fork()
        while not self._turn.acquire(blocking, _PATIENCE_SECONDS if blocking else -1):
            # an interrupt may end a thread between this line and `try`: then nobody gives the turn back
            if self.is_over or not blocking:
                return None
        try:
            task = None if self.is_over or self._taken - self._given == self._room else self._pull()
        finally:
            self._turn.release()
        if self.is_over:
            self._close()
        return task

    def take_in(self, crew: Crew, *, by_thread: bool) -> None:
        """Have a thread of `crew` do the next task. With `by_thread` the thread takes it, too, if that is costly."""
        if self.is_over:
            return
        if by_thread:
            crew.put(self._advance)
        elif task := self.take():
            crew.put(task.run)

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
                if isinstance(self._tasks, Generator):
                    self._tasks.close()
            finally:
                self._turn.release()


def in_order(
    tasks: Iterable[Callable[[], T]], ahead: int, *, workers: int | None = None, joined: bool = False
) -> Generator[T, None, None]:
    """The results of `tasks` in their order, while threads work on up to `ahead` tasks after the next one.

    Each of these tasks has a thread, since most tasks wait for a storage. Tasks that compute share `workers`; the
    caller is one of them. A single task needs no thread. Without threads each task is done when its result is asked
    for.

    One thread at a time uses the iterator of tasks. An error of the iterator or of a task is raised in its turn. At
    the end, after an error and after `close`, no more task is begun, and the iterator is closed; when `joined`, the
    threads have ended too.
    """
    computes = workers is not None
    threads = ahead if workers is None else workers - 1
    line, crew = _Line(tasks, ahead), None
    try:
        if threads and line.take() and line.take():
            crew = Crew(threads, _AHEAD)
            # if the caller is a worker, the first task is the caller's
            for task in list(line.begun)[1 if computes else 0 :]:
                crew.put(task.run)
            for _ in range(ahead - 1):
                line.take_in(crew, by_thread=computes)
        while next_task := line.next():
            if crew and computes:
                line.help(next_task)
            yield next_task.wait()
            line.give()
            if crew:
                line.take_in(crew, by_thread=computes)
    finally:
        line.stop()
        if crew:
            # the garbage collector may run this in one of these threads, and none of them can wait for another
            crew.end(joined=joined and not _runs_ahead())


def begun(items: Iterator[T], count: int) -> Iterator[T]:
    """The same `items`, the first `count` of which are made now, and the others when they are asked for.

    An error is raised only behind the items that were made before it.
    """
    made: list[T] = []
    try:
        made.extend(islice(items, count))
    except Exception as error:
        return chain(made, map(_fail, [error]))
    return chain(made, items)


def in_parallel(work: Callable[[T], U], items: Iterable[T]) -> list[U]:
    """The results of `work` for each item, in the items' order, by up to PARALLEL_REQUESTS threads and this one.

    The first error is raised, and work that has not begun is dropped.
    """
    tasks = [partial(work, item) for item in items]
    return list(in_order(tasks, min(len(tasks), PARALLEL_REQUESTS), joined=True))


def _runs_ahead() -> bool:
    return threading.current_thread().name.startswith(_AHEAD)


def _fail(error: BaseException) -> NoReturn:
    raise error
