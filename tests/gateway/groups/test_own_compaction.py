"""The topics of the gateways on an object store stay a few segments, whoever maintains the root."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from addresses import Address
from gateways import until
from kio.schema.errors import ErrorCode
from memory_files import refuse_writes
from test_offsets_topic import key, leading, loaded, stored

import distlog
from distlog.core.read.kafka_offsets import OFFSETS_TOPIC, Position, offsets_partition
from distlog.core.storage.storage import Storage
from distlog.gateway import cluster, gateway_server
from distlog.gateway.config import GatewayConfig
from distlog.gateway.gateway_server import GatewayServer
from distlog.gateway.groups.offsets_topic import OffsetsTopic

NUMBER, LEAST = offsets_partition("billing", 50), 4


@pytest.fixture(autouse=True)
def least(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "LEAST_SEGMENTS", LEAST)


@pytest.fixture
def topic(memory_url: Address) -> Iterator[OffsetsTopic]:
    actual = leading(memory_url.url)
    yield actual
    actual.close()


def commit(topic: OffsetsTopic, offsets: range) -> None:
    for offset in offsets:
        assert stored(topic, (key(0), Position(offset))) is ErrorCode.none


def segments(address: Address) -> int:
    return distlog.open(f"{address.url}/{OFFSETS_TOPIC}").segments().num_rows


def test_a_leader_makes_one_segment_of_many_and_keeps_the_newest_positions(
    topic: OffsetsTopic, memory_url: Address
) -> None:
    large = Position(7, metadata="x" * 4000)
    assert stored(topic, (key(1), large)) is ErrorCode.none
    commit(topic, range(1, LEAST))
    topic.compact()
    assert segments(memory_url) == 1
    commit(topic, range(LEAST, 2 * LEAST - 1))
    topic.compact()
    assert segments(memory_url) == LEAST
    commit(topic, range(2 * LEAST - 1, 2 * LEAST))
    topic.compact()
    assert segments(memory_url) == 1
    assert loaded(leading(memory_url.url)) == [(key(1), large), (key(0), Position(2 * LEAST - 1))]


def test_a_topic_keeps_its_settings_when_its_leader_compacts_it(topic: OffsetsTopic, memory_url: Address) -> None:
    commit(topic, range(98))
    topic.compact()
    actual = distlog.open(f"{memory_url.url}/{OFFSETS_TOPIC}")
    files = [file.name for file in Storage(*memory_url).child(OFFSETS_TOPIC).list("_commits")]
    assert [name for name in files if "00100." in name and "checkpoint" in name]
    assert actual.config.min_cleanable_dirty_ratio == 0.5


def test_partitions_of_other_leaders_are_not_compacted(topic: OffsetsTopic, memory_url: Address) -> None:
    commit(topic, range(LEAST))
    topic.end([NUMBER])
    topic.compact()
    assert segments(memory_url) == LEAST


def test_a_storage_that_fails_is_logged_and_what_failed_waits_for_more(
    topic: OffsetsTopic, memory_url: Address, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    commit(topic, range(LEAST))
    with monkeypatch.context() as patches:
        refuse_writes(patches)
        topic.compact()
    assert "__consumer_offsets was not compacted: " in caplog.text
    topic.compact()
    assert segments(memory_url) == LEAST
    commit(topic, range(LEAST))
    topic.compact()
    assert segments(memory_url) == 1


def test_a_topic_that_was_made_again_is_compacted_from_its_first_segments_on(memory_url: Address) -> None:
    compaction = cluster.InternalTopicCompaction()
    for _ in range(2):
        topic = distlog.create(f"{memory_url.url}/{OFFSETS_TOPIC}", 1, {"cleanup.policy": "compact"})
        for _ in range(LEAST):
            topic.append([{"key": b"k", "value": b"v"}])
        compaction.step(topic, [0])
        assert segments(memory_url) == 1
        topic.drop()


def test_a_gateway_compacts_its_topics(memory_url: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_server, "COMPACTION_PERIOD_MS", 10)
    config = GatewayConfig(linger_ms=1)
    with GatewayServer(memory_url.url, port=0, config=config) as gateway:
        groups, codes = gateway.broker.groups, list[ErrorCode]()
        until(lambda: not groups.coordination.is_loading)
        for offset in range(LEAST):
            groups.offsets.commit("billing", {("clicks", 0): Position(offset)}, codes.append)
            until(lambda: len(codes) == offset + 1)  # noqa: B023 - it is called in this turn
        until(lambda: segments(memory_url) == 1)
