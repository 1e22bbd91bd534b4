"""The processes of the benchmark `log`: they append, write, or look for what another one appends."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Any

import numpy as np
import pyarrow as pa

import distlog
from distlog.core.format.record_encoder import encode
from distlog.core.log.partition_log import Appended, BatchRun, PartitionLog

VALUE = b"v" * 100
CHUNK = 1 << 20


def open_log(url: str) -> PartitionLog:
    """The log of partition 0, as this process opens it."""
    topic = distlog.open(url)
    return PartitionLog(topic.handle, 0, topic.current)


def append(log: PartitionLog, data: Any, batches: Any) -> Appended:
    (appended,) = log.append_runs([BatchRun(data, batches)])
    return appended


def made_batches(size: int) -> tuple[Any, Any]:
    """As many batches of 128 KiB as fit into `size` bytes, and their headers."""
    count = size // (len(VALUE) + 10)
    columns = {"timestamp": np.full(count, time.time_ns() // 1_000_000), "key": pa.nulls(count, pa.binary())}
    encoded = encode(pa.RecordBatch.from_pydict({**columns, "value": [VALUE] * count}))
    return np.frombuffer(encoded.data, np.uint8), encoded.batches


def one_record(number: int) -> tuple[Any, Any]:
    """A batch of one record, whose value begins with `number`, and its header."""
    row = {"timestamp": time.time_ns() // 1_000_000, "key": None, "value": b"%020d" % number + VALUE[20:]}
    encoded = encode(pa.RecordBatch.from_pylist([row], _SCHEMA))
    return np.frombuffer(encoded.data, np.uint8), encoded.batches


_SCHEMA = pa.schema([("timestamp", pa.int64()), ("key", pa.binary()), ("value", pa.binary())])


def _append(url: str, appends: str, fsync: str, rounds: str) -> None:
    log, (data, batches) = open_log(url), made_batches(CHUNK)
    log.end()
    for _ in range(int(rounds)):
        _wait()
        for _ in range(int(appends)):
            append(log, data, batches)
            if int(fsync):
                log.flush()
        print("done", flush=True)


def _write(url: str, appends: str, fsync: str, rounds: str) -> None:
    data, file = made_batches(CHUNK)[0], os.open(f"{url}/plain", os.O_WRONLY | os.O_CREAT)
    for _ in range(int(rounds)):
        _wait()
        for _ in range(int(appends)):
            os.write(file, data)
            if int(fsync):
                os.fsync(file)
        print("done", flush=True)


def _follow(url: str, count: str) -> None:
    topic, offset = distlog.open(url), 1
    list(topic.records(0, 0, 1))
    print("ready", flush=True)
    while offset <= int(count):
        if topic.refresh().end_offsets()[0] > offset:
            (record,) = topic.records(0, offset, 1)
            print(time.perf_counter_ns(), record.offset, flush=True)
            offset += 1


def _poll(url: str, count: str) -> None:
    file, number = os.open(f"{url}/plain", os.O_RDONLY), 1
    print("ready", flush=True)
    while number <= int(count):
        # a plain write that crosses a page is seen in parts
        if os.pread(file, 20, 20 * (number - 1)) == b"%020d" % number:
            print(time.perf_counter_ns(), number, flush=True)
            number += 1


def begin(role: str, *arguments: object) -> subprocess.Popen[str]:
    """A process with this role."""
    command = [sys.executable, "-m", "benchmarks.log_processes", role, *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def next_line(process: subprocess.Popen[str]) -> str:
    """The next line that it prints; waits for it."""
    assert process.stdout
    line = process.stdout.readline()
    if not line:
        raise AssertionError("a process of the benchmark failed")
    return line


def say_go(process: subprocess.Popen[str]) -> None:
    """Resume a process that waits for the others."""
    assert process.stdin
    process.stdin.write("go\n")
    process.stdin.flush()


def _wait() -> None:
    print("ready", flush=True)
    sys.stdin.readline()


_ROLES = {"append": _append, "write": _write, "follow": _follow, "poll": _poll}


if __name__ == "__main__":
    _ROLES[sys.argv[1]](*sys.argv[2:])
