"""A sync fails, and the process that the kernel told is killed before it tells anybody: what others sync stays.

Linux tells an error once. The pages count as clean afterwards, so a sync by another process succeeds without them.
"""

from __future__ import annotations

import errno
import itertools
import os
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from partition_logs import Killed, Killer, Process, append, commit_sealed, encoded, new_topic
from soak.lossy_disk import LossyDisk
from topics import NOW

from distlog.core.log.partition_flush import Appended, LostRecordsError
from distlog.core.storage.local.shared_page import SharedPage

ENDS: dict[str, Callable[[Process], object]] = {
    "a flush": lambda process: process[0].flush(),
    "a checkpoint": lambda process: process[0].checkpoint(),
    "a roll": lambda process: process[0].roll(),
    "a bulk append": lambda process: commit_sealed(process),
}


class DiesUntold:
    """Ends a process when a sync of it failed, before it writes to a page."""

    def __init__(self, patches: pytest.MonkeyPatch) -> None:
        self._failed = False
        patches.setattr(os, "fsync", self._watched(os.fsync))
        patches.setattr(SharedPage, "write", self._guarded(SharedPage.write))

    def end(self, work: Callable[[Process], object], process: Process) -> None:
        with pytest.raises(Killed):
            work(process)
        process.close()
        self._failed = False

    def _watched(self, real: Callable[[int], None]) -> Callable[[int], None]:
        def fsync(file: int) -> None:
            try:
                real(file)
            except OSError:
                self._failed = True
                raise

        return fsync

    def _guarded(self, real: Callable[..., None]) -> Callable[..., None]:
        def write(*arguments: Any) -> None:
            if self._failed:
                raise Killed
            real(*arguments)

        return write


