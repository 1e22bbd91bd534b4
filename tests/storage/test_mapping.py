"""Maps are sealed: a truncated file raises an error before any of its pages is touched."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from logs import appended

from distlog.core.errors import CorruptRecordError
from distlog.core.storage.local_files import map_sealed
from distlog.core.topic import Topic


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 10_000)
    return path


def test_a_map_has_the_bytes_of_the_file(file: Path) -> None:
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


def test_a_file_truncated_while_mapped_fails(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open(file, "rb") as stream:
        old_status = os.fstat(stream.fileno())
        file.write_bytes(b"x")
        monkeypatch.setattr("os.fstat", lambda descriptor: old_status)
        with pytest.raises(OSError, match="the file was truncated while it was opened"):
            map_sealed(stream.fileno())


def test_a_map_holds_no_descriptor_and_ends_with_its_last_reference(file: Path) -> None:
    with open(file, "rb") as stream:
        old_count = len(os.listdir("/proc/self/fd"))
        part = map_sealed(stream.fileno())[9_000:]
        assert len(os.listdir("/proc/self/fd")) == old_count
    file.unlink()
    assert bytes(part) == b"x" * 1000
    assert str(file) in Path("/proc/self/maps").read_text()
    del part
    assert str(file) not in Path("/proc/self/maps").read_text()


def test_an_unmappable_file_fails(file: Path) -> None:
    writing = os.open(file, os.O_WRONLY)
    try:
        with pytest.raises(PermissionError):
            map_sealed(writing)
    finally:
        os.close(writing)


@pytest.fixture
def topic(tmp_path: Path) -> Topic:
    return appended(str(tmp_path / "t"), 20_000)


@pytest.mark.parametrize("size", [0, 1, 4096, 300_000])
def test_a_truncated_log_fails_every_reader(size: int, topic: Topic) -> None:
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
