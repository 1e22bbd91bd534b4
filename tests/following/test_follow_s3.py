"""Followers on S3: the requests that a server gets, and what a group does when replies are lost."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from conftest import Address, S3Server
from fault_proxy import FOREVER, LOSE_REPLY, FaultProxy, answer
from followers import Time, drained, follow, span
from topics import topic_on, values

from distlog.core import paths
from distlog.core.consumer_offsets.positions_format import OFFSETS_TOPIC
from distlog.core.errors import StorageError
from distlog.core.groups.group_log import GroupLog
from distlog.core.storage.storage import Storage
from distlog.core.topics.topic import Topic

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


def test_an_idle_look_is_one_get_of_the_next_version(topic: Topic, proxy: FaultProxy) -> None:
    time = Time()
    follower = follow(topic, time, timeout=10.0)
    assert drained(follower) == span(0, 0, 4)
    proxy.reset()
    time.pauses.clear()
    assert drained(follower) == []
    wanted = paths.commit_file(2)
    assert [request.method for request in proxy.requests] == ["GET"] * (len(time.pauses) + 1)
    assert all(request.path.split("?")[0].endswith(f"/topic/{wanted}") for request in proxy.requests)
    assert len(time.pauses) > 10


@pytest.mark.parametrize("fault", [LOSE_REPLY, answer(503, "SlowDown"), answer(500, "InternalError")])
def test_a_commit_whose_reply_is_lost_happens_once(fault: object, topic: Topic, proxy: FaultProxy) -> None:
    log = GroupLog(topic.storage, topic.snapshot.topic_id, "g")
    with follow(topic, group="g", timeout=0) as follower:
        assert drained(follower) == span(0, 0, 4)
        before = log.load()
        proxy.inject("PUT", fault, path="*_groups*")
        follower.commit()
        after = log.load()
        assert (after.version, after.positions) == (before.version + 1, {0: 4, 1: 0})
    with follow(topic, group="g", timeout=0) as follower:
        assert drained(follower) == []


def test_a_member_whose_sign_on_got_no_reply_is_one_member(topic: Topic, proxy: FaultProxy) -> None:
    proxy.inject("PUT", LOSE_REPLY, path="*_groups*")
    follower = follow(topic, group="g", timeout=0)
    (member,) = GroupLog(topic.storage, topic.snapshot.topic_id, "g").load().members
    assert member.beat == 0
    assert drained(follower) == span(0, 0, 4)


def test_a_root_without_a_gateway_costs_a_member_two_looks(topic: Topic, proxy: FaultProxy) -> None:
    drained(follow(topic, group="g", timeout=0))
    proxy.reset()
    drained(follow(topic, group="g", timeout=0))
    beside = [request for request in proxy.requests if OFFSETS_TOPIC in request.path + request.query]
    assert len(beside) == 2, beside


def test_who_may_not_read_beside_the_topic_follows_all_the_same_and_is_told(
    topic: Topic, proxy: FaultProxy, caplog: pytest.LogCaptureFixture
) -> None:
    proxy.inject("GET", answer(403, "AccessDenied"), query=f"*{OFFSETS_TOPIC}*", times=FOREVER)
    assert drained(follow(topic, group="g", timeout=0)) == span(0, 0, 4)
    assert "positions that Kafka's clients may have committed are not known" in caplog.text


def test_who_does_not_learn_of_kafkas_clients_does_not_begin(topic: Topic, proxy: FaultProxy) -> None:
    proxy.inject("GET", answer(400, "Whatever"), query=f"*{OFFSETS_TOPIC}*", times=FOREVER)
    with pytest.raises(StorageError, match=r"Whatever.*url=.*__consumer_offsets"):
        follow(topic, group="g", timeout=0)
