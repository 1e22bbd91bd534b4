"""Worker threads: an interrupt of the caller at any moment leaves no thread waiting forever."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from distlog.core.storage.calls import WorkerThreads


def threads(name: str) -> int:
    return sum(thread.name == name for thread in threading.enumerate())


INTERRUPTED = """
import random, signal, sys, threading, time
from distlog.core.storage.calls import in_order

def interrupt(*arguments):
    raise KeyboardInterrupt

def work(number):
    time.sleep(random.random() / 2000)
    return number

signal.signal(signal.SIGALRM, interrupt)
random.seed(int(sys.argv[1]))
interrupted = 0
for _ in range(int(sys.argv[2])):
    try:
        signal.setitimer(signal.ITIMER_REAL, random.random() / 100)
        tasks = (lambda number=number: work(number) for number in range(40))
        assert list(in_order(tasks, 8, workers=4, joined=True)) == [*range(40)]
    except KeyboardInterrupt:
        interrupted += 1
    finally:
        while True:
            try:
                signal.setitimer(signal.ITIMER_REAL, 0)
                break
            except KeyboardInterrupt:
                interrupted += 1
print(interrupted)
"""


@pytest.mark.long
def test_an_interrupt_at_any_moment_never_hangs() -> None:
    command = [sys.executable, "-c", INTERRUPTED, "7", "400"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert int(ran.stdout) > 20


def test_a_process_that_ends_does_not_wait_for_idle_threads() -> None:
    program = """
from distlog.core.storage.calls import WorkerThreads
crew = WorkerThreads(3, "distlog-test")
for _ in range(5):
    crew.put(lambda: None)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_an_error_of_work_ends_no_thread() -> None:
    crew, has_run = WorkerThreads(1, "distlog-test"), threading.Event()

    def fail() -> None:
        raise SystemExit

    crew.put(fail)
    crew.put(has_run.set)
    assert has_run.wait(120)
    crew.end(joined=True)


def test_the_number_of_threads_is_bounded_and_ends_at_zero() -> None:
    crew, goes_on = WorkerThreads(2, "distlog-few"), threading.Event()
    for _ in range(5):
        crew.put(lambda: goes_on.wait(120))
    assert threads("distlog-few") == 2
    goes_on.set()
    crew.end(joined=True)
    assert threads("distlog-few") == 0
    crew.put(goes_on.clear)
    assert goes_on.is_set()


def test_work_uses_an_idle_thread() -> None:
    crew = WorkerThreads(50, "distlog-idle")
    for _ in range(50):
        event = threading.Event()
        crew.put(event.set)
        assert event.wait(120)
    assert threads("distlog-idle") < 25
    crew.end(joined=True)


def test_callers_that_put_work_at_the_same_time_start_no_more_threads() -> None:
    crew, goes_on, all_here = WorkerThreads(2, "distlog-race"), threading.Event(), threading.Barrier(8)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def put() -> None:
        all_here.wait(120)
        for _ in range(50):
            crew.put(lambda: goes_on.wait(120))

    callers = [threading.Thread(target=put) for _ in range(8)]
    try:
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
    finally:
        sys.setswitchinterval(interval)
    assert threads("distlog-race") <= 2
    goes_on.set()
    crew.end(joined=True)
