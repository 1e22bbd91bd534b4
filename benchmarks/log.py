"""Direct appends by PartitionLog: throughput, latency, when readers see it, and opening after a crash.

The peer of each case handles the same bytes without a log: it writes them to a file one after the other, or reads the
file and computes its CRC-32C. Records have 100 bytes, batches 128 KiB, an append has 1 MiB of batches. A case with
fsync syncs after every append, on both sides.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import distlog
from benchmarks.log_processes import CHUNK, append, begin, made_batches, next_line, one_record, open_log, say_go
from benchmarks.log_recovery import opening_times

APPENDS = 256
ROUNDS = 3
LATENCIES = 2000
TAILS_MB = (1, 16, 256)
_NEVER = 2**63 - 1
#: When an append of one record waits for a sync: what the topic sets. A sync every 50 records shows in p99.
POLICIES = {
    "no flush": {"flush.messages": _NEVER},
    "flush.messages=1": {"flush.messages": 1},
    "flush.messages=50": {"flush.messages": 50},
    "flush.ms=10": {"flush.messages": _NEVER, "flush.ms": 10},
}
_NO_POLICY = {"segment.bytes": 2**31 - 1}
_SOURCE = "on another machine of 2 cores, with a Kafka broker on it"
#: Figures of Kafka that this run does not measure, by the case next to which they are shown.
STATED = {
    "append batches, 1 process": f"0.87 to 0.98 M records/s by librdkafka's produce, a record a call; {_SOURCE}",
    "a record is seen by another process, p50": f"about 10,000 us by kafka-python's seek and poll; {_SOURCE}",
}


def run(appends: int = APPENDS, latencies: int = LATENCIES) -> list[dict[str, Any]]:
    """One dict per case: throughput in MB/s, latencies in us, recovery in ms and GB/s."""
    rows = [row for fsync in (False, True) for count in (1, 2, 4) for row in _throughput(count, fsync, appends)]
    rows += [row for policy in POLICIES for row in _latency(policy, latencies)]
    rows += _visibility(latencies)
    return rows + [row for megabytes in TAILS_MB for row in _recovery(megabytes)]


# Throughput: each process appends its part. The time is from the common start to the end of the last. The plain
# write is by one process.


def _throughput(count: int, fsync: bool, appends: int) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        url = f"{folder}/log"
        distlog.create(url, config=_NO_POLICY)
        append(open_log(url), *made_batches(CHUNK))
        share = appends // count
        sides = [
            [begin("append", url, share, int(fsync), ROUNDS) for _ in range(count)],
            [begin("write", url, share * count, int(fsync), ROUNDS)],
        ]
        rounds = [[_round(processes) for processes in sides] for _ in range(ROUNDS)]
        for process in (process for processes in sides for process in processes):
            process.communicate()
        data, batches = made_batches(CHUNK)
        records = int(batches["record_count"].sum()) * share * count
        if distlog.open(url).end_offsets()[0] != ROUNDS * records + int(batches["record_count"].sum()):
            raise AssertionError("distlog lost records")
    ours, theirs = (statistics.median(round_[side] for round_ in rounds) for side in range(2))
    case = f"append batches, {count} process{'es' * (count > 1)}{', fsync each' * fsync}"
    name, size = "a plain write" + " by one process" * (count > 1), data.nbytes * share * count
    return [
        row_of(case, "MB/s", size / ours / 1e6, size / theirs / 1e6, name),
        row_of(case, "M records/s", records / ours / 1e6, records / theirs / 1e6, name),
    ]


def _round(processes: list[subprocess.Popen[str]]) -> float:
    """Seconds of one round of the processes."""
    for process in processes:
        next_line(process)
    started = time.perf_counter()
    for process in processes:
        say_go(process)
    for process in processes:
        next_line(process)
    return time.perf_counter() - started


# Latency: one record an append, in this process. Whoever appends syncs when the topic's policy says so.


def _latency(policy: str, count: int) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        distlog.create(f"{folder}/log", config={**_NO_POLICY, **POLICIES[policy]})
        log, (data, batches) = open_log(f"{folder}/log"), one_record(0)
        file, due = os.open(f"{folder}/plain", os.O_WRONLY | os.O_CREAT), _due(POLICIES[policy])

        def ours() -> None:
            appended = append(log, data, batches)
            if appended.flush_due:
                log.flush(appended)

        def theirs() -> None:
            os.write(file, data)
            if due():
                os.fsync(file)

        times = [_times(act, count) for act in (ours, theirs)]
        os.close(file)
    return _percentiles(f"append one record, {policy}", times[0], times[1], "write, and fsync by the same rule")


def _due(policy: dict[str, int]) -> Callable[[], bool]:
    """The rule of a flush policy, for a plain file: whether to sync after this write."""
    writes, since = 0, time.monotonic()

    def due() -> bool:
        nonlocal writes, since
        writes += 1
        age_ms = (time.monotonic() - since) * 1000
        if writes < policy["flush.messages"] and age_ms < policy.get("flush.ms", _NEVER):
            return False
        writes, since = 0, time.monotonic()
        return True

    return due


def _times(act: Callable[[], None], count: int) -> list[float]:
    rows = []
    for _ in range(count):
        start = time.perf_counter()
        act()
        rows.append(time.perf_counter() - start)
    return rows[count // 10 :]


# Visibility: another process looks again and again; each record says when its append began.


def _visibility(count: int) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        url = f"{folder}/log"
        distlog.create(url, config=_NO_POLICY)
        log, plain = open_log(url), os.open(f"{url}/plain", os.O_WRONLY | os.O_CREAT)
        append(log, *one_record(0))
        rows = [
            _seen_by("follow", url, [partial(append, log, *one_record(number)) for number in range(1, count + 1)]),
            _seen_by("poll", url, [partial(os.write, plain, b"%020d" % number) for number in range(1, count + 1)]),
        ]
        os.close(plain)
    return _percentiles("a record is seen by another process", rows[0], rows[1], "a plain write, polled")


def _seen_by(role: str, url: str, appends: list[Callable[[], object]]) -> list[float]:
    """Seconds from the call of each append until the other process has what it appends."""
    process = begin(role, url, len(appends))
    next_line(process)
    times = []
    for number, append_next in enumerate(appends, 1):
        began = time.perf_counter_ns()
        append_next()
        seen_offset, found_offset = map(int, next_line(process).split())
        if found_offset != number:
            raise AssertionError(f"saw {found_offset} instead of {number}")
        times.append((seen_offset - began) / 1e9)
    process.communicate()
    return times[len(times) // 10 :]


def _recovery(megabytes: int) -> list[dict[str, Any]]:
    times = opening_times(megabytes, _NO_POLICY, ROUNDS)
    cases = {
        f"open after a power loss, {megabytes} MB": times.power_loss_s,
        f"open after a kill, {megabytes} MB not counted": times.kill_s,
    }
    size, peer, name = times.log_bytes / 1e9, times.checksum_s, "read the file, and its CRC-32C"
    return [
        row
        for case, seconds in cases.items()
        for row in (
            row_of(case, "ms", seconds * 1e3, peer * 1e3, name, ratio=peer / seconds),
            row_of(case, "GB/s", size / seconds, size / peer, name),
        )
    ]


def _percentiles(case: str, ours: list[float], theirs: list[float], name: str) -> list[dict[str, Any]]:
    rows = []
    for percent in (50, 99):
        mine, plain = (float(np.percentile(times, percent)) * 1e6 for times in (ours, theirs))
        rows.append(row_of(f"{case}, p{percent}", "us", mine, plain, name, ratio=plain / mine))
    return rows


def row_of(case: str, unit: str, ours: float, theirs: float, name: str, ratio: float | None = None) -> dict[str, Any]:
    """One row of the report; `ratio` where less is better."""
    return {
        "benchmark": "log",
        "case": case,
        "distlog": round(ours, 2),
        "peer": round(theirs, 2),
        "peer_name": name,
        "unit": unit,
        "ratio": round(ours / theirs if ratio is None else ratio, 2),
        **({"stated": STATED[case]} if case in STATED else {}),
    }


if __name__ == "__main__":
    for row in run():
        print(json.dumps(row))
