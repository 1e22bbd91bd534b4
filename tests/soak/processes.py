"""Finds and kills the processes of a Spark driver or worker, by their purpose."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

#: Parts of the command lines of a driver's descendants.
KINDS = {
    "jvm": "org.apache.spark.deploy.SparkSubmit",
    "source": "python_streaming_source_runner",
    "sink": "python_streaming_sink_runner",
    "task": "pyspark.daemon",
    "executor": "CoarseGrainedExecutorBackend",
}


def kill(pid: int) -> None:
    """Kill a process that may have ended."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def kill_all(pid: int) -> None:
    for child in (pid, *descendants(pid)):
        kill(child)


def of_kind(pid: int, kind: str) -> list[int]:
    return [descendant for descendant in descendants(pid) if KINDS[kind] in _command_line(descendant)]


def descendants(pid: int) -> Iterator[int]:
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # the program's name, in brackets, may contain anything
            parent = int(path.read_text(errors="replace").rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(path.parent.name))
    queue = list(children.get(pid, ()))
    while queue:
        yield (child := queue.pop(0))
        queue += children.get(child, ())


def _command_line(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""
