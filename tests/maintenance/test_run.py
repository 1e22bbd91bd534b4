"""The seam of maintenance: the same work on many items, in threads where the storage is far away."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from topics import Clock, topic_on, values

from distlog.core.maintain.executor import PARALLEL, Run, each_segment, in_threads, one_by_one, run_here
from distlog.core.storage.storage import Storage


@dataclass(frozen=True)
class Item:
    number: int
    log_bytes: int = 1


ITEMS = [Item(number) for number in range(3 * PARALLEL)]


@pytest.mark.parametrize("run", [one_by_one, in_threads])
def test_results_come_in_the_order_of_the_items(run: Run) -> None:
    assert list(run(lambda item: item.number, ITEMS)) == list(range(len(ITEMS)))
    assert list(run(lambda item: item.number, [])) == []


def test_in_turn_an_item_is_worked_on_when_its_result_is_wanted() -> None:
    begun: list[int] = []
    results = iter(one_by_one(lambda item: begun.append(item.number), ITEMS))
    next(results)
    assert begun == [0]


def test_in_threads_several_items_are_worked_on_at_once() -> None:
    together = threading.Barrier(PARALLEL)
    results = in_threads(lambda item: together.wait(timeout=60) >= 0, ITEMS[:PARALLEL])
    assert list(results) == [True] * PARALLEL


@pytest.mark.parametrize("run", [one_by_one, in_threads])
def test_what_work_raises_is_raised(run: Run) -> None:
    def fail(item: Item) -> int:
        raise ValueError(item.number)

    with pytest.raises(ValueError, match="0"):
        list(run(fail, ITEMS))


def test_after_an_error_no_thread_works_on() -> None:
    both, told, worked_on = threading.Barrier(2), threading.Event(), list[bool]()

    def work(item: Item) -> None:
        both.wait(timeout=60)
        if item.number == 0:
            raise ValueError("the first")
        worked_on.append(told.wait(timeout=0.2))

    with pytest.raises(ValueError, match="the first"):
        list(in_threads(work, ITEMS[:2]))
    told.set()
    assert worked_on == [False]


def test_threads_are_for_storage_that_is_far_away(tmp_path: Path) -> None:
    assert run_here(Storage(tmp_path / "log")) is one_by_one
    assert run_here(Storage("memory://run/log")) is in_threads


def test_each_segment_is_told_of_when_its_result_is_there(tmp_path: Path) -> None:
    topic = topic_on(Storage(tmp_path / "log"), 2, clock=Clock())
    for partition in (1, 0):
        topic.append(values(range(partition + 3)), partition=partition)
    told: list[tuple[int, int]] = []

    def offsets() -> Iterator[tuple[int, int]]:
        for segment in each_segment(
            one_by_one, lambda segment: segment, topic.snapshot, lambda *done: told.append(done)
        ):
            assert told[-1] == (segment.record_count, segment.log_bytes)
            yield segment.partition, segment.record_count

    assert list(offsets()) == [(0, 3), (1, 4)]
