"""Verify reports metadata of another log with right checksums."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from adopted import forget_fields
from commits import put_commit
from topics import NOW, values

import distlog
from distlog import Topic
from distlog.core.commits.actions import Add, Remove
from distlog.core.commits.segment_table import SegmentInfo


def topic_at(folder: Path) -> Topic:
    config = {"batch.bytes": 100, "index.interval.bytes": 100, "retention.ms": -1}
    topic = distlog.create(str(folder / "t"), config=config)
    topic.append(values(range(40)))
    return topic


def segment_of(topic: Topic) -> SegmentInfo:
    return topic.snapshot.partitions[0].segments[0]


def with_changes(topic: Topic, **fields: Any) -> Topic:
    """Return the topic with other metadata of its segment."""
    wrong = dataclasses.replace(segment_of(topic), **fields)
    replaced = [Remove(0, wrong.stem), Add(wrong)]
    _, snapshot = put_commit(topic.log, topic.snapshot, "rebuild", lambda _: replaced)
    topic.advance(snapshot)
    return topic


def anomalies(topic: Topic) -> list[tuple[str, str]]:
    return [(anomaly.word, anomaly.message) for anomaly in topic.verify().anomalies]


@pytest.mark.parametrize("name", ["first_batch_crc", "last_batch_crc", "crc32c"])
def test_the_identity_of_a_log_is_compared(tmp_path: Path, name: str) -> None:
    topic = topic_at(tmp_path)
    right = getattr(segment_of(topic), name)
    with_changes(topic, **{name: right ^ 1})
    assert anomalies(topic) == [("metadata_mismatch", f"{name} is {right ^ 1} in the metadata, {right} in the log")]


@pytest.mark.parametrize("suffix", ["offset_index", "time_index"])
def test_the_checksum_of_each_index_is_compared(tmp_path: Path, suffix: str) -> None:
    topic = topic_at(tmp_path)
    with_changes(topic, **{f"{suffix}_crc32c": 1})
    ((word, message),) = anomalies(topic)
    assert word == "corrupt_index"
    assert "the checksum of the index file differs from its segment's metadata: rebuild the index" in message


def test_a_record_older_than_the_metadata_is_reported(tmp_path: Path) -> None:
    topic = with_changes(topic_at(tmp_path), min_timestamp=NOW - 5)
    assert topic.verify().ok, "a bound need not be met"
    with_changes(topic, min_timestamp=NOW + 1)
    ((word, message),) = anomalies(topic)
    assert (word, message) == (
        "metadata_mismatch",
        f"min_timestamp is {NOW + 1} in the metadata, {NOW} in the log",
    )


def test_unknown_fields_are_not_reported(tmp_path: Path) -> None:
    topic = with_changes(forget_fields(topic_at(tmp_path)), min_timestamp=-1)
    assert topic.verify().ok
