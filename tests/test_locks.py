"""The locks of one process: an interrupt leaves them free."""

from __future__ import annotations

import signal
import threading
from contextlib import suppress
from typing import Any

import pytest

from distlog.core.storage.calls import process_lock


@pytest.fixture
def lock() -> Any:
    return process_lock()


def is_free(lock: Any) -> bool:
    results = list[bool]()

    def acquire() -> None:
        results.append(lock.acquire(blocking=False))
        if results[0]:
            lock.release()

    thread = threading.Thread(target=acquire)
    thread.start()
    thread.join()
    return results[0]


def test_it_is_reentrant_and_excludes_other_threads(lock: Any) -> None:
    with lock, lock:
        assert not is_free(lock)
    assert is_free(lock)


def test_an_interrupt_at_any_moment_leaves_it_free(lock: Any) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    old_signal = signal.signal(signal.SIGALRM, interrupt)
    try:
        for _ in range(200):
            with suppress(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, 2e-4)
                while True:
                    with lock:
                        pass
            assert is_free(lock)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old_signal)
