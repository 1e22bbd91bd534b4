"""From times to offsets: Kafka's table, a plain model, and wrong indexes."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import golden
import pyarrow as pa
import pytest
from addresses import Address
from adopted import Rows, adopt, adopt_golden, rows, with_indexes
from commits import put_commit
from hypothesis import given
from hypothesis import strategies as st
from index_use import WAYS
from index_use import by_index as by_index
from index_use import either_way as either_way
from logs import START, Log, appended, log_of
from raw_batches import batch, record
from searches import examples, pairs

import distlog
from distlog import EARLIEST, LATEST, MAX_TIMESTAMP, Topic
from distlog.core.commits.actions import SetLogStartOffset
from distlog.core.format.record_encoder import encode
from distlog.core.log.partition_log import PartitionLog

GOLDEN = golden.partitions()


def lookup(topic: Topic, timestamp: int) -> tuple[int, int] | None:
    return topic.offsets_for_times(timestamp)[0]


def first_at_or_after(expected: Rows, timestamp: int) -> tuple[int, int] | None:
    return next(((row["offset"], row["timestamp"]) for row in expected if row["timestamp"] >= timestamp), None)


def largest(expected: Rows) -> tuple[int, int] | None:
    newest = max((row["timestamp"] for row in expected), default=-1)
    return first_at_or_after(expected, newest) if newest >= 0 else None


@pytest.mark.usefixtures("either_way")
def test_kafkas_table(tmp_path: Path) -> None:
    """LogSegmentTest.testFindOffsetByTimestamp: offsets 40 to 49, the time of each ten times its offset."""
    times = [10 * offset for offset in range(40, 50)]
    records = pa.record_batch({"timestamp": times, "key": pa.nulls(10, pa.binary()), "value": [b"v"] * 10})
    log = bytes(encode(records, base_offset=40, batch_bytes=1).data)
    topic = adopt(str(tmp_path / "t"), [(40, with_indexes(log, 40))], 50)
    answers = {time: lookup(topic, time) for time in (420, 421, 491, 401, 399)}
    assert answers == {420: (42, 420), 421: (43, 430), 491: None, 401: (41, 410), 399: (40, 400)}


def test_special_times(memory_url: Any) -> None:
    topic = appended(memory_url.url, 20, 7)
    _delete_below(topic, 5)
    assert lookup(topic, LATEST) == (27, -1)
    assert lookup(topic, EARLIEST) == (5, -1)
    assert lookup(topic, MAX_TIMESTAMP) == (19, START + 190)
    with pytest.raises(ValueError, match="LATEST, EARLIEST or MAX_TIMESTAMP: -7"):
        lookup(topic, -7)


def test_an_empty_partition_has_no_time_but_bounds(memory_url: Any) -> None:
    topic = distlog.create(memory_url.url, partitions=2)
    assert topic.offsets_for_times({0: 5, 1: MAX_TIMESTAMP}) == {0: None, 1: None}
    assert topic.offsets_for_times({0: LATEST, 1: EARLIEST}) == {0: (0, -1), 1: (0, -1)}


def test_records_without_a_timestamp_are_never_found(memory_url: Any) -> None:
    topic = distlog.create(memory_url.url)
    topic.append([{"value": b"v", "timestamp": -1}] * 3)
    assert (lookup(topic, 0), lookup(topic, MAX_TIMESTAMP)) == (None, None)
    topic.append([{"value": b"v", "timestamp": time} for time in (-1, 0, -1)])
    assert (lookup(topic, 0), lookup(topic, 1), lookup(topic, MAX_TIMESTAMP)) == ((4, 0), None, (4, 0))


def _delete_below(topic: Topic, offset: int) -> None:
    _, snapshot = put_commit(topic.log, topic.snapshot, "delete-records", lambda _: [SetLogStartOffset(0, offset)])
    topic.advance(snapshot)


times = st.lists(st.integers(-1, 12), min_size=1, max_size=40)


@pytest.mark.usefixtures("either_way")
@examples(25)
@given(appends=st.lists(times, min_size=1, max_size=3), batch_bytes=st.integers(1, 90), data=st.data())
def test_any_times_are_found_as_by_a_full_scan(
    tmp_path_factory: pytest.TempPathFactory, appends: list[list[int]], batch_bytes: int, data: st.DataObject
) -> None:
    config = {"batch.bytes": str(batch_bytes), "internal.segment.bytes": "900", "index.interval.bytes": "100"}
    url = f"memory://{tmp_path_factory.mktemp('times').name}/t"
    topic = distlog.create(url, config=config)
    for append in appends:
        topic.append([{"value": b"v", "timestamp": time} for time in append])
    _delete_below(topic, data.draw(st.integers(0, topic.end_offsets()[0])))
    expected = rows(topic.scan().to_table())
    for time in range(14):
        assert lookup(topic, time) == first_at_or_after(expected, time)
    assert lookup(topic, MAX_TIMESTAMP) == largest(expected)


@pytest.mark.long
@pytest.mark.parametrize(("name", "either_way"), pairs(GOLDEN, WAYS), indirect=["either_way"])
@pytest.mark.usefixtures("either_way")
def test_a_brokers_log_is_searched_by_times(
    memory_url: Any, tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    topic = adopt_golden(memory_url.url, GOLDEN[name])
    expected = GOLDEN[name].records()
    times = sorted({row["timestamp"] for row in expected if row["timestamp"] is not None})
    for time in {*times[:: max(1, len(times) // 10)], *(time + 1 for time in times[:: max(1, len(times) // 10)])}:
        if time >= 0:
            assert lookup(topic, time) == first_at_or_after(expected, time)
    assert lookup(topic, MAX_TIMESTAMP) == largest(expected)
    if not name.startswith("crashed"):
        assert caplog.text == ""


@pytest.fixture
def unordered(tmp_path: Path) -> Log:
    topic = distlog.create(str(tmp_path / "t"), config={"batch.bytes": "60", "index.interval.bytes": "150"})
    up_and_down = [START + 10 * number + 37 * (number % 5) for number in range(80)]
    topic.append([{"value": b"v", "timestamp": time} for time in up_and_down])
    return log_of(topic)


def check_times(log: Log) -> None:
    for time in (START - 5, START + 155, START + 433, START + 702, START + 939):
        assert lookup(log.topic, time) == first_at_or_after(log.expected, time)


@pytest.mark.usefixtures("by_index")
@pytest.mark.parametrize("wrong", [b"", bytes(48), b"\xff" * 48, b"\x00\x01"])
def test_an_invalid_time_index_logs_a_warning(unordered: Log, wrong: bytes, caplog: pytest.LogCaptureFixture) -> None:
    unordered.file(suffix=".timeindex").write_bytes(wrong)
    check_times(unordered)
    assert "rebuild the indexes" in caplog.text
    assert {record.levelno for record in caplog.records} == {logging.WARNING}


def test_a_changed_header_does_not_hide_a_record(tmp_path: Path) -> None:
    log = log_of(appended(str(tmp_path / "t"), 60))
    data = log.file().read_bytes()
    largest_timestamp = range(35, 43)
    for position in largest_timestamp:
        log.file().write_bytes(data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :])
        with pytest.raises(distlog.CorruptRecordError, match="position=0"):
            lookup(log.topic, START + 30)


def test_a_lookup_in_a_large_remote_segment_reads_little(
    memory_url: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    topic = distlog.create(memory_url.url, config={"batch.bytes": "16384"})
    topic.append(pa.table({"value": [bytes(100)] * 100_000, "timestamp": pa.array(range(100_000))}))
    topic.storage.counters.bytes_read = 0
    for time in (10, 50_000, 99_999):
        assert lookup(topic, time) == (time, time)
    assert topic.storage.counters.bytes_read < 1_000_000
    _delete_below(topic, 99_000)
    topic.storage.counters.bytes_read = 0
    assert lookup(topic, 5) == (99_000, 99_000)
    assert topic.storage.counters.bytes_read < 300_000


@pytest.mark.parametrize("base_timestamp", [5000, 10_000])
def test_a_first_batch_with_a_base_time_of_no_record_is_decoded(tmp_path: Path, base_timestamp: int) -> None:
    topic = distlog.create(str(tmp_path / "t"), config={"retention.ms": -1})
    records = [record(number, time - base_timestamp) for number, time in enumerate((5000, 6000))]
    log = PartitionLog(topic.handle, 0, topic.current)
    log.append_batches(batch(records, base_timestamp=base_timestamp, max_timestamp=6000))
    log.close()
    topic.append([{"value": b"v", "timestamp": 7000}])
    assert [lookup(topic, time) for time in (0, 5000, 5001)] == [(0, 5000), (0, 5000), (1, 6000)]


def test_a_time_among_large_batches_of_a_store_costs_the_index_and_one_request(memory_url: Address) -> None:
    topic = distlog.create(f"{memory_url.url}/clicks", config={"batch.bytes": 200 << 10, "retention.ms": -1})
    topic.append([{"value": bytes(1000), "timestamp": 1_700_000_000_000 + number} for number in range(20_000)])
    counters = topic.storage.counters
    for offset in range(500, 20_000, 1000):
        gets, size = counters.gets, counters.bytes_read
        assert topic.offsets_for_times(1_700_000_000_000 + offset) == {0: (offset, 1_700_000_000_000 + offset)}
        # besides the range of the log: the time index, the offset index, and the head of the log
        assert counters.gets - gets <= 4
        assert counters.bytes_read - size < 1 << 20
