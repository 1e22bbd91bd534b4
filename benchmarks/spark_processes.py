"""The processes below this one, which are Spark's, and their CPU time."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

#: A line of a process's status with a size in kB.
_FIELD = re.compile(r"^(\w+):\s+(\d+) kB$", re.MULTILINE)
#: How often memory is sampled, in seconds.
_SAMPLED_S = 0.02
_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds() -> float:
    """The CPU seconds of this process and its children, also of the ended ones."""
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
        folder = line.pop()
        total += ticks.get(folder, 0)
        line += children.get(folder, ())
    return total / _TICKS


def python_processes(of: str = "") -> Iterator[Path]:
    """The folders in /proc of the daemons of Python that Spark has started, and of their forks.

    Processes of tasks are `of` pyspark.worker, and processes that plan or commit of other modules.
    """
    processes = {int(path.name): path for path in Path("/proc").iterdir() if path.name.isdecimal()}
    parents = {number: int(_read(path / "stat").rpartition(b")")[2].split()[1]) for number, path in processes.items()}
    for number, path in processes.items():
        above = number
        while above in parents and above != os.getpid():
            above = parents[above]
        line = _read(path / "cmdline").decode(errors="replace")
        if above == os.getpid() and "pyspark.daemon" in line and of in line:
            yield path


def usage(process: Path) -> tuple[float, int]:
    """CPU seconds of a process so far, and its resident set in MB; zeros for one that has ended."""
    fields = _read(process / "stat").rpartition(b")")[2].split()
    if len(fields) < 22:
        return 0.0, 0
    return (int(fields[11]) + int(fields[12])) / _TICKS, int(fields[21]) * os.sysconf("SC_PAGE_SIZE") // 10**6


@contextmanager
def memory_peaks(of: str) -> Iterator[dict[str, float]]:
    """Sample `python_processes`: the dict gets the most MB that one has had, by VmHWM and RssAnon (private)."""
    peaks, ended = {"VmHWM": 0.0, "RssAnon": 0.0}, threading.Event()

    def sample() -> None:
        while not ended.wait(_SAMPLED_S):
            for process in python_processes(of):
                fields = dict(_FIELD.findall(_read(process / "status").decode()))
                peaks.update({name: max(peak, int(fields.get(name, 0)) / 1000) for name, peak in peaks.items()})

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield peaks
    finally:
        ended.set()
        thread.join()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # it has ended
        return b"() Z 0"
