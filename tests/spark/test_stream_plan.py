"""The batches of a stream: the source's offsets and splits, as Spark requests them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from compacting import CompactedTopic
from producers import Producers
from pyspark.sql.datasource import InputPartition
from streams import Read, Seconds, Stream, add_partition, append, delete_before, span
from streams import topic as topic
from topics import NOW

import distlog
from distlog import Topic
from distlog.core.errors import (
    InvalidConfigError,
    OffsetOutOfRangeError,
    TopicNotFoundError,
    UnsupportedVersionError,
)


@pytest.mark.parametrize(
    ("options", "first"),
    [
        ({}, {}),
        ({"startingOffsets": "latest"}, {}),
        ({"startingOffsets": "earliest"}, {0: span(0, 5), 1: span(0, 5)}),
        ({"startingOffsets": '{"clicks": {"0": 3, "1": -1}}'}, {0: [3, 4]}),
        ({"startingOffsets": '{"clicks": {"0": -2, "1": 5}}'}, {0: span(0, 5)}),
        ({"startingTimestamp": NOW + 2}, {0: [2, 3, 4], 1: [2, 3, 4]}),
        (
            {"startingOffsetsByTimestamp": json.dumps({"clicks": {"0": NOW + 4, "1": NOW + 1}})},
            {0: [4], 1: [1, 2, 3, 4]},
        ),
        ({"startingTimestamp": NOW + 9, "startingOffsetsByTimestampStrategy": "latest"}, {}),
        ({"startingOffsets": "earliest", "assign": '{"clicks": [1]}'}, {1: span(0, 5)}),
        ({"startingOffsets": "earliest", "subscribe": "clicks"}, {0: span(0, 5), 1: span(0, 5)}),
    ],
)
def test_a_stream_starts_at_the_offsets_of_its_options(topic: Topic, options: dict[str, Any], first: Read) -> None:
    stream = Stream(topic.url, **options)
    assert stream.run() == first
    assert stream.run() is None


def test_a_start_at_a_time_after_the_last_record_is_an_error_unless_it_means_the_end(topic: Topic) -> None:
    with pytest.raises(InvalidConfigError, match="startingOffsetsByTimestampStrategy=latest"):
        Stream(topic.url, startingTimestamp=NOW + 9).run()


def test_a_start_that_the_log_does_not_hold_is_an_error_or_the_nearest_offset(topic: Topic) -> None:
    start = {"startingOffsets": '{"clicks": {"0": 6, "1": 4}}'}
    with pytest.raises(
        OffsetOutOfRangeError, match=r"between its bounds.*offset=6 log_start_offset=0 log_end_offset=5"
    ):
        Stream(topic.url, **start).run()
    assert Stream(topic.url, failOnDataLoss="false", **start).run() == {1: [4]}


def test_starts_for_some_partitions_only_are_refused(topic: Topic) -> None:
    with pytest.raises(InvalidConfigError, match="a number for every partition"):
        Stream(topic.url, startingOffsets='{"clicks": {"0": 1}}').run()


def test_a_replay_of_the_first_batch_ignores_the_options(topic: Topic) -> None:
    stream = Stream(topic.url, startingOffsets='{"clicks": {"0": 3, "1": 5}}')
    assert stream.plan()
    append(topic, 0, 2)
    stream.restart(startingOffsets="latest")
    assert stream.run() == {0: [3, 4]}
    assert stream.run() == {0: [5, 6]}


def test_latest_is_resolved_once(topic: Topic) -> None:
    stream = Stream(topic.url)
    stream.reader.latestOffset(stream.reader.initialOffset(), stream.reader.getDefaultReadLimit())
    append(topic, 1, 2)
    assert stream.run() == {1: [5, 6]}


def test_batches_follow_each_other_without_gap_or_repetition(topic: Topic) -> None:
    stream = Stream(topic.url, startingOffsets="earliest")
    assert stream.run() == {0: span(0, 5), 1: span(0, 5)}
    append(topic, 0, 2)
    assert stream.run() == {0: [5, 6]}
    append(topic, 1, 1)
    append(topic, 0, 1)
    assert stream.run() == {0: [7], 1: [5]}
    assert stream.run() is None


def test_the_offsets_are_kafkas_json_with_the_topics_id_and_the_starts_once(topic: Topic) -> None:
    stream = Stream(topic.url, startingOffsets="earliest")
    stream.run()
    append(topic, 0, 1)
    stream.run()
    topic_id = topic.snapshot.topic_id
    first = f'{{"version": 1, "topicId": "{topic_id}", "offsets": {{"clicks": {{"0": 5, "1": 5}}}}'
    assert stream.log[0] == first + ', "starts": {"clicks": {"0": 0, "1": 0}}}'
    assert stream.log[1] == first.replace('"0": 5', '"0": 6') + "}"


def test_direct_appends_are_read_in_the_next_batch(topic: Topic) -> None:
    stream = Stream(topic.url)
    assert stream.run() == {}
    with topic.writer() as writer:
        for number in range(3):
            for _ in range(4):
                writer.append(b"v", partition=1)
            writer.flush()
            assert stream.run() == {1: span(5 + 4 * number, 9 + 4 * number)}
        assert stream.run() is None


def test_a_replay_reads_the_same_records_of_a_growing_segment(topic: Topic) -> None:
    stream = Stream(topic.url)
    stream.run()
    with topic.writer() as writer:
        writer.append(b"v", partition=0)
        writer.flush()
        assert stream.plan()
        writer.append(b"v", partition=0)
        writer.flush()
        stream.restart()
        assert stream.run() == {0: [5]}
    topic.refresh().alter_config({"retention.ms": "-1"})
    assert stream.run() == {0: [6]}


def test_small_batches_are_one_task_and_minPartitions_asks_for_more(topic: Topic) -> None:  # noqa: N802
    stream = Stream(topic.url, startingOffsets="earliest")
    stream.run()
    assert stream.splits == 1
    for options in ({"minPartitions": 4}, {"maxRecordsPerPartition": 3}):
        stream = Stream(topic.url, startingOffsets="earliest", **options)
        assert stream.run() == {0: span(0, 5), 1: span(0, 5)}
        assert stream.splits >= 4


def test_an_empty_batch_reads_nothing(topic: Topic) -> None:
    stream = Stream(topic.url)
    assert stream.plan()
    assert stream.partitions() == []
    assert stream.rows([InputPartition(None)]) == []
    full = Stream(topic.url, startingOffsets="earliest")
    assert full.plan()
    end = json.loads(full.log[-1])
    assert full.reader.partitions(end, end) == []


def test_a_stream_of_committed_records_ends_before_the_first_open_transaction(tmp_path: Path) -> None:
    log = CompactedTopic(str(tmp_path / "log"))
    producers = Producers(log)
    producers.plain(1).send(1, 1, 2).abort(1).send(2, 3).plain(4).roll()
    stream = Stream(str(tmp_path / "log"), startingOffsets="earliest", **{"kafka.isolation.level": "read_committed"})
    assert stream.run() == {0: [0]}
    assert json.loads(stream.log[-1])["offsets"] == {"log": {"0": 4}}
    assert stream.reader.reportLatestOffset()["offsets"] == {"log": {"0": 4}}
    assert stream.run() is None
    producers.commit(2).roll()
    assert stream.run() == {0: [4, 5]}
    everything = Stream(str(tmp_path / "log"), startingOffsets="earliest")
    assert everything.run() == {0: [0, 1, 2, 4, 5]}


def test_a_batch_that_was_planned_into_an_open_transaction_is_not_replayed_as_read_committed(tmp_path: Path) -> None:
    log = CompactedTopic(str(tmp_path / "log"))
    Producers(log).plain(1).send(2, 3).roll()
    stream = Stream(str(tmp_path / "log"), startingOffsets="earliest")
    assert stream.plan()
    stream.restart(**{"kafka.isolation.level": "read_committed"})
    with pytest.raises(InvalidConfigError, match="open transaction"):
        stream.run()


def test_a_trigger_for_everything_ignores_the_limits(topic: Topic) -> None:
    stream = Stream(topic.url, startingOffsets="earliest", maxOffsetsPerTrigger=2, minOffsetsPerTrigger=2)
    assert stream.run(everything=True) == {0: span(0, 5), 1: span(0, 5)}


def test_a_batch_waits_for_enough_offsets_or_long_enough(topic: Topic) -> None:
    clock = Seconds()
    stream = Stream(topic.url, clock, minOffsetsPerTrigger=4, maxTriggerDelay="90s", maxOffsetsPerTrigger=5)
    assert stream.run() == {}
    append(topic, 0, 3)
    clock.now = 89
    assert stream.run() is None
    append(topic, 1, 1)
    assert stream.run() == {0: [5, 6, 7], 1: [5]}
    append(topic, 0, 1)
    clock.now = 89 + 89
    assert stream.run() is None
    clock.now = 89 + 90
    assert stream.run() == {0: [8]}
    append(topic, 0, 1)
    assert stream.run() is None
    stream.clock = clock = Seconds()
    stream.restart()
    assert stream.run() == {0: [9]}


def test_both_limits_hold_together(tmp_path: Path) -> None:
    topic = distlog.create(str(tmp_path / "clicks"))
    for _ in range(10):
        append(topic, 0, 10)
    size = int(topic.snapshot.partitions[0].segments.log_bytes.sum())
    few_bytes = Stream(
        topic.url, startingOffsets="earliest", maxOffsetsPerTrigger=90, maxBytesPerTrigger=size * 3 // 10
    )
    assert few_bytes.run() == {0: span(0, 30)}
    few_offsets = Stream(topic.url, startingOffsets="earliest", maxOffsetsPerTrigger=15, maxBytesPerTrigger=size)
    assert few_offsets.run() == {0: span(0, 15)}


def test_available_now_ends_where_the_topic_ended_when_it_began(topic: Topic) -> None:
    stream = Stream(topic.url, startingOffsets="earliest", maxOffsetsPerTrigger=4, minOffsetsPerTrigger=4)
    stream.available_now()
    assert stream.run() == {0: [0, 1], 1: [0, 1]}
    append(topic, 0, 5)
    add_partition(topic)
    append(topic, 2, 1)
    assert stream.reader.reportLatestOffset()["offsets"] == {"clicks": {"0": 5, "1": 5}}
    assert stream.drain() == [{0: [2, 3], 1: [2, 3]}, {0: [4], 1: [4]}]
    stream.restart()
    stream.available_now()
    assert stream.drain() == [{0: [5, 6, 7], 2: [0]}, {0: [8, 9]}]


def test_available_now_does_not_read_a_topic_that_was_created_after_it_began(topic: Topic) -> None:
    stream = Stream(topic.url, startingOffsets="earliest", maxOffsetsPerTrigger=4, failOnDataLoss="false")
    stream.available_now()
    stream.run()
    topic.drop()
    append(distlog.create(topic.url, 2), 0, 3)
    assert stream.run() is None
    stream.restart()
    stream.available_now()
    assert stream.drain() == [{0: [0, 1, 2]}]


def test_a_partition_that_is_added_is_read_from_its_log_start(topic: Topic) -> None:
    stream = Stream(topic.url)
    stream.run()
    add_partition(topic)
    append(topic, 2, 3)
    assert stream.run() == {2: [0, 1, 2]}
    assert json.loads(stream.log[-1])["starts"] == {"clicks": {"2": 0}}
    assert Stream(topic.url, startingOffsets="earliest", assign='{"clicks": [0]}').run() == {0: span(0, 5)}


def test_a_batch_with_a_new_partition_is_replayed_from_the_same_start(topic: Topic) -> None:
    stream = Stream(topic.url)
    stream.run()
    add_partition(topic)
    append(topic, 2, 3)
    assert stream.plan()
    delete_before(topic, 2, 1)
    stream.restart()
    with pytest.raises(OffsetOutOfRangeError, match="partition=2 offset=0 log_start_offset=1 log_end_offset=3"):
        stream.run()


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        '{"clicks": 5}',
        '{"clicks": {"0": -1}}',
        '{"version": 1}',
        '{"version": "1", "topicId": "x", "offsets": {"clicks": {}}}',
    ]
    + ['{"version": 1, "topicId": "", "offsets": {"clicks": {"0": 5}}}']
    + [
        '{"version": 1, "topicId": "x", "offsets": ' + part + "}"
        for part in (
            "5",
            "{}",
            '{"clicks": 5}',
            '{"clicks": {"0": -1}}',
            '{"clicks": {"a": 1}}',
            '{"a": {}, "b": {}}',
        )
    ]
    + ['{"version": 1, "topicId": "x", "offsets": {"clicks": {"0": 1}}, "starts": {"clicks": {"0": true}}}'],
)
def test_a_checkpoint_of_another_source_is_refused(topic: Topic, text: str) -> None:
    stream = Stream(topic.url)
    stream.log, stream.committed = [text], 1
    with pytest.raises(InvalidConfigError, match="no offset of a distlog stream"):
        stream.run()


def test_a_checkpoint_of_a_newer_library_is_refused(topic: Topic) -> None:
    stream = Stream(topic.url)
    stream.log, stream.committed = ['{"version": 2}'], 1
    with pytest.raises(UnsupportedVersionError, match="upgrade"):
        stream.run()


def of_kafka(topic: Topic, *log: str, committed: int, **options: Any) -> Stream:
    """Return a stream from offsets that Spark's Kafka source wrote."""
    stream = Stream(topic.url, **options)
    stream.log, stream.committed = list(log), committed
    return stream


