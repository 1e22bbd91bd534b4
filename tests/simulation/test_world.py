"""The world of the simulation: virtual time, and the primitives that threads wait with."""

from __future__ import annotations

import gc
import importlib
import queue
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numba
import pytest
from numba.core import types
from numba.extending import intrinsic

from distlog.core.format.kernels import native
from distlog.core.storage.calls import in_parallel
from distlog.core.times import now_ms
from simulation.object_store import Client, ObjectStore
from simulation.world import BEGIN_MS, StuckError, World


def test_a_week_of_sleep_takes_no_time() -> None:
    start_s, woken = time.perf_counter(), list[float]()
    with World(1) as world:
        world.process("sleeper").start(lambda: (time.sleep(7 * 86_400), woken.append(world.now)))
        world.run()
    assert woken == [7 * 86_400]
    assert time.perf_counter() - start_s < 60


def test_processes_go_on_in_the_order_of_their_times() -> None:
    order = list[str]()
    with World(1) as world:
        for name, seconds in (("late", 3.0), ("early", 1.0), ("middle", 2.0)):
            world.process(name).start(lambda name=name, seconds=seconds: (time.sleep(seconds), order.append(name)))
        world.run()
    assert order == ["early", "middle", "late"]


def test_each_process_has_a_clock_of_its_own() -> None:
    times = dict[str, int]()
    with World(1) as world:
        world.process("right").start(lambda: times.update(right=now_ms()))
        world.process("ahead", skew_ms=3_600_000).start(lambda: times.update(ahead=now_ms()))
        fast = world.process("fast", drift=0.5)
        fast.start(lambda: (time.sleep(10), times.update(fast=now_ms())))
        world.run()
    assert times == {"right": BEGIN_MS, "ahead": BEGIN_MS + 3_600_000, "fast": BEGIN_MS + 15_000}


def test_ids_are_those_of_the_seed_and_of_the_process() -> None:
    def drawn(seed: int) -> list[str]:
        ids = list[str]()
        with World(seed) as world:
            for name in ("a", "b"):
                world.process(name).start(lambda: ids.append(uuid.uuid4().hex))
            world.run()
        return ids

    assert drawn(1) == drawn(1)
    assert len({*drawn(1), *drawn(2)}) == 4


def drawn_after(work: Callable[[], object]) -> tuple[str, int]:
    """Return the id that a process draws after the work, and the world's next random number."""
    ids = list[str]()
    with World(1) as world:
        world.process("a").start(lambda: (work(), ids.append(uuid.uuid4().hex)))
        world.run()
    assert world.errors == []
    return ids[0], world.random.getrandbits(64)


