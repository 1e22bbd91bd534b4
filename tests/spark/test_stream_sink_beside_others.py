"""The sink of a stream beside others that append to its topic, change it, drop it or make it anew."""

from __future__ import annotations

import shutil
import threading

import pytest
from sink_queries import Query, segments_of, values, writer
from sink_queries import topic as topic

import distlog
from distlog.core.errors import CommitConflictError, InvalidRecordError, TopicNotFoundError


def test_appends_of_others_meanwhile_come_first(topic: distlog.Topic) -> None:
    query = Query(topic.url)
    messages = query.write(0, ["a"])
    topic.append([{"value": b"before"}])
    committing = writer(topic.url)
    topic.append([{"value": b"while"}])
    committing.commit(messages, 0)
    assert values(topic) == ["before", "while", "a"]


def test_two_queries_append_at_once(topic: distlog.Topic) -> None:
    def run(query: Query) -> None:
        for number in range(20):
            query.batch(number, f"{query.query_id} {number}")

    threads = [threading.Thread(target=run, args=(Query(topic.url, name),)) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = values(topic)
    assert len(found) == 40
    for name in ("one", "two"):
        assert [value for value in found if value.startswith(name)] == [f"{name} {number}" for number in range(20)]


def test_a_stream_beside_a_writer_in_place_keeps_the_order_of_both(topic: distlog.Topic) -> None:
    query = Query(topic.url)
    with topic.writer(linger_ms=0) as live:
        for number in range(20):
            live.append(f"live {number}".encode())
            live.flush()
            query.batch(number, f"batch {number}")
    found = values(topic)
    assert found == [f"{name} {number}" for number in range(20) for name in ("live", "batch")]
    assert segments_of(topic) < 16
    assert topic.verify().ok


def test_a_topic_that_became_a_compacted_one_meanwhile_gets_nothing_without_a_key(topic: distlog.Topic) -> None:
    query = Query(topic.url)
    messages = query.write(0, ["a"])
    topic.alter_config({"cleanup.policy": "compact"})
    with pytest.raises(CommitConflictError, match="each needs a key; write again"):
        query.commit(0, messages)
    with pytest.raises(InvalidRecordError, match="needs a key"):
        query.write(0, ["a"])
    assert topic.refresh().end_offsets() == {0: 0}


def test_a_topic_that_was_dropped_meanwhile_gets_nothing(topic: distlog.Topic) -> None:
    query = Query(topic.url)
    messages = query.write(0, ["a"])
    topic.drop()
    with pytest.raises(TopicNotFoundError, match="there is no topic here"):
        query.write(0, ["a"])
    with pytest.raises(TopicNotFoundError, match="there is no topic here"):
        query.commit(0, messages)
    anew = distlog.create(topic.url)
    with pytest.raises(CommitConflictError, match="the topic was dropped"):
        query.commit(0, messages)
    assert values(anew) == []
    query.batch(0, "a")
    assert values(anew) == ["a"]


def test_a_folder_that_was_deleted_and_made_anew_between_two_batches_is_another_topic(topic: distlog.Topic) -> None:
    query = Query(topic.url)
    for number in range(3):
        query.batch(number, "old")
    shutil.rmtree(topic.url)
    for appends in (1, 5):
        anew = distlog.create(topic.url)
        for _ in range(appends):
            anew.append([{"value": b"x"}])
        query.batch(3, "new")
        assert values(anew) == ["x"] * appends + ["new"]
        assert anew.verify().ok
        shutil.rmtree(topic.url)
