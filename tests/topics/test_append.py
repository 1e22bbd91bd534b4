"""Appends: files first, then one commit that assigns the offsets; races, replays, and refused commits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from commits import put_commit
from topics import NOW, TINY, Clock, contents, files, named_files, stored, topic_on, values
from uncommitted import committed, written
from uncommitted import local as local
from uncommitted import storage as storage

from distlog.core.commits.actions import SetVacuumHorizon
from distlog.core.errors import (
    InvalidRecordError,
    TransactionTooOldError,
)
from distlog.core.format.record_batch import HEADERS_TYPE
from distlog.core.storage.storage import Storage
from distlog.core.write.append import AppendResult


def test_an_append_is_invisible_until_it_is_committed(storage: Storage) -> None:
    topic = topic_on(storage, 2, TINY)
    segments = written(topic, *values(range(50)), partition=1)
    assert len(segments) > 1
    assert topic.refresh().version == 0
    assert committed(topic, segments) == AppendResult(1, {1: (0, 50)})
    assert contents(topic_on(storage)) == {0: [], 1: [b"v%d" % number for number in range(50)]}
    assert files(storage) == named_files(topic)


def test_a_stream_whose_rows_are_refused_is_closed(storage: Storage) -> None:
    duckdb = pytest.importorskip("duckdb")
    topic, connection = topic_on(storage, 2, TINY), duckdb.connect()
    # the error's traceback holds the stream, as in a notebook
    with pytest.raises(InvalidRecordError, match="unknown column n") as refused:
        topic.append(connection.sql("SELECT 'a' AS value, 1 AS n"))
    assert connection.sql("SELECT 1").fetchall() == [(1,)], refused


def test_the_offsets_of_a_result_equal_the_readers_offsets(local: Storage) -> None:
    topic = topic_on(local, 3, TINY)
    for _ in range(3):
        result = topic.append([{"key": b"k%d" % number, "value": b"%d" % number} for number in range(100)])
        for partition, (first, end) in result.offsets.items():
            assert topic.scan([partition], first, end).count() == end - first
        assert result.record_count == 100
    assert topic.end_offsets() == {partition: end for partition, (_, end) in result.offsets.items()}


def test_a_commit_that_lost_a_race_moves_its_offsets_and_writes_no_file_again(storage: Storage) -> None:
    first, second = topic_on(storage, 2, TINY), topic_on(storage)
    mine, theirs = (
        written(first, *values(range(40)), partition=0),
        written(second, *values(range(40, 90)), partition=0),
    )
    names = files(storage)
    assert committed(second, theirs).offsets == {0: (0, 50)}
    assert committed(first, mine) == AppendResult(2, {0: (50, 90)})
    assert files(storage) == names
    assert contents(first) == {0: [b"v%d" % number for number in (*range(40, 90), *range(40))], 1: []}
    assert first.offsets_for_times(NOW + 5)[0] == (0, NOW + 40)
    assert first.scan([0], start=50).to_table()["timestamp"][5].value == NOW + 5


def test_segments_are_committed_by_partition_then_in_order(local: Storage) -> None:
    topic = topic_on(local, 3, TINY)
    appender = topic.appender()
    for partition in (2, 0, 1):
        appender.append(values(range(90)), partition)
    segments = appender.close()
    assert [segment.partition for segment in segments] == sorted(segment.partition for segment in segments)
    assert len(segments) > 3


def test_appends_to_other_partitions_do_not_move(local: Storage) -> None:
    first, second = topic_on(local, 2), topic_on(local)
    mine = written(first, *values(range(3)), partition=0)
    assert second.append(values(range(5)), 1).offsets == {1: (0, 5)}
    assert committed(first, mine).offsets == {0: (0, 3)}


def test_files_older_than_the_vacuum_horizon_are_refused(storage: Storage) -> None:
    topic, vacuum = topic_on(storage, 1), topic_on(storage)
    segments = written(topic, *values([1]))
    vacuum.append(values([0]))
    put_commit(vacuum.log, vacuum.snapshot, "gc", lambda snapshot: [SetVacuumHorizon(1)])
    with pytest.raises(TransactionTooOldError, match="write them again"):
        committed(topic, segments)
    assert contents(topic.refresh()) == {0: [b"v0"]}
    assert committed(topic, written(topic, *values([1]))).offsets == {0: (1, 2)}


def test_files_at_the_vacuum_horizon_are_accepted(local: Storage) -> None:
    topic, vacuum = topic_on(local, 1), topic_on(local)
    segments = written(topic, *values([1]))
    put_commit(vacuum.log, vacuum.snapshot, "gc", lambda snapshot: [SetVacuumHorizon(0)])
    assert committed(topic, segments).offsets == {0: (0, 1)}


def test_a_record_of_a_mebibyte_is_refused_with_the_limit(local: Storage) -> None:
    topic = topic_on(local, 1)
    refused = r"max.message.bytes.*[ (]size=10486\d\d .*limit=1048588\)"
    with pytest.raises(InvalidRecordError, match=refused):
        topic.append([{"value": bytes(1 << 20)}])
    with topic.writer() as writer, pytest.raises(InvalidRecordError, match=refused):
        writer.append(bytes(1 << 20))
    topic.append([{"value": bytes((1 << 20) - 100)}])
    assert topic.refresh().end_offsets() == {0: 1}


@pytest.mark.parametrize(
    ("data", "partition", "message"),
    [
        ([*values(range(70_000)), {"value": 3}], None, "row=70000"),
        (pa.table({"value": [b"x" * 900] * 10_000, "timestamp": [NOW] * 9_999 + [-2]}), None, "row=9999 "),
        (pa.table({"value": [b"x" * 900] * 10_000, "partition": [0] * 9_999 + [2]}), None, "row=9999"),
        ([{"value": b"", "partition": 0}, {"value": b"", "partition": 2}], None, "from 0 to 1.*row=1"),
        (values([1]), 2, "from 0 to 1"),
        (values([1]), -1, "from 0 to 1"),
        (values([1]), "1", "a partition must be an integer"),
        ([{"value": b"", "timestamp": -2}], None, "row=0"),
        (
            [{"value": b""}, {"value": b"x" * 2000}],
            1,
            "above max.message.bytes,.*partition=1 row_of_partition=1.*limit=1000",
        ),
        (pa.table({"value": [b"v"], "vlaue": [b"v"]}), None, "unknown column vlaue"),
        (
            pa.table({"value": [b""] * 2, "headers": pa.array([None, [{"key": None, "value": b""}]], HEADERS_TYPE)}),
            0,
            "the key of a header is null .*row_of_partition=1",
        ),
    ],
)
def test_a_refused_record_leaves_the_topic_unchanged(data: Any, partition: Any, message: str, local: Storage) -> None:
    topic = topic_on(local, 2, {"max.message.bytes": "1000"})
    with pytest.raises(InvalidRecordError, match=message):
        topic.append(data, partition)
    assert topic.refresh().version == 0
    assert contents(topic) == {0: [], 1: []}


def test_a_failing_input_leaves_the_topic_unchanged_and_no_file_open(local: Storage) -> None:
    topic = topic_on(local, 2)

    def broken() -> Iterator[dict[str, Any]]:
        for number in range(40):
            yield {"value": b"x" * 100_000, "partition": number % 2}
        raise KeyError("the source broke")

    open_files = set(Path("/proc/self/fd").iterdir())
    with pytest.raises(KeyError):
        topic.append(broken())
    assert topic.refresh().version == 0
    assert {name for name in Path("/proc/self/fd").iterdir() if name.exists()} <= open_files
    assert files(local) == set()


def test_batches_have_the_compression_of_the_topic(local: Storage) -> None:
    topic = topic_on(local, 1)
    rows = [{"value": b"abc" * 100, "timestamp": NOW}] * 200
    for number, codec in enumerate(("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd")):
        topic.alter_config({"compression.type": codec})
        topic.append(rows)
        segment = topic.snapshot.partitions[0].segments[number]
        assert segment.compression == ("none" if number < 2 else codec)
        assert (segment.log_bytes < 10_000) == (number >= 2)
    assert topic.scan(columns=["value"]).to_table()["value"].unique().to_pylist() == [b"abc" * 100]


def test_log_append_time_is_that_of_the_commit(local: Storage) -> None:
    clock = Clock()
    topic = topic_on(local, 1, {"message.timestamp.type": "LogAppendTime"}, clock)
    topic.append(values(range(3)))
    clock.now_ms = NOW + 500
    topic.append(values(range(3)))
    rows = stored(topic.scan().to_table())
    # each commit is later than the previous one, including the creation of the topic
    assert [(row["timestamp"], row["timestamp_type"]) for row in rows] == [(NOW + 1, 1)] * 3 + [(NOW + 500, 1)] * 3
    assert topic.offsets_for_times(NOW + 2) == {0: (3, NOW + 500)}


def test_a_file_name_has_the_start_version_of_its_append(local: Storage) -> None:
    topic = topic_on(local, 1)
    for number in range(3):
        topic.append(values([number]))
    stems = [segment.stem for segment in topic.snapshot.partitions[0].segments]
    assert [int(stem[1:21]) for stem in stems] == [0, 1, 2]


def test_small_appends_without_a_key_begin_at_any_partition(local: Storage) -> None:
    topic = topic_on(local, 3)
    for number in range(40):
        topic.append(values([number]))
    assert all(topic.end_offsets().values())


def test_records_without_a_key_fill_every_partition(local: Storage) -> None:
    topic = topic_on(local, 4)
    topic.append([{"value": b"x" * 1000}] * 2000)
    counts = [len(content) for content in contents(topic).values()]
    assert min(counts) > 300
