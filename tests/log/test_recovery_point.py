"""After a power loss the log is walked from its recovery point: what is below was synced, and its indexes too.

Held here, of Kafka's LogLoaderTest: of testProducerSnapshotsRecoveryAfterUncleanShutdownCurrentMessageFormat that
what lies below the recovery point is not read again, and of testLogRecoveryIsCalledUponBrokerCrash that a clean end
(there a marker file) needs no recovery.
"""

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
    """How many bytes of the files with each suffix are read in place."""
    counted, real = Counter[str](), os.preadv

    def preadv(file: int, *arguments: Any) -> int:
        count = real(file, *arguments)
        counted[Path(os.readlink(f"/proc/self/fd/{file}")).suffix] += count
        return count

    monkeypatch.setattr(os, "preadv", preadv)
    return counted


def filled(folder: Path, **settings: Any) -> tuple[Path, int]:
    """A topic of five batches, a recovery point, and three batches behind it; and where these begin."""
    process = Process(new_topic(folder, **{**SETTINGS, **settings}))
    for number in range(5):
        append(process[0], b"%d" % number)
    process[0].checkpoint()
    size = log(folder).stat().st_size
    for number in range(5, 8):
        append(process[0], b"%d" % number)
    process.close()
    return folder, size


def test_after_a_power_loss_only_what_lies_behind_the_recovery_point_is_read(
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
    """Not from the sync before it: that may be long before their append."""
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
def test_after_a_clean_end_nothing_of_the_log_is_read(
    tmp_path: Path, rebooted: Callable[[], None], read_bytes: Counter[str], preallocate: bool
) -> None:
    folder, _ = filled(tmp_path / "events", preallocate=preallocate, internal_segment_bytes=1 << 20)
    process = Process(folder)
    process[0].checkpoint()
    process.close()
    rebooted()
    read_bytes.clear()
    process = Process(folder)
    # of a preallocated log, the first bytes that may be a batch, and the rest of the page that was written
    room = 2 * 4096 + 12 if preallocate else 0
    assert tail(process.handle, process.head(), 0)
    assert read_bytes[".log"] <= ((1 << 20) + 2 * 4096 if preallocate else 0)
    read_bytes.clear()
    assert process[0].end() == (8, 8)
    assert read_bytes[".log"] <= room
    assert process.values()[0] == [b"%d" % number for number in range(8)]


def test_a_clean_end_is_noted_once(tmp_path: Path) -> None:
    folder, calls = new_topic(tmp_path / "events", **SETTINGS), FailingCalls()
    process = Process(folder, calls=calls)
    process[0].checkpoint()
    assert calls.calls_made == []
    append(process[0], b"a")
    del calls.calls_made[:]
    process[0].checkpoint()
    # the log, two indexes, the page
    assert calls.calls_made == ["fsync"] * 4
    process[0].checkpoint()
    Process(folder, calls=calls)[0].checkpoint()
    assert calls.calls_made == ["fsync"] * 4
    append(process[0], b"b")
    process[0].flush()
    del calls.calls_made[:]
    process[0].checkpoint()
    # not the log again
    assert calls.calls_made == ["fsync"] * 3
