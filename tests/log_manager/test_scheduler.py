"""The scheduler: tasks run when the clock says so, and in threads until it is stopped."""

from __future__ import annotations

import threading

import pytest
from topics import Clock

from distlog.core.log_manager.log_tasks import Scheduler


@pytest.fixture
def clock() -> Clock:
    return Clock(0)


def test_a_task_runs_after_its_delay_and_then_every_period(clock: Clock) -> None:
    scheduler, runs = Scheduler(clock), list[int]()
    scheduler.schedule("a", lambda: runs.append(clock.now_ms), delay_ms=30, period_ms=100)
    for clock.now_ms in range(0, 260, 10):
        scheduler.run_due()
    assert runs == [30, 130, 230]


def test_missed_runs_are_not_repeated(clock: Clock) -> None:
    scheduler, runs = Scheduler(clock), list[int]()
    scheduler.schedule("a", lambda: runs.append(clock.now_ms), delay_ms=0, period_ms=10)
    for clock.now_ms in (0, 95, 96, 105):
        scheduler.run_due()
    assert runs == [0, 95, 105]


def test_a_task_that_takes_longer_than_its_period_is_due_when_it_ends(clock: Clock) -> None:
    scheduler, starts = Scheduler(clock), list[int]()

    def work() -> None:
        starts.append(clock.now_ms)
        clock.now_ms += 25

    scheduler.schedule("a", work, delay_ms=0, period_ms=10)
    scheduler.run_due()
    scheduler.run_due()
    assert starts == [0, 25]


def test_tasks_run_in_schedule_order_or_all_on_request(clock: Clock) -> None:
    scheduler, runs = Scheduler(clock), list[str]()
    for name, delay_ms in (("a", 0), ("b", 5), ("c", 0)):
        scheduler.schedule(name, lambda name=name: runs.append(name), delay_ms=delay_ms, period_ms=10)  # type: ignore[misc]
    scheduler.run_due()
    assert runs == ["a", "c"]
    scheduler.run("b")
    assert runs == ["a", "c", "b"]
    scheduler.run_all()
    assert runs == ["a", "c", "b", "a", "b", "c"]


def test_threads_run_the_tasks_side_by_side_until_they_are_stopped() -> None:
    scheduler, barrier = Scheduler(), threading.Barrier(3, timeout=60)
    ended = list[str]()
    for name in ("a", "b"):
        scheduler.schedule(name, barrier.wait, delay_ms=0, period_ms=1 << 60)  # type: ignore[arg-type]
    scheduler.schedule("later", lambda: ended.append("later"), delay_ms=1 << 60, period_ms=1, at_stop=True)
    scheduler.start()
    barrier.wait()
    assert ended == []
    assert scheduler.stop(timeout_s=60)
    assert scheduler.is_stopping
    assert ended == ["later"]


def test_a_task_that_does_not_end_is_given_up() -> None:
    scheduler, running, may_end = Scheduler(), threading.Event(), threading.Event()

    def work() -> None:
        running.set()
        may_end.wait(60)

    scheduler.schedule("a", work, delay_ms=0, period_ms=1)
    scheduler.start()
    assert running.wait(60)
    assert not scheduler.stop(timeout_s=0)
    may_end.set()
    assert scheduler.stop(timeout_s=60)
