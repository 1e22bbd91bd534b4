"""How long to wait for processes: as long as they go on, and while they wait for a CPU themselves."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

from soak.processes import descendants

#: How often it is looked, and the most that counts between two looks: more, and this process was stopped itself.
_LOOK_S, _MOST_S = 0.5, 2.0


class Patience:
    """Time in which nothing went on, though no process below this one waited for a CPU.

    So a machine that others use, or a process that was stopped and goes on, is no failure.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds, self._spent_s = seconds, 0.0
        self._progress: object = None
        self._looked_s, self._delays = time.monotonic(), _delays()

    def is_over(self, progress: object) -> bool:
        """Whether `progress` has been the same for too long."""
        if progress != self._progress:
            self._progress, self._spent_s = progress, 0.0
        now_s = time.monotonic()
        passed_s = now_s - self._looked_s
        if passed_s >= _LOOK_S:
            old_delays, self._delays, self._looked_s = self._delays, _delays(), now_s
            waited_s = (
                max((delay - old_delays.get(name, delay) for name, delay in self._delays.items()), default=0) / 1e9
            )
            self._spent_s += max(0.0, min(passed_s, _MOST_S) - waited_s)
        return self._spent_s > self._seconds


def _delays() -> dict[str, int]:
    """How long each thread of the processes below has waited for a CPU so far, in ns."""
    delays = dict[str, int]()
    for process in descendants(os.getpid()):
        with suppress(OSError):
            for task in Path(f"/proc/{process}/task").iterdir():
                delays[task.name] = int((task / "schedstat").read_text().split()[1])
    return delays
