"""Consumers on S3: the requests of a group, and lost responses."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from addresses import Address, S3Server
from fault_proxy import LOSE_REPLY, FaultProxy, answer
from topic_consumers import Time, consume, drained, span
from topics import topic_on, values

from distlog.core import paths
from distlog.core.read.consumer_group import GroupLog
from distlog.core.read.kafka_offsets import OFFSETS_TOPIC
from distlog.core.storage.storage import Storage
from distlog.core.topic import Topic

pytestmark = pytest.mark.s3


@pytest.fixture
def proxy(s3_server: S3Server) -> Iterator[FaultProxy]:
    with FaultProxy(s3_server.endpoint) as proxy:
        yield proxy


@pytest.fixture
def topic(proxy: FaultProxy, s3_url: Address) -> Topic:
    storage = Storage(f"{s3_url.url}/topic", {**s3_url.options, "endpoint_url": proxy.url})
    topic = topic_on(storage, 2)
    topic.append(values(range(4)), partition=0)
    return topic


def test_an_idle_poll_is_one_get_of_the_next_version(topic: Topic, proxy: FaultProxy) -> None:
    time = Time()
    consumer = consume(topic, time, timeout=10.0)
    assert drained(consumer) == span(0, 0, 4)
    proxy.reset()
    time.pauses.clear()
    assert drained(consumer) == []
    commit_file = paths.commit_file(2)
    assert [request.method for request in proxy.requests] == ["GET"] * (len(time.pauses) + 1)
    assert all(request.path.split("?")[0].endswith(f"/topic/{commit_file}") for request in proxy.requests)
    assert len(time.pauses) > 10


@pytest.mark.parametrize("fault", [LOSE_REPLY, answer(503, "SlowDown"), answer(500, "InternalError")])
def test_a_commit_with_a_lost_response_happens_once(fault: object, topic: Topic, proxy: FaultProxy) -> None:
    log = GroupLog(topic.storage, topic.snapshot.topic_id, "g")
    with consume(topic, group="g", timeout=0) as consumer:
        assert drained(consumer) == span(0, 0, 4)
        old_snapshot = log.load()
        proxy.inject("PUT", fault, path="*_groups*")
        consumer.commit()
        after = log.load()
        assert (after.version, after.positions) == (old_snapshot.version + 1, {0: 4, 1: 0})
    with consume(topic, group="g", timeout=0) as consumer:
        assert drained(consumer) == []


def test_a_join_with_a_lost_response_is_one_member(topic: Topic, proxy: FaultProxy) -> None:
    proxy.inject("PUT", LOSE_REPLY, path="*_groups*")
    consumer = consume(topic, group="g", timeout=0)
    (member,) = GroupLog(topic.storage, topic.snapshot.topic_id, "g").load().members
    assert member.beat == 0
    assert drained(consumer) == span(0, 0, 4)


def test_a_member_requests_only_its_topic(topic: Topic, proxy: FaultProxy) -> None:
    drained(consume(topic, group="g", timeout=0))
    assert not [request for request in proxy.requests if OFFSETS_TOPIC in request.path + request.query]
