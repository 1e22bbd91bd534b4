"""Reading a topic: by scan, record by record, by fetch and by time; and appending the result again."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
from addressed_topics import create
from addresses import Address
from topics import NOW, stored, values

import distlog


def test_keys_stay_together_and_in_order(local_url: Address) -> None:
    topic = create(local_url, 4)
    for start in range(0, 300, 50):
        topic.append([{"key": b"k%d" % (n % 11), "value": b"%d" % n} for n in range(start, start + 50)])
    rows = topic.scan(columns=["partition", "key", "value"]).to_table().to_pylist()
    homes: dict[bytes, set[int]] = {}
    for row in rows:
        homes.setdefault(row["key"], set()).add(row["partition"])
        assert int(row["value"]) % 11 == int(row["key"][1:])
    assert all(len(partitions) == 1 for partitions in homes.values())
    for key in homes:
        numbers = [int(row["value"]) for row in rows if row["key"] == key]
        assert numbers == sorted(numbers)
    assert sorted(int(row["value"]) for row in rows) == list(range(300))


def test_a_scan_out_of_range_fails_without_a_policy(local_url: Address) -> None:
    topic = create(local_url)
    topic.append(values(range(5)))
    with pytest.raises(distlog.OffsetOutOfRangeError, match="log_start_offset=0 log_end_offset=5"):
        topic.scan(start=9)
    assert topic.scan(start=9, out_of_range="earliest").count() == 5
    assert topic.scan(start=9, out_of_range="latest").count() == 0
    for wrong in ({"out_of_range": "first"}, {"isolation": "read_commited"}):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be one of .*, not "):
            topic.scan(**wrong)  # type: ignore[arg-type]


def test_a_scan_accepts_named_bounds(local_url: Address) -> None:
    topic = create(local_url, 2)
    topic.append(values(range(5)), partition=0)
    topic.delete_records({0: 2})
    assert topic.scan(start=distlog.EARLIEST, end=distlog.LATEST).count() == 3
    assert topic.scan(start={0: distlog.LATEST}).count() == topic.scan(end=distlog.EARLIEST).count() == 0
    assert topic.scan(start=distlog.EARLIEST, end={0: 3}, isolation="read_committed").count() == 1
    with pytest.raises(distlog.OffsetOutOfRangeError, match=r"an end must be an offset from 0 on, or LATEST.*end=-5"):
        topic.scan(end=-5)


def test_records_are_python_objects(local_url: Address) -> None:
    topic = create(local_url, 2)
    topic.append([{"key": "k", "value": None, "timestamp": NOW, "headers": [("h", b"1"), ("h", None)]}], partition=1)
    assert list(topic.records(1)) == [(1, 0, NOW, 0, b"k", None, [("h", b"1"), ("h", None)])]
    topic.append(values(range(50), partition=0))
    assert [record.offset for record in topic.records(start=10, limit=3)] == [10, 11, 12]
    assert [record.value for record in topic.records(0, start=48)] == [b"v48", b"v49"]
    assert list(topic.records(0, start=50)) == []
    for start in (-1, 51):
        with pytest.raises(distlog.OffsetOutOfRangeError):
            next(topic.records(0, start=start))
    with pytest.raises(distlog.TopicNotFoundError, match="from 0 to 1"):
        topic.records(2)


def test_a_fetch_loop_reads_everything_once(storage_url: Address) -> None:
    topic = create(storage_url)
    for start in range(0, 60, 20):
        topic.append(values(range(start, start + 20)))
    offset, offsets = 0, []
    while offset < 60:
        fetched = topic.read(0, offset, max_bytes=300)
        assert fetched.base_offsets[0] == offset
        assert len(bytes(fetched)) == len(fetched) <= 300
        offsets += fetched.base_offsets.tolist()
        offset = fetched.next_offset
    assert offsets == sorted(set(offsets))
    assert len(topic.read(0, 60)) == 0
    for wrong in (-1, 61):
        with pytest.raises(distlog.OffsetOutOfRangeError, match="log_start_offset=0 log_end_offset=60"):
            topic.read(0, wrong)


def test_times_are_found_by_partition(local_url: Address) -> None:
    topic = create(local_url, 2)
    topic.append(values([*range(0, 100, 10), 5, 500, 7], partition=1))
    assert topic.offsets_for_times(NOW + 11) == {0: None, 1: (2, NOW + 20)}
    assert topic.offsets_for_times({1: NOW + 91}) == {1: (11, NOW + 500)}
    assert topic.offsets_for_times(NOW + 501) == {0: None, 1: None}
    assert topic.offsets_for_times(distlog.EARLIEST) == {0: (0, -1), 1: (0, -1)}
    assert topic.offsets_for_times(distlog.LATEST) == {0: (0, -1), 1: (13, -1)}
    assert topic.offsets_for_times(distlog.MAX_TIMESTAMP) == {0: None, 1: (11, NOW + 500)}
    with pytest.raises(distlog.TopicNotFoundError):
        topic.offsets_for_times({2: NOW})
    for wrong in (-4, "soon", None, 1.5):
        with pytest.raises(ValueError, match="a time must be"):
            topic.offsets_for_times(wrong)  # type: ignore[arg-type]


def test_the_largest_possible_timestamp_is_stored_and_found(
    local_url: Address, caplog: pytest.LogCaptureFixture
) -> None:
    topic = distlog.create(local_url.url, config={"message.timestamp.after.max.ms": 2**63 - 1})
    large = b"x" * 100_000
    topic.append([{"value": large, "timestamp": time} for time in (0, 2**63 - 1, -1, 5)])
    assert [record.timestamp for record in topic.records()] == [0, 2**63 - 1, -1, 5]
    assert topic.offsets_for_times(2**63 - 1) == topic.offsets_for_times(distlog.MAX_TIMESTAMP) == {0: (1, 2**63 - 1)}
    assert caplog.messages == []


def test_a_scans_table_can_be_appended(storage_url: Address) -> None:
    topic = create(storage_url, 3)
    rows = [
        {"key": None, "value": b"a", "timestamp": -1, "headers": None},
        {"key": b"k", "value": None, "timestamp": NOW, "headers": [("h", None), ("é", b"\xff")]},
    ]
    for partition in (0, 2):
        topic.append(rows, partition)
    table = topic.scan().to_table()
    topic.append(table)
    for partition in (0, 2):
        twice = stored(topic.scan([partition]).to_table())
        assert [row.pop("offset") for row in twice] == [0, 1, 2, 3]
        assert twice[:2] == twice[2:]


def test_a_stream_is_appended_in_bounded_memory(local_url: Address) -> None:
    topic = distlog.create(local_url.url, 4)
    schema = pa.schema([("key", pa.binary()), ("value", pa.binary())])
    largest = 0

    def stream() -> Iterator[pa.RecordBatch]:
        nonlocal largest
        for number in range(100):
            # one partition in a thousand rows: its slices must not keep the memory of the others
            keys = pa.array([b"rare" if row % 1000 == 0 else b"k%d" % (row % 3) for row in range(2000)], pa.binary())
            batch = pa.RecordBatch.from_arrays([keys, pa.array([b"%1000d" % number] * 2000)], schema=schema)
            largest = max(largest, pa.total_allocated_bytes())
            yield batch

    old_total_allocated_bytes = pa.total_allocated_bytes()
    result = topic.append(pa.RecordBatchReader.from_batches(schema, stream()))
    assert result.record_count == 200_000
    assert largest - old_total_allocated_bytes < 60 << 20
