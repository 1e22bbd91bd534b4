"""A large segment is streamed to its file during encoding, with the bytes of a buffered one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from written_segments import NOW, append, memory, records, write, writer

from distlog.core.arrays import BLOCK_BYTES, new_pages
from distlog.core.segments import segment_writer
from distlog.core.storage.storage import ObjectWriter, Storage


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_streamed_log_has_the_same_bytes_as_a_held_one(
    codec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = records([NOW + number for number in range(3000)], size=1000)
    held = write(batch, storage=Storage(tmp_path / "held"), codec=codec, internal_segment_bytes=1_000_000)
    monkeypatch.setattr(segment_writer, "HELD_BYTES", 10_000)
    streamed = write(batch, storage=Storage(tmp_path / "streamed"), codec=codec, internal_segment_bytes=1_000_000)
    assert held == streamed
    assert sum(info.record_count for info in streamed.segments) == 3000


def test_a_large_segment_is_streamed(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    segment_writer = writer(storage)
    append(segment_writer, records([0] * 3000, size=1000))
    assert storage.counters.bytes_written == 0
    append(segment_writer, records([0] * 3000, size=1000))
    assert sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file()) > 2_000_000
    segment_writer.abort()
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == []


class LatestWriter(ObjectWriter):
    """Reads its input as late as allowed, after other code reused all free memory."""

    def __init__(self, storage: Storage, name: str) -> None:
        self._storage, self._name = storage, name
        self._data, self._data_given = b"", memoryview(b"")

    def write(self, data: Any) -> None:
        self.write_behind(bytes(data))

    def write_behind(self, data: Any) -> None:
        self._drain()
        self._data_given = memoryview(data)

    def _drain(self) -> None:
        for block in [new_pages(BLOCK_BYTES) for _ in range(20)]:
            block[:] = 0
        self._data += self._data_given
        self._data_given = memoryview(b"")

    def close(self) -> None:
        self._drain()
        self._storage.put(self._name, self._data)

    def abort(self) -> None:
        pass


class LatestStorage(Storage):
    def open_write(self, name: str, part_bytes: int | None = None) -> ObjectWriter:
        return LatestWriter(self, name)


def test_passed_on_memory_stays_until_it_is_written(tmp_path: Path) -> None:
    batch = records([NOW + number for number in range(15_000)], size=1000)
    late = write(batch, batch, storage=LatestStorage(tmp_path), internal_segment_bytes=11_000_000)
    assert len(late.segments) == 3
    assert late == write(batch, batch, storage=memory(), internal_segment_bytes=11_000_000)


def test_a_large_log_is_written_without_a_copy_in_every_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = []
    writev = os.writev
    monkeypatch.setattr(os, "writev", lambda file, views: copied.append(views[0].nbytes) or writev(file, views))
    segments = write(
        records([NOW] * 15_000, size=1000), storage=Storage(tmp_path), internal_segment_bytes=7_000_000
    ).segments
    assert [info.log_bytes > 6_900_000 for info in segments] == [True, True, False]
    # the first bytes of a segment are buffered until it is known to be large; a page joins two writes
    assert sum(copied) < len(segments) * segment_writer.HELD_BYTES + len(copied) * 4096
