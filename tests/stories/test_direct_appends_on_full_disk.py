"""A disk fills up under direct appends: the writer gets an error, nothing is torn, and the log continues later."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from active_segments import FailingCalls
from full_disk import fail_writes, fill, make_room
from partition_logs import Process, append, append_rows, encoded, new_topic, sealed

import distlog
from distlog.core.errors import StorageFullError
from distlog.core.log.partition_files import PageStatus
from distlog.core.log.partition_log import LostRecordsError

SETTINGS = {"segment_index_bytes": 1200}


def no_space(*_: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_refuses_appends_until_there_is_space(disk: Path) -> None:
    process = Process(new_topic(disk / "events", **SETTINGS))
    other = Process(disk / "events")
    old_end = append(process[0], b"x" * 3000)
    fill(disk)
    for _ in range(3):
        for writer in (process, other):
            with pytest.raises(StorageFullError, match=r"No space left.*vacuum the topic.*free_bytes=0"):
                append(writer[0], b"y" * 9000)
    assert other.values()[0] == [b"x" * 3000]
    assert sealed(process.head()) == []
    record = other.record(0)
    assert record
    assert record.status == PageStatus.ACTIVE
    assert process[0].end().end_offset == old_end[1]
    make_room(disk)
    assert append(other[0], b"y" * 9000) == (1, 2)
    assert append(process[0], b"z") == (2, 3)
    process[0].flush()
    process[0].roll()
    assert process.values()[0] == [b"x" * 3000, b"y" * 9000, b"z"]
    assert process.anomalies() == ()


def test_a_disk_with_space_for_a_commit_seals_earlier_appends(disk: Path) -> None:
    process = Process(new_topic(disk / "events", **SETTINGS))
    other = Process(disk / "events")
    append(process[0], b"x" * 3000)
    fill(disk)
    with next(path for path in disk.iterdir() if path.is_file()).open("r+b") as file:
        file.truncate(file.seek(0, os.SEEK_END) - 16 * 4096)
    with pytest.raises(StorageFullError, match=r"free_bytes=\d+"):
        append(process[0], os.urandom(100_000))
    assert sealed(process.head()) == [(0, 1)]
    assert process.anomalies() == ()
    make_room(disk)
    assert append(other[0], b"y") == (1, 2)
    assert append(process[0], b"z") == (2, 3)
    assert other.values()[0] == [b"x" * 3000, b"y", b"z"]


def test_a_writer_reports_the_records_that_did_not_fit(disk: Path) -> None:
    topic, deliveries = distlog.create(str(disk / "events"), partitions=2, config={"segment.index.bytes": "1200"}), []
    with topic.writer(compression="none") as writer:
        for partition in (0, 1):
            writer.append(b"fits", partition=partition)
    fill(disk)
    writer = topic.writer(compression="none", on_delivery=deliveries.append)
    for partition in (0, 1):
        writer.append(os.urandom(50_000), partition=partition)
    with pytest.raises(StorageFullError, match="make room"):
        writer.close()
    assert sorted((delivery.partition, type(delivery.error)) for delivery in deliveries) == [
        (0, StorageFullError),
        (1, StorageFullError),
    ]
    make_room(disk)
    with topic.writer() as writer:
        writer.append(b"again", partition=1)
    assert [record.value for record in topic.refresh().records(1)] == [b"fits", b"again"]
    assert topic.verify().ok


@pytest.mark.parametrize("step", range(8))
def test_the_log_continues_after_a_failed_seal_on_a_full_disk(
    step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An append meets the full disk, a call of the seal fails too, and later there is space again."""
    folder, calls = new_topic(tmp_path / "events", **SETTINGS), FailingCalls()
    process, other = Process(folder, calls=calls), Process(folder)
    append(process[0], b"a")
    append(process[0], b"b")
    calls.fail("pwrite", times=1 + step)
    with monkeypatch.context() as patches:
        if step % 2:
            fail_writes(patches)
        with pytest.raises(StorageFullError):
            append(process[0], b"c")
    calls.fail("pwrite", times=0)
    assert other.values()[0] == [b"a", b"b"]
    assert append(other[0], b"c") == (2, 3)
    assert append(process[0], b"d") == (3, 4)
    process[0].flush()
    process[0].roll()
    assert process.values()[0] == [b"a", b"b", b"c", b"d"]
    assert process.anomalies() == ()


def test_an_empty_segment_is_not_sealed(tmp_path: Path) -> None:
    calls = FailingCalls()
    process = Process(new_topic(tmp_path / "events", **SETTINGS), calls=calls)
    for _ in range(2):
        calls.fail("pwrite")
        with pytest.raises(StorageFullError):
            append(process[0], b"a")
    assert [commit.operation for commit in process.handle.log.commits(0, 2)] == ["create", "active"]
    assert process.head().version == 1


def test_a_sync_without_space_in_a_seal_has_failed(tmp_path: Path) -> None:
    folder, calls = new_topic(tmp_path / "events", **SETTINGS), FailingCalls()
    process, other = Process(folder, calls=calls), Process(folder)
    append(process[0], b"a")
    process[0].flush()
    lost_end = append_rows(other[0], *encoded(b"b"))
    calls.fail("pwrite")
    calls.fail("fsync")
    with pytest.raises(StorageFullError):
        append(process[0], b"c")
    with pytest.raises(LostRecordsError):
        other[0].flush(lost_end)
    assert append(other[0], b"d") == (1, 2)
    assert sealed(other.head()) == [(0, 1)]
    assert process.values()[0] == [b"a", b"d"]
