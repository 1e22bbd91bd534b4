"""Real clients retry when the gateway cannot store their offsets for a while."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gateways import serving

import distlog
from distlog.core.errors import StorageError
from distlog.gateway.gateway_server import GatewayServer


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[GatewayServer]:
    distlog.create(str(tmp_path / "clicks"))
    with serving(tmp_path) as served:
        yield served


def failing(monkeypatch: pytest.MonkeyPatch, gateway: GatewayServer, times: int) -> list[str]:
    """Have the storage fail some times when a commit looks for its topic; what was asked for."""
    metadata, requested, find = gateway.broker.metadata, list[str](), gateway.broker.metadata.topic

    def find_or_fail(name: str) -> Any:
        requested.append(name)
        if len(requested) <= times:
            raise StorageError("no answer")
        return find(name)

    monkeypatch.setattr(metadata, "topic", find_or_fail)
    return requested


def test_librdkafka_commits_again_when_the_storage_did_not_answer(
    gateway: GatewayServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka = pytest.importorskip("confluent_kafka")
    client = kafka.Consumer({"bootstrap.servers": gateway.address, "group.id": "billing", "log_level": 0})
    partition = kafka.TopicPartition("clicks", 0, 0)
    client.committed([partition], 30)
    requested = failing(monkeypatch, gateway, 2)
    (reply,) = client.commit(offsets=[partition], asynchronous=False)
    client.close()
    assert reply.error is None
    assert len(requested) > 2


def test_kafka_python_commits_again_when_the_storage_did_not_answer(
    gateway: GatewayServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka = pytest.importorskip("kafka")
    client = kafka.KafkaConsumer(bootstrap_servers=gateway.address, group_id="billing", enable_auto_commit=False)
    partition = kafka.TopicPartition("clicks", 0)
    client.assign([partition])
    assert client.committed(partition) is None
    requested = failing(monkeypatch, gateway, 2)
    client.commit({partition: kafka.OffsetAndMetadata(0, "", -1)})
    assert client.committed(partition) == 0
    client.close()
    assert len(requested) > 2
