"""The locks of one process: an interrupt leaves them free."""

from __future__ import annotations

import signal
import threading
from contextlib import suppress

import pytest

from distlog.core.locks import ProcessLock


@pytest.fixture
def lock() -> ProcessLock:
    return ProcessLock()


def is_free(lock: ProcessLock) -> bool:
    """True if another thread can take the lock."""
    taken = list[bool]()

    def take() -> None:
        taken.append(lock.acquire(blocking=False))
        if taken[0]:
            lock.release()

    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    return taken[0]


def test_it_is_reentrant_and_excludes_other_threads(lock: ProcessLock) -> None:
    with lock, lock:
        assert not is_free(lock)
    assert is_free(lock)


def test_an_interrupt_at_any_moment_leaves_it_free(lock: ProcessLock) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
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
        signal.signal(signal.SIGALRM, before)
