"""A consumer of a topic to which another process appends directly: latency, idle CPU time, and speed of catching up.

Latency is the time from `writer.append` in the other process, which flushes each record, to the record in the
consumer's hand. The peer: the same records through a pipe, line by line, after the same `fsync` of a plain file. The
clock is the machine's, which processes share.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

RECORDS = 2000
PARTITIONS = 4
IDLE_S = 5.0
#: Records of 100 bytes that are there when a consumer begins.
BACKLOG = 4_000_000
#: Time between two records of the writer, at least.
_APART_S = 0.004


def run(records: int = RECORDS, backlog: int = BACKLOG) -> list[dict[str, Any]]:
    """One dict per case: milliseconds, percent of a core, and M records/s."""
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = _latencies(folder, records), _piped(folder, records)
        rows = [
            _row(f"latency, {name}", ours[name], theirs[name], "ms", "a pipe", less_is_better=True)
            for name in ("median", "99th percentile")
        ]
        idle, pause = _idle(folder)
        rows.append(_row("idle, CPU time", idle, pause, "% of a core", "sleep alone", less_is_better=True))
        follow, scan = _caught_up(folder, backlog)
        rows.append(_row("catching up", follow, scan, "M records/s", "scan", less_is_better=False))
    return rows


def _latencies(folder: str, records: int) -> dict[str, float]:
    import distlog

    topic = distlog.create(f"{folder}/topic", PARTITIONS)
    with topic.writer(linger_ms=0) as writer:
        for partition in range(PARTITIONS):
            writer.append(b"0", partition=partition)
    with _writing("topic", f"{folder}/topic", records):
        times: list[int] = []
        for batch in topic.consume(start=dict.fromkeys(range(PARTITIONS), 1), timeout=60.0, columns=["value"]):
            now = time.monotonic_ns()
            times += [now - int(value) for value in batch.column("value").to_pylist()]
            if len(times) >= records:
                break
    return _percentiles(times)


def _piped(folder: str, records: int) -> dict[str, float]:
    with _writing("pipe", f"{folder}/file", records) as child:
        assert child.stdout
        times = [time.monotonic_ns() - int(line) for line in child.stdout]
    return _percentiles(times)


def _percentiles(times: list[int]) -> dict[str, float]:
    median, high = np.percentile(np.array(times[len(times) // 10 :]) / 1e6, [50, 99])
    return {"median": float(median), "99th percentile": float(high)}


def _writing(kind: str, target: str, records: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.consume", kind, target, str(records)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _idle(folder: str) -> tuple[float, float]:
    """Percent of a core that a consumer takes while nothing comes, and that the same pauses take alone."""
    import distlog
    from distlog.core.read.consumer import LOCAL_PAUSES

    _, longest_s, _ = LOCAL_PAUSES
    consumer = distlog.open(f"{folder}/topic").consume(start=distlog.LATEST, timeout=IDLE_S)
    began = time.process_time()
    next(consumer, None)
    ours = time.process_time() - began
    began, end = time.process_time(), time.monotonic() + IDLE_S
    while time.monotonic() < end:
        time.sleep(longest_s)
    return 100 * ours / IDLE_S, 100 * (time.process_time() - began) / IDLE_S


def _caught_up(folder: str, backlog: int) -> tuple[float, float]:
    import pyarrow as pa

    import distlog

    topic = distlog.create(f"{folder}/backlog", PARTITIONS)
    values = pa.table({"value": pa.array([b"v" * 100] * (backlog // PARTITIONS), pa.binary())})
    for partition in range(PARTITIONS):
        topic.append(values, partition=partition)
    rounds = [(_seconds(topic.consume(timeout=0), backlog), _seconds(topic.scan(), backlog)) for _ in range(4)]
    # the first round warms the page cache
    ours, theirs = (min(round_[side] for round_ in rounds[1:]) for side in range(2))
    return backlog / ours / 1e6, backlog / theirs / 1e6


def _seconds(batches: Any, count: int) -> float:
    began = time.perf_counter()
    if sum(batch.num_rows for batch in batches) != count:
        raise AssertionError("records are missing")
    return time.perf_counter() - began


def _row(case: str, ours: float, theirs: float, unit: str, peer_name: str, *, less_is_better: bool) -> dict[str, Any]:
    return {
        "benchmark": "consume",
        "case": case,
        "distlog": round(ours, 2),
        "peer": round(theirs, 2),
        "peer_name": peer_name,
        "unit": unit,
        "ratio": round(theirs / ours if less_is_better else ours / theirs, 2),
    }


def _moments(records: int) -> Iterator[bytes]:
    for _ in range(records):
        time.sleep(_APART_S)
        yield b"%d" % time.monotonic_ns()


def _write_topic(target: str, records: int) -> None:
    import distlog

    with distlog.open(target).writer(linger_ms=0) as writer:
        for number, moment in enumerate(_moments(records)):
            writer.append(moment, partition=number % PARTITIONS)
            writer.flush()


def _write_pipe(target: str, records: int) -> None:
    with open(target, "wb", buffering=0) as file:
        for moment in _moments(records):
            file.write(moment)
            os.fsync(file.fileno())
            print(moment.decode(), flush=True)


if __name__ == "__main__":
    {"topic": _write_topic, "pipe": _write_pipe}[sys.argv[1]](sys.argv[2], int(sys.argv[3]))