def test_a_checkpoint_of_kafkas_source_is_continued_and_converted(topic: Topic) -> None:
    stream = of_kafka(topic, '{"clicks":{"1":5,"0":3}}', committed=1)
    assert stream.run() == {0: [3, 4]}
    ours = json.loads(stream.log[-1])
    assert (ours["topicId"], ours["offsets"]) == (topic.snapshot.topic_id, {"clicks": {"0": 5, "1": 5}})
    stream.restart()
    assert stream.run() is None
    append(topic, 1, 1)
    assert stream.run() == {1: [5]}


def test_an_idle_checkpoint_of_kafkas_source_gets_the_topic_id(topic: Topic) -> None:
    for options in ({}, {"minOffsetsPerTrigger": 4}):
        stream = of_kafka(topic, '{"clicks":{"1":5,"0":5}}', committed=1, **options)
        assert stream.run() == {}
        assert json.loads(stream.log[-1])["topicId"] == topic.snapshot.topic_id
        assert stream.run() is None


def test_a_batch_started_by_kafkas_source_is_read_as_it_was(topic: Topic) -> None:
    stream = of_kafka(topic, '{"clicks":{"0":3}}', '{"clicks":{"1":2,"0":4}}', committed=1)
    append(topic, 0, 2)
    assert stream.run() == {0: [3], 1: [0, 1]}
    assert stream.run() == {0: [4, 5, 6], 1: [2, 3, 4]}


