"""What a topic takes that goes on for a year, of which a week is short: `commit.retention.ms` is a minute or five.

What a week costs depends on how many commits it has, so a short week with few commits shows whether a year costs more
than a week. Everything else is as it is: latencies, the pace of commits, and what `maintain` does.
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

#: So often `maintain` runs in a week.
RUNS = 4
#: What the environment of a process must have, so that all memory of Python and Arrow is in one heap.
ENVIRONMENT = {"PYTHONMALLOC": "malloc", "ARROW_DEFAULT_MEMORY_POOL": "system"}


class _Mallinfo(ctypes.Structure):
    """`struct mallinfo2` of glibc, in bytes."""

    _fields_ = [
        *[(name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks")],
        *[(name, ctypes.c_size_t) for name in ("fsmblks", "uordblks", "fordblks", "keepcost")],
    ]


def heap_in_use() -> int:
    """The bytes of the heap that are in use, without holes; of all memory of the process, given ENVIRONMENT."""
    gc.collect()
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = _Mallinfo
    found = mallinfo()
    return int(found.uordblks + found.hblkhd)


@dataclass(frozen=True, slots=True)
class Weeks:
    """A topic with an append of one record for each of its partitions every `every_s`, and weeks of `week_s`."""

    partitions: int
    every_s: float
    week_s: float

    @property
    def config(self) -> dict[str, object]:
        """Records and files are kept for half of a week."""
        week_ms = int(self.week_s * 1000)
        half = {"retention.ms": week_ms // 2, "file.delete.delay.ms": week_ms // 2}
        return {**half, "commit.retention.ms": week_ms}

    def play(self, stage: Stage, weeks: Sequence[int]) -> dict[int, dict[str, Any]]:
        """The figures of these weeks, the last one being the end."""
        found = dict[int, dict[str, Any]]()

        def lives() -> None:
            for week in range(1, weeks[-1] + 1):
                facts = self._week(stage)
                if week in weeks:
                    found[week] = facts | _left(stage)

        stage.play([lives])
        return found

    def _week(self, stage: Stage) -> dict[str, Any]:
        """One process appends for a week, maintains the topic in between, and another one opens it."""
        import distlog

        topic, table = distlog.open(stage.url), stage.rows(self.partitions)
        took = {"open": _Took(stage), "vacuum": _Took(stage)}
        for _ in range(RUNS):
            end_s = stage.world.now + self.week_s / RUNS
            while (began_s := stage.world.now) < end_s:
                topic.append(table)
                stage.world.pause(max(0.0, began_s + self.every_s - stage.world.now))
            with took["open"]:
                distlog.open(stage.url)
            topic.retention()
            topic.compact()
            with took["vacuum"]:
                topic.vacuum()
        topic.log.checkpoints.wait()
        requests = {f"requests of {_A[name]}": each.requests / RUNS for name, each in took.items()}
        cpu_ms = {f"CPU ms of {_A[name]}": each.cpu_s / RUNS * 1000 for name, each in took.items()}
        return {"commits": topic.version, **requests, **cpu_ms}


_A = {"open": "an open", "vacuum": "a vacuum"}


class _Took:
    """The requests and the CPU time of what runs within it, while nothing else does."""

    def __init__(self, stage: Stage) -> None:
        self.requests, self.cpu_s, self._stage = 0, 0.0, stage

    def __enter__(self) -> None:
        self.requests -= sum(self._stage.store.requests.values())
        self.cpu_s -= time.process_time()

    def __exit__(self, *_: object) -> None:
        self.requests += sum(self._stage.store.requests.values())
        self.cpu_s += time.process_time()


def _left(stage: Stage) -> Mapping[str, Any]:
    """What is there at the end of a week."""
    commits = stage.commits()
    return {
        "names in _commits": len(commits),
        "KB in _commits": sum(map(len, commits)) / 1000,
        "objects in all": len(stage.store.objects),
        "MB in use": (heap_in_use() - stage.stored) / 1e6,
    }
