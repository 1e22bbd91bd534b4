"""Readers of a segment with concurrent appends use the page, or walk the log if the page is invalid."""

from __future__ import annotations

import copy
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from partition_logs import Process, append, commit_sealed, new_topic
from topics import NOW

from distlog.core import paths
from distlog.core.errors import StorageError
from distlog.core.log.live_snapshot import tail, with_tails
from distlog.core.log.log_segment import ReadableSegment
from distlog.core.read.lookup import first_records
from distlog.core.storage.local_files import LocalFiles
from distlog.core.topic import Topic


@pytest.fixture
def process(tmp_path: Path) -> Process:
    new_process = Process(new_topic(tmp_path / "events", partitions=2, internal_segment_bytes=1 << 20))
    for number in range(5):
        append(new_process[0], b"%d" % number, time=NOW + number)
    return new_process


def page_of(process: Process) -> Path:
    return Path(process.handle.storage.local_path(paths.partition_dir("events", 0))) / paths.LOCK_FILE


def reader(process: Process) -> Topic:
    return Topic(process.handle, with_tails(process.handle, process.head()), pinned=True)


def test_a_snapshot_without_active_segments_is_unchanged(tmp_path: Path) -> None:
    process = Process(new_topic(tmp_path / "events"))
    head = process.head()
    assert with_tails(process.handle, head) is head


def test_the_tail_is_the_last_segment(process: Process) -> None:
    process[0].roll()
    append(process[0], b"5")
    state = with_tails(process.handle, process.head()).partitions[0]
    assert [(segment.base_offset, segment.next_offset, segment.is_active) for segment in state.segments] == [
        (0, 5, False),
        (5, 6, True),
    ]
    assert state.log_end_offset == 6


def test_an_empty_active_segment_is_left_out(process: Process) -> None:
    process[0].roll()
    head = process.head()
    assert tail(process.handle, head, 0) is None
    assert len(with_tails(process.handle, head).partitions[0].segments) == 1


def test_a_snapshot_with_tails_does_not_grow(process: Process) -> None:
    topic = reader(process)
    append(process[0], b"later")
    process[0].roll()
    assert topic.scan(columns=["value"]).to_table()["value"].to_pylist() == [b"0", b"1", b"2", b"3", b"4"]


def test_a_snapshot_with_tails_is_copied_with_them(process: Process) -> None:
    tails = with_tails(process.handle, process.head())
    for copied in (pickle.loads(pickle.dumps(tails)), copy.copy(tails)):
        assert copied.partitions[0].segments[-1].is_active


def read_in_every_way(topic: Topic) -> None:
    assert [record.value for record in topic.records(0, 3, 1)] == [b"3"]
    assert topic.read(0, 2, 100).next_offset > 2
    assert topic.offsets_for_times({0: NOW + 2}) == {0: (2, NOW + 2)}
    assert topic.scan().to_table().num_rows == 5


def test_every_way_to_read_reads_the_tail(process: Process) -> None:
    read_in_every_way(reader(process))


def test_no_way_to_read_maps_the_tail(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: LocalFiles, path: str) -> memoryview:
        raise AssertionError(f"mapped: {path}")

    monkeypatch.setattr(LocalFiles, "map", refuse)
    read_in_every_way(reader(process))


def test_a_point_read_of_the_tail_finds_the_record_without_a_map(process: Process) -> None:
    segment = with_tails(process.handle, process.head()).partitions[0].segments[-1]
    with pytest.raises(StorageError, match="not mapped"):
        process.handle.reader.logs.get(segment)
    assert [record.value for record in first_records(process.handle.reader, segment, 0, 1)] == [b"0"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda page: page.write_bytes(b""),
        lambda page: page.write_bytes(os.urandom(4096)),
        lambda page: page.unlink(),
        lambda page: page.write_bytes(page.read_bytes()[:100]),
    ],
    ids=["lost", "garbled", "gone", "cut"],
)
def test_the_log_is_walked_if_its_page_is_invalid(process: Process, damage: Callable[[Path], object]) -> None:
    expected = tail(process.handle, process.head(), 0)
    process.close()
    damage(page_of(process))
    assert tail(process.handle, process.head(), 0) == expected
    old_names = sorted(os.listdir(page_of(process).parent))
    assert Process(Path(process.handle.storage.url)).values()[0] == [b"%d" % number for number in range(5)]
    assert sorted(os.listdir(page_of(process).parent)) == old_names


def test_a_page_of_another_boot_is_ignored(
    process: Process, rebooted: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = tail(process.handle, process.head(), 0)
    walks = walked(monkeypatch)
    assert tail(process.handle, process.head(), 0) == expected
    assert walks == []
    rebooted()
    log_tail = tail(process.handle, process.head(), 0)
    assert log_tail
    assert expected
    assert (log_tail.crc32c, log_tail.next_offset, len(walks)) == (expected.crc32c, 5, 1)


def test_a_stale_snapshot_walks_a_sealed_segment(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    head = process.head()
    append(process[0], b"5")
    commit_sealed(process)
    append(process[0], b"6")
    walks = walked(monkeypatch)
    log_tail = tail(process.handle, head, 0)
    assert (log_tail and log_tail.next_offset, len(walks)) == (6, 1)


def test_a_walk_stops_before_a_torn_batch_and_truncates_nothing(process: Process) -> None:
    page_of(process).unlink()
    (log,) = page_of(process).parent.glob("*.log")
    torn = log.read_bytes()[:-3]
    log.write_bytes(torn)
    log_tail = tail(process.handle, process.head(), 0)
    assert log_tail
    assert log_tail.next_offset == 4
    assert log.read_bytes() == torn


def walked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    walks, real = list[str](), ReadableSegment.scan_tail
    monkeypatch.setattr(
        ReadableSegment, "scan_tail", lambda self, *arguments: (walks.append(self.stem), real(self, *arguments))[1]
    )
    return walks


def test_a_reader_needs_no_right_to_write(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    opens, real = list[int](), os.open

    def watched(path: str, flags: int, *arguments: Any, **named: Any) -> int:
        opens.append(flags)
        return real(path, flags, *arguments, **named)

    monkeypatch.setattr(os, "open", watched)
    page_of(process).unlink()
    assert tail(process.handle, process.head(), 0)
    assert opens
    assert not any(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) for flags in opens)


def test_the_table_of_segments_marks_active_ones(process: Process) -> None:
    process[0].roll()
    append(process[0], b"5")
    append(process[1], b"6")
    commit_sealed(process, partitions=[1])
    table = reader(process).segments().to_table()
    assert table.select(["partition", "base_offset", "is_active"]).to_pylist() == [
        {"partition": 0, "base_offset": 0, "is_active": False},
        {"partition": 0, "base_offset": 5, "is_active": True},
        {"partition": 1, "base_offset": 0, "is_active": False},
    ]
