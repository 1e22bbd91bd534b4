"""The cost of each step of a topic's life at three numbers of partitions: CPU time, peak memory, requests.

    python -m benchmarks.partition_steps

Appends of ten small records to each partition, and the maintenance after five appends, over storage in memory; each
size in a process of its own that has compiled before. Memory is how far the largest resident set, Linux's VmHWM, that
starts again for each step, is above that before the step. Stored data counts too, since it is in this process.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import time
import uuid
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

import distlog
from benchmarks.partitions import records
from distlog.core.topic import Topic

SIZES = (100, 1_000, 10_000)
APPENDS = 5


def run(sizes: tuple[int, ...] = SIZES) -> list[dict[str, Any]]:
    """A row for each number of partitions and step."""
    rows = []
    for partitions in sizes:
        command = [sys.executable, "-m", "benchmarks.partition_steps", str(partitions)]
        completed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        rows += json.loads(completed.stdout)
    return rows


def _steps(partitions: int) -> list[dict[str, Any]]:
    # a step is not measured while it compiles
    _walk(300, lambda name, topic, work: work())
    rows = list[dict[str, Any]]()

    def measured(name: str, topic: Topic, work: Callable[[], object]) -> None:
        gc.collect()
        pa.default_memory_pool().release_unused()
        Path("/proc/self/clear_refs").write_text("5")
        memory_before, started_s, requests_before = _memory("VmRSS"), time.process_time(), _requests(topic)
        work()
        took_s, peak = time.process_time() - started_s, _memory("VmHWM") - memory_before
        figures = {"cpu_ms": round(took_s * 1000, 1), "peak_mb": round(max(0, peak) / 1e6, 1)}
        rows.append(
            {"partitions": partitions, "step": name, **figures, "requests": _requests(topic) - requests_before}
        )

    _walk(partitions, measured)
    return rows


def _walk(partitions: int, step: Callable[[str, Topic, Callable[[], object]], None]) -> None:
    topic = distlog.create(f"memory://steps/{uuid.uuid4().hex}", partitions)
    tables = [records(partitions, seed) for seed in range(APPENDS + 1)]
    for number, table in enumerate(tables[:APPENDS]):
        step(f"append {number + 1}", topic, lambda table=table: topic.append(table))
    step("offsets of a time", topic, lambda: topic.offsets_for_times(1))
    step("retention, nothing goes", topic, topic.retention)
    step(f"merge of {APPENDS} segments of each", topic, topic.compact)
    step("vacuum", topic, topic.vacuum)
    step("append after merged ones", topic, lambda: topic.append(tables[APPENDS]))
    topic.alter_config({"retention.ms": 0})
    time.sleep(1)
    step("retention, all goes", topic, topic.retention)


def _requests(topic: Topic) -> int:
    counters = topic.storage.counters
    return counters.gets + counters.puts + counters.lists


def _memory(name: str) -> int:
    """A line of this process's status, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    if len(sys.argv) == 2:
        print(json.dumps(_steps(int(sys.argv[1]))))
    else:
        for row in run():
            print(row)
