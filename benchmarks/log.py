"""Appends in place by PartitionLog: throughput, latency, when readers see it, and opening after a crash.

The peer of each case handles the same bytes without a log: it writes them to a file one after the other, or reads the
file and computes its CRC-32C. Records have 100 bytes, batches 128 KiB, an append has 1 MiB of them. A case with fsync
syncs after every append, on both sides.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from crc32c import crc32c

import distlog
from benchmarks.log_processes import CHUNK, begin, made_batches, next_line, one_record, open_log, say_go

APPENDS = 256
ROUNDS = 3
LATENCIES = 2000
TAILS_MB = (16, 256)
_NO_POLICY = {"segment.bytes": 2**31 - 1}


def run(appends: int = APPENDS, latencies: int = LATENCIES) -> list[dict[str, Any]]:
    """One dict per case: throughput in MB/s, latencies in us, recovery in GB/s."""
    rows = [row for fsync in (False, True) for count in (1, 2, 4) for row in _throughput(count, fsync, appends)]
    rows += [row for fsync in (False, True) for row in _latency(fsync, latencies)]
    rows += _visibility(latencies)
    return rows + [row for megabytes in TAILS_MB for row in _recovery(megabytes)]


# Throughput: each process appends its part, and says how long it took from the common start.


def _throughput(count: int, fsync: bool, appends: int) -> list[dict[str, Any]]:
    rounds = [[_by_processes(role, count, fsync, appends) for role in ("append", "write")] for _ in range(ROUNDS)]
    ours, theirs = (statistics.median(each[side] for each in rounds) for side in range(2))
    data, batches = made_batches(CHUNK)
    case = f"append batches, {count} process{'es' * (count > 1)}{', fsync each' * fsync}"
    name = "a plain write by one process" if count > 1 else "a plain write"
    records = int(batches["record_count"].sum()) * appends
    return [
        _row(case, "MB/s", appends * data.nbytes / ours / 1e6, appends * data.nbytes / theirs / 1e6, name),
        _row(case, "M records/s", records / ours / 1e6, records / theirs / 1e6, name),
    ]


def _by_processes(role: str, count: int, fsync: bool, appends: int) -> float:
    """Seconds from the start of all to the end of the last. The plain write is by one process."""
    count = count if role == "append" else 1
    with tempfile.TemporaryDirectory() as folder:
        url = f"{folder}/log"
        distlog.create(url, config=_NO_POLICY)
        open_log(url).append(*made_batches(CHUNK))
        processes = [begin(role, url, appends // count, int(fsync)) for _ in range(count)]
        for process in processes:
            next_line(process)
        started = time.perf_counter()
        for process in processes:
            say_go(process)
        for process in processes:
            next_line(process)
        seconds = time.perf_counter() - started
        for process in processes:
            process.communicate()
        if role == "append" and distlog.open(url).end_offsets()[0] != (appends // count * count + 1) * _records():
            raise AssertionError("distlog lost records")
    return seconds


def _records() -> int:
    return int(made_batches(CHUNK)[1]["record_count"].sum())


# Latency: one record an append, in this process.


def _latency(fsync: bool, count: int) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        distlog.create(f"{folder}/log", config=_NO_POLICY)
        log, (data, batches) = open_log(f"{folder}/log"), one_record(0)
        file = os.open(f"{folder}/plain", os.O_WRONLY | os.O_CREAT)

        def ours() -> None:
            appended = log.append(data, batches)
            if fsync:
                log.flush(appended)

        def theirs() -> None:
            os.write(file, data)
            if fsync:
                os.fsync(file)

        times = [_times(act, count) for act in (ours, theirs)]
        os.close(file)
    policy = "flush.messages=1" if fsync else "no flush"
    return _percentiles(f"append one record, {policy}", times[0], times[1], "write" + " and fsync" * fsync)


def _times(act: Callable[[], None], count: int) -> list[float]:
    found = []
    for _ in range(count):
        start = time.perf_counter()
        act()
        found.append(time.perf_counter() - start)
    return found[count // 10 :]


# Visibility: another process looks again and again; each record says when its append began.


def _visibility(count: int) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        url = f"{folder}/log"
        distlog.create(url, config=_NO_POLICY)
        log, plain = open_log(url), os.open(f"{url}/plain", os.O_WRONLY | os.O_CREAT)
        log.append(*one_record(0))
        found = [
            _seen_by("follow", url, count, lambda now: log.append(*one_record(now))),
            _seen_by("poll", url, count, lambda now: os.write(plain, b"%020d" % now)),
        ]
        os.close(plain)
    return _percentiles("a record is seen by another process", found[0], found[1], "a plain write, polled")


def _seen_by(role: str, url: str, count: int, append: Callable[[int], object]) -> list[float]:
    process = begin(role, url, count)
    next_line(process)
    times = []
    for _ in range(count):
        append(time.perf_counter_ns())
        times.append(float(next_line(process)))
    process.communicate()
    return times[count // 10 :]


# Recovery: the page of the lock is lost, as in a power loss; or it is of an earlier end, as after a kill.


def _recovery(megabytes: int) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        url = f"{folder}/log"
        distlog.create(url, config=_NO_POLICY)
        log, (data, batches) = open_log(url), made_batches(CHUNK)
        lock = f"{url}/log-0/.lock"
        log.append(data, batches)
        with open(lock, "rb") as file:
            early = file.read()
        for _ in range(megabytes - 1):
            log.append(data, batches)
        log.flush()
        log.close()
        (path,) = (f"{url}/log-0/{name}" for name in os.listdir(f"{url}/log-0") if name.endswith(".log"))
        whole = min(_opening(url, lock, b"") for _ in range(ROUNDS))
        tail = min(_opening(url, lock, early) for _ in range(ROUNDS))
        peer = min(_checksum(path) for _ in range(ROUNDS))
        size = os.path.getsize(path) / 1e9
    name = "read the file, and its CRC-32C"
    return [
        _row(f"open after a power loss, {megabytes} MB", "GB/s", size / whole, size / peer, name),
        _row(f"open after a kill, {megabytes} MB not counted", "GB/s", size / tail, size / peer, name),
    ]


def _opening(url: str, lock: str, page: bytes) -> float:
    with open(lock, "wb") as file:
        file.write(page)
    log = open_log(url)
    start = time.perf_counter()
    log.end()
    seconds = time.perf_counter() - start
    log.close()
    return seconds


def _checksum(path: str) -> float:
    start = time.perf_counter()
    with open(path, "rb", buffering=0) as file:
        checksum, buffer = 0, memoryview(bytearray(4 << 20))
        while size := file.readinto(buffer):
            checksum = crc32c(buffer[:size], checksum)
    return time.perf_counter() - start


def _percentiles(case: str, ours: list[float], theirs: list[float], name: str) -> list[dict[str, Any]]:
    found = []
    for percent in (50, 99):
        mine, plain = (float(np.percentile(times, percent)) * 1e6 for times in (ours, theirs))
        found.append(_row(f"{case}, p{percent}", "us", mine, plain, name, ratio=plain / mine))
    return found


def _row(case: str, unit: str, ours: float, theirs: float, name: str, ratio: float | None = None) -> dict[str, Any]:
    return {
        "benchmark": "log",
        "case": case,
        "distlog": round(ours, 2),
        "peer": round(theirs, 2),
        "peer_name": name,
        "unit": unit,
        "ratio": round(ours / theirs if ratio is None else ratio, 2),
    }


if __name__ == "__main__":
    for row in run():
        print(json.dumps(row))
