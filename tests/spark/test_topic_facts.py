"""What the driver tells the sink of a topic is not believed where rows, or the topic, would be lost by it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

import distlog
from distlog.core.errors import CommitConflictError, InvalidRecordError
from distlog.spark.sink import DistlogWriter, TopicFacts, WriteOptions

VALUE = StructType([StructField("value", BinaryType())])
BATCH = {"txnAppId": "job", "txnVersion": "7"}


@pytest.fixture
def topic(tmp_path: Path) -> distlog.Topic:
    return distlog.create(str(tmp_path / "clicks"))


def facts_of(topic: distlog.Topic) -> TopicFacts:
    """What the driver would tell a write of BATCH."""
    return TopicFacts.of(topic.snapshot, "job", 7)


def write(topic: distlog.Topic, facts: TopicFacts, **options: str) -> None:
    """One write of one row, by one task."""
    given: dict[str, Any] = {"path": topic.url, "topicFacts": str(facts), **options}
    writer = DistlogWriter.open(WriteOptions.parse(given), VALUE)
    writer.commit([writer.write(iter([pa.record_batch({"value": [b"a"]})]))])


def count(topic: distlog.Topic) -> int:
    return int(topic.refresh().scan().to_table().num_rows)


def test_what_the_driver_saw_may_be_old(topic: distlog.Topic) -> None:
    facts = facts_of(topic)
    topic.append([{"value": b"other"}])
    write(topic, facts)
    assert count(topic) == 2


@pytest.mark.parametrize("wrong", [{"name": "orders"}, {"version": 1}, {"version": 2**63 - 1}])
def test_facts_that_cannot_be_the_topics_are_refused(topic: distlog.Topic, wrong: dict[str, Any]) -> None:
    with pytest.raises(CommitConflictError, match="topicFacts does not fit the topic"):
        write(topic, replace(facts_of(topic), **wrong))
    assert topic.refresh().version == 0


def test_facts_of_a_topic_that_was_created_again_are_refused(topic: distlog.Topic) -> None:
    facts = facts_of(topic)
    topic.drop()
    again = distlog.create(topic.url)
    with pytest.raises(CommitConflictError, match="created again"):
        write(again, facts)
    assert count(again) == 0


@pytest.mark.parametrize("options", [{}, {**BATCH, "txnVersion": "8"}, {**BATCH, "txnAppId": "other"}])
def test_rows_are_left_out_only_of_the_batch_that_was_done(topic: distlog.Topic, options: dict[str, str]) -> None:
    topic.append([{"value": b"a"}], app_id="job", batch_id=7)
    facts = facts_of(topic)
    write(topic, facts, **BATCH)
    assert count(topic) == 1
    with pytest.raises(CommitConflictError, match="wrongly says"):
        write(topic, facts, **options)


@pytest.mark.parametrize("version", [0, 1, 99])
def test_a_batch_that_was_not_done_where_the_facts_say_is_refused(topic: distlog.Topic, version: int) -> None:
    topic.append([{"value": b"a"}], app_id="job", batch_id=6)
    with pytest.raises(CommitConflictError, match="wrongly says"):
        write(topic, replace(facts_of(topic), done_in=version), **BATCH)


@pytest.mark.parametrize("wrong", [{"txnAppId": ""}, {"txnAppId": "x" * 1001}, {"txnVersion": "9" * 5000}])
def test_ids_that_no_commit_can_hold_are_refused_before_any_task(wrong: dict[str, str]) -> None:
    with pytest.raises(InvalidRecordError, match="give app_id and batch_id together"):
        WriteOptions.parse({"path": "memory://facts/clicks", **BATCH, **wrong})


@pytest.mark.parametrize(("given", "is_stream"), [({"txnVersion": "1"}, False), ({}, True)])
def test_a_write_cannot_pass_for_a_producer(given: dict[str, str], is_stream: bool) -> None:
    with pytest.raises(InvalidRecordError, match="are distlog's own: give another app_id"):
        WriteOptions.parse({"path": "memory://facts/clicks", "txnAppId": "producer:a", **given}, is_stream=is_stream)
