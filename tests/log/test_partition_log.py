"""Direct appends to a partition by several processes: Kafka's LocalLogTest, UnifiedLogTest and LogLoaderTest."""

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
from partition_logs import Process, append, append_rows, encoded, new_topic, sealed
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


def test_appends_get_the_offsets_at_the_log_end(folder: Path) -> None:
    process = Process(folder)
    assert append(process[0], b"a") == (0, 1)
    assert append(process[0], b"b", b"c") == (1, 3)
    assert process.values() == {0: [b"a", b"b", b"c"]}
    assert process[0].end() == (3, 0)


def test_processes_continue_each_others_offsets(folder: Path) -> None:
    first, other = Process(folder), Process(folder)
    for number in range(6):
        assert append((first, other)[number % 2][0], b"%d" % number) == (number, number + 1)
    assert other.values() == {0: [b"%d" % number for number in range(6)]}
    assert first.head().version == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("position", value) for value in (-1, 1, 1 << 40, -(1 << 62))],
        *[("size", value) for value in (0, 60, 61, 1 << 40, -1)],
    ],
)
@pytest.mark.parametrize("row", [0, 1])
def test_batches_that_do_not_fill_their_bytes_are_refused(folder: Path, row: int, field: str, value: int) -> None:
    process = Process(folder)
    data = np.frombuffer(b"".join(batch([record()], base_offset=number) for number in range(2)), np.uint8).copy()
    rows, original = read_headers(data.data).copy(), data.tobytes()
    rows[field][row] = value
    with pytest.raises(InvalidRecordError, match="there are bytes between the batches"):
        append_rows(process[0], data, rows)
    with pytest.raises(InvalidRecordError, match="there are bytes between the batches"):
        append_rows(process[0], data, rows[:1])
    assert data.tobytes() == original
    assert process[0].end() == (0, 0)


@pytest.mark.parametrize("bad", [0, 1, 2])
def test_each_batch_must_be_plain_format_2_and_follow_the_previous_one(folder: Path, bad: int) -> None:
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
            append_rows(Process(folder)[0], data, rows)
    with pytest.raises(InvalidRecordError, match="no batch"):
        append_rows(Process(folder)[0], data[:0], rows[:0])


def test_a_full_segment_is_sealed_and_the_next_one_opened_in_one_commit(tmp_path: Path) -> None:
    folder = new_topic(tmp_path / "events", internal_segment_bytes=200)
    first, other = Process(folder), Process(folder)
    for number in range(8):
        append((first, other)[number % 2][0], b"%d" % number)
    head = first.head()
    assert sealed(head) == [(0, 2), (2, 4), (4, 6)]
    assert [commit.operation for commit in first.handle.log.history()] == ["roll", "roll", "roll", "active", "create"]
    assert first.values() == {0: [b"%d" % number for number in range(8)]}
    assert first.anomalies() == ()


def test_a_requested_roll_seals_a_segment_with_records(folder: Path) -> None:
    process = Process(folder)
    process[0].roll()
    append(process[0], b"a")
    process[0].roll()
    process[0].roll()
    assert sealed(process.head()) == [(0, 1)]
    assert append(process[0], b"b") == (1, 2)


@pytest.mark.parametrize("setting", ["max_message_bytes", "internal_segment_bytes"])
def test_a_too_large_batch_is_refused(tmp_path: Path, setting: str) -> None:
    process = Process(new_topic(tmp_path / "events", **{setting: 100}))
    with pytest.raises(InvalidRecordError, match="larger than"):
        append(process[0], bytes(100))
    assert process.head().version == 0


def test_the_log_start_stays_below_unflushed_records(folder: Path) -> None:
    process = Process(folder)
    for number in range(4):
        append(process[0], b"%d" % number)
    with pytest.raises(CommitConflictError, match="the log start 3 is past the log end 0"):
        put_commit(process.handle.log, process.head(), "delete-records", lambda _: [SetLogStartOffset(0, 3)])
    process[0].roll()
    put_commit(process.handle.log, process.head(), "delete-records", lambda _: [SetLogStartOffset(0, 3)])
    assert process[0].end() == (4, 4)


def test_a_closed_log_can_be_continued(folder: Path) -> None:
    process = Process(folder)
    append(process[0], b"a")
    process.close()
    process.close()
    assert append(process[0], b"b") == (1, 2)


def test_an_unused_log_can_be_closed(folder: Path) -> None:
    process = Process(folder)
    assert process[0].partition == 0
    process.close()
    assert not (folder / "events-0").exists()


def test_a_closed_log_closes_all_its_files(folder: Path) -> None:
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
    original = process.values()
    with pytest.raises(UnsupportedVersionError, match=r"write to the topic, .*upgrade .*row-tracking"):
        append(process[0], b"d")
    assert process.values() == original
    assert original[0][-1] == b"c"


def test_the_first_append_creates_the_folder_of_a_partition(folder: Path) -> None:
    process = Process(folder, clock=Clock(NOW))
    assert not (folder / "events-0").exists()
    append(process[0], b"a")
    assert (folder / paths.partition_dir("events", 0) / paths.LOCK_FILE).exists()


def test_close_waits_for_the_lock_and_then_closes_the_files(tmp_path: Path) -> None:
    """A thread holds the lock and the segment; a second one closes; the first appends and releases the lock."""
    process = Process(new_topic(tmp_path / "events"))
    append(process[0], b"before")
    active = ActivePartition(process.handle, 0, process.snapshots)
    began = threading.Event()

    def close() -> None:
        began.set()
        active.close()

    closing = threading.Thread(target=close)
    with active.held():
        segment = active.active_segment()
        assert segment is not None
        closing.start()
        assert began.wait(60)
        closing.join(0.2)  # without the wait it would have ended
        assert closing.is_alive()
        data, _ = encoded(b"in between")
        data[:8].view(">i8")[:] = segment.next_offset
        segment.append(data.data, read_headers(data.data))
        active.publish_state()
    closing.join(60)
    assert not closing.is_alive()
    process.close()
    assert open_below(tmp_path) == []
    assert process.values() == {0: [b"before", b"in between"]}
    assert append(process[0], b"after") == (2, 3)


def test_a_flushed_log_closes_while_its_thread_holds_the_flush_lock(tmp_path: Path) -> None:
    """The garbage collector may close an unused log during another log's flush."""
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


def test_concurrently_opened_partitions_are_not_opened_again(tmp_path: Path) -> None:
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


def test_a_failed_open_of_partitions_opens_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process, real_open = Process(new_topic(tmp_path / "events", partitions=3)), os.open

    def refused(path: str, *arguments: Any, **named: Any) -> int:
        if "events-1/" in str(path) and str(path).endswith(".log"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real_open(path, *arguments, **named)

    with monkeypatch.context() as patches:
        patches.setattr(os, "open", refused)
        with pytest.raises(StorageError, match="No space left"):
            open_together([process[number] for number in range(3)])
    assert operations(process) == ["create"]
    for number in range(3):
        append(process[number], b"a")
    assert process.values() == {number: [b"a"] for number in range(3)}
