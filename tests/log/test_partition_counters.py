"""Counters of direct appends and syncs: of all processes, also of dead ones."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from partition_logs import Process, append, commit_sealed, encoded, new_topic

from distlog.core.log.partition_files import PartitionCounters, counters_in
from distlog.core.storage.locks_and_pages import COUNTER_COUNT

FSYNC_S = 0.01


class SlowCalls:
    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def fsync(self, file: int) -> None:
        time.sleep(FSYNC_S)
        os.fsync(file)


def counted(folder: Path) -> PartitionCounters:
    partition_counters = counters_in(str(folder / "events-0"))
    assert partition_counters is not None
    return partition_counters


def size_of(*values: bytes) -> int:
    return int(encoded(*values)[0].nbytes)


def test_appends_and_syncs_of_all_processes_are_counted(tmp_path: Path) -> None:
    folder = new_topic(tmp_path / "events")
    first, two = Process(folder, calls=SlowCalls()), Process(folder, calls=SlowCalls())
    append(first[0], b"a")
    append(two[0], b"b", b"c")
    counters = counted(folder)
    assert (counters.appends, counters.append_bytes, counters.flushes) == (2, size_of(b"a") + size_of(b"b", b"c"), 0)
    first[0].flush()
    two[0].flush()
    assert counted(folder).flushes == 1
    two[0].roll()
    append(first[0], b"d")
    commit_sealed(two, calls=SlowCalls())
    counters = counted(folder)
    assert (counters.appends, counters.flushes) == (3, 3)
    assert counters.flush_ns >= 3 * FSYNC_S * 1e9
    assert counters.append_ns > 0
    first.close()
    two.close()


def test_failed_appends_and_syncs_are_not_counted(tmp_path: Path) -> None:
    class FullDisk(SlowCalls):
        def pwrite(self, file: int, data: bytes, position: int) -> int:
            raise OSError(28, "No space left on device")

    folder = new_topic(tmp_path / "events")
    process = Process(folder)
    append(process[0], b"a")
    with pytest.raises(OSError, match="No space left"):
        append(Process(folder, calls=FullDisk())[0], b"b")
    assert counted(folder).appends == 1
    process.close()


def test_counters_begin_at_0_with_each_boot(tmp_path: Path, rebooted: Callable[[], None]) -> None:
    folder = new_topic(tmp_path / "events")
    process = Process(folder)
    append(process[0], b"a")
    process.close()
    rebooted()
    assert counted(folder) == PartitionCounters()
    process = Process(folder)
    append(process[0], b"b")
    process.close()
    assert counted(folder).appends == 1


def test_a_partition_without_direct_appends_has_no_counters(tmp_path: Path) -> None:
    folder = new_topic(tmp_path / "events")
    assert counters_in(str(folder / "events-0")) is None
    assert list((folder).glob("events-0/*")) == []


def test_the_counters_fit_the_page() -> None:
    assert len(PartitionCounters._fields) <= COUNTER_COUNT
