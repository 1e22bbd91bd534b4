"""Work in the background is done once, whoever does it, and whatever stands in the way of threads."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from distlog.core.storage.parallel import Task, begin


def test_work_is_done_by_another_thread_and_waited_for() -> None:
    may_end, done_by = threading.Event(), []

    def work() -> None:
        may_end.wait(10)
        done_by.append(threading.current_thread())

    begun = threading.Event()
    task = begin(lambda: (begun.set(), work())[1])
    assert begun.wait(10)
    assert done_by == []
    may_end.set()
    task.wait()
    task.wait()
    assert [thread is threading.current_thread() for thread in done_by] == [False]


def test_what_the_work_raises_is_raised_to_each_who_waits() -> None:
    def fail() -> None:
        raise OSError("no")

    task = begin(fail)
    for _ in range(2):
        with pytest.raises(OSError, match="no"):
            task.wait()


@pytest.mark.parametrize("is_queued", [False, True])
def test_work_is_done_once_though_no_thread_can_be_started(is_queued: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    queued = []

    def refuse(pool: ThreadPoolExecutor, work: Any) -> None:
        if is_queued:
            queued.append(work)  # as Python's does, before it starts a thread
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(ThreadPoolExecutor, "submit", refuse)
    done: list[int] = []
    task = begin(lambda: done.append(1))
    task.wait()
    for work in queued:
        work()
    task.wait()
    assert done == [1]


def test_work_is_done_by_who_waits_when_all_threads_are_busy() -> None:
    may_end = threading.Event()
    busy = [begin(lambda: may_end.wait(10) and None) for _ in range(8)]
    done: list[int] = []
    begin(lambda: done.append(1)).wait()
    assert done == [1]
    may_end.set()
    for task in busy:
        task.wait()


def test_of_many_threads_that_want_it_one_does_the_work() -> None:
    done: list[int] = []
    task = Task(lambda: done.append(1))
    with ThreadPoolExecutor(8) as pool:
        for waiting in [pool.submit(task.wait) for _ in range(100)]:
            waiting.result()
    assert done == [1]


def test_a_forked_process_has_threads_of_its_own() -> None:
    all_at_once = threading.Barrier(5)
    tasks = [begin(lambda: all_at_once.wait(10) and None) for _ in range(4)]
    all_at_once.wait(10)
    for task in tasks:
        task.wait()
    child = os.fork()
    if child == 0:
        begun = threading.Event()
        begin(begun.set)
        os._exit(0 if begun.wait(10) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
