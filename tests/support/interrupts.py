"""Ctrl-C while the main thread waits for what another thread does."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator

import pytest


@pytest.fixture(params=["as Python leaves them", "restarted"])
def waits(request: pytest.FixtureRequest) -> Iterator[None]:
    """Python's own Ctrl-C, and one after which system calls are restarted.

    The second is what the import of polars leaves (its handler goes before Python's, with SA_RESTART): then a wait
    for a lock continues after a Ctrl-C, unless it has a timeout.
    """
    old_signal = signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.siginterrupt(signal.SIGINT, request.param != "restarted")
    yield
    signal.signal(signal.SIGINT, old_signal)


def interrupted(wait: Callable[[], object], has_started: Callable[[], object]) -> None:
    """Do `wait` in the main thread, which is interrupted from when `has_begun` returns on; it must end by that."""
    main, is_over = threading.get_ident(), threading.Event()

    def interrupt() -> None:
        has_started()
        signal.pthread_kill(main, signal.SIGINT)
        # Python loses a signal that comes just before the main thread begins to wait for a lock
        while not is_over.wait(1):
            signal.pthread_kill(main, signal.SIGINT)

    interrupting = threading.Thread(target=interrupt, daemon=True)

    def waiting() -> None:
        try:
            interrupting.start()
            wait()
        finally:
            is_over.set()
            interrupting.join(60)

    with pytest.raises(KeyboardInterrupt):
        waiting()
    assert not interrupting.is_alive()
