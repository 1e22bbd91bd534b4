"""Reading segments: any range returns its records, with a good, a bad or a missing index."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import golden
import numpy as np
import pytest
from adopted import Files, adopt, adopt_golden, forget_fields, with_indexes
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from logs import Log, appended, each_byte_changed, full_slice, log_of, read, table
from searches import examples

from distlog import Topic
from distlog.core.format.record_batch import read_headers
from distlog.core.format.record_encoder import encode
from distlog.core.segments import segment_reader
from distlog.core.segments.chunks import SegmentSlice

LOGS: dict[str, Callable[[str], Topic]] = {
    "dense": lambda url: appended(url, 60),
    "second": lambda url: appended(url, 7, 60),
    "zstd": lambda url: appended(url, 60, **{"compression.type": "zstd"}),
    "compacted": lambda url: adopt_golden(url, golden.partitions()["cleaned.compact-lz4-0"]),
    "transactions": lambda url: adopt_golden(url, golden.partitions()["cleaned.compact-txn-0"]),
    "format-0": lambda url: adopt_golden(url, golden.partitions()["logs.v0-none-0"]),
    "format-1": lambda url: adopt_golden(url, golden.partitions()["logs.v1-lz4-0"]),
    "mixed": lambda url: adopt_golden(url, golden.partitions()["logs.mixed-0"]),
}


@pytest.fixture(scope="module", params=LOGS)
def log(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Log:
    return log_of(LOGS[request.param](str(tmp_path_factory.mktemp("log") / "t")))


@pytest.fixture
def by_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_reader, "INDEX_WORTH_BYTES", 0)


@pytest.fixture(params=[0, 1 << 40], ids=["by-index", "without-index"])
def either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_reader, "INDEX_WORTH_BYTES", request.param)


def test_the_logs_of_the_tests_are_right(log: Log) -> None:
    assert len(log.expected) > 50
    assert any(segment.offset_index_bytes > 16 for segment in log.segments)


@pytest.mark.usefixtures("either_way")
def test_any_range_of_offsets_has_its_records(log: Log, caplog: pytest.LogCaptureFixture) -> None:
    for segment in log.segments:
        last = segment.next_offset
        for start in range(segment.base_offset, last, 7):
            for end in (start + 1, min(start + 8, last), last):
                expected = [row for row in log.expected if start <= row["offset"] < end]
                assert read(log.topic, full_slice(segment, start_offset=start, end_offset=end)) == expected
    assert caplog.text == ""


@pytest.mark.usefixtures("either_way")
@examples(15)
@given(data=st.data())
def test_any_cut_into_byte_ranges_gives_each_record_once(log: Log, data: st.DataObject) -> None:
    segment = data.draw(st.sampled_from([segment for segment in log.segments if segment.log_bytes]))
    edges = data.draw(st.lists(st.integers(0, segment.log_bytes), max_size=6).map(sorted))
    start = data.draw(st.integers(segment.base_offset, segment.next_offset - 1))
    end = data.draw(st.integers(start, segment.next_offset))
    step = data.draw(st.sampled_from([1, 100, 1000]))
    records = []
    for low, high in pairwise([0, *edges, segment.log_bytes]):
        records += read(log.topic, SegmentSlice(segment, start, end, low, high), step)
    assert records == [row for row in log.expected if start <= row["offset"] < end]


@pytest.mark.usefixtures("by_index")
def test_an_index_saves_reading(tmp_path: Path) -> None:
    topic = appended(str(tmp_path / "t"), 5000, **{"batch.bytes": "1000"})
    (segment,) = topic.snapshot.partitions[0].segments
    topic.storage.counters.bytes_read = 0
    chunks = list(topic.reader.chunks(full_slice(segment, start_offset=3000, end_offset=3001)))
    assert [len(chunk.batches) for chunk in chunks] == [1]
    assert topic.storage.counters.bytes_read < 5000 < segment.log_bytes // 10


@pytest.mark.usefixtures("by_index")
def test_an_index_leads_to_a_byte_range_too(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    topic = appended(str(tmp_path / "t"), 5000, **{"batch.bytes": "1000"})
    (segment,) = topic.snapshot.partitions[0].segments
    topic.storage.counters.bytes_read = 0
    middle = segment.log_bytes // 2
    chunks = topic.reader.chunks(full_slice(segment, start_position=middle, end_position=middle + 2000))
    assert sum(len(chunk.batches) for chunk in chunks) == 2
    assert topic.storage.counters.bytes_read < 8000
    assert caplog.text == ""


def test_a_batch_larger_than_a_step_is_read_whole(log: Log) -> None:
    for segment in log.segments:
        expected = [row for row in log.expected if segment.base_offset <= row["offset"] < segment.next_offset]
        assert read(log.topic, full_slice(segment), step=1) == expected


@pytest.mark.usefixtures("by_index")
def test_a_step_may_be_just_a_batch(dense: Log) -> None:
    (segment,) = dense.segments
    for step in set(read_headers(dense.file().read_bytes())["size"].tolist()):
        assert len(read(dense.topic, full_slice(segment, end_offset=40), step)) == 40


@pytest.mark.usefixtures("by_index")
def test_remote_segments_are_read_the_same(memory_url: Any) -> None:
    log = log_of(appended(memory_url.url, 60))
    (segment,) = log.segments
    for start in range(0, 60, 7):
        for end in (start + 1, start + 20, 60):
            for step in (1, 100, 1 << 20):
                part = full_slice(segment, start_offset=start, end_offset=end)
                assert read(log.topic, part, step) == log.expected[start:end]


def test_empty_segments_are_read_among_others(tmp_path: Path) -> None:
    def ten_at(base_offset: int) -> Files:
        batch = table(10).combine_chunks().to_batches()[0]
        return with_indexes(bytes(encode(batch, base_offset=base_offset).data), base_offset)

    segments = [(0, {".log": b""}), (10, ten_at(10)), (20, {".log": b""}), (30, ten_at(30)), (40, {".log": b""})]
    topic = adopt(str(tmp_path / "t"), segments, 50)
    expected = [*range(10, 20), *range(30, 40)]
    assert topic.scan().count() == 20
    assert topic.scan(start=0, end=20).count() == 10
    for start in range(51):
        values = topic.scan(start=start).to_table()["offset"].to_pylist()
        assert values == [offset for offset in expected if offset >= start]


@pytest.fixture(params=[True, False], ids=["known", "of an older library"])
def sparse(request: pytest.FixtureRequest, tmp_path: Path) -> Log:
    """Return a segment with an index entry for every third batch, with or without the checksum of its index."""
    topic = appended(str(tmp_path / "t"), 150, **{"index.interval.bytes": "400"})
    return log_of(topic if request.param else forget_fields(topic))


def check_reads(log: Log) -> None:
    (segment,) = log.segments
    for start, end, edge in ((0, 150, 0), (31, 33, 0), (149, 150, 0), (60, 105, 1500), (2, 8, 0), (80, 120, 0)):
        records = []
        for low, high in pairwise(sorted({0, edge, segment.log_bytes})):
            records += read(log.topic, SegmentSlice(segment, start, end, low, high))
        assert records == log.expected[start:end]


@pytest.mark.long
@pytest.mark.usefixtures("by_index")
def test_every_changed_byte_of_an_offset_index_leaves_the_answer_right(sparse: Log) -> None:
    data = sparse.file(suffix=".index").read_bytes()
    assert 40 <= len(data) <= 80
    for _, wrong in each_byte_changed(data):
        sparse.file(suffix=".index").write_bytes(wrong)
        check_reads(sparse)


@pytest.mark.long
@pytest.mark.usefixtures("by_index")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_offset_index_can_mislead(sparse: Log, data: st.DataObject) -> None:
    (segment,) = sparse.segments
    size = segment.offset_index_bytes // 8
    starts = read_headers(sparse.file().read_bytes())["position"].tolist()
    positions = st.sampled_from(starts) if data.draw(st.booleans()) else st.integers(0, segment.log_bytes)
    columns = [
        sorted(data.draw(st.sets(values, min_size=size, max_size=size)))
        for values in (st.integers(0, 150), positions)
    ]
    sparse.file(suffix=".index").write_bytes(np.array(columns, ">i4").T.tobytes())
    check_reads(sparse)


@pytest.mark.usefixtures("by_index")
def test_a_missing_index_logs_a_warning(sparse: Log, caplog: pytest.LogCaptureFixture) -> None:
    sparse.file(suffix=".index").unlink()
    check_reads(sparse)
    assert "rebuild the indexes" in caplog.text
