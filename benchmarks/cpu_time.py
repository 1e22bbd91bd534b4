"""CPU time of this process, which other processes disturb less than the time on the wall."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

ROUNDS = 5


def best(work: Callable[[], Any]) -> float:
    """Seconds of CPU time of the fastest of some rounds, after one round that compiles and warms up."""
    work()
    rounds = []
    for _ in range(ROUNDS):
        started = time.process_time()
        work()
        rounds.append(time.process_time() - started)
    return min(rounds)
