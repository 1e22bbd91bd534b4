"""Appending to a partition in place, by one process and by several that know nothing of each other.

Which of Kafka's tests of LocalLog, UnifiedLog and LogLoader are held here, by their names there:

- appends: testLogAppend, testAppendInfoFirstOffset, testMessageSetSizeCheck, testMessageSizeCheck,
  testLogCloseIdempotent (here); testUpdateConfig (tests/topics/test_appends_beside_writers.py);
  testAppendWithNoTimestamp and the other facts of single segments (test_log_segment.py).
- rolls: testSizeBasedLogRoll, testNewSegmentsAfterRoll (here), testTimeBasedLogRollDuringAppend
  (test_log_segment.py), testRollEmptyActiveSegment: here nothing happens, an empty segment goes on.
- flushes and recovery points: testLogFlush, testLogRolls (test_partition_flush.py).
- what was written is read: testFetchUpToLogEndOffset (test_tails.py).
- recovery: testLogRecoversToCorrectOffset, testIndexRebuild, testCorruptIndexRebuild, testCorruptLog,
  testCleanShutdownFile, testRecoverOnlyLastSegment, testLoadEmptyLog, testRecoverWithEmptyActiveSegment
  (test_segment_recovery.py), testLogEndLessThanStartAfterReopen (here: it cannot come to
  that), testLogRecoveryIsCalledUponBrokerCrash (test_partition_opening.py).
- reads: testWhenFetchOffsetHigherThanMaxOffset, testReadWithMinMessage, testReadOutOfRange, testCompressedMessages
  (tests/reading/test_fetch.py).

Which do not fit: the files of sealed segments are named by commits, so those of .deleted, .swap and .cleaned files,
of renamed folders, of clean-shutdown files, of splits, of retention and log start offsets (which are commits), and of
a high watermark apart from the log end have no counterpart. A closed log may be used again (testLogCloseSuccess).
No partition is truncated (testReopenThenTruncate, testTruncateTo): only a lost tail is cut off.
Those of producer state are in test_partition_producers.py and tests/transactions/test_producer_states.py; those of
transactions and leader epochs wait for transactional appends in place.
"""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commits import put_commit
from histories import forged
from open_files import open_below
from partition_logs import Process, append, encoded, new_topic, sealed
from raw_batches import batch, record
from topics import NOW, Clock

from distlog.core import paths
from distlog.core.commits.actions import SetLogStartOffset
from distlog.core.errors import (
    CommitConflictError,
    InvalidRecordError,
    StorageError,
    UnsupportedVersionError,
)
from distlog.core.format.record_batch import CONTROL, TRANSACTIONAL, read_headers
from distlog.core.log.active_partition import ActivePartition
from distlog.core.log.partition_log import open_together
from distlog.core.storage.locks_and_pages import FileLock


def test_appends_get_the_offsets_behind_the_log_end(folder: Path) -> None:
    process = Process(folder)
    assert append(process[0], b"a") == (0, 1)
    assert append(process[0], b"b", b"c") == (1, 3)
    assert process.values() == {0: [b"a", b"b", b"c"]}
    assert process[0].end() == (3, 0)


def test_processes_go_on_from_each_other(folder: Path) -> None:
    one, other = Process(folder), Process(folder)
    for number in range(6):
        assert append((one, other)[number % 2][0], b"%d" % number) == (number, number + 1)
    assert other.values() == {0: [b"%d" % number for number in range(6)]}
    # one `active`, and nothing else was committed
    assert one.head().version == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("position", value) for value in (-1, 1, 1 << 40, -(1 << 62))],
        *[("size", value) for value in (0, 60, 61, 1 << 40, -1)],
    ],
)
@pytest.mark.parametrize("row", [0, 1])
def test_batches_that_are_not_all_of_their_bytes_are_refused_and_nothing_is_written(
    folder: Path, row: int, field: str, value: int
) -> None:
    process = Process(folder)
    data = np.frombuffer(b"".join(batch([record()], base_offset=number) for number in range(2)), np.uint8).copy()
    rows, before = read_headers(data.data).copy(), data.tobytes()
    rows[field][row] = value
    with pytest.raises(InvalidRecordError, match="do not fill their bytes"):
        process[0].append(data, rows)
    with pytest.raises(InvalidRecordError, match="do not fill their bytes"):
        process[0].append(data, rows[:1])
    assert data.tobytes() == before
    assert process[0].end() == (0, 0)