@pytest.mark.parametrize("work", ENDS)
@pytest.mark.parametrize("seed", range(6))
def test_what_another_process_syncs_afterwards_is_there_after_a_power_loss(
    work: str, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = new_topic(tmp_path / "before" / "events", segment_index_bytes=1200)
    with monkeypatch.context() as patches:
        disk = LossyDisk(patches, folder.parent, random.Random(seed))
        killing = DiesUntold(patches)
        process = Process(folder)
        append(process[0], b"a")
        process[0].flush()
        # of several pages, of which the device gets some
        append(process[0], b"b" * 20_000)
        disk.failing_syncs = 1
        killing.end(ENDS[work], process)
        other = Process(folder)
        append(other[0], b"c")
        other[0].flush()
        other.close()
        disk.after_power_loss(tmp_path / "after")
        disk.close()
    monkeypatch.setattr("distlog.core.log.state_record.boot_id", lambda: bytes(16))
    after = Process(tmp_path / "after" / "events")
    assert after.seen()[0] == [b"a", b"b" * 20_000, b"c"]
    append(after[0], b"d")
    assert after.anomalies() == ()


@pytest.mark.parametrize("work", ["a flush", "a checkpoint"])
@pytest.mark.parametrize("seed", range(4))
def test_what_a_failed_sync_was_to_save_is_saved_when_the_page_does_not_check_either(
    work: str, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = new_topic(tmp_path / "before" / "events", segment_index_bytes=1200)
    with monkeypatch.context() as patches:
        disk = LossyDisk(patches, folder.parent, random.Random(seed))
        killing = DiesUntold(patches)
        process = Process(folder)
        append(process[0], b"a")
        process[0].flush()
        # of several pages, of which the device gets some
        append(process[0], b"b" * 20_000)
        disk.failing_syncs = 1
        killing.end(ENDS[work], process)
        with (folder / "events-0" / ".lock").open("r+b") as page:
            page.seek(1024)
            page.write(bytes(2048))
        other = Process(folder)
        append(other[0], b"c")
        other[0].flush()
        other.close()
        disk.after_power_loss(tmp_path / "after")
        disk.close()
    monkeypatch.setattr("distlog.core.log.state_record.boot_id", lambda: bytes(16))
    after = Process(tmp_path / "after" / "events")
    assert after.seen()[0] == [b"a", b"b" * 20_000, b"c"]
    append(after[0], b"d")
    assert after.anomalies() == ()


SEALS = {"a roll": ENDS["a roll"], "a bulk append": ENDS["a bulk append"]}


@pytest.mark.parametrize("seal", SEALS)
@pytest.mark.parametrize("work", ["a flush", "a checkpoint"])
@pytest.mark.parametrize("seed", range(6))
def test_what_another_process_seals_afterwards_is_there_after_a_power_loss(
    work: str, seal: str, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = new_topic(tmp_path / "before" / "events", segment_index_bytes=1200)
    with monkeypatch.context() as patches:
        disk = LossyDisk(patches, folder.parent, random.Random(seed))
        killing = DiesUntold(patches)
        process, other = Process(folder), Process(folder)
        append(process[0], b"a")
        # of several pages, of which the device gets some
        appended = other[0].append(*encoded(b"b" * 20_000))
        disk.failing_syncs = 1
        killing.end(ENDS[work], process)
        SEALS[seal](other)
        other[0].flush(appended)
        other.close()
        disk.after_power_loss(tmp_path / "after")
        disk.close()
    monkeypatch.setattr("distlog.core.log.state_record.boot_id", lambda: bytes(16))
    after = Process(tmp_path / "after" / "events")
    assert after.anomalies() == ()
    assert after.seen()[0] == [b"a", b"b" * 20_000]


def test_a_sync_that_fails_while_another_process_seals_is_no_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = new_topic(tmp_path / "before" / "events")
    with monkeypatch.context() as patches:
        disk = LossyDisk(patches, folder.parent, random.Random(0))
        process, other = Process(folder), Process(folder)
        appended = process[0].append(*encoded(b"a"))
        real = os.fsync

        def told_late(file: int) -> None:
            """The kernel tells the error to this process; another one seals before it can do anything."""
            try:
                real(file)
            finally:
                patches.setattr(os, "fsync", real)
                other[0].roll()

        patches.setattr(os, "fsync", told_late)
        disk.failing_syncs = 1
        process[0].flush(appended)
        process.close()
        other.close()
        disk.after_power_loss(tmp_path / "after")
        disk.close()
    monkeypatch.setattr("distlog.core.log.state_record.boot_id", lambda: bytes(16))
    assert Process(tmp_path / "after" / "events").seen()[0] == [b"a"]


def no_device(file: int) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def lost_after(work: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Process, Appended]:
    """A process that waits for a record which another one synced in vain, untold, and which the kernel dropped."""
    process, waiting = Process(folder), Process(folder)
    append(process[0], b"a")
    process[0].flush()
    lost = waiting[0].append(*encoded(b"b"))
    with monkeypatch.context() as patches:
        patches.setattr(os, "fsync", no_device)
        DiesUntold(patches).end(ENDS[work], process)
    (log,) = (folder / "events-0").glob("*.log")
    # the kernel dropped the pages, and reads what the device has
    with log.open("r+b") as file:
        file.seek(-20, os.SEEK_END)
        file.write(bytes(20))
    return waiting, lost


@pytest.mark.parametrize("work", ["a flush", "a roll"])
def test_what_the_kernel_no_longer_has_is_lost_for_all(
    work: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting, lost = lost_after(work, new_topic(tmp_path / "events"), monkeypatch)
    with pytest.raises(LostRecordsError):
        waiting[0].flush(lost)
    append(waiting[0], b"c")
    assert waiting.seen()[0] == [b"a", b"c"]
    assert waiting.anomalies() == ()


@pytest.mark.parametrize("work", ["a flush", "a roll"])
def test_who_waits_is_told_also_when_the_process_that_cuts_it_off_is_killed(
    work: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = 0
    for before in itertools.count():
        folder = new_topic(tmp_path / str(before) / "events")
        waiting, lost = lost_after(work, folder, monkeypatch)
        cutting = Process(folder)
        with monkeypatch.context() as patches:
            killer = Killer(patches)
            with killer.killing(before), suppress(Killed, LostRecordsError):
                cutting[0].flush()
            steps = len(killer.steps)
        other = Process(folder)
        append(other[0], b"c")
        with pytest.raises(LostRecordsError):
            waiting[0].flush(lost)
        assert b"b" not in waiting.seen()[0]
        if steps <= before:
            break
    assert steps > 10


@pytest.mark.parametrize("work", ["a checkpoint", "a roll"])
def test_indexes_that_the_kernel_no_longer_has_are_made_anew(
    work: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = new_topic(tmp_path / "events")
    process = Process(folder)
    for number in range(4):
        append(process[0], b"%d" % number, time=NOW + number)
    with monkeypatch.context() as patches:
        patches.setattr(os, "fsync", no_device)
        DiesUntold(patches).end(ENDS[work], process)
    for index in (folder / "events-0").glob("*.*index"):
        with index.open("r+b") as file:
            file.write(bytes(30))
    other = Process(folder)
    append(other[0], b"4", time=NOW + 4)
    other[0].roll()
    assert other.seen()[0] == [b"0", b"1", b"2", b"3", b"4"]
    assert other.anomalies() == ()
