"""Finds the processes of a Spark driver or worker by what they are for, and kills them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

#: What is in the command line of each kind of process below a driver.
KINDS = {
    "jvm": "org.apache.spark.deploy.SparkSubmit",
    "source": "python_streaming_source_runner",
    "sink": "python_streaming_sink_runner",
    "task": "pyspark.daemon",
    "executor": "CoarseGrainedExecutorBackend",
}


def kill(pid: int) -> None:
    """Kill a process that may have ended by itself."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def kill_all(pid: int) -> None:
    """Kill a process and all below it."""
    below = list(descendants(pid))
    for child in (pid, *below):
        kill(child)


def of_kind(pid: int, kind: str) -> list[int]:
    """The processes of one of KINDS below `pid`."""
    return [descendant for descendant in descendants(pid) if KINDS[kind] in _command_line(descendant)]


def descendants(pid: int) -> Iterator[int]:
    """The processes below `pid`, parents first."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # the name of the program, in brackets, may hold anything
            parent = int(path.read_text(errors="replace").rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(path.parent.name))
    line = list(children.get(pid, ()))
    while line:
        yield (child := line.pop(0))
        line += children.get(child, ())


def _command_line(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""