@pytest.mark.parametrize("bad", [0, 1, 2])
def test_each_batch_must_be_of_format_2_and_without_a_transaction_and_follow_the_one_before(
    folder: Path, bad: int
) -> None:
    data = np.frombuffer(b"".join(batch([record()], base_offset=number) for number in range(3)), np.uint8).copy()
    for field, value, wrong in (
        ("magic", 1, "format 2"),
        ("attributes", TRANSACTIONAL, "format 2"),
        ("attributes", CONTROL, "format 2"),
        ("base_offset", bad + 1, "gap"),
        ("base_offset", bad - 1, "gap"),
    ):
        rows = read_headers(data.data).copy()
        rows[field][bad] = value
        with pytest.raises(InvalidRecordError, match=wrong):
            Process(folder)[0].append(data, rows)
    with pytest.raises(InvalidRecordError, match="no batch"):
        Process(folder)[0].append(data[:0], rows[:0])


def test_a_full_segment_is_sealed_and_the_next_one_opened_in_one_commit(tmp_path: Path) -> None:
    folder = new_topic(tmp_path / "events", internal_segment_bytes=200)
    one, other = Process(folder), Process(folder)
    for number in range(8):
        append((one, other)[number % 2][0], b"%d" % number)
    head = one.head()
    assert sealed(head) == [(0, 2), (2, 4), (4, 6)]
    assert [commit.operation for commit in one.handle.log.history()] == ["roll", "roll", "roll", "active", "create"]
    assert one.values() == {0: [b"%d" % number for number in range(8)]}
    assert one.anomalies() == ()


def test_a_roll_that_is_asked_for_ends_a_segment_that_has_something(folder: Path) -> None:
    process = Process(folder)
    process[0].roll()
    append(process[0], b"a")
    process[0].roll()
    process[0].roll()
    assert sealed(process.head()) == [(0, 1)]
    assert append(process[0], b"b") == (1, 2)


@pytest.mark.parametrize("setting", ["max_message_bytes", "internal_segment_bytes"])
def test_what_is_too_large_is_refused_before_anything(tmp_path: Path, setting: str) -> None:
    process = Process(new_topic(tmp_path / "events", **{setting: 100}))
    with pytest.raises(InvalidRecordError, match="larger than"):
        append(process[0], bytes(100))
    assert process.head().version == 0


def test_the_log_start_stays_below_what_a_power_loss_can_take(folder: Path) -> None:
    process = Process(folder)
    for number in range(4):
        append(process[0], b"%d" % number)
    with pytest.raises(CommitConflictError, match="the log start 3 is above the log end 0"):
        put_commit(process.handle.log, process.head(), "delete-records", lambda _: [SetLogStartOffset(0, 3)])
    process[0].roll()
    put_commit(process.handle.log, process.head(), "delete-records", lambda _: [SetLogStartOffset(0, 3)])
    assert process[0].end() == (4, 4)


def test_what_a_closed_log_appended_is_gone_on_with(folder: Path) -> None:
    process = Process(folder)
    append(process[0], b"a")
    process.close()
    process.close()
    assert append(process[0], b"b") == (1, 2)


def test_a_log_that_was_never_used_is_closed(folder: Path) -> None:
    process = Process(folder)
    assert process[0].partition == 0
    process.close()
    assert not (folder / "events-0").exists()


def test_a_log_lets_go_of_all_its_files(folder: Path) -> None:
    process = Process(folder)
    for _ in range(20):
        append(process[0], b"a")
        process[0].roll()
        process[0].flush()
    process.close()
    assert open_below(folder) == []


