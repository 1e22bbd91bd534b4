"""A failed sync: appends since the last sync are lost with an error, and the sync is not repeated."""

from __future__ import annotations

import errno
import os
from contextlib import ExitStack
from pathlib import Path

import pytest
from active_segments import FailingCalls
from partition_logs import Killed, Process, append, append_rows, commit_sealed, encoded, new_topic, sealed
from topics import contents

from distlog.core.errors import StorageError
from distlog.core.log.partition_files import DamagedLogError, PageStatus, StateRecord
from distlog.core.log.partition_log import Appended, LostRecordsError


def test_readers_see_the_durable_records_after_a_failed_sync(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The kernel may drop the other pages concurrently."""
    process = Process(folder)
    append(process[0], b"a")
    process[0].flush()
    append(process[0], b"b")
    with process.holding(0) as active:
        record = StateRecord.unpack(active.lock.page.read())
        assert record is not None
        assert record.state is not None
        active.lock.publish(PageStatus.FAILED, record.state)
    topic = Process(folder).topic()
    assert topic.end_offsets() == {0: 1}
    # sound batches past the end are not damage
    assert (process.anomalies(), caplog.text) == ((), "")
    (log,) = process.folder(0).glob("*.log")
    log.write_bytes(log.read_bytes()[: record.state.flushed_position].ljust(record.state.position, b"\0"))
    assert contents(topic)[0] == process.values()[0] == [b"a"]
    assert (process.anomalies(), caplog.text) == ((), "")
    assert append(Process(folder)[0], b"c") == (1, 2)


def test_a_failed_sync_is_reported_without_the_lock(folder: Path) -> None:
    """A process holds the partition's lock for too long, so the segment is still active at the next flush."""
    other = Process(folder)

    class Stuck(FailingCalls):
        def fsync(self, fd: int) -> None:
            holder.enter_context(other.holding(0))
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    process = Process(folder, calls=Stuck(), timeout_s=0.05)
    acknowledged = append_all(other, b"a")
    other[0].flush(acknowledged)
    lost_append = append_all(other, b"b")
    with ExitStack() as holder, pytest.raises(StorageError, match="cannot sync"):
        process[0].flush(lost_append)
    for log in (other[0], process[0], Process(folder)[0]):
        with pytest.raises(StorageError, match="lost"):
            log.flush(lost_append)
        log.flush(acknowledged)
    assert append(other[0], b"c") == (1, 2)
    other[0].flush()
    assert other.values()[0] == [b"a", b"c"]
    assert other.anomalies() == ()


@pytest.mark.parametrize("is_cut", [True, False], ids=["cut by others", "cut by this process"])
def test_a_sync_concurrent_with_a_failed_seal_reports_the_loss(folder: Path, is_cut: bool) -> None:
    """A failed seal truncates to the flushed end that it read, which can be older than a concurrent sync."""
    failing = FailingCalls()
    rolling = Process(folder, calls=failing)

    class Raced(FailingCalls):
        is_on = False

        def fsync(self, fd: int) -> None:
            os.fsync(fd)
            if self.is_on:
                self.is_on = False
                failing.fail("fsync", code=errno.EIO)
                with pytest.raises(StorageError, match="cannot sync"):
                    rolling[0].roll()
                if is_cut:
                    append(rolling[0], b"next")

    calls = Raced()
    process = Process(folder, calls=calls)
    append(process[0], b"a")
    process[0].flush()
    lost_append = append_all(process, b"b")
    calls.is_on = True
    with pytest.raises(StorageError, match="lost"):
        process[0].flush(lost_append)
    assert process.values()[0] == ([b"a", b"next"] if is_cut else [b"a"])


@pytest.mark.parametrize("appends_since", [0, 1, 5])
def test_every_waiting_flush_reports_the_loss(folder: Path, appends_since: int) -> None:
    calls = FailingCalls()
    process, other = Process(folder, calls=calls), Process(folder)
    append(process[0], b"a")
    process[0].flush()
    acknowledged = append_rows(other[0], *encoded(b"k"))
    process[0].flush()
    lost_append = append_rows(other[0], *encoded(b"b"))
    calls.fail("fsync", code=errno.EIO)
    with pytest.raises(StorageError, match="cannot sync"):
        process[0].flush()
    # the same offsets are assigned again, and sealed under other names
    for _ in range(appends_since):
        append(process[0], b"c")
        commit_sealed(process)
    with pytest.raises(StorageError, match="lost"):
        other[0].flush(lost_append)
    other[0].flush(acknowledged)


@pytest.mark.parametrize("times", [2, 3, 5])
def test_lost_records_stay_lost_on_a_failing_disk(folder: Path, times: int) -> None:
    """The seal fails too. The next process seals first: otherwise the same offsets are assigned again."""
    calls = FailingCalls()
    process, other = Process(folder, calls=calls), Process(folder)
    acknowledged = append_all(process, b"a")
    process[0].flush()
    lost_append = append_all(other, b"b")
    calls.fail("fsync", times=times, code=errno.EIO)
    with pytest.raises(StorageError, match="cannot sync"):
        process[0].flush()
    while True:
        try:
            append(process[0], b"c", b"d")
            process[0].flush()
            break
        except StorageError:
            continue
    with pytest.raises(StorageError, match="lost"):
        other[0].flush(lost_append)
    other[0].flush(acknowledged)
    assert process.values()[0] == [b"a", b"c", b"d"]
    assert sealed(process.head())[0] == (0, 1)


def append_all(process: Process, *values: bytes) -> Appended:
    return append_rows(process[0], *encoded(*values))


@pytest.mark.parametrize("by", ["flush", "roll", "bulk append"])
def test_a_file_that_cannot_be_opened_for_a_sync_loses_no_record(
    folder: Path, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process without a free descriptor did not try to sync, so nothing is lost."""
    writing, process = Process(folder), Process(folder)
    acknowledged, real = append_all(writing, b"a"), os.open

    def no_descriptor(path: str, *arguments: int, **options: int) -> int:
        if str(path).endswith(".log"):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return real(path, *arguments, **options)

    seals = {
        "flush": lambda: process[0].flush(),
        "roll": lambda: process[0].roll(),
        "bulk append": lambda: commit_sealed(process),
    }
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", no_descriptor)
        with pytest.raises(StorageError, match="cannot open: Too many open files"):
            seals[by]()
    writing[0].flush(acknowledged)
    assert process.values()[0] == [b"a"]
    assert append(process[0], b"b") == (1, 2)


@pytest.mark.parametrize("spared", [0, 1, 2])
@pytest.mark.parametrize("by", ["roll", "bulk append", "full segment"])
def test_a_failed_sync_in_a_seal_is_not_repeated(tmp_path: Path, by: str, spared: int) -> None:
    """The log or one of its indexes cannot be synced: waiting flushes report the loss."""
    folder, calls = new_topic(tmp_path / "events", internal_segment_bytes=200), FailingCalls()
    process, other = Process(folder, calls=calls), Process(folder)
    append(process[0], b"a")
    process[0].flush()
    lost_append = append_all(other, b"b")
    calls.fail("fsync", spared=spared, code=errno.EIO)
    seals = {
        "roll": lambda: process[0].roll(),
        "bulk append": lambda: commit_sealed(process, calls=calls),
        "full segment": lambda: append(process[0], b"c"),
    }
    with pytest.raises(StorageError, match="cannot sync"):
        seals[by]()
    assert other.values()[0] == [b"a"]
    with pytest.raises(StorageError, match="lost"):
        other[0].flush(lost_append)
    assert other.values()[0] == [b"a"]
    assert append(other[0], b"d") == (1, 2)
    other[0].flush()
    assert (sealed(other.head()), other.values()[0], other.anomalies()) == ([(0, 1)], [b"a", b"d"], ())


class KillingCalls(FailingCalls):
    is_on = False

    def fsync(self, fd: int) -> None:
        if self.is_on:
            raise Killed
        os.fsync(fd)


def killed_in_its_sync(folder: Path, *, flushes: bool = True) -> tuple[Path, int]:
    """Return the log of a process that was killed in a sync of `b` and `c` after `a`, and the size of each batch."""
    calls = KillingCalls()
    process = Process(folder, calls=calls)
    append(process[0], b"a")
    if flushes:
        process[0].flush()
    append(process[0], b"b")
    append(process[0], b"c")
    calls.is_on = True
    with pytest.raises(Killed):
        process[0].flush()
    process.close()
    (log,) = process.folder(0).glob("*.log")
    return log, encoded(b"a")[0].nbytes


@pytest.mark.parametrize(
    ("harm", "flushes"), [("deleted", True), ("deleted", False), ("cut", True)], ids=["all", "unflushed", "flushed"]
)
def test_a_deleted_or_truncated_log_is_refused_until_it_is_restored(harm: str, flushes: bool, folder: Path) -> None:
    """A kernel never drops a file's name or flushed bytes."""
    log, size = killed_in_its_sync(folder, flushes=flushes)
    content = log.read_bytes()
    log.unlink() if harm == "deleted" else os.truncate(log, size - 1)
    with pytest.raises(DamagedLogError, match="restore the file"):
        append(Process(folder)[0], b"d")
    record = Process(folder).record(0)
    assert record is not None
    assert record.status == PageStatus.ACTIVE
    log.write_bytes(content)
    assert append(Process(folder)[0], b"d") == (3, 4)
    assert Process(folder).values()[0] == [b"a", b"b", b"c", b"d"]


def test_damage_after_an_unfinished_sync_truncates_nothing(folder: Path) -> None:
    """A process died in an append of two batches: the first has a changed byte, and the second is sound."""
    log, size = killed_in_its_sync(folder)
    content = log.read_bytes()
    changed, sound = bytearray(content[-size:]), bytearray(content[-size:])
    changed[7], sound[7] = 3, 4
    changed[-1] ^= 1
    log.write_bytes(content + changed + sound)
    with pytest.raises(DamagedLogError, match="sound batches follow"):
        append(Process(folder)[0], b"d")
    assert log.read_bytes() == content + changed + sound
    assert Process(folder).values()[0] == [b"a", b"b", b"c"]


@pytest.mark.parametrize("is_preallocated", [False, True])
def test_batches_that_the_kernel_dropped_are_logged(
    is_preallocated: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The file has no bytes of the lost batches, so none are truncated."""
    folder = new_topic(tmp_path / "events", preallocate=is_preallocated, internal_segment_bytes=1 << 12)
    log, size = killed_in_its_sync(folder)
    log.write_bytes(log.read_bytes()[:size].ljust(log.stat().st_size if is_preallocated else size, b"\0"))
    assert append(Process(folder)[0], b"d") == (1, 2)
    (line,) = caplog.messages
    assert line.startswith(f"{log}: ")
    assert line.endswith(f"offsets 1 to 3, between positions {size} and {3 * size}")


def of_bytes(size: int) -> bytes:
    return next(value for length in range(size) if encoded(value := b"v" * length)[0].nbytes == size)


@pytest.mark.parametrize(("begin", "end"), [(200, 4098), (4000, 4400), (4085, 4200), (4087, 5000), (4096, 4700)])
def test_a_dropped_page_is_lost_with_later_appends_in_it(begin: int, end: int, folder: Path) -> None:
    """Another process had the log open, and appended after the batch that a killed process lost in its sync."""
    calls = KillingCalls()
    process, other = Process(folder, calls=calls), Process(folder)
    append(process[0], of_bytes(begin - 100))
    append(other[0], of_bytes(100))
    process[0].flush()
    append(process[0], of_bytes(end - begin))
    calls.is_on = True
    with pytest.raises(Killed):
        process[0].flush()
    process.close()
    (log,) = process.folder(0).glob("*.log")
    log.write_bytes(log.read_bytes()[:4096].ljust(end, b"\0"))
    appended = append_rows(other[0], *encoded(b"b"))
    assert appended.first_offset == 3
    with pytest.raises(LostRecordsError):
        other[0].flush(appended)
    assert append(other[0], b"c") == (2, 3)
    assert Process(folder).values()[0] == [of_bytes(begin - 100), of_bytes(100), b"c"]


def test_a_dropped_page_of_an_unacknowledged_append_is_truncated(folder: Path) -> None:
    """A process died before its page counted two batches, and the device has only the second."""
    process = Process(folder)
    append(process[0], b"a")
    process[0].flush()
    process.close()
    (log,) = process.folder(0).glob("*.log")
    lost_append, sound = (bytearray(encoded(value)[0]) for value in (b"v" * 9000, b"w"))
    lost_append[7], sound[7] = 1, 2
    data = bytearray(log.read_bytes() + lost_append + sound)
    data[4096:8192] = bytes(4096)
    log.write_bytes(data)
    assert append(Process(folder)[0], b"b") == (1, 2)
    assert Process(folder).values()[0] == [b"a", b"b"]
