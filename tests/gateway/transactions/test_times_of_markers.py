"""Lookups by time lead to records, never to end markers: in a log of a gateway, and in the same one as adopted."""

from __future__ import annotations

from pathlib import Path

import pytest
from addresses import Address
from gateways import Wire
from kio.schema.errors import ErrorCode
from transactional_clients import RawProducer

import distlog
from distlog import MAX_TIMESTAMP, Topic
from distlog.gateway.config import GatewayConfig
from distlog.gateway.gateway_server import GatewayServer


@pytest.fixture(params=["local", "memory"])
def topic(request: pytest.FixtureRequest, tmp_path: Path, memory_url: Address) -> Topic:
    root = str(tmp_path / "root") if request.param == "local" else memory_url.url
    distlog.create(f"{root}/clicks")
    with GatewayServer(root, port=0, config=GatewayConfig(linger_ms=1)) as gateway, Wire(gateway) as wire:
        producer = RawProducer(wire)
        assert producer.init() is ErrorCode.none
        for value in (b"one", b"two"):
            assert producer.add(("clicks", 0)) == [ErrorCode.none]
            assert producer.send(value) is ErrorCode.none
            assert producer.end() is ErrorCode.none
    return distlog.open(f"{root}/clicks")


def check(topic: Topic) -> None:
    first, second = (record.timestamp for record in topic.records(0))
    assert topic.end_offsets() == {0: 4}
    assert topic.offsets_for_times(MAX_TIMESTAMP)[0] == (0 if first >= second else 2, max(first, second))
    newest = max(int(state.segments.max_timestamps.max()) for state in topic.live_snapshot.partitions)
    assert newest > max(first, second)
    assert topic.offsets_for_times(newest)[0] is None
    assert topic.offsets_for_times(second)[0] == (0 if first >= second else 2, second)


def test_lookups_in_a_gateways_log_return_records(topic: Topic) -> None:
    check(topic)


def test_lookups_in_the_adopted_log_return_records(topic: Topic, tmp_path: Path) -> None:
    topic.export(str(tmp_path / "kafka"))
    adopted = distlog.adopt(str(tmp_path / "kafka" / "clicks-0"), str(tmp_path / "adopted" / "clicks")).topic
    check(adopted)
