"""What is mapped is sealed: a file that was cut is an error of ours, before a page of it is touched."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from logs import appended

from distlog.core.errors import CorruptRecordError
from distlog.core.storage.mapping import map_sealed
from distlog.core.topic import Topic


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 10_000)
    return path


def test_a_map_is_the_file_as_long_as_it_is(file: Path) -> None:
    with open(file, "rb") as stream:
        mapped = map_sealed(stream.fileno())
    assert bytes(mapped) == b"x" * 10_000
    assert mapped.readonly


@pytest.mark.parametrize(("start", "end"), [(0, 10), (4096, 8192), (4097, 9999), (9000, 20_000), (10_000, 10_001)])
def test_a_window_of_a_file_is_mapped_from_any_position(file: Path, start: int, end: int) -> None:
    data = bytes(range(250)) * 40
    file.write_bytes(data)
    with open(file, "rb") as stream:
        assert bytes(map_sealed(stream.fileno(), start, end)) == data[start:end]


def test_an_empty_file_is_an_empty_map(file: Path) -> None:
    file.write_bytes(b"")
    with open(file, "rb") as stream:
        assert len(map_sealed(stream.fileno())) == 0


def test_a_file_that_is_cut_while_it_is_mapped_is_an_error(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open(file, "rb") as stream:
        old_status = os.fstat(stream.fileno())
        file.write_bytes(b"x")
        monkeypatch.setattr("os.fstat", lambda descriptor: old_status)
        with pytest.raises(OSError, match="the file was truncated while it was opened"):
            map_sealed(stream.fileno())


def test_a_map_holds_no_descriptor_and_ends_with_the_last_who_looks_at_it(file: Path) -> None:
    with open(file, "rb") as stream:
        old_count = len(os.listdir("/proc/self/fd"))
        part = map_sealed(stream.fileno())[9_000:]
        assert len(os.listdir("/proc/self/fd")) == old_count
    file.unlink()
    assert bytes(part) == b"x" * 1000
    assert str(file) in Path("/proc/self/maps").read_text()
    del part
    assert str(file) not in Path("/proc/self/maps").read_text()


def test_what_cannot_be_mapped_is_an_error(file: Path) -> None:
    writing = os.open(file, os.O_WRONLY)
    try:
        with pytest.raises(PermissionError):
            map_sealed(writing)
    finally:
        os.close(writing)


@pytest.fixture
def topic(tmp_path: Path) -> Topic:
    """A topic with one large segment."""
    return appended(str(tmp_path / "t"), 20_000)


@pytest.mark.parametrize("size", [0, 1, 4096, 300_000])
def test_a_log_that_was_cut_is_an_error_for_every_reader(size: int, topic: Topic) -> None:
    segment = topic.snapshot.partitions[0].segments[0]
    end = segment.next_offset - 1
    os.truncate(topic.storage.local_path(topic.reader.name(segment)), size)
    for read in (
        lambda: topic.read(0, end),
        lambda: list(topic.records(0, end)),
        lambda: topic.scan(start=end).to_table(),
        lambda: topic.scan().to_table(),
    ):
        with pytest.raises(CorruptRecordError, match="shorter than its segment"):
            read()
