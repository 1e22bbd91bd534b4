"""A sync that fails: what was appended since the one before is lost aloud, and no sync is tried again."""

from __future__ import annotations

import errno
import os
from contextlib import ExitStack
from pathlib import Path

import pytest
from active_segments import FailingCalls
from partition_logs import Killed, Process, append, commit_sealed, encoded, new_topic, sealed
from topics import contents

from distlog.core.errors import StorageError
from distlog.core.log.flush import Appended, LostRecordsError
from distlog.core.log.partition_lock import PageStatus, StateRecord
from distlog.core.log.segment_recovery import DamagedLogError


def test_where_a_process_died_after_a_failed_sync_readers_see_what_the_device_had(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The kernel may forget the other pages while they read."""
    process = Process(folder)
    append(process[0], b"a")
    process[0].flush()
    append(process[0], b"b")
    with process.holding(0) as active:
        record = StateRecord.unpack(active.lock.value())
        assert record is not None
        assert record.state is not None
        active.lock.publish(PageStatus.FAILED, record.state)
    topic = Process(folder).topic()
    assert topic.end_offsets() == {0: 1}
    # sound batches behind the end are no damage
    assert (process.anomalies(), caplog.text) == ((), "")
    (log,) = process.folder(0).glob("*.log")
    log.write_bytes(log.read_bytes()[: record.state.flushed_position].ljust(record.state.position, b"\0"))
    assert contents(topic)[0] == process.values()[0] == [b"a"]
    assert (process.anomalies(), caplog.text) == ((), "")
    assert append(Process(folder)[0], b"c") == (1, 2)


def test_a_sync_that_failed_is_known_though_the_lock_was_not_to_be_had(folder: Path) -> None:
    """Somebody holds the partition's lock for too long, so the segment cannot be given up before the next flush."""
    other = Process(folder)

    class Stuck(FailingCalls):
        def fsync(self, fd: int) -> None:
            holder.enter_context(other.holding(0))
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    process = Process(folder, calls=Stuck(), timeout_s=0.05)
    kept = append_all(other, b"a")
    other[0].flush(kept)
    lost = append_all(other, b"b")
    with ExitStack() as holder, pytest.raises(StorageError, match="cannot sync"):
        process[0].flush(lost)
    for log in (other[0], process[0], Process(folder)[0]):
        with pytest.raises(StorageError, match="lost"):
            log.flush(lost)
        log.flush(kept)
    assert append(other[0], b"c") == (1, 2)
    other[0].flush()
    assert other.values()[0] == [b"a", b"c"]
    assert other.anomalies() == ()


@pytest.mark.parametrize("is_cut", [True, False], ids=["cut by others", "cut by this process"])
def test_who_synced_while_another_s_seal_failed_is_told_what_was_cut_off(folder: Path, is_cut: bool) -> None:
    """A seal that fails cuts to what was flushed before: it does not know of a sync that was just over."""
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
    lost = append_all(process, b"b")
    calls.is_on = True
    with pytest.raises(StorageError, match="lost"):
        process[0].flush(lost)
    assert process.values()[0] == ([b"a", b"next"] if is_cut else [b"a"])


@pytest.mark.parametrize("others", [0, 1, 5])
def test_all_who_wait_for_what_was_lost_get_an_error(folder: Path, others: int) -> None:
    calls = FailingCalls()
    process, other = Process(folder, calls=calls), Process(folder)
    append(process[0], b"a")
    process[0].flush()
    kept = other[0].append(*encoded(b"k"))
    process[0].flush()
    lost = other[0].append(*encoded(b"b"))
    calls.fail("fsync", code=errno.EIO)
    with pytest.raises(StorageError, match="cannot sync"):
        process[0].flush()
    # the same offsets are given again, and sealed under other names
    for _ in range(others):
        append(process[0], b"c")
        commit_sealed(process)
    with pytest.raises(StorageError, match="lost"):
        other[0].flush(lost)
    other[0].flush(kept)


@pytest.mark.parametrize("times", [2, 3, 5])
def test_what_was_lost_stays_lost_on_a_disk_that_goes_on_failing(folder: Path, times: int) -> None:
    """The seal fails too. Who comes next seals first: else the same offsets of the same segment are given again."""
    calls = FailingCalls()
    process, other = Process(folder, calls=calls), Process(folder)
    kept = append_all(process, b"a")
    process[0].flush()
    lost = append_all(other, b"b")
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
        other[0].flush(lost)
    other[0].flush(kept)
    assert process.values()[0] == [b"a", b"c", b"d"]
    assert sealed(process.head())[0] == (0, 1)


def append_all(process: Process, *values: bytes) -> Appended:
    return process[0].append(*encoded(*values))


@pytest.mark.parametrize("by", ["flush", "roll", "bulk append"])
def test_a_file_that_cannot_be_opened_to_be_synced_costs_no_record(
    folder: Path, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process without a free descriptor did not try to sync, so nothing is lost."""
    writing, process = Process(folder), Process(folder)
    kept, real = append_all(writing, b"a"), os.open

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
    writing[0].flush(kept)
    assert process.values()[0] == [b"a"]
    assert append(process[0], b"b") == (1, 2)


@pytest.mark.parametrize("spared", [0, 1, 2])
@pytest.mark.parametrize("by", ["roll", "bulk append", "full segment"])
def test_a_sync_that_fails_in_a_seal_is_not_tried_again_either(tmp_path: Path, by: str, spared: int) -> None:
    """The log or one of its indexes cannot be synced: who was not told that it is on the device is told the loss."""
    folder, calls = new_topic(tmp_path / "events", internal_segment_bytes=200), FailingCalls()
    process, other = Process(folder, calls=calls), Process(folder)
    append(process[0], b"a")
    process[0].flush()
    lost = append_all(other, b"b")
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
        other[0].flush(lost)
    assert other.values()[0] == [b"a"]
    assert append(other[0], b"d") == (1, 2)
    other[0].flush()
    assert (sealed(other.head()), other.values()[0], other.anomalies()) == ([(0, 1)], [b"a", b"d"], ())


class KillingCalls(FailingCalls):
    """Its process is killed in a sync."""

    is_on = False

    def fsync(self, fd: int) -> None:
        if self.is_on:
            raise Killed
        os.fsync(fd)


def killed_in_its_sync(folder: Path, *, flushes: bool = True) -> tuple[Path, int]:
    """The log of a process that was killed in a sync of `b` and `c`, behind `a`, and the size of each batch."""
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
def test_a_log_that_others_deleted_or_cut_is_refused_after_a_sync_that_did_not_end_and_may_come_back(
    harm: str, flushes: bool, folder: Path
) -> None:
    """No kernel forgets a file's name, or what was flushed."""
    log, size = killed_in_its_sync(folder, flushes=flushes)
    whole = log.read_bytes()
    log.unlink() if harm == "deleted" else os.truncate(log, size - 1)
    with pytest.raises(DamagedLogError, match="restore the file"):
        append(Process(folder)[0], b"d")
    record = Process(folder).record(0)
    assert record is not None
    assert record.status == PageStatus.ACTIVE
    log.write_bytes(whole)
    assert append(Process(folder)[0], b"d") == (3, 4)
    assert Process(folder).values()[0] == [b"a", b"b", b"c", b"d"]


def test_damage_behind_what_a_sync_that_did_not_end_was_to_save_cuts_nothing_of_that(folder: Path) -> None:
    """The batches of a process that died in an append: one has a changed byte, and a sound one is behind it."""
    log, size = killed_in_its_sync(folder)
    whole = log.read_bytes()
    changed, sound = bytearray(whole[-size:]), bytearray(whole[-size:])
    changed[7], sound[7] = 3, 4
    changed[-1] ^= 1
    log.write_bytes(whole + changed + sound)
    with pytest.raises(DamagedLogError, match="sound ones follow"):
        append(Process(folder)[0], b"d")
    assert log.read_bytes() == whole + changed + sound
    assert Process(folder).values()[0] == [b"a", b"b", b"c"]


@pytest.mark.parametrize("is_preallocated", [False, True])
def test_what_the_kernel_forgot_is_named_in_the_log(
    is_preallocated: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The file has no bytes of it, so that none are cut off."""
    folder = new_topic(tmp_path / "events", preallocate=is_preallocated, internal_segment_bytes=1 << 12)
    log, size = killed_in_its_sync(folder)
    log.write_bytes(log.read_bytes()[:size].ljust(log.stat().st_size if is_preallocated else size, b"\0"))
    assert append(Process(folder)[0], b"d") == (1, 2)
    (line,) = caplog.messages
    assert line.startswith(f"{log}: ")
    assert line.endswith(f"offsets 1 to 3, between positions {size} and {3 * size}")


def of_bytes(size: int) -> bytes:
    """A value whose batch has this size."""
    return next(value for length in range(size) if encoded(value := b"v" * length)[0].nbytes == size)


@pytest.mark.parametrize(("begin", "end"), [(200, 4098), (4000, 4400), (4085, 4200), (4087, 5000), (4096, 4700)])
def test_a_page_that_the_kernel_forgot_is_lost_though_another_process_appended_in_it(
    begin: int, end: int, folder: Path
) -> None:
    """A process was killed in its sync, and another one had the log open, and appended behind what that had lost."""
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
    appended = other[0].append(*encoded(b"b"))
    assert appended.first_offset == 3
    with pytest.raises(LostRecordsError):
        other[0].flush(appended)
    assert append(other[0], b"c") == (2, 3)
    assert Process(folder).values()[0] == [of_bytes(begin - 100), of_bytes(100), b"c"]


def test_a_page_that_the_kernel_forgot_of_an_append_that_was_not_acknowledged_is_cut(folder: Path) -> None:
    """A process died before its page counted two batches, of which the device did not take the first."""
    process = Process(folder)
    append(process[0], b"a")
    process[0].flush()
    process.close()
    (log,) = process.folder(0).glob("*.log")
    lost, sound = (bytearray(encoded(value)[0]) for value in (b"v" * 9000, b"w"))
    lost[7], sound[7] = 1, 2
    data = bytearray(log.read_bytes() + lost + sound)
    data[4096:8192] = bytes(4096)
    log.write_bytes(data)
    assert append(Process(folder)[0], b"b") == (1, 2)
    assert Process(folder).values()[0] == [b"a", b"b"]
