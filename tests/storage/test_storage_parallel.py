"""Background work is done once, by any thread, also without free threads."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from interrupts import interrupted
from interrupts import waits as waits
from waiting import until

from distlog import StorageError
from distlog.core.storage import calls as task_module
from distlog.core.storage.calls import Task, WorkerThreads, begin, cores, in_order, in_parallel


def test_work_is_done_by_another_thread_and_waited_for() -> None:
    may_end, done_by = threading.Event(), []

    def work() -> None:
        may_end.wait(60)
        done_by.append(threading.current_thread())

    event = threading.Event()
    task = begin(lambda: (event.set(), work())[1])
    assert event.wait(60)
    assert done_by == []
    may_end.set()
    task.wait()
    task.wait()
    assert [thread is threading.current_thread() for thread in done_by] == [False]


def test_an_error_of_the_work_is_raised_to_each_caller() -> None:
    def fail() -> None:
        raise OSError("no")

    task = begin(fail)
    for _ in range(2):
        with pytest.raises(OSError, match="no"):
            task.wait()


@pytest.mark.usefixtures("waits")
def test_an_interrupt_ends_a_wait_and_not_the_work() -> None:
    has_started, may_end, main = threading.Event(), threading.Event(), threading.get_ident()
    task = begin(lambda: (has_started.set(), may_end.wait(60)))
    has_started.wait(60)
    interrupted(
        task.wait, lambda: until(lambda: sys._current_frames()[main].f_code.co_filename == task_module.__file__)
    )
    assert not task.is_done
    may_end.set()
    assert task.wait() == (None, True)


def refuse(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_work_is_done_once_though_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_module, "_background_pool", lambda: WorkerThreads(2, "none"))
    monkeypatch.setattr(threading.Thread, "start", refuse)
    results: list[int] = []
    task = begin(lambda: results.append(1))
    task.wait()
    task.wait()
    assert results == [1]


def test_a_waiting_caller_works_if_all_threads_are_busy() -> None:
    may_end = threading.Event()
    busy = [begin(lambda: may_end.wait(60) and None) for _ in range(8)]
    results: list[int] = []
    begin(lambda: results.append(1)).wait()
    assert results == [1]
    may_end.set()
    for task in busy:
        task.wait()


def test_one_of_many_waiting_threads_does_the_work() -> None:
    results: list[int] = []
    task = Task(lambda: results.append(1))
    with ThreadPoolExecutor(8) as pool:
        for waiting in [pool.submit(task.wait) for _ in range(100)]:
            waiting.result()
    assert results == [1]


def test_a_forked_process_has_its_own_threads() -> None:
    all_at_once = threading.Barrier(5)
    tasks = [begin(lambda: all_at_once.wait(60) and None) for _ in range(4)]
    all_at_once.wait(60)
    for task in tasks:
        task.wait()
    child = os.fork()
    if child == 0:
        event = threading.Event()
        begin(event.set)
        os._exit(0 if event.wait(60) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def numbered(count: int, started: list[int], work: Callable[[int], int]) -> Iterator[Callable[[], int]]:
    """Yield tasks 0 to `count` and note each in `started`."""
    try:
        for number in range(count):
            started.append(number)
            yield lambda number=number: work(number)
    finally:
        started.append(-1)


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_workers_start_only_the_requested_tasks(workers: int) -> None:
    started: list[int] = []
    results = in_order(numbered(200, started, lambda number: number * number), 3, workers=workers)
    for number in range(200):
        assert next(results) == number * number
        assert len(started) <= number + 5
    assert list(results) == []
    assert started == [*range(200), -1]


def test_the_caller_works_while_another_thread_works() -> None:
    has_started, goes_on, done_by = threading.Event(), threading.Event(), {}

    def work(number: int) -> int:
        done_by[number] = threading.get_ident()
        if number == 0:
            assert has_started.wait(120)
        if number == 1:
            # the helper is held here until the caller, who needs this result, has done the later tasks
            has_started.set()
            assert goes_on.wait(120)
        if number == 3:
            goes_on.set()
        return number

    assert list(in_order(numbered(5, [], work), 3, workers=2)) == [0, 1, 2, 3, 4]
    assert len(set(done_by.values())) == 2
    assert done_by[0] == done_by[2] == done_by[3] == threading.get_ident()


@pytest.mark.parametrize("workers", [None, 1, 4])
def test_an_error_of_the_iterator_of_tasks_comes_in_order(workers: int | None) -> None:
    def tasks() -> Iterator[Callable[[], int]]:
        yield lambda: 0
        yield lambda: 1
        raise OSError("no more")

    results = in_order(tasks(), 3, workers=workers)
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(OSError, match="no more"):
        next(results)
    assert list(results) == []


@pytest.mark.parametrize("workers", [None, 1, 4])
def test_close_ends_the_threads_and_the_iterator_of_tasks(workers: int | None) -> None:
    started: list[int] = []
    old_threads = set(threading.enumerate())
    results = in_order(numbered(200, started, int), 3, workers=workers, joined=True)
    assert [next(results) for _ in range(5)] == [0, 1, 2, 3, 4]
    results.close()  # type: ignore[attr-defined]
    assert set(threading.enumerate()) <= old_threads
    assert started[-1] == -1
    assert len(started) <= 5 + 3 + 1


def test_a_thread_that_starts_a_task_during_close_closes_the_iterator() -> None:
    waits, goes_on, closed = threading.Event(), threading.Event(), threading.Event()

    def tasks() -> Iterator[Callable[[], int]]:
        try:
            yield lambda: 0
            yield lambda: 1
            waits.set()
            assert goes_on.wait(120)
            yield lambda: 2
        finally:
            closed.set()

    results = in_order(tasks(), 3, workers=2)
    assert next(results) == 0
    assert waits.wait(120)
    results.close()  # type: ignore[attr-defined]
    assert not closed.is_set()
    goes_on.set()
    assert closed.wait(120)


def test_tasks_are_done_by_the_caller_where_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", refuse)
    for workers in (None, 3):
        assert list(in_order(numbered(20, [], int), 3, workers=workers, joined=True)) == [*range(20)]
    assert in_parallel(str, range(5)) == ["0", "1", "2", "3", "4"]


def test_the_caller_does_the_first_parallel_task() -> None:
    all_at_once = threading.Barrier(3, timeout=60)

    def work(_: int) -> int:
        all_at_once.wait()
        return threading.get_ident()

    done_by = in_parallel(work, range(3))
    assert done_by[0] == threading.get_ident()
    assert len(set(done_by)) == 3


def test_the_first_error_of_parallel_work_is_raised_after_the_last_task() -> None:
    old_threads = set(threading.enumerate())

    def fail(number: int) -> None:
        raise StorageError(f"number {number}")

    with pytest.raises(StorageError, match="number 0"):
        in_parallel(fail, range(40))
    assert set(threading.enumerate()) <= old_threads


def test_the_number_of_cores_follows_the_affinity() -> None:
    assert 1 <= cores() <= (os.cpu_count() or 1)


def test_an_interrupt_of_work_is_raised_in_its_thread() -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    task = Task(interrupted)
    with pytest.raises(KeyboardInterrupt):
        task.run()
    with pytest.raises(KeyboardInterrupt):
        task.wait()
