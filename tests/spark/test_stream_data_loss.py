"""Streams over missing records: deleted, truncated, of a dropped topic, or compacted."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest
from compacting import CompactedTopic
from streams import Stream, add_partition, append, delete_before, span
from streams import topic as topic
from vacuuming import World

import distlog
from distlog import Topic
from distlog.core.errors import (
    OffsetOutOfRangeError,
    SnapshotTooOldError,
    TopicNotFoundError,
)
from distlog.spark import stream_plan


def test_records_lost_before_a_new_partition_is_read_are_data_loss(topic: Topic) -> None:
    stream = Stream(topic.url)
    stream.run()
    add_partition(topic)
    append(topic, 2, 3)
    delete_before(topic, 2, 2)
    with pytest.raises(OffsetOutOfRangeError, match="partition=2 offset=0 log_start_offset=2"):
        stream.run()
    stream.restart(failOnDataLoss="false")
    assert stream.run() == {2: [2]}


def test_deleted_unread_records_fail_the_stream_or_warn(topic: Topic, caplog: pytest.LogCaptureFixture) -> None:
    stream = Stream(topic.url, startingOffsets='{"clicks": {"0": 1, "1": 5}}', maxOffsetsPerTrigger=1)
    assert stream.run() == {0: [1]}
    delete_before(topic, 0, 4)
    with pytest.raises(OffsetOutOfRangeError) as raised:
        stream.run()
    assert str(raised.value).endswith("(partition=0 offset=2 log_start_offset=4 log_end_offset=5)")
    assert "failOnDataLoss=false" in str(raised.value)
    stream.restart(failOnDataLoss="false")
    with caplog.at_level(logging.WARNING, "distlog"):
        assert stream.run() == {0: [4]}
        assert stream.run() is None
    (warning,) = {record.message for record in caplog.records}
    assert "the stream continues" in warning
    assert "partition=0 offset=2 log_start_offset=4" in warning


def test_deleted_planned_records_fail_the_replay_or_are_skipped(topic: Topic) -> None:
    stream = Stream(topic.url, startingOffsets="earliest")
    assert stream.plan()
    delete_before(topic, 1, 3)
    stream.restart()
    with pytest.raises(OffsetOutOfRangeError, match="partition=1 offset=0 log_start_offset=3"):
        stream.run()
    stream.restart(failOnDataLoss="false")
    assert stream.run() == {0: span(0, 5), 1: [3, 4]}


def cut(topic: Topic, old_folder: Path) -> None:
    """Replace the topic by its copy `old_folder`, as a power loss would."""
    shutil.rmtree(topic.url)
    shutil.copytree(old_folder, topic.url)


@pytest.fixture
def tail(topic: Topic, tmp_path: Path) -> Path:
    """Return a copy of the topic with offset 5 in the active segment of partition 0, and append offsets 6 and 7."""
    with topic.writer() as writer:
        writer.append(b"v", partition=0)
    shutil.copytree(topic.url, tmp_path / "before")
    with topic.writer() as writer:
        writer.append(b"v", partition=0)
        writer.append(b"v", partition=0)
    return tmp_path / "before"


def test_a_log_that_ends_before_the_position_fails_the_stream_or_resets_it(
    topic: Topic, tail: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stream = Stream(topic.url, startingOffsets='{"clicks": {"0": 4, "1": 5}}')
    assert stream.run() == {0: [4, 5, 6, 7]}
    cut(topic, tail)
    with pytest.raises(OffsetOutOfRangeError, match=r"power loss.*partition=0 offset=8 .*log_end_offset=6"):
        stream.run()
    stream.restart(failOnDataLoss="false")
    assert stream.run() == {}
    append(topic, 0, 1)
    assert stream.run() == {0: [6]}
    assert "log_end_offset=6" in caplog.text


def test_a_truncated_batch_is_never_replayed_silently(topic: Topic, tail: Path) -> None:
    stream = Stream(topic.url, startingOffsets='{"clicks": {"0": 4, "1": 5}}')
    assert stream.plan()
    cut(topic, tail)
    stream.restart()
    with pytest.raises(OffsetOutOfRangeError, match=r"power loss.*partition=0 offset=8 .*log_end_offset=6"):
        stream.run()
    stream.restart(failOnDataLoss="false")
    assert stream.run() == {0: [4, 5]}
    assert stream.run() == {}
    append(topic, 0, 2)
    assert stream.run() == {0: [6, 7]}


def test_a_dropped_topic_fails_the_stream_or_pauses_it(topic: Topic, caplog: pytest.LogCaptureFixture) -> None:
    stream = Stream(topic.url, startingOffsets="earliest")
    stream.run()
    topic.drop()
    with pytest.raises(TopicNotFoundError, match="was dropped: "):
        stream.run()
    stream.restart(failOnDataLoss="false", assign='{"clicks": [1]}')
    for _ in range(3):
        assert stream.run() is None
    assert len([record for record in caplog.records if "continues" in record.message]) == 1
    append(distlog.create(topic.url, 2), 1, 2)
    assert stream.run() == {1: [0, 1]}


def test_a_recreated_topic_fails_the_stream_or_is_read_from_its_start(topic: Topic) -> None:
    stream = Stream(topic.url, startingOffsets="earliest")
    stream.run()
    topic.drop()
    again = distlog.create(topic.url, 3)
    append(again, 0, 9)
    append(again, 2, 1)
    for restart in (lambda: None, stream.restart):
        restart()
        with pytest.raises(TopicNotFoundError, match="dropped and created again"):
            stream.run()
    stream.restart(failOnDataLoss="false")
    assert stream.plan()
    stream.restart()
    assert stream.run() == {0: span(0, 9), 2: [0]}
    append(again, 1, 1)
    assert stream.run() == {1: [0]}


def test_a_checkpoint_of_another_topic_is_refused(topic: Topic) -> None:
    append(topic, 0, 3)
    stream = Stream(topic.url, startingOffsets="earliest")
    stream.run()
    views = distlog.create(topic.url.replace("clicks", "views"), 2)
    append(views, 1, 2)
    stream.restart(path=views.url)
    with pytest.raises(TopicNotFoundError, match=r"the checkpoint is of another topic, clicks: .*topic=views"):
        stream.run()
    stream.restart(failOnDataLoss="false")
    assert stream.run() == {1: [0, 1]}


def test_a_batch_of_a_dropped_topic_is_empty_if_records_may_be_lost(topic: Topic) -> None:
    stream = Stream(topic.url, startingOffsets="earliest")
    stream.plan()
    topic.drop()
    append(distlog.create(topic.url, 2), 0, 2)
    stream.restart()
    with pytest.raises(TopicNotFoundError, match="dropped and created again"):
        stream.run()
    stream.restart(failOnDataLoss="false")
    assert stream.run() == {}
    assert stream.run() == {0: [0, 1]}


@pytest.mark.parametrize("records", [1, 9])
def test_a_recreated_folder_is_another_topic_to_a_running_stream(topic: Topic, records: int) -> None:
    stream = Stream(topic.url, startingOffsets="earliest")
    stream.run()
    shutil.rmtree(topic.url)
    again = distlog.create(topic.url, 2)
    for _ in range(records):
        append(again, 0, 1)
    stream.clock.now += stream_plan.EXISTENCE_CHECK_S
    with pytest.raises(TopicNotFoundError, match="dropped and created again"):
        stream.run()
    stream.restart(failOnDataLoss="false")
    assert stream.run() == {0: span(0, records)}


def test_a_deleted_folder_ends_a_running_stream(topic: Topic) -> None:
    stream = Stream(topic.url, startingOffsets="earliest")
    stream.run()
    shutil.rmtree(topic.url)
    stream.clock.now += stream_plan.EXISTENCE_CHECK_S
    for _ in range(2):
        with pytest.raises(TopicNotFoundError, match="there is no topic here"):
            stream.run()


def test_partitions_that_are_not_assigned_any_more_are_data_loss(topic: Topic) -> None:
    stream = Stream(topic.url, startingOffsets="earliest")
    stream.run()
    append(topic, 0, 1)
    stream.restart(assign='{"clicks": [0]}')
    with pytest.raises(TopicNotFoundError, match=r"check the option assign.*partition=1"):
        stream.run()
    stream.restart(failOnDataLoss="false")
    assert stream.run() == {0: [5]}


def test_a_batch_is_planned_again_after_a_compaction_and_a_vacuum(tmp_path: Path) -> None:
    world = World(str(tmp_path / "clicks"))
    for _ in range(3):
        world.append()
    stream = Stream(world.storage.url, startingOffsets="earliest")
    assert stream.plan()
    planned = stream.partitions()
    world.topic().compact()
    world.wait()
    world.vacuum()
    with pytest.raises(SnapshotTooOldError, match="vacuum deletes"):
        stream.rows(planned)
    stream.restart()
    read_offsets = stream.run()
    assert read_offsets is not None
    assert sum(map(len, read_offsets.values())) == 3


def test_offsets_dropped_by_compaction_are_not_data_loss(tmp_path: Path) -> None:
    log = CompactedTopic(str(tmp_path / "log"))
    for number in range(6):
        log.append((b"%d" % (number % 2), b"v"))
    stream = Stream(str(tmp_path / "log"), startingOffsets="earliest", maxOffsetsPerTrigger=2)
    assert stream.run() == {0: [0, 1]}
    log.compact()
    offsets = [row.offset for row in log.topic().records(partition=0)]
    assert len(offsets) < 6
    assert [offset for batch in stream.drain() for offset in batch.get(0, [])] == [n for n in offsets if n >= 2]
