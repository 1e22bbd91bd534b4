"""How long to wait for processes: as long as they make progress or wait for a CPU."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

from soak.processes import descendants

#: The time between two checks, and its limit: after a longer time this process was paused itself.
_LOOK_S, _MOST_S = 0.5, 2.0


class Patience:
    """Time without progress, in which no descendant of this process waited for a CPU.

    So a busy machine and a process that was paused and continues are not failures.
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
    """Return how long each thread of the descendants has waited for a CPU, in ns."""
    delays = dict[str, int]()
    for process in descendants(os.getpid()):
        with suppress(OSError):
            for task in Path(f"/proc/{process}/task").iterdir():
                delays[task.name] = int((task / "schedstat").read_text().split()[1])
    return delays
