"""Indexes stay open, are dropped when they are bad, and never change the result of a read."""

from __future__ import annotations

import dataclasses
import errno
import logging
import os
import pickle
import tempfile
from pathlib import Path
from typing import NoReturn

import golden
import pyarrow as pa
import pytest
from adopted import adopt_golden
from index_copies import reopened

import distlog
from distlog import Topic
from distlog.core.commits.segment_table import UNKNOWN, SegmentInfo
from distlog.core.errors import CorruptIndexError, StorageError
from distlog.core.format.indexes import AbortedTransaction, OffsetIndex
from distlog.core.read.scan import records_of
from distlog.core.segments import segment_parts

NOW = 1_700_000_000_000
ROWS = 4000


def topic_at(url: str, cache: Path, appends: int = 1) -> Topic:
    """Return a topic of segments large enough for their indexes to be used, with copies of indexes in `cache`."""
    config = {"batch.bytes": 1000, "index.interval.bytes": 1000, "retention.ms": -1}
    topic = distlog.create(url, config=config)
    for number in range(appends):
        values = [b"%0100d" % (number * ROWS + row) for row in range(ROWS)]
        topic.append(pa.table({"value": values, "timestamp": range(NOW, NOW + ROWS)}))
    return reopened(topic, cache)


@pytest.fixture
def local(tmp_path: Path) -> Topic:
    return topic_at(str(tmp_path / "log"), tmp_path / "cache")


@pytest.fixture
def remote(tmp_path: Path) -> Topic:
    return topic_at(f"memory://{tmp_path.name}/log", tmp_path / "cache")


@pytest.fixture
def opens(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    paths: list[str] = []
    check = OffsetIndex.sanity_check

    def counted(index: OffsetIndex, log_bytes: int | None = None) -> None:
        paths.append(index.path)
        check(index, log_bytes)

    monkeypatch.setattr(OffsetIndex, "sanity_check", counted)
    return paths


def value_at(topic: Topic, offset: int) -> int:
    (record,) = topic.records(0, offset, 1)
    return int(record.value)


def segment_of(topic: Topic) -> SegmentInfo:
    return topic.snapshot.partitions[0].segments[0]


def index_path(topic: Topic) -> Path:
    return Path(topic.storage.local_path(topic.reader.name(segment_of(topic), ".index")))


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.levelno == logging.WARNING]


def test_no_more_than_a_few_stay_open(tmp_path: Path, opens: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_parts, "OPEN_INDEXES", 2)
    topic = topic_at(str(tmp_path / "log"), tmp_path / "cache", appends=3)
    for number in (0, 1, 2, 1, 2, 0):
        assert value_at(topic, number * ROWS + 3000) == number * ROWS + 3000
    assert len(opens) == 4


def test_a_replaced_file_is_reopened(local: Topic, opens: list[str]) -> None:
    value_at(local, 3000)
    path = index_path(local)
    local.storage.put(local.reader.name(segment_of(local), ".index"), path.read_bytes())
    assert value_at(local, 3000) == 3000
    assert len(opens) == 2


@pytest.mark.parametrize("length", [0, 8, 12])
def test_a_file_truncated_while_open_is_not_read_again(
    local: Topic, length: int, caplog: pytest.LogCaptureFixture
) -> None:
    value_at(local, 3000)
    os.truncate(index_path(local), length)
    assert value_at(local, 3000) == 3000
    assert "scanning the log instead" in warnings(caplog)[0]


def test_a_bad_file_is_fetched_twice_and_then_scanned_around(remote: Topic, caplog: pytest.LogCaptureFixture) -> None:
    name = remote.reader.name(segment_of(remote), ".index")
    remote.storage.put(name, bytes(segment_of(remote).offset_index_bytes))
    assert value_at(remote, 3000) == 3000
    (warning,) = warnings(caplog)
    assert (
        f"checksum of the index file differs from its segment's metadata: rebuild the index (file={name} partition=0)"
        in warning
    )
    assert "scanning the log instead" in warning


def with_transactions(topic: Topic, *, last_offset: int) -> SegmentInfo:
    """Return the segment with a transaction index of one entry, of producer 7 from offset 1, of an older library."""
    entry = b"".join(number.to_bytes(8, "big", signed=True) for number in (7, 1, last_offset, 9))
    topic.storage.put(topic.reader.name(segment_of(topic), ".txnindex"), bytes(2) + entry)
    return dataclasses.replace(segment_of(topic), txn_index_bytes=34, txn_index_crc32c=UNKNOWN)


def test_a_transaction_index_is_read_without_room_for_a_copy(remote: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    segment = with_transactions(remote, last_offset=5)

    def refuse(*arguments: object, **options: object) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tempfile, "mkstemp", refuse)
    assert remote.reader.aborted_transactions(segment) == [AbortedTransaction(7, 1, 5, 9)]
    remote.storage.delete([remote.reader.name(segment, ".txnindex")])
    with pytest.raises(FileNotFoundError):
        remote.reader.aborted_transactions(segment)


def test_a_permanently_bad_transaction_index_fails(remote: Topic) -> None:
    segment = with_transactions(remote, last_offset=0)
    with pytest.raises(CorruptIndexError):
        remote.reader.aborted_transactions(segment)


def test_it_pickles_without_open_files(local: Topic, opens: list[str]) -> None:
    value_at(local, 3000)
    reader = pickle.loads(pickle.dumps(local.reader))
    (record,) = records_of(reader, local.snapshot, 0, 3000, 1)
    assert (record.offset, int(record.value or b"")) == (3000, 3000)
    assert len(opens) == 2


@pytest.mark.parametrize("error", [OSError(errno.EIO, "Input/output error"), IsADirectoryError(errno.EISDIR, "x")])
def test_an_unreadable_transaction_index_fails_with_its_file(
    error: OSError, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = adopt_golden(str(tmp_path / "t"), golden.partitions()["cleaned.compact-txn-0"])

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(segment_parts, "decode_transactions", fail)
    with pytest.raises(StorageError, match=r"cannot read: .*file=.*\.txnindex"):
        topic.scan(isolation="read_committed").to_table()
