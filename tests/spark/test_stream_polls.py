"""The requests of a stream to its storage."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from addresses import S3Server
from compacting import CompactedTopic
from fault_proxy import FaultProxy, answer
from producers import Producers
from streams import Seconds, Stream, append
from streams import topic as topic

import distlog
from distlog import Topic
from distlog.core.segments.segment_reader import SegmentReader
from distlog.spark import stream_plan


@pytest.fixture
def proxied(s3_server: S3Server) -> Any:
    address = s3_server.address()
    topic = distlog.create(address.url, 2, storage_options=address.options)
    append(topic, 0, 1)
    with FaultProxy(s3_server.endpoint) as proxy:
        options = {f"storage.{name}": value for name, value in {**address.options, "endpoint_url": proxy.url}.items()}
        yield topic, proxy, Stream(address.url, **options)


@pytest.mark.s3
def test_an_idle_stream_sends_one_request_in_half_a_second(proxied: Any) -> None:
    topic, proxy, stream = proxied
    stream.run()
    proxy.reset()
    for step in range(1, 4):
        stream.clock.now += stream_plan.REMOTE_REFRESH_S
        for _ in range(85):
            assert stream.run() is None
        assert len(proxy.requests) == step
    append(topic, 1, 1)
    assert stream.run() is None
    stream.clock.now += stream_plan.REMOTE_REFRESH_S
    assert stream.run() == {1: [0]}


@pytest.mark.s3
def test_a_batch_is_planned_with_the_requests_for_its_new_commits(proxied: Any) -> None:
    topic, proxy, stream = proxied
    stream.run()
    append(topic, 1, 1)
    proxy.reset()
    stream.clock.now += 1
    assert stream.plan()
    partitions = stream.partitions()
    # the new commit, and a request for the missing next one
    assert len(proxy.requests) == proxy.count("GET", "*/_commits/*.json") == 2
    stream.reader.commit(json.loads(stream.log[-1]))
    assert len(proxy.requests) == 2
    proxy.reset()
    assert len(stream.rows(partitions)) == 1
    assert [request.path.rpartition(".")[2] for request in proxy.requests] == ["log"]


@pytest.mark.s3
def test_transient_faults_of_the_storage_do_not_end_the_stream(proxied: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    topic, proxy, stream = proxied
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    stream.run()
    append(topic, 1, 1)
    stream.clock.now += 1
    proxy.inject("GET", answer(503, "SlowDown"), times=3)
    assert stream.run() == {1: [0]}


def test_a_local_stream_polls_on_each_call(topic: Topic) -> None:
    stream = Stream(topic.url)
    stream.run()
    for number in range(3):
        append(topic, 0, 1)
        assert stream.run() == {0: [5 + number]}


def test_a_local_stream_with_many_active_segments_polls_less_often(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_plan, "REFRESH_S_PER_ACTIVE_SEGMENT", 0.1)
    clock = Seconds()
    stream = Stream(topic.url, clock)
    with topic.writer() as writer:
        for partition in range(2):
            writer.append(b"v", partition=partition)
        writer.flush()
        assert stream.run() == {}
        writer.append(b"v", partition=0)
        writer.flush()
        clock.now = 0.18
        assert stream.run() is None
        clock.now = 0.2
        assert stream.run() == {0: [6]}


def test_a_batch_opens_no_index_of_transactions_that_ended_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = CompactedTopic(str(tmp_path / "log"))
    producers = Producers(log)
    producers.send(1, 1, 2).abort(1).roll()
    producers.send(1, 3).abort(1).plain(4).roll()
    start, committed = json.dumps({"log": {"0": 3}}), {"kafka.isolation.level": "read_committed"}
    opens, real = [], SegmentReader.aborted_transactions

    def spy(reader: SegmentReader, segment: Any) -> Any:
        opens.append(segment.base_offset)
        return real(reader, segment)

    monkeypatch.setattr(SegmentReader, "aborted_transactions", spy)
    assert Stream(str(tmp_path / "log"), startingOffsets=start, **committed).run() == {0: [5]}
    assert opens == [3]
