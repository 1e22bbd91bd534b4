"""Reads by key: the same records as a scan of everything, by key indexes and without."""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Iterable
from itertools import chain
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from addresses import Address
from adopted import adopt
from command_line import CommandLine
from raw_batches import batch, record
from topics import NOW, topic_on

import distlog
from distlog.core.errors import CorruptRecordError, InvalidRecordError
from distlog.core.format.indexes import AbortedTransaction, encode_transactions
from distlog.core.format.record_batch import ABORT, CONTROL, TRANSACTIONAL
from distlog.core.read.keys import key_array
from distlog.core.read.last_records import last_records
from distlog.core.segments import segment_reader
from distlog.core.segments.chunks import split_by_bytes
from distlog.core.segments.segment_reader import read_slices
from distlog.core.storage.storage import Storage

#: A segment for each partition and append, of about 500 kB, which is worth an index.
CONFIG = {"key.index.enable": "true", "internal.segment.bytes": "600000", "batch.bytes": "8192"}
RECORDS = 3000


def key_of(number: int) -> bytes | None:
    if number % 50 == 0:
        return None
    return b"often" if number % 10 == 0 else b"key %d" % (number * 7919 % 1000)


def rows(numbers: Iterable[int], **fields: Any) -> list[dict[str, Any]]:
    return [
        {"key": key_of(number), "value": b"%1000d" % number, "timestamp": NOW + number, **fields}
        for number in numbers
    ]


