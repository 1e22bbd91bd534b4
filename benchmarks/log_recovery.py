"""How long opening a partition takes after a crash, by the size of its tail; for the benchmark `log`.

After a power loss the page of the lock is lost. After a kill it is of an earlier end: here, of the first megabyte.
The peer reads the log's file, and computes its CRC-32C.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping
from typing import NamedTuple

from crc32c import crc32c

import distlog
from benchmarks.log_processes import CHUNK, append, made_batches, open_log


class OpeningTimes(NamedTuple):
    """The best times in seconds, and the size of the log."""

    log_bytes: int
    power_loss_s: float
    kill_s: float
    checksum_s: float


def opening_times(megabytes: int, config: Mapping[str, object], rounds: int) -> OpeningTimes:
    """The times for a log of `megabytes` appends of a megabyte, after the first one."""
    with tempfile.TemporaryDirectory() as folder:
        url = f"{folder}/log"
        distlog.create(url, config=config)
        log, (data, batches) = open_log(url), made_batches(CHUNK)
        lock = f"{url}/log-0/.lock"
        append(log, data, batches)
        with open(lock, "rb") as file:
            early = file.read()
        for _ in range(megabytes):
            append(log, data, batches)
        log.flush()
        log.close()
        (path,) = (f"{url}/log-0/{name}" for name in os.listdir(f"{url}/log-0") if name.endswith(".log"))
        return OpeningTimes(
            os.path.getsize(path),
            min(_opening(url, lock, b"") for _ in range(rounds)),
            min(_opening(url, lock, early) for _ in range(rounds)),
            min(_checksum(path) for _ in range(rounds)),
        )


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
