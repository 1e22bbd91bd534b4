"""The gateway's own topics are restored to an older version while it runs: the newest record of each key stays."""

from __future__ import annotations

from pathlib import Path

import pytest
from gateways import Wire, open_topic, serving
from kio.schema.errors import ErrorCode
from transacting import values_seen
from transactional_clients import RawProducer, position

import distlog
from distlog.core.kafka.transactions import TRANSACTIONS_TOPIC
from distlog.core.read.kafka_offsets import OFFSETS_TOPIC
from distlog.core.topic import Topic
from distlog.gateway.gateway_server import GatewayServer

NONE = ErrorCode.none


@pytest.fixture(params=["local", "memory"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    root = str(tmp_path) if request.param == "local" else f"memory://{tmp_path.name}/root"
    distlog.create(f"{root}/clicks", partitions=2)
    return root


def copy(producer: RawProducer, number: int) -> None:
    assert producer.add(("clicks", 0)) == [NONE]
    assert producer.send(b"%d" % number) is NONE
    assert producer.add_offsets() is NONE
    assert producer.commit_offset(number) is NONE
    assert producer.end() is NONE


def own_topics(gateway: GatewayServer) -> list[Topic]:
    return [open_topic(gateway, name) for name in (OFFSETS_TOPIC, TRANSACTIONS_TOPIC)]


def test_positions_and_transactions_stay_when_their_topics_are_restored(root: str) -> None:
    with serving(root, linger_ms=1) as gateway, Wire(gateway) as wire:
        producer = RawProducer(wire)
        assert producer.init() is NONE
        for number in range(1, 4):
            copy(producer, number)
        own_value = own_topics(gateway)
        for topic in own_value:
            # on a disk, all but the last records are in sealed segments, which are compacted
            topic.alter_config({"internal.segment.bytes": 200})
        copy(producer, 4)
        previous = [topic.refresh().version for topic in own_value]
        for number in range(5, 7):
            copy(producer, number)
        for topic, version in zip(own_value, previous, strict=True):
            topic.compact()
            assert sum(partition.records for partition in topic.restore(version).partitions) > 0
        assert [position(wire), position(wire, stable=True)] == [6, 6]
        copy(producer, 7)
        assert position(wire) == 7
        assert producer.add(("clicks", 1)) == [NONE]
        epoch = producer.epoch
    with serving(root, linger_ms=1) as gateway, Wire(gateway) as wire:
        assert position(wire) == 7
        again = RawProducer(wire)
        assert again.init() is NONE
        assert (again.producer_id, again.epoch > epoch) == (producer.producer_id, True)
        copy(again, 8)
        assert position(wire) == 8
        assert values_seen(open_topic(gateway))[0] == [b"%d" % number for number in range(1, 9)]
