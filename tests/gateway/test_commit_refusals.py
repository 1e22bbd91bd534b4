"""What real clients do when the gateway cannot keep their positions for a while: they try again."""

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
    metadata, asked, find = gateway.broker.metadata, list[str](), gateway.broker.metadata.topic

    def found(name: str) -> Any:
        asked.append(name)
        if len(asked) <= times:
            raise StorageError("no answer")
        return find(name)

    monkeypatch.setattr(metadata, "topic", found)
    return asked


def test_librdkafka_commits_again_when_the_storage_did_not_answer(
    gateway: GatewayServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka = pytest.importorskip("confluent_kafka")
    client = kafka.Consumer({"bootstrap.servers": gateway.address, "group.id": "billing", "log_level": 0})
    place = kafka.TopicPartition("clicks", 0, 0)
    # the coordinator is known before
    client.committed([place], 30)
    asked = failing(monkeypatch, gateway, 2)
    (told,) = client.commit(offsets=[place], asynchronous=False)
    client.close()
    assert told.error is None
    assert len(asked) > 2


def test_kafka_python_commits_again_when_the_storage_did_not_answer(
    gateway: GatewayServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka = pytest.importorskip("kafka")
    client = kafka.KafkaConsumer(bootstrap_servers=gateway.address, group_id="billing", enable_auto_commit=False)
    place = kafka.TopicPartition("clicks", 0)
    client.assign([place])
    assert client.committed(place) is None
    asked = failing(monkeypatch, gateway, 2)
    client.commit({place: kafka.OffsetAndMetadata(0, "", -1)})
    assert client.committed(place) == 0
    client.close()
    assert len(asked) > 2
