"""The executor of this process: one function on many items, in threads for remote storage."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

import pytest

from distlog.core.maintain.executor import PARALLEL, LocalExecutor
from distlog.core.storage.storage import Storage


@dataclass(frozen=True)
class Item:
    number: int
    log_bytes: int = 1


ITEMS = [Item(number) for number in range(3 * PARALLEL)]
IN_THREADS = LocalExecutor(Storage("memory://executor/log"))


@pytest.fixture
def in_turn(tmp_path: Path) -> LocalExecutor:
    return LocalExecutor(Storage(tmp_path / "log"))


@pytest.fixture(params=["in turn", "in threads"])
def executor(request: pytest.FixtureRequest, in_turn: LocalExecutor) -> LocalExecutor:
    return in_turn if request.param == "in turn" else IN_THREADS


def test_results_come_in_the_order_of_the_items(executor: LocalExecutor) -> None:
    assert list(executor.map(lambda item: item.number, ITEMS)) == list(range(len(ITEMS)))
    assert list(executor.map(lambda item: item.number, [])) == []


def test_local_items_are_processed_on_demand(in_turn: LocalExecutor) -> None:
    items_started: list[int] = []
    results = iter(in_turn.map(lambda item: items_started.append(item.number), ITEMS))
    next(results)
    assert items_started == [0]


def test_remote_items_are_processed_concurrently() -> None:
    together = threading.Barrier(PARALLEL)
    results = IN_THREADS.map(lambda item: together.wait(timeout=60) >= 0, ITEMS[:PARALLEL])
    assert list(results) == [True] * PARALLEL


def test_errors_of_items_are_raised(executor: LocalExecutor) -> None:
    def fail(item: Item) -> int:
        raise ValueError(item.number)

    with pytest.raises(ValueError, match="0"):
        list(executor.map(fail, ITEMS))


def test_after_an_error_all_threads_stop() -> None:
    barrier, has_failed, worked_on = threading.Barrier(2), threading.Event(), list[bool]()

    def work(item: Item) -> None:
        barrier.wait(timeout=60)
        if item.number == 0:
            raise ValueError("the first")
        worked_on.append(has_failed.wait(timeout=0.2))

    with pytest.raises(ValueError, match="the first"):
        list(IN_THREADS.map(work, ITEMS[:2]))
    has_failed.set()
    assert worked_on == [False]


def test_a_process_works_on_one_local_item_at_a_time(in_turn: LocalExecutor) -> None:
    assert (in_turn.workers, IN_THREADS.workers) == (1, PARALLEL)