def keyed_topic(storage: Storage, config: dict[str, str] = CONFIG, partitions: int = 2) -> distlog.Topic:
    """A topic of some segments; in several partitions they are parts of bundles."""
    topic = topic_on(storage, partitions, config)
    for start in range(0, RECORDS, RECORDS // 3):
        topic.append(rows(range(start, start + RECORDS // 3)))
    return topic


def segments(topic: distlog.Topic) -> list[Any]:
    return [segment for state in topic.snapshot.partitions for segment in state.segments]


def check_keys(topic: distlog.Topic, keys: Iterable[bytes] = (b"often", b"key 7", b"key 331", b"absent")) -> None:
    """Compare with a scan of everything."""
    everything = topic.scan().to_table()
    for some_keys in [[key] for key in keys] + [[*keys]]:
        expected = everything.filter(pc.is_in(everything["key"], pa.array(some_keys, pa.binary())))
        assert topic.scan(keys=some_keys).to_table().equals(expected)
        assert topic.scan(keys=some_keys, columns="offset").to_table()["offset"].to_pylist() == (
            expected["offset"].to_pylist()
        )
        assert topic.scan(keys=some_keys).count() == expected.num_rows
        assert topic.scan(keys=some_keys, start_time=NOW + 500, end_time=NOW + 2000).count() == (
            expected.filter(
                pc.and_(
                    pc.greater_equal(expected["timestamp"].cast("int64"), NOW + 500),
                    pc.less(expected["timestamp"].cast("int64"), NOW + 2000),
                )
            ).num_rows
        )
        head, tail = topic.scan(keys=some_keys).head(5), topic.scan(keys=some_keys).tail(5)
        assert head.equals(expected.slice(0, 5))
        assert tail.equals(expected.slice(max(expected.num_rows - 5, 0)))
        last = {row["key"]: (row["partition"], row["offset"]) for row in expected.to_pylist()}
        assert {key: record[:2] for key, record in topic.get(some_keys).items()} == last
    assert topic.get(b"absent") is None


@pytest.fixture(params=["local", "memory", pytest.param("s3", marks=pytest.mark.s3)])
def topic(request: pytest.FixtureRequest, tmp_path: Path) -> distlog.Topic:
    address = Address(str(tmp_path / "t"), {}) if request.param == "local" else None
    return keyed_topic(Storage(*(address or request.getfixturevalue(f"{request.param}_url"))))


def test_reads_by_key_return_the_records_of_the_keys(topic: distlog.Topic) -> None:
    assert all(segment.key_index_bytes for segment in segments(topic))
    check_keys(topic)
    assert topic.scan(keys="key 7").to_table().equals(topic.scan(keys=b"key 7").to_table())
    assert topic.scan(keys=[]).count() == 0
    assert topic.verify().ok


def test_splits_of_located_batches_have_all_their_records(topic: distlog.Topic) -> None:
    scan = topic.scan(keys="often", columns="offset")
    expected = scan.to_table()["offset"].to_pylist()
    for target_bytes in (20_000, 50_000, 300_000):
        groups = split_by_bytes(scan.slices, target_bytes)
        assert len(groups) > 1
        batches = chain.from_iterable(
            read_slices(topic.reader, group, ["offset"], scan.isolation, 1) for group in groups
        )
        assert [offset for batch in batches for offset in batch["offset"].to_pylist()] == expected


def test_without_indexes_they_return_the_same_and_say_how_to_be_fast(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    topic = keyed_topic(Storage(str(tmp_path / "t")), {**CONFIG, "key.index.enable": "false"})
    assert not any(segment.key_index_bytes for segment in segments(topic))
    with caplog.at_level(logging.INFO, "distlog"):
        check_keys(topic)
    assert "segments lack a key index, so they are scanned: set key.index.enable" in caplog.text


def test_rebuild_indexes_gives_old_segments_an_index(tmp_path: Path) -> None:
    topic = keyed_topic(Storage(str(tmp_path / "t")), {**CONFIG, "key.index.enable": "false"}, partitions=1)
    topic.alter_config({"key.index.enable": True})
    report = topic.rebuild_indexes()
    assert len(report.rebuilt) == len(segments(topic))
    assert {row["key_index"] for row in report.to_table().to_pylist()} == {"missing"}
    assert all(segment.key_index_bytes for segment in segments(topic))
    check_keys(topic)
    assert topic.verify().ok
    # as a bulk append writes them
    by_append = keyed_topic(Storage(str(tmp_path / "other")), partitions=1)
    assert [(segment.key_index_crc32c, segment.key_count) for segment in segments(topic)] == [
        (segment.key_index_crc32c, segment.key_count) for segment in segments(by_append)
    ]
    assert not topic.rebuild_indexes().rebuilt


def test_the_index_of_a_topic_that_no_longer_wants_it_stays_right(tmp_path: Path) -> None:
    topic = keyed_topic(Storage(str(tmp_path / "t")))
    topic.alter_config({"key.index.enable": False})
    assert not topic.rebuild_indexes().rebuilt
    assert topic.rebuild_indexes(force=True).ok
    assert topic.verify().ok
    topic.append(rows(range(RECORDS, 2 * RECORDS)))
    assert {segment.key_index_bytes > 0 for segment in segments(topic)} == {False, True}
    check_keys(topic)


def test_merging_and_compaction_write_indexes(tmp_path: Path) -> None:
    topic = topic_on(Storage(str(tmp_path / "t")), 2, {**CONFIG, "segment.bytes": "1048576"})
    for start in range(0, RECORDS, 50):
        topic.append(rows(range(start, start + 50)))
    assert not any(segment.key_index_bytes for segment in segments(topic))
    check_keys(topic)
    topic.compact()
    assert len(segments(topic)) < 20
    assert all(segment.key_index_bytes for segment in segments(topic) if segment.log_bytes > 256 << 10)
    assert any(segment.key_index_bytes for segment in segments(topic))
    check_keys(topic)
    assert topic.verify().ok


def test_compaction_of_keys_writes_indexes(tmp_path: Path) -> None:
    config = {**CONFIG, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
    topic = topic_on(Storage(str(tmp_path / "t")), 2, config)
    for _ in range(3):
        topic.append([row for row in rows(range(RECORDS)) if row["key"]])
    topic.compact()
    compacted = [segment for segment in segments(topic) if segment.compacted]
    assert compacted
    assert all(segment.key_index_bytes for segment in compacted if segment.log_bytes > 256 << 10)
    check_keys(topic)
    assert topic.verify().ok
    for key, last in topic.get([b"often", b"key 7"]).items():
        assert topic.scan(keys=key).to_table()["offset"].to_pylist()[-1] == last.offset


def test_an_active_segment_is_read_once_and_gets_an_index_when_it_rolls(tmp_path: Path) -> None:
    topic = topic_on(Storage(str(tmp_path / "t")), 2, CONFIG)
    with topic.writer() as writer:
        for row in rows(range(300)):
            writer.append(**row)
        writer.flush()
        check_keys(topic.refresh())
        old_bytes = topic.storage.counters.bytes_read
        assert topic.scan(keys="key 7").count() == topic.scan(keys="key 7").count()
        assert topic.storage.counters.bytes_read - old_bytes < 100_000
        for row in rows(range(300, RECORDS)):
            writer.append(**row)
        writer.flush()
        check_keys(topic.refresh())
    assert sum(segment.key_index_bytes > 0 for segment in segments(topic)) == 4
    topic.seal()
    check_keys(topic.refresh())
    assert topic.verify().ok


@pytest.mark.parametrize(
    ("damage", "is_noticed"),
    [
        (lambda data: data[:50] + bytes([data[50] ^ 1]) + data[51:], True),
        (lambda data: data[:-100], True),
        (lambda data: data + b"1", False),
        (lambda data: None, True),
    ],
    ids=["a changed byte", "too short", "too long", "missing"],
)
def test_a_bad_index_is_reported_and_costs_time_alone(
    tmp_path: Path,
    damage: Callable[[bytes], bytes | None],
    is_noticed: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic = keyed_topic(Storage(str(tmp_path / "t")), partitions=1)
    files = sorted((tmp_path / "t").rglob("*.keyindex"))
    assert len(files) == len(segments(topic))
    for file in files:
        data = damage(file.read_bytes())
        file.unlink()
        if data is not None:
            file.write_bytes(data)
    topic = topic_on(Storage(str(tmp_path / "t")))
    check_keys(topic)
    assert any("scanning the log instead" in message for message in caplog.messages) == is_noticed
    assert not topic.verify().ok
    report = topic.rebuild_indexes()
    assert report.ok
    assert len(report.rebuilt) == len(files)
    assert topic.verify().ok
    check_keys(topic)


def test_the_index_of_another_log_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    topic = topic_on(Storage(str(tmp_path / "t")), 1, CONFIG)
    for numbers in (range(400), range(400, 800)):
        topic.append([{"key": b"%03d" % number, "value": b"%1000d" % number, "timestamp": NOW} for number in numbers])
    first, second = (tmp_path / "t" / topic.reader.name(segment, ".keyindex") for segment in segments(topic))
    assert first.stat().st_size == second.stat().st_size
    first.write_bytes(second.read_bytes())
    topic = topic_on(Storage(str(tmp_path / "t")))
    check_keys(topic, [b"007", b"405", b"999"])
    assert "or the index belongs to another log: rebuild the index (file=" in caplog.text
    assert {anomaly.word for anomaly in topic.verify().anomalies} == {"index_mismatch"}


def test_a_key_in_a_store_takes_one_request_for_each_index_and_each_hit(memory_url: Address) -> None:
    topic = keyed_topic(Storage(*memory_url))
    counters = topic.storage.counters
    scan = topic.scan(keys="key 7")
    old_gets, old_bytes = counters.gets, counters.bytes_read
    assert scan.count() > 0
    assert counters.gets - old_gets <= len(scan.slices)
    assert counters.bytes_read - old_bytes < 0.2 * sum(segment.log_bytes for segment in segments(topic))
    old_gets = counters.gets
    topic.scan(keys="absent")
    assert counters.gets - old_gets <= len(segments(topic))


def test_the_batches_of_a_key_in_many_segments_are_read_as_one(tmp_path: Path) -> None:
    topic = topic_on(Storage(str(tmp_path / "t")), 1, CONFIG)
    for start in range(0, RECORDS, RECORDS // 10):
        topic.append(rows(range(start, start + RECORDS // 10)))
    scan, counters = topic.scan(keys="key 7"), topic.storage.counters
    old_gets, old_bytes = counters.gets, counters.bytes_read
    assert [batch.num_rows for batch in scan] == [len(scan.slices)]
    assert len(scan.slices) == 3
    # the size of a batch, and then the batch
    assert counters.gets - old_gets == 2 * len(scan.slices)
    assert counters.bytes_read - old_bytes < 10_000 * len(scan.slices)


def test_batches_that_are_larger_than_most_take_another_request(memory_url: Address) -> None:
    topic = topic_on(Storage(*memory_url), 1, CONFIG)
    for start in range(0, 400, 100):
        topic.append([*rows(range(start, start + 99)), {"key": b"large", "value": bytes(400_000), "timestamp": NOW}])
    scan, counters = topic.scan(keys="large"), topic.storage.counters
    old_gets = counters.gets
    assert scan.count() == len(scan.slices) == 4
    assert counters.gets - old_gets == 2 * len(scan.slices)
    check_keys(topic, [b"large", b"key 7"])


@pytest.mark.parametrize("change", [0x01, 0x80])
def test_a_changed_byte_of_a_located_batch_is_reported(tmp_path: Path, change: int) -> None:
    topic = keyed_topic(Storage(str(tmp_path / "t")), partitions=1)
    expected, (first, *_, last) = topic.scan(keys="key 7").to_table(), topic.scan(keys="key 7").slices
    for part in (first, last):
        file, start = tmp_path / "t" / topic.reader.name(part.segment), part.start_position
        data = file.read_bytes()
        # the checksum does not cover the offset and the leader epoch
        for position in (*range(start + 8, start + 12), *range(start + 16, start + 70)):
            file.write_bytes(data[:position] + bytes([data[position] ^ change]) + data[position + 1 :])
            with pytest.raises(CorruptRecordError) as error:
                topic.scan(keys="key 7").to_table()
            assert error.value.details["file"] == topic.reader.name(part.segment)
            assert error.value.details["partition"] == 0
        file.write_bytes(data)
    assert topic.scan(keys="key 7").to_table().equals(expected)


def test_filters_of_duckdb_polars_and_arrow_read_little_more_than_the_batches_of_the_keys(tmp_path: Path) -> None:
    topic = keyed_topic(Storage(str(tmp_path / "t")))
    everything = topic.scan().to_table()
    keys = [b"key 7", b"key 331"]
    expected = everything.filter(pc.is_in(everything["key"], pa.array(keys, pa.binary())))["offset"].to_pylist()
    clicks, texts, counters = topic.dataset(), topic.dataset(text=True), topic.storage.counters
    connection = duckdb.connect()
    connection.register("clicks", clicks)
    connection.register("texts", texts)

    def sql(query: str) -> list[int]:
        return [row[0] for row in connection.sql(query).fetchall()]

    condition = pc.field("key").isin(keys)
    reads: list[Callable[[], list[int]]] = [
        lambda: clicks.to_table(["offset"], condition)["offset"].to_pylist(),
        lambda: texts.to_table(["offset"], pc.field("key").isin(["key 7", "key 331"]))["offset"].to_pylist(),
        lambda: sql("SELECT \"offset\" FROM texts WHERE key IN ('key 7', 'key 331')"),
        lambda: sql("SELECT \"offset\" FROM clicks WHERE key = 'key 7' OR key = 'key 331'"),
        lambda: (
            pl.scan_pyarrow_dataset(texts)
            .filter((pl.col("key") == "key 7") | (pl.col("key") == "key 331"))
            .collect()["offset"]
            .to_list()
        ),
    ]
    total = sum(segment.log_bytes for segment in segments(topic))
    for read in reads:
        old_bytes = counters.bytes_read
        assert sorted(read()) == sorted(expected)
        assert counters.bytes_read - old_bytes < total / 4
    assert clicks.count_rows(condition) == len(expected)
    assert clicks.to_table(filter=condition & (pc.field("offset") < 0)).num_rows == 0
    assert clicks.count_rows(~condition) == RECORDS - len(expected)


def test_the_command_line_prints_the_records_of_keys(tmp_path: Path, cli: CommandLine) -> None:
    topic = keyed_topic(Storage(str(tmp_path / "t")))
    keys = ("--key", "key 7", "--key", "often")
    every_key = cli.bare("read", topic.url, *keys, "--format", r"%k\n").out.splitlines()
    assert set(every_key) == {"key 7", "often"}
    assert len(every_key) == topic.scan(keys=["key 7", "often"]).count()
    assert cli.bare("read", topic.url, *keys, "--limit", "3", "--format", r"%k\n").out.splitlines() == every_key[:3]
    outcome = cli.bare("read", topic.url, *keys, "--follow")
    assert outcome.status == 2
    assert "cannot be combined" in outcome.err


def test_an_older_snapshot_of_an_active_segment_has_older_records(tmp_path: Path) -> None:
    topic, snapshots = topic_on(Storage(str(tmp_path / "t")), 1, CONFIG), []
    with topic.writer() as writer:
        for number in range(4):
            writer.append(b"%d" % number, key=b"k")
            writer.flush()
            snapshots.append(topic.refresh().live_snapshot)
            assert [record.offset for record in topic.get(["k"]).values()] == [number]
    for number, snapshot in enumerate(snapshots):
        records = last_records(topic.reader, snapshot, key_array("k"), "read_committed")
        assert [record.offset for record in records.values()] == [number]


def test_a_segment_without_keys_is_not_read(tmp_path: Path) -> None:
    topic = topic_on(Storage(str(tmp_path / "t")), 1, CONFIG)
    topic.append([{"value": b"%1000d" % number, "timestamp": NOW} for number in range(400)])
    assert [segment.key_count for segment in segments(topic)] == [0]
    assert topic.scan(keys="k").slices == []
    assert topic.verify().ok
    assert not topic.rebuild_indexes().rebuilt


def test_describe_counts_the_segments_that_reads_by_key_scan(tmp_path: Path, cli: CommandLine) -> None:
    topic = keyed_topic(Storage(str(tmp_path / "t")), {**CONFIG, "key.index.enable": "false"})
    outcome = cli.bare("describe", topic.url).out
    assert "reads by key scan 6 segments: set key.index.enable, and rebuild the indexes" in outcome
    topic.alter_config({"key.index.enable": True})
    topic.rebuild_indexes()
    assert "reads by key" not in cli.bare("describe", topic.url).out
    assert cli.bare("describe", topic.url, "--json").json["segments_without_key_index"] == 0


def test_a_get_asks_the_partition_of_the_default_partitioner_first(tmp_path: Path) -> None:
    topic = topic_on(Storage(str(tmp_path / "t")), 3, CONFIG)
    names = [b"k%d" % number for number in range(30)]
    topic.append([{"key": name, "value": b"", "timestamp": NOW} for name in names])
    partitions = {name: record.partition for name, record in topic.get(names).items()}
    in_first = [name for name in names if partitions[name] == 0]
    topic.append([{"key": in_first[0], "value": b"newer", "timestamp": NOW + 5}], partition=1)
    record = topic.get(in_first[0])
    assert record is not None
    assert record[:2] == (0, 0)
    # another partitioner chose other partitions for this key
    topic = topic_on(Storage(str(tmp_path / "other")), 3, CONFIG)
    for time, partition in ((NOW + 2, 1), (NOW + 1, 2)):
        topic.append([{"key": in_first[0], "value": b"", "timestamp": time}], partition=partition)
    record = topic.get(in_first[0])
    assert record is not None
    assert (record.partition, record.timestamp) == (1, NOW + 2)


def test_a_get_returns_committed_records_and_tombstones(tmp_path: Path) -> None:
    topic = topic_on(Storage(str(tmp_path / "t")), 1, CONFIG)
    topic.append([{"key": b"a", "value": b"1"}, {"key": b"b", "value": b"1"}])
    topic.append([{"key": b"a", "value": None}])
    record = topic.get("a")
    assert record is not None
    assert record.value is None
    assert topic.get([b"a", "b", "c"]).keys() == {b"a", b"b"}


def test_a_get_of_many_keys_takes_no_older_record_from_the_batch_of_another_key(tmp_path: Path) -> None:
    def stored(offset: int, *keys: bytes, **fields: Any) -> bytes:
        records = [record(delta, 0, key, bytes(300_000)) for delta, key in enumerate(keys)]
        return batch(records, base_offset=offset, **fields)

    producer, marker = (7, 0, 0), record(0, 0, struct.pack(">hh", 0, ABORT), struct.pack(">hi", 0, 0))
    log = [
        stored(0, b"a", b"b"),
        stored(2, b"a"),
        stored(3, b"a", attributes=TRANSACTIONAL, producer=producer),
        batch([marker], base_offset=4, attributes=CONTROL | TRANSACTIONAL, producer=(7, 0, -1)),
    ]
    aborted = encode_transactions([AbortedTransaction(7, 3, 4, 5)])
    files = {".log": b"".join(log), ".txnindex": aborted}
    topic = adopt(str(tmp_path / "t"), [(0, files)], 5, config={"key.index.enable": True})
    assert topic.rebuild_indexes().rebuilt
    assert {key: record.offset for key, record in topic.refresh().get(["a", "b"]).items()} == {b"a": 2, b"b": 1}
    assert {record.offset for record in topic.get(["a"], "read_uncommitted").values()} == {3}


def test_a_get_of_many_keys_reads_near_batches_at_once(memory_url: Address) -> None:
    topic = keyed_topic(Storage(*memory_url))
    old_gets = topic.storage.counters.gets
    assert len(topic.get([b"key %d" % number for number in range(1000)])) > 500
    assert topic.storage.counters.gets - old_gets < 10 * len(segments(topic))


def test_a_small_tail_reads_few_batches_of_a_key(memory_url: Address) -> None:
    topic = keyed_topic(Storage(*memory_url))
    scan = topic.scan(keys="key 7")
    old_gets = topic.storage.counters.gets
    assert scan.tail(1).num_rows == 1
    assert topic.storage.counters.gets - old_gets <= 2 < len(scan.slices)


def test_keys_of_active_segments_are_forgotten_if_they_are_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_reader, "_MOST_PAIRS", 100)
    topic = topic_on(Storage(str(tmp_path / "t")), 3, CONFIG)
    with topic.writer() as writer:
        for row in rows(range(400)):
            writer.append(**row)
        writer.flush()
        check_keys(topic.refresh())


@pytest.mark.parametrize("keys", [3, [None], [b"k", 3], pa.array([3])])
def test_a_key_must_be_bytes_or_text(tmp_path: Path, keys: Any) -> None:
    topic = topic_on(Storage(str(tmp_path / "t")), 1)
    with pytest.raises(InvalidRecordError, match="a key must be bytes or str"):
        topic.get(keys)
    with pytest.raises(InvalidRecordError, match="a key is not valid Unicode"):
        topic.get("\ud800")
