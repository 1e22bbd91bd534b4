"""Logs stay mapped for the next read: a few, without a descriptor, and a deleted or replaced file is detected."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from index_use import by_index as by_index
from index_use import either_way as either_way
from logs import START, Log, appended, full_slice, log_of, read, table
from open_files import open_below
from point_reads import expected_rows_from, rows_from

import distlog
from distlog import CorruptRecordError, SnapshotTooOldError
from distlog.core.segments import segment_parts
from distlog.core.topic import Topic
from distlog.gateway.topics.partition import RefreshingTopic


def test_no_more_than_a_few_logs_stay_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_parts, "OPEN_LOGS", 2)
    topic = appended(str(tmp_path / "t"), 5, 5, 5)
    topic.storage.counters.gets = 0
    maps = []
    for segment in (0, 0, 1, 0, 2, 0, 1):
        assert len(rows_from(topic, 5 * segment)) == 1
        maps.append(topic.storage.counters.gets)
    assert maps == [1, 1, 2, 2, 3, 3, 4]


@pytest.mark.usefixtures("by_index")
def test_logs_and_indexes_that_stay_mapped_hold_no_descriptor(tmp_path: Path) -> None:
    topic = appended(str(tmp_path / "t"), *[20] * 10)
    for segment in range(10):
        assert len(rows_from(topic, 20 * segment + 7)) == 1
        topic.offsets_for_times(START + 10 * segment)
    assert open_below(tmp_path) == []


@pytest.mark.usefixtures("by_index")
@pytest.mark.parametrize("refresh", [Topic.refresh, lambda topic: RefreshingTopic("t", topic).refresh()])
def test_files_that_are_deleted_are_unmapped_when_the_next_version_is_seen(
    tmp_path: Path, refresh: Callable[[Topic], object]
) -> None:
    topic = appended(str(tmp_path / "t"), 60, 60)
    first, _ = topic.snapshot.partitions[0].segments

    def maps() -> list[str]:
        lines = Path("/proc/self/maps").read_text().splitlines()
        return sorted(line.partition(first.stem)[2].split()[0] for line in lines if first.stem in line)

    assert len(rows_from(topic, 30)) == len(rows_from(topic, 90)) == 1
    topic.offsets_for_times(START + 30)
    assert maps() == [".index", ".log", ".timeindex"]
    for suffix in maps():
        (tmp_path / "t" / topic.reader.name(first, suffix)).unlink()
    distlog.open(topic.url).append(table(1))
    assert len(maps()) == 3
    refresh(topic)
    assert maps() == []
    assert len(rows_from(topic, 90)) == 1


def test_a_copy_of_a_reader_has_no_map(tmp_path: Path) -> None:
    topic = appended(str(tmp_path / "t"), 5)
    rows_from(topic, 1)
    copy = pickle.loads(pickle.dumps(topic.reader))
    old_gets = copy.storage.counters.gets
    copy.logs.get(topic.snapshot.partitions[0].segments[0])
    assert copy.storage.counters.gets == old_gets + 1


def test_a_log_deleted_while_mapped_is_reported(tmp_path: Path) -> None:
    log = log_of(appended(str(tmp_path / "t"), 60))
    assert rows_from(log.topic, 30) == expected_rows_from(log.expected, 30)
    data = log.file().read_bytes()
    for size in (0, 1, len(data) - 1):
        os.truncate(log.file(), size)
        with pytest.raises(CorruptRecordError, match=f"shorter than its segment.*position={size} partition=0"):
            rows_from(log.topic, 30)
    log.file().unlink()
    with pytest.raises(SnapshotTooOldError, match="refresh the topic"):
        rows_from(log.topic, 30)
    with pytest.raises(SnapshotTooOldError, match="refresh the topic"):
        log.topic.offsets_for_times(START + 30)


def of_one_shape(url: str) -> bytes:
    """The log of 60 records that differ from the records of `appended` only in their values."""
    other, records = appended(url), table(60)
    values = [value and value.replace(b"v", b"w") for value in records["value"].to_pylist()]
    other.append(records.set_column(2, "value", pa.array(values)))
    return Log(other, []).file().read_bytes()


@pytest.mark.usefixtures("either_way")
def test_a_log_replaced_while_mapped_is_reported(tmp_path: Path) -> None:
    log = log_of(appended(str(tmp_path / "t"), 60))
    assert rows_from(log.topic, 30) == expected_rows_from(log.expected, 30)
    theirs = of_one_shape(str(tmp_path / "other"))
    assert len(theirs) == log.segments[0].log_bytes
    log.topic.storage.put(log.topic.reader.name(log.segments[0]), theirs)
    for offset in (30, 31):
        with pytest.raises(CorruptRecordError, match="the log of another segment"):
            rows_from(log.topic, offset)


@pytest.mark.usefixtures("by_index")
def test_a_log_replaced_after_a_scan_is_reported_by_the_next_scan(tmp_path: Path) -> None:
    log = log_of(appended(str(tmp_path / "t"), 60))
    part = full_slice(log.segments[0], start_offset=30, end_offset=31)
    assert len(read(log.topic, part)) == 1
    theirs = of_one_shape(str(tmp_path / "other"))
    log.topic.storage.put(log.topic.reader.name(log.segments[0]), theirs)
    with pytest.raises(CorruptRecordError, match="the log of another segment"):
        read(log.topic, part)