@pytest.mark.parametrize("is_open", [False, True])
def test_an_active_segment_of_a_newer_library_takes_no_appends(folder: Path, is_open: bool) -> None:
    process, newer = Process(folder), Process(folder)
    if is_open:
        append(process[0], b"a")
    append(newer[0], b"b")
    newer[0].roll()
    append(newer[0], b"c")
    forged(newer.handle.storage, newer.snapshots.snapshot, requires={"writer": ["row-tracking"]})
    process.snapshots.refresh()
    before = process.values()
    with pytest.raises(UnsupportedVersionError, match=r"row-tracking.*upgrade to write"):
        append(process[0], b"d")
    assert process.values() == before
    assert before[0][-1] == b"c"


def test_the_folder_of_a_partition_is_made_by_the_first_append(folder: Path) -> None:
    process = Process(folder, clock=Clock(NOW))
    assert not (folder / "events-0").exists()
    append(process[0], b"a")
    assert (folder / paths.partition_dir("events", 0) / paths.LOCK_FILE).exists()


def test_close_waits_for_a_thread_that_holds_the_lock_and_then_lets_go_of_the_files(tmp_path: Path) -> None:
    """1. A thread holds the lock, and has the segment. 2. Another one closes. 3. The first appends, and lets go."""
    process = Process(new_topic(tmp_path / "events"))
    append(process[0], b"before")
    active = ActivePartition(process.handle, 0, process.snapshots)
    began = threading.Event()

    def close() -> None:
        began.set()
        active.close()

    closing = threading.Thread(target=close)
    with active.held():
        segment = active.recover()
        assert segment is not None
        closing.start()
        assert began.wait(60)
        closing.join(0.2)  # it would be over by now if it did not wait
        assert closing.is_alive()
        data, _ = encoded(b"in between")
        data[:8].view(">i8")[:] = segment.next_offset
        segment.append(data.data, read_headers(data.data))
        active.moved_on()
    closing.join(60)
    assert not closing.is_alive()
    process.close()
    assert open_below(tmp_path) == []
    assert process.values() == {0: [b"before", b"in between"]}
    assert append(process[0], b"after") == (2, 3)


def test_what_is_flushed_closes_though_another_log_of_the_same_thread_holds_the_flush_lock(tmp_path: Path) -> None:
    """The garbage collector may close a log that nobody has any more in the middle of another log's flush."""
    process = Process(new_topic(tmp_path / "events"), timeout_s=0.0)
    append(process[0], b"a")
    process[0].flush()
    other = FileLock(str(process.folder(0) / paths.FLUSH_FILE))
    with other.held():
        process.close()
        assert {Path(path).name for path in open_below(tmp_path)} == {paths.FLUSH_FILE}
    other.close()
    assert open_below(tmp_path) == []


def operations(process: Process) -> list[str]:
    return [commit.operation for commit in process.handle.log.commits(0, process.head().version + 1)]


def test_partitions_that_others_opened_meanwhile_are_not_opened_again(tmp_path: Path) -> None:
    folder = new_topic(tmp_path / "events", partitions=4)
    process, other = Process(folder), Process(folder)
    append(other[2], b"a")
    open_together([process[number] for number in (3, 2, 1, 0)])
    assert operations(process) == ["create", "active", "active"]
    actives = [state.active for state in process.head().partitions]
    for number in range(4):
        append(process[number], b"b")
    assert process.values() == {number: [b"a", b"b"] if number == 2 else [b"b"] for number in range(4)}
    assert [state.active for state in process.head().partitions] == actives
    open_together([other[number] for number in range(4)])
    assert operations(process) == ["create", "active", "active"]
    assert process.anomalies() == ()


def test_of_partitions_that_cannot_all_be_opened_none_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process, opened = Process(new_topic(tmp_path / "events", partitions=3)), os.open

    def refused(path: str, *given: Any, **named: Any) -> int:
        if "events-1/" in str(path) and str(path).endswith(".log"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return opened(path, *given, **named)

    with monkeypatch.context() as patches:
        patches.setattr(os, "open", refused)
        with pytest.raises(StorageError, match="No space left"):
            open_together([process[number] for number in range(3)])
    assert operations(process) == ["create"]
    for number in range(3):
        append(process[number], b"a")
    assert process.values() == {number: [b"a"] for number in range(3)}