def test_an_unfinished_first_batch_of_kafkas_source_is_refused(topic: Topic) -> None:
    with pytest.raises(InvalidConfigError, match="finish it there"):
        of_kafka(topic, '{"clicks":{"1":2,"0":4}}', committed=0, startingOffsets="earliest").run()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"orders":{"0":3}}', "about another topic.*topic=orders expected=clicks"),
        ('{"clicks":{"0":3,"1":5},"orders":{"0":3}}', "several topics"),
    ],
)
def test_a_checkpoint_of_kafkas_source_about_another_topic_is_refused(topic: Topic, text: str, reason: str) -> None:
    with pytest.raises(InvalidConfigError, match=reason):
        of_kafka(topic, text, committed=1).run()


def test_missing_offsets_of_kafka_are_data_loss(topic: Topic) -> None:
    with pytest.raises(OffsetOutOfRangeError, match="partition=0 offset=300"):
        of_kafka(topic, '{"clicks":{"1":5,"0":300}}', committed=1).run()
    with pytest.raises(TopicNotFoundError, match="partition=2"):
        of_kafka(topic, '{"clicks":{"2":5,"1":5,"0":5}}', committed=1).run()
    delete_before(topic, 1, 2)
    with pytest.raises(OffsetOutOfRangeError, match="partition=1 offset=0"):
        of_kafka(topic, '{"clicks":{"0":3}}', '{"clicks":{"1":3,"0":4}}', committed=1).run()
