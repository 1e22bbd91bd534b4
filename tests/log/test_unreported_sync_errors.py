"""A sync fails, and its process is killed before it records the error; Linux reports an error only once."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
from active_segments import FailingCalls
from partition_logs import Killed, Process, append, append_rows, commit_sealed, encoded, new_topic
from soak.lossy_disk import LossyDisk
from topics import NOW

from distlog.core.errors import StorageError, StorageFullError
from distlog.core.format.indexes import TIME_ENTRY
from distlog.core.log.partition_log import Appended, LostRecordsError
from distlog.core.storage.locks_and_pages import FileLock, SharedPage

#: The size of a batch with one record of one byte.
BATCH_BYTES = encoded(b"b")[0].nbytes

ENDS: dict[str, Callable[[Process], object]] = {
    "a flush": lambda process: process[0].flush(),
    "a checkpoint": lambda process: process[0].checkpoint(),
    "a roll": lambda process: process[0].roll(),
    "a bulk append": lambda process: commit_sealed(process),
}


class DiesUntold:
    """Ends a process after a failed sync, before it writes to a page."""

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


def after_a_power_loss(
    work: str,
    seed: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    damage: Callable[[Path], None] = lambda page: None,
) -> Path:
    """Fail a sync, end its process in `work`, flush by another, and lose power; `damage` gets the page between."""
    folder = new_topic(tmp_path / "before" / "events", segment_index_bytes=1200)
    with monkeypatch.context() as patches:
        disk = LossyDisk(patches, folder.parent, random.Random(seed))
        killing = DiesUntold(patches)
        process = Process(folder)
        append(process[0], b"a")
        process[0].flush()
        append(process[0], b"b" * 20_000)
        disk.failing_syncs = 1
        killing.end(ENDS[work], process)
        damage(folder / "events-0" / ".lock")
        other = Process(folder)
        append(other[0], b"c")
        other[0].flush()
        other.close()
        disk.after_power_loss(tmp_path / "after")
        disk.close()
    return tmp_path / "after" / "events"


@pytest.mark.parametrize("work", ENDS)
@pytest.mark.parametrize("seed", range(6))
def test_records_synced_by_a_later_process_survive_a_power_loss(
    work: str, seed: int, tmp_path: Path, rebooted: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = after_a_power_loss(work, seed, tmp_path, monkeypatch)
    rebooted()
    after = Process(folder)
    assert after.values()[0] == [b"a", b"b" * 20_000, b"c"]
    append(after[0], b"d")
    assert after.anomalies() == ()


def test_a_failed_sync_during_a_seal_loses_nothing(
    tmp_path: Path, rebooted: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = new_topic(tmp_path / "before" / "events")
    with monkeypatch.context() as patches:
        disk = LossyDisk(patches, folder.parent, random.Random(0))
        process, other = Process(folder), Process(folder)
        appended = append_rows(process[0], *encoded(b"a"))
        real = os.fsync

        def sync_late(file: int) -> None:
            """Only this process gets the kernel's error; another one seals before this one continues."""
            try:
                real(file)
            finally:
                patches.setattr(os, "fsync", real)
                other[0].roll()

        patches.setattr(os, "fsync", sync_late)
        disk.failing_syncs = 1
        process[0].flush(appended)
        process.close()
        other.close()
        disk.after_power_loss(tmp_path / "after")
        disk.close()
    rebooted()
    assert Process(tmp_path / "after" / "events").values()[0] == [b"a"]


def no_device(file: int) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def lost_after(work: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Process, Appended]:
    """Return a process that waits for a record that the kernel dropped in an unreported failed sync."""
    process, waiting = Process(folder), Process(folder)
    append(process[0], b"a")
    process[0].flush()
    lost_end = append_rows(waiting[0], *encoded(b"b"))
    with monkeypatch.context() as patches:
        patches.setattr(os, "fsync", no_device)
        DiesUntold(patches).end(ENDS[work], process)
    (log,) = (folder / "events-0").glob("*.log")
    with log.open("r+b") as file:
        file.seek(-BATCH_BYTES, os.SEEK_END)
        file.write(bytes(BATCH_BYTES))
    return waiting, lost_end