def test_a_module_that_is_imported_in_a_history_draws_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "draws.py").write_text("import threading, uuid\nID = uuid.uuid4()\nwith threading.Lock(): pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert drawn_after(lambda: importlib.import_module("draws")) == drawn_after(lambda: None)


@pytest.mark.skipif(not native.COMPILED, reason="the kernels are not compiled")
def test_a_kernel_that_is_compiled_in_a_history_draws_nothing() -> None:
    compiled = list[str]()

    @intrinsic
    def kernel(typing_context: Any) -> Any:
        with threading.Lock():
            compiled.append(uuid.uuid4().hex)
        return types.int64(), lambda context, builder, signature, args: context.get_constant(types.int64, 1)

    assert drawn_after(numba.njit(lambda: kernel())) == drawn_after(lambda: None)
    assert compiled


def test_a_lock_is_held_by_one_fiber_while_time_passes() -> None:
    inside, most = [0], [0]

    def enter(lock: threading.Lock) -> None:
        with lock:
            inside[0] += 1
            most[0] = max(most)
            time.sleep(1)
            most[0] = max(most[0], inside[0])
            inside[0] -= 1

    def work() -> None:
        lock = threading.Lock()
        threads = [threading.Thread(target=enter, args=(lock,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    with World(1) as world:
        world.process("threads").start(work)
        world.run()
        world.check_over()
    assert (most[0], world.now) == (1, 4.0)


def test_a_lock_that_is_not_free_in_time_is_not_taken() -> None:
    outcomes = list[tuple[bool, float]]()

    def work() -> None:
        lock = threading.Lock()
        lock.acquire()
        thread = threading.Thread(target=lambda: outcomes.append((lock.acquire(timeout=2.5), world.now)))
        thread.start()
        time.sleep(10)
        lock.release()

    with World(1) as world:
        world.process("threads").start(work)
        world.run()
    assert outcomes == [(False, 2.5)]


def test_a_condition_wakes_the_fibers_that_wait_for_it() -> None:
    order = list[object]()

    def work() -> None:
        changed = threading.Condition()
        with changed:
            timer = threading.Timer(3.0, lambda: _notify(changed))
            timer.start()
            order.append(changed.wait(10.0))
            order.append(world.now)
            order.append(changed.wait(1.0))

    with World(1) as world:
        world.process("waiter").start(work)
        world.run()
    assert order == [True, 3.0, False]


def _notify(changed: threading.Condition) -> None:
    with changed:
        changed.notify_all()


def test_a_queue_holds_back_producers_and_consumers() -> None:
    got = list[tuple[int, float]]()

    def work() -> None:
        items: queue.Queue[int] = queue.Queue(1)
        threading.Thread(target=lambda: [items.put(number) for number in range(3)]).start()
        for _ in range(3):
            time.sleep(1)
            got.append((items.get(), world.now))

    with World(1) as world:
        world.process("queue").start(work)
        world.run()
    assert got == [(0, 1.0), (1, 2.0), (2, 3.0)]


def test_the_threads_of_the_library_are_fibers_too() -> None:
    ends = list[float]()

    def work() -> None:
        in_parallel(time.sleep, [1.0] * 8)
        ends.append(world.now)

    with World(1) as world:
        world.process("parallel").start(work)
        world.run()
        world.check_over()
    assert ends == [1.0]


def test_a_fiber_runs_the_next_thread_after_the_first_one_has_ended() -> None:
    events = list[object]()

    def work() -> None:
        first = threading.Thread(target=lambda: events.append(threading.get_ident()))
        first.start()
        first.join()
        second = threading.Thread(target=lambda: (events.append(threading.get_ident()), time.sleep(5)))
        second.start()
        time.sleep(1)
        events.extend([first.is_alive(), second.is_alive()])
        first.join()
        events.append(time.monotonic())
        second.join()
        events.append(time.monotonic())

    with World(1) as world:
        world.switching = 0.0
        world.process("one").start(work)
        world.run()
        world.check_over()
    assert events == [events[0], events[0], False, True, 1.0, 5.0]


def test_a_process_that_died_does_nothing_more() -> None:
    events = list[str]()

    def work() -> None:
        try:
            time.sleep(10)
            events.append("woke")
        finally:
            time.sleep(1)
            events.append("cleaned up")

    with World(1) as world:
        process = world.process("dying")
        process.start(work)
        world.call_at(5.0, process.die)
        world.run()
        world.check_over()
    assert events == []


def test_a_paused_process_continues_later() -> None:
    woken = list[float]()
    with World(1) as world:
        process = world.process("still")
        process.start(lambda: (time.sleep(10), woken.append(world.now)))
        world.call_at(5.0, lambda: process.stand_still(1000.0))
        world.run()
    assert woken == [1005.0]


def test_ended_threads_leave_no_garbage() -> None:
    collected, forks = 0, 200

    def work() -> None:
        client = Client(store, process)
        for number in range(forks):
            with suppress(FileNotFoundError):
                client.cat_file("bucket/nothing")
            thread = threading.Thread(target=time.sleep, args=(number,))
            thread.start()
            thread.join()

    gc.collect()
    # not what earlier tests left
    gc.freeze()
    with World(1) as world:
        store, process = ObjectStore(world), world.process("forks")
        process.start(work)
        world.run()
        collected = gc.collect()
        assert process.is_over
    gc.unfreeze()
    assert collected < forks


def test_fibers_that_wait_forever_are_named() -> None:
    def work() -> None:
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()

    with World(1) as world:
        world.process("stuck").start(work)
        world.run()
        with pytest.raises(StuckError, match="stuck/main"):
            world.check_over()


def test_outside_of_a_world_all_is_as_on_the_machine() -> None:
    real = threading.Lock, time.sleep, uuid.uuid4, queue.SimpleQueue
    with World(1) as world:
        world.process("nothing").start(lambda: None)
        world.run()
    assert real == (threading.Lock, time.sleep, uuid.uuid4, queue.SimpleQueue)
