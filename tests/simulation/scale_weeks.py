"""Costs of a topic over a year of short weeks: `commit.retention.ms` is a minute or five.

The costs of a week depend on its number of commits. So short weeks with few commits show whether a year costs more
than a week. Latencies, the rate of commits and the jobs of `maintain` are unchanged.
"""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simulation.scale import Stage

#: The runs of `maintain` in a week.
RUNS = 4
#: Environment variables that put all memory of Python and Arrow into one heap.
ENVIRONMENT = {"PYTHONMALLOC": "malloc", "ARROW_DEFAULT_MEMORY_POOL": "system"}


class _Mallinfo(ctypes.Structure):
    _fields_ = [
        *[(name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks")],
        *[(name, ctypes.c_size_t) for name in ("fsmblks", "uordblks", "fordblks", "keepcost")],
    ]


def heap_in_use() -> int:
    """Return the bytes of the heap in use: all memory of a process with ENVIRONMENT."""
    gc.collect()
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = _Mallinfo
    info = mallinfo()
    return int(info.uordblks + info.hblkhd)


@dataclass(frozen=True, slots=True)
class Weeks:
    """A topic with an append of one record to each partition every `every_s`, and weeks of `week_s`."""

    partitions: int
    every_s: float
    week_s: float

    @property
    def config(self) -> dict[str, object]:
        week_ms = int(self.week_s * 1000)
        half = {"retention.ms": week_ms // 2, "file.delete.delay.ms": week_ms // 2}
        return {**half, "commit.retention.ms": week_ms}

    def play(self, stage: Stage, weeks: Sequence[int]) -> dict[int, dict[str, Any]]:
        figures = dict[int, dict[str, Any]]()

        def run_weeks() -> None:
            for week in range(1, weeks[-1] + 1):
                costs = self._week(stage)
                if week in weeks:
                    figures[week] = costs | _state(stage)

        stage.play([run_weeks])
        return figures

    def _week(self, stage: Stage) -> dict[str, Any]:
        """Append for a week with jobs of maintenance in between, and open the topic; returns the costs."""
        import distlog

        topic, table = distlog.open(stage.url), stage.rows(self.partitions)
        costs = {"open": _Cost(stage), "vacuum": _Cost(stage)}
        for _ in range(RUNS):
            end_s = stage.world.now + self.week_s / RUNS
            while (append_s := stage.world.now) < end_s:
                topic.append(table)
                stage.world.pause(max(0.0, append_s + self.every_s - stage.world.now))
            with costs["open"]:
                distlog.open(stage.url)
            topic.retention()
            topic.compact()
            with costs["vacuum"]:
                topic.vacuum()
        topic.log.checkpoints.wait()
        requests = {f"requests of {_A[name]}": cost.requests / RUNS for name, cost in costs.items()}
        cpu_ms = {f"CPU ms of {_A[name]}": cost.cpu_s / RUNS * 1000 for name, cost in costs.items()}
        return {"commits": topic.version, **requests, **cpu_ms}


_A = {"open": "an open", "vacuum": "a vacuum"}


class _Cost:
    """The requests and the CPU time of the code in its `with` blocks, while nothing else runs."""

    def __init__(self, stage: Stage) -> None:
        self.requests, self.cpu_s, self._stage = 0, 0.0, stage

    def __enter__(self) -> None:
        self.requests -= sum(self._stage.store.requests.values())
        self.cpu_s -= time.process_time()

    def __exit__(self, *_: object) -> None:
        self.requests += sum(self._stage.store.requests.values())
        self.cpu_s += time.process_time()


def _state(stage: Stage) -> Mapping[str, Any]:
    commits = stage.commits()
    return {
        "names in _commits": len(commits),
        "KB in _commits": sum(map(len, commits)) / 1000,
        "objects in all": len(stage.store.objects),
        "MB in use": (heap_in_use() - stage.stored) / 1e6,
    }