@pytest.mark.parametrize("work", ["a flush", "a roll"])
def test_dropped_records_are_lost_for_every_process(
    work: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting, lost_end = lost_after(work, new_topic(tmp_path / "events"), monkeypatch)
    with pytest.raises(LostRecordsError):
        waiting[0].flush(lost_end)
    append(waiting[0], b"c")
    assert waiting.values()[0] == [b"a", b"c"]
    assert waiting.anomalies() == ()


@pytest.mark.parametrize("is_preallocated", [False, True])
@pytest.mark.parametrize("work", ["an append", *ENDS])
def test_a_dropped_closed_file_does_not_lose_later_records(work: str, is_preallocated: bool, tmp_path: Path) -> None:
    folder = new_topic(tmp_path / "events", preallocate=is_preallocated, internal_segment_bytes=1 << 12)
    killed = Process(folder)
    append(killed[0], b"a")
    killed[0].flush()
    append(killed[0], b"b")
    # the process is killed, and the kernel drops the file and its error: reads return the bytes of the device
    (log,) = (folder / "events-0").glob("*.log")
    with log.open("r+b") as file:
        file.seek(BATCH_BYTES)
        file.write(bytes(BATCH_BYTES))
    other = Process(folder)
    with suppress(StorageError):
        ENDS.get(work, lambda _: None)(other)
        append(other[0], b"c")
        other[0].flush()
    if b"c" not in other.values()[0]:
        append(other[0], b"c")
        other[0].flush()
    assert other.values()[0] == [b"a", b"c"]
    assert other.anomalies() == ()


class FullIndexes(FailingCalls):
    is_full = False

    def pwrite(self, fd: int, data: Any, offset: int) -> int:
        if self.is_full and len(data) == TIME_ENTRY.itemsize:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.pwrite(fd, data, offset)


def test_a_failed_seal_on_a_full_disk_is_checked_before_the_flush(tmp_path: Path) -> None:
    folder = new_topic(tmp_path / "events", index_interval_bytes=4096, segment_ms=1000)
    calls = FullIndexes()
    process = Process(folder, calls=calls)
    append(process[0], b"a")
    process[0].flush()
    lost_end = append_rows(process[0], *encoded(b"b"))
    calls.is_full = True
    with pytest.raises(StorageFullError):
        append(process[0], b"c", time=NOW + 10_000)
    calls.is_full = False
    # the seal closed the log, and the kernel dropped the file and its error: reads return the bytes of the device
    (log,) = (folder / "events-0").glob("*.log")
    with log.open("r+b") as file:
        file.seek(-BATCH_BYTES, os.SEEK_END)
        file.write(bytes(BATCH_BYTES))
    with pytest.raises(LostRecordsError):
        process[0].flush(lost_end)
    append(process[0], b"c")
    assert process.values()[0] == [b"a", b"c"]
    assert process.anomalies() == ()


@pytest.mark.parametrize("is_busy", [False, True])
def test_unflushed_records_of_others_are_read_once_at_open(
    is_busy: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, calls, read, real = new_topic(tmp_path / "events"), FailingCalls(), list[str](), os.preadv

    def preadv(file: int, *arguments: Any) -> int:
        read.append(os.readlink(f"/proc/self/fd/{file}"))
        return real(file, *arguments)

    monkeypatch.setattr(os, "preadv", preadv)
    append(Process(folder)[0], b"a")
    process = Process(folder, calls=calls)
    with FileLock(str(folder / "events-0" / ".flush")).held() if is_busy else nullcontext():
        append(process[0], b"b")
    for _ in range(3):
        written = calls.calls_made.count("pwrite")
        process[0].flush()
        assert calls.calls_made.count("pwrite") == written
        append(process[0], b"c")
    assert len([path for path in read if path.endswith(".log")]) == 1


@pytest.mark.parametrize("work", ["a checkpoint", "a roll"])
def test_indexes_that_the_kernel_dropped_are_rebuilt(
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
    assert other.values()[0] == [b"0", b"1", b"2", b"3", b"4"]
    assert other.anomalies() == ()
