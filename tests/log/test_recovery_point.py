"""After a power loss the log is read from its recovery point, as in Kafka's LogLoaderTest."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from active_segments import FailingCalls
from partition_logs import Process, append, log, new_topic
from topics import Clock

from distlog.core.log.live_snapshot import tail

SETTINGS = {"segment_index_bytes": 1200}


@pytest.fixture
def read_bytes(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    counted, real = Counter[str](), os.preadv

    def preadv(file: int, *arguments: Any) -> int:
        count = real(file, *arguments)
        counted[Path(os.readlink(f"/proc/self/fd/{file}")).suffix] += count
        return count

    monkeypatch.setattr(os, "preadv", preadv)
    return counted


def filled(folder: Path, **settings: Any) -> tuple[Path, int]:
    """Return a topic of five batches, a recovery point and three more batches, and the position of the three."""
    process = Process(new_topic(folder, **{**SETTINGS, **settings}))
    for number in range(5):
        append(process[0], b"%d" % number)
    process[0].checkpoint()
    size = log(folder).stat().st_size
    for number in range(5, 8):
        append(process[0], b"%d" % number)
    process.close()
    return folder, size


def test_after_a_power_loss_the_log_is_read_from_the_recovery_point(
    tmp_path: Path, rebooted: Callable[[], None], read_bytes: Counter[str]
) -> None:
    folder, size = filled(tmp_path / "events")
    rebooted()
    process = Process(folder)
    assert process[0].end() == (8, 8)
    assert read_bytes[".log"] == log(folder).stat().st_size - size
    assert 0 < read_bytes[".index"] + read_bytes[".timeindex"] < 200


def test_a_reader_after_a_power_loss_reads_as_little(
    tmp_path: Path, rebooted: Callable[[], None], read_bytes: Counter[str]
) -> None:
    folder, size = filled(tmp_path / "events")
    process = Process(folder)
    expected = tail(process.handle, process.head(), 0)
    rebooted()
    assert read_bytes[".log"] == 0
    assert tail(process.handle, process.head(), 0) == expected
    assert read_bytes[".log"] == log(folder).stat().st_size - size
    assert process.values()[0] == [b"%d" % number for number in range(8)]


def test_after_a_power_loss_records_without_a_time_age_from_the_sync_that_covered_them(
    tmp_path: Path, rebooted: Callable[[], None]
) -> None:
    clock = Clock()
    process = Process(new_topic(tmp_path / "events", **SETTINGS), clock=clock)
    append(process[0], b"a")
    process[0].checkpoint()
    clock.now_ms += 1000
    append(process[0], b"b")
    process[0].checkpoint()
    process.close()
    rebooted()
    process = Process(tmp_path / "events", clock=clock)
    log_tail = tail(process.handle, process.head(), 0)
    assert log_tail is not None
    assert (log_tail.next_offset, log_tail.created_ms) == (2, clock.now_ms)


@pytest.mark.parametrize("preallocate", [False, True])
def test_after_a_clean_shutdown_the_log_is_not_read(
    tmp_path: Path, rebooted: Callable[[], None], read_bytes: Counter[str], preallocate: bool
) -> None:
    folder, _ = filled(tmp_path / "events", preallocate=preallocate, internal_segment_bytes=1 << 20)
    process = Process(folder)
    process[0].checkpoint()
    process.close()
    rebooted()
    read_bytes.clear()
    process = Process(folder)
    # in a preallocated log, the first bytes that may be a batch, and the remainder of the written page
    room = 2 * 4096 + 12 if preallocate else 0
    assert tail(process.handle, process.head(), 0)
    assert read_bytes[".log"] <= ((1 << 20) + 2 * 4096 if preallocate else 0)
    read_bytes.clear()
    assert process[0].end() == (8, 8)
    assert read_bytes[".log"] <= room
    assert process.values()[0] == [b"%d" % number for number in range(8)]


def test_a_clean_shutdown_is_recorded_once(tmp_path: Path) -> None:
    folder, calls = new_topic(tmp_path / "events", **SETTINGS), FailingCalls()
    process = Process(folder, calls=calls)
    process[0].checkpoint()
    assert calls.calls_made == []
    append(process[0], b"a")
    del calls.calls_made[:]
    process[0].checkpoint()
    assert calls.calls_made == ["fsync"] * 4
    process[0].checkpoint()
    Process(folder, calls=calls)[0].checkpoint()
    assert calls.calls_made == ["fsync"] * 4
    append(process[0], b"b")
    process[0].flush()
    del calls.calls_made[:]
    process[0].checkpoint()
    assert calls.calls_made == ["fsync"] * 3
