"""Scans by several threads: the same batches, in bounded memory, without leftover threads and files."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from open_files import open_below

import distlog
from distlog import CorruptRecordError, InvalidConfigError, Topic
from distlog.core.segments import segment_parts, segment_reader
from distlog.core.segments.chunks import OUTPUT_BYTES
from distlog.core.segments.segment_reader import SegmentReader
from distlog.core.storage.calls import WorkerThreads

PATIENCE_S = 30.0
MIB = 1 << 20


def filled(url: str, rows: int = 20_000, partitions: int = 1, **settings: str) -> Topic:
    topic = distlog.create(url, partitions, config={"batch.bytes": "4096", **settings})
    data = np.random.default_rng(rows).bytes(100 * rows)
    values = [data[start : start + 100] for start in range(0, len(data), 100)]
    partition_ids = pa.array(np.arange(rows) % partitions, pa.int32())
    topic.append(pa.table({"value": values, "timestamp": np.arange(rows), "partition": partition_ids}))
    return topic


@pytest.fixture
def short_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SegmentReader.chunks, "__defaults__", (100_000, None))
    for name in ("CHUNK_BYTES", "NARROW_BYTES", "GROUP_BYTES"):
        monkeypatch.setattr(segment_reader, name, 100_000)
    monkeypatch.setattr(segment_parts, "WINDOW_BYTES", 100_000)


def threads_reading_ahead() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("distlog-ahead")]


@pytest.fixture
def thread_starts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    starts: list[int] = []
    original = WorkerThreads.__init__

    def init(crew: WorkerThreads, size: int, name: str) -> None:
        starts.append(size)
        original(crew, size, name)

    monkeypatch.setattr(WorkerThreads, "__init__", init)
    return starts


@pytest.fixture(params=["local", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "log") if request.param == "local" else str(request.getfixturevalue("memory_url").url)


@pytest.mark.usefixtures("short_chunks")
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"compression.type": "zstd"},
        {"internal.segment.bytes": "20000"},
        {"internal.segment.bytes": "1500000"},
    ],
)
def test_any_number_of_workers_gives_the_same_batches(url: str, settings: dict[str, str]) -> None:
    topic = filled(url, partitions=2, **settings)
    alone = list(topic.scan(max_workers=1))
    assert sum(batch.num_rows for batch in alone) == 20_000
    assert len(alone) > 10
    for workers in (2, 3, 16, None):
        assert list(topic.scan(max_workers=workers)) == alone
    cut = topic.scan(start={0: 17, 1: 3000}, end=9000, columns=["offset", "value"], max_workers=3)
    assert cut.to_table() == topic.scan(start={0: 17, 1: 3000}, end=9000, columns=["offset", "value"]).to_table()
    assert cut.count() == 9000 - 17 + 9000 - 3000
    assert topic.scan(start_time=501, max_workers=3).count() == 20_000 - 501


@pytest.mark.parametrize("workers", [None, 1, 2, 8])
def test_one_small_chunk_starts_no_thread(url: str, thread_starts: list[int], workers: int | None) -> None:
    topic = filled(url, rows=100)
    del thread_starts[:]
    assert topic.scan(max_workers=workers).to_table().num_rows == 100
    assert thread_starts == []


@pytest.mark.usefixtures("short_chunks")
def test_one_worker_starts_no_thread_for_local_files(tmp_path: Path, thread_starts: list[int]) -> None:
    topic = filled(str(tmp_path / "log"), **{"internal.segment.bytes": "300000"})
    del thread_starts[:]
    assert topic.scan(max_workers=1).to_table().num_rows == 20_000
    assert thread_starts == []
    assert topic.scan(max_workers=3).to_table().num_rows == 20_000
    assert thread_starts == [2]


@pytest.mark.parametrize("workers", [0, -1, 1.5, "2"])
def test_an_invalid_number_of_workers_is_refused(memory_url: Any, workers: Any) -> None:
    topic = filled(memory_url.url, rows=10)
    with pytest.raises(InvalidConfigError, match="max_workers"):
        topic.scan(max_workers=workers)


def damaged(topic: Topic, share: float) -> None:
    (segment,) = topic.snapshot.partitions[0].segments
    name = topic.reader.name(segment)
    data = bytearray(topic.storage.read(name))
    data[int(len(data) * share)] ^= 1
    topic.storage.put(name, bytes(data))


def pipeline_options(batches: Iterator[pa.RecordBatch]) -> tuple[int, str]:
    """Return the number of records before an error, and the error."""
    count = 0
    try:
        for batch in batches:
            count += batch.num_rows
    except CorruptRecordError as error:
        assert list(batches) == []
        return count, str(error)
    raise AssertionError("nothing is wrong")


@pytest.mark.usefixtures("short_chunks")
def test_an_error_comes_once_after_all_earlier_chunks(url: str) -> None:
    topic = filled(url)
    damaged(topic, 0.7)
    alone = pipeline_options(iter(topic.scan(max_workers=1)))
    assert 13_000 < alone[0] < 14_000
    assert "checksum" in alone[1]
    for workers in (2, 8):
        assert pipeline_options(iter(topic.scan(max_workers=workers))) == alone


@pytest.mark.usefixtures("short_chunks")
def test_an_error_of_the_walk_comes_after_all_earlier_chunks(url: str) -> None:
    topic = filled(url)
    (segment,) = topic.snapshot.partitions[0].segments
    name = topic.reader.name(segment)
    data = bytearray(topic.storage.read(name))
    position = 0
    while position < len(data) // 2:
        position += 12 + int.from_bytes(data[position + 8 : position + 12], "big")
    # an impossible length, which the walk finds before any checksum is compared
    data[position + 8] = 0xFF
    topic.storage.put(name, bytes(data))
    alone = pipeline_options(iter(topic.scan(max_workers=1)))
    assert 9000 < alone[0] < 11_000
    for workers in (2, 8):
        assert pipeline_options(iter(topic.scan(max_workers=workers))) == alone


def closed(batches: Any) -> None:
    batches.close()


def remaining_threads(batches: Any) -> None:
    for _ in batches:
        break


def failed(batches: Any) -> None:
    with suppress(KeyError):
        for _ in batches:
            raise KeyError


@pytest.mark.usefixtures("short_chunks")
@pytest.mark.parametrize("stop", [closed, remaining_threads, failed, list])
@pytest.mark.parametrize("size", ["20000", "10000000"])
def test_an_abandoned_scan_leaves_no_thread_and_no_file(
    tmp_path: Path, stop: Callable[[Any], Any], size: str
) -> None:
    topic = filled(str(tmp_path / "log"), **{"internal.segment.bytes": size})
    threads_ahead = threads_reading_ahead()
    batches = iter(topic.scan(max_workers=4))
    for _ in range(3):
        next(batches)
    assert set(threads_reading_ahead()) - set(threads_ahead)
    stop(batches)
    del batches
    assert set(threads_reading_ahead()) <= set(threads_ahead)
    assert open_below(tmp_path) == []


@pytest.mark.usefixtures("short_chunks")
def test_threads_of_a_remote_scan_end_after_it_is_closed(memory_url: Any) -> None:
    topic, threads_ahead = filled(memory_url.url), threads_reading_ahead()
    batches = iter(topic.scan(max_workers=4))
    for _ in range(3):
        next(batches)
    threads = set(threads_reading_ahead()) - set(threads_ahead)
    assert threads
    batches.close()  # type: ignore[attr-defined]
    for thread in threads:
        thread.join(PATIENCE_S)
    assert not any(thread.is_alive() for thread in threads)


@pytest.mark.parametrize("settings", [{}, {"compression.type": "zstd"}, {"internal.segment.bytes": "300000"}])
@pytest.mark.parametrize("workers", [1, 2])
def test_the_result_of_a_scan_holds_no_file(tmp_path: Path, settings: dict[str, str], workers: int) -> None:
    topic = filled(str(tmp_path / "log"), rows=100_000, **settings)
    batches = list(topic.scan(max_workers=workers))
    assert sum(batch.num_rows for batch in batches) == 100_000
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()


@pytest.mark.long
def test_memory_is_bounded_with_highly_compressed_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_reader, "CHUNK_BYTES", 10_000)
    monkeypatch.setattr(segment_reader, "INDEX_WORTH_BYTES", 0)
    monkeypatch.setattr(segment_reader, "SMALL_BYTES", 0)
    topic = distlog.create(str(tmp_path / "log"), config={"compression.type": "zstd", "batch.bytes": str(MIB)})
    topic.append([{"value": bytes(100_000), "timestamp": number} for number in range(4000)])
    pool = pa.default_memory_pool()
    counting = pa.proxy_memory_pool(pool)
    # memory that threads still hold must not outlive its pool, even at interpreter exit
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(counting))
    pa.set_memory_pool(counting)
    try:
        chunks = 0
        for batch in topic.scan(max_workers=2):
            chunks += 1
            assert batch.nbytes < 1.5 * OUTPUT_BYTES
        assert chunks > 40
        # of 400 MB: four chunks with their prefetched output, and two that are being decompressed
        assert counting.max_memory() < (4 * segment_reader.AHEAD_BATCHES + 2 * 3) * 1.3 * OUTPUT_BYTES
    finally:
        pa.set_memory_pool(pool)


@pytest.mark.usefixtures("short_chunks")
def test_a_scan_is_an_arrow_stream(memory_url: Any) -> None:
    scan = filled(memory_url.url).scan(columns=["offset", "value"])
    reader = pa.RecordBatchReader.from_stream(scan)
    assert reader.schema == scan.schema
    assert reader.read_all() == scan.to_table()
