"""The CPU time of this process and of all below it, which are Spark's."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds() -> float:
    """The seconds that this process, those below it, and those of them that have ended have computed."""
    ticks: dict[int, int] = {}
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # the name of the program, in brackets, may hold anything
            fields = path.read_text(errors="replace").rpartition(")")[2].split()
            pid = int(path.parent.name)
            children.setdefault(int(fields[1]), []).append(pid)
            ticks[pid] = sum(int(field) for field in fields[11:15])
    line, total = [os.getpid()], 0
    while line:
        found = line.pop()
        total += ticks.get(found, 0)
        line += children.get(found, ())
    return total / _TICKS
