"""Scans of brokers' logs: equal records, in batches of bounded size, with few requests and little memory."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import golden
import numpy as np
import pyarrow as pa
import pytest
from adopted import adopt_golden, offsets, rows
from hypothesis import given
from hypothesis import strategies as st
from logs import appended, table

import distlog
from distlog import InvalidRecordError, Topic
from distlog.core.format.indexes import IndexCache
from distlog.core.format.record_batch import COLUMNS
from distlog.core.read import scan
from distlog.core.segments import chunks, segment_parts, segment_reader
from distlog.core.segments.chunks import READ_UNCOMMITTED, Chunk, SegmentSlice, split_by_bytes
from distlog.core.segments.segment_reader import SegmentReader

GOLDEN = golden.partitions()
MIB = 1 << 20


def values(count: int, size: int) -> pa.Table:
    letters = np.random.default_rng(count).integers(97, 123, count * size, np.uint8)
    ends = np.arange(count + 1, dtype=np.int32) * size
    column = pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(ends), pa.py_buffer(letters)])
    return pa.table({"value": column, "timestamp": pa.array(np.arange(count))})


@pytest.mark.parametrize("name", GOLDEN)
def test_a_scan_has_the_records_of_kafkas_consumer(memory_url: Any, name: str) -> None:
    topic = adopt_golden(memory_url.url, GOLDEN[name])
    expected = GOLDEN[name].records()
    assert rows(topic.scan().to_table()) == expected
    assert topic.scan().count() == len(expected)
    start, end = topic.start_offsets()[0], topic.end_offsets()[0]
    chance = random.Random(name)
    for _ in range(20):
        low, high = sorted(chance.choices(range(start, end + 1), k=2))
        part = topic.scan(start=low, end=high)
        expected_rows = [row for row in expected if low <= row["offset"] < high]
        assert rows(part.to_table()) == expected_rows
        assert part.count() == len(expected_rows)


@pytest.mark.long
@pytest.mark.parametrize("codec", ["uncompressed", "zstd"])
def test_a_thousand_small_segments_are_a_few_batches(memory_url: Any, codec: str) -> None:
    settings = {"internal.segment.bytes": "250", "batch.bytes": "100", "compression.type": codec}
    topic = distlog.create(memory_url.url, config=settings)
    topic.append(table(7000))
    segments = topic.snapshot.partitions[0].segments
    assert len(segments) > 1000
    batches = list(topic.scan())
    assert len(batches) == 1
    assert offsets(batches[0]) == list(range(7000))
    assert topic.storage.counters.gets < len(segments) + 10
    part = topic.scan(start=1234, end=5678, columns=["value", "offset"]).to_table()
    assert part["offset"].to_pylist() == list(range(1234, 5678))
    assert part["value"] == topic.scan().to_table()["value"].slice(1234, 5678 - 1234)


class SmallSteps(SegmentReader):
    def chunks(self, part: SegmentSlice, step: int = 100_000) -> Iterator[Chunk]:
        return super().chunks(part, step)


def everything(reader: SegmentReader, topic: Topic) -> Iterator[pa.RecordBatch]:
    return segment_reader.read_slices(reader, topic.scan().slices, COLUMNS, READ_UNCOMMITTED, 1)


@pytest.mark.long
@pytest.mark.parametrize("codec", ["uncompressed", "lz4"])
@pytest.mark.parametrize("size", [0, 10, 1000, 300_000])
def test_batches_are_of_a_few_megabytes(memory_url: Any, codec: str, size: int) -> None:
    count = min(40 * MIB // (size + 40), 400_000)
    topic = distlog.create(memory_url.url, config={"compression.type": codec, "segment.bytes": str(6 * MIB)})
    topic.append(values(count, size))
    batches = list(topic.scan())
    assert sum(batch.num_rows for batch in batches) == count
    assert max(batch.nbytes for batch in batches) <= 1.3 * chunks.OUTPUT_BYTES
    assert sum(batch.nbytes for batch in batches) / len(batches) > MIB


def test_keys_on_a_disk_are_read_in_larger_chunks_than_values(tmp_path: Path) -> None:
    topic = distlog.create(str(tmp_path / "topic"))
    topic.append(values(80, MIB // 2))

    def requests_of(column: str) -> int:
        old_gets = topic.storage.counters.gets
        assert topic.scan(columns=column).to_table().num_rows == 80
        return topic.storage.counters.gets - old_gets

    requests_of("value")
    assert 2 * requests_of("key") < requests_of("value")


@pytest.fixture
def pool() -> Iterator[pa.MemoryPool]:
    default = pa.default_memory_pool()
    counting = pa.proxy_memory_pool(default)
    # memory that threads still hold must not outlive its pool, even at interpreter exit
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(counting))
    pa.set_memory_pool(counting)
    yield counting
    pa.set_memory_pool(default)


@pytest.mark.long
@pytest.mark.parametrize("columns", [None, ["offset"]])
def test_memory_is_bounded_at_any_compression_ratio(
    memory_url: Any, pool: pa.MemoryPool, columns: list[str] | None
) -> None:
    settings = {"compression.type": "zstd", "batch.bytes": str(MIB)}
    topic = distlog.create(memory_url.url, config=settings)
    topic.append([{"value": bytes(100_000), "timestamp": number} for number in range(2000)])
    (segment,) = topic.snapshot.partitions[0].segments
    assert segment.log_bytes < 200_000_000 // 1000
    old_allocated = pool.bytes_allocated()
    for batch in topic.scan(columns=columns):
        assert pool.bytes_allocated() - old_allocated < 32 * MIB
        assert batch.nbytes < 1.5 * chunks.OUTPUT_BYTES
    del batch
    assert pool.max_memory() - old_allocated < 64 * MIB


@given(st.lists(st.sampled_from(COLUMNS), unique=True))
def test_selected_columns_keep_their_order(columns: list[str]) -> None:
    url = "memory://columns/t"
    try:
        topic = distlog.open(url)
    except distlog.TopicNotFoundError:
        topic = appended(url, 30)
    table, part = topic.scan().to_table(), topic.scan(columns=columns)
    assert part.schema == part.to_table().schema
    assert part.to_table().column_names == columns
    assert all(part.to_table()[name] == table[name] for name in columns)
    assert sum(batch.num_rows for batch in part) == 30


def test_a_column_that_does_not_exist_is_refused_before_anything_is_read(memory_url: Any) -> None:
    topic = appended(memory_url.url, 3)
    with pytest.raises(InvalidRecordError, match="no column vlaue: choose from partition, offset"):
        topic.scan(columns=["vlaue"])


def test_a_plan_and_a_count_read_no_records(memory_url: Any) -> None:
    topic = appended(memory_url.url, 100, 50, 70)
    gets = topic.storage.counters.gets
    scan = topic.scan(start=20, end=200)
    assert scan.count() == 180
    assert topic.scan().count() == 220
    assert "segments=3" in repr(scan)
    assert topic.storage.counters.gets == gets


def test_gaps_are_counted_by_reading_only_where_they_are_cut(memory_url: Any) -> None:
    topic = adopt_golden(memory_url.url, GOLDEN["cleaned.compact-lz4-0"])
    expected = [row["offset"] for row in GOLDEN["cleaned.compact-lz4-0"].records()]
    topic.storage.counters.gets = 0
    assert topic.scan().count() == len(expected)
    assert topic.storage.counters.gets == 0
    assert topic.scan(start=210).count() == sum(offset >= 210 for offset in expected)
    assert topic.storage.counters.gets == 1


def test_parts_of_a_segment_are_counted_alone(memory_url: Any) -> None:
    topic = appended(memory_url.url, 100)
    whole_scan = topic.scan()
    groups = split_by_bytes(whole_scan.slices, 500)
    assert len(groups) > 3
    counts = [scan.Scan(topic.reader, group, COLUMNS, whole_scan.isolation).count() for group in groups]
    assert sum(counts) == 100
    assert all(counts)


def test_a_scan_may_run_again_and_sees_its_snapshot(memory_url: Any) -> None:
    topic = appended(memory_url.url, 10)
    scan = topic.scan()
    topic.append(table(5))
    assert offsets(scan.to_table()) == offsets(scan.to_table()) == list(range(10))
    assert offsets(topic.scan().to_table()) == list(range(15))


def test_an_empty_topic_has_no_records_but_a_schema(memory_url: Any) -> None:
    topic = distlog.create(memory_url.url)
    assert topic.scan().to_table().schema.names == list(COLUMNS)
    assert topic.scan().count() == 0
    assert list(topic.scan()) == []


def large(url: str, **options: Any) -> Topic:
    topic = distlog.create(url, config={"batch.bytes": "16384"}, storage_options=options)
    topic.append(values(60_000, 100))
    return topic


@pytest.mark.s3
def test_requests_to_object_storage_are_few(s3_url: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    large(s3_url.url, **s3_url.options)
    topic = distlog.open(s3_url.url, storage_options=s3_url.options)
    (segment,) = topic.snapshot.partitions[0].segments
    counters = topic.storage.counters

    def requests() -> tuple[int, int]:
        counts_since = counters.gets, counters.bytes_read
        counters.gets = counters.bytes_read = 0
        return counts_since

    requests()
    assert topic.scan(start=30_000, end=30_001).to_table()["offset"].to_pylist() == [30_000]
    gets, size = requests()
    # the index, the batches between two of its entries, and concurrently the start of the log
    assert gets == 3
    assert size < segment.offset_index_bytes + 4 * 16_500
    assert next(topic.records(start=45_678, limit=1)).offset == 45_678
    gets, size = requests()
    assert gets == 1
    assert size < 4 * 16_500
    assert topic.offsets_for_times(51_234) == {0: (51_234, 51_234)}
    gets, size = requests()
    assert gets <= 2
    assert size < segment.time_index_bytes + 300_000
    assert topic.read(0, 20_000, max_bytes=50_000).next_offset > 20_000
    gets, size = requests()
    assert gets <= 2
    assert size < 300_000
    assert topic.scan().to_table().num_rows == 60_000
    gets, size = requests()
    assert gets <= 3
    assert size == segment.log_bytes


def test_small_remote_segments_cost_a_request_each(memory_url: Any) -> None:
    topic = appended(memory_url.url, *[20] * 30)
    topic.storage.counters.gets = 0
    assert topic.scan().to_table().num_rows == 600
    assert topic.storage.counters.gets == 30


def test_remote_segments_are_prefetched_but_not_far(memory_url: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_reader, "SMALL_BYTES", 0)
    monkeypatch.setattr(segment_reader, "INDEX_WORTH_BYTES", 0)
    topic = appended(memory_url.url, *[20] * 30)
    topic.storage.counters.gets = 0
    batches = iter(topic.scan())
    assert offsets(next(batches)) == list(range(20))
    assert topic.storage.counters.gets <= 2 + segment_parts.DEPTH
    assert offsets(next(batches)) == list(range(20, 40))
    batches.close()  # type: ignore[attr-defined]
    assert topic.storage.counters.gets <= 3 + segment_parts.DEPTH


def test_a_large_remote_segment_is_not_read_far_ahead(memory_url: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_parts, "WINDOW_BYTES", 100_000)
    topic = large(memory_url.url)
    topic.storage.counters.bytes_read = 0
    batches = everything(SmallSteps(topic.storage, topic.name, IndexCache()), topic)
    next(batches)
    assert topic.storage.counters.bytes_read == 100_000
    for _ in range(4):
        next(batches)
    assert topic.storage.counters.bytes_read < 100_000 * (6 + segment_parts.DEPTH)
    batches.close()  # type: ignore[attr-defined]
