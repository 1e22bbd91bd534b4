"""Kafka's clients go on where followers of the same group's name have come to, until they commit themselves."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from gateways import Wire, opened, serving
from kio.schema.errors import ErrorCode

import distlog
from distlog.core.errors import StorageError
from distlog.core.groups.group_log import GroupLog
from distlog.gateway.gateway_server import GatewayServer
from distlog.gateway.group_settings import GroupSettings

confluent_kafka = pytest.importorskip("confluent_kafka")
kafka_admin = pytest.importorskip("confluent_kafka.admin")
OFFSET_FETCH = 9


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[GatewayServer]:
    """A gateway over a topic that followers of `billing` have read up to offset 6 in partition 0, and 4 in 1."""
    topic = distlog.create(str(tmp_path / "clicks"), partitions=2)
    topic.append([{"value": b"%d" % n, "partition": n % 2} for n in range(20)])
    topic.reset_group("billing", {0: 6, 1: 4})
    with serving(tmp_path, groups=GroupSettings(initial_rebalance_delay_ms=0)) as served:
        yield served


def consumer(gateway: GatewayServer, group: str = "billing") -> Any:
    return confluent_kafka.Consumer(
        {
            "bootstrap.servers": gateway.address,
            "group.id": group,
            "auto.offset.reset": "latest",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )


def committed(client: Any) -> list[int]:
    places = [confluent_kafka.TopicPartition("clicks", number) for number in range(2)]
    return [each.offset for each in client.committed(places, 30)]


def test_a_consumer_begins_where_the_followers_were_and_from_its_first_commit_on_its_own_positions_count(
    gateway: GatewayServer,
) -> None:
    client = consumer(gateway)
    assert committed(client) == [6, 4]
    client.subscribe(["clicks"])
    found: dict[int, list[int]] = {0: [], 1: []}
    while sum(map(len, found.values())) < 10:
        for record in client.consume(20, 1):
            found[record.partition()].append(record.offset())
    assert found == {0: list(range(6, 10)), 1: list(range(4, 10))}
    client.commit(offsets=[confluent_kafka.TopicPartition("clicks", 0, 8)], asynchronous=False)
    assert committed(client) == [8, 4]
    # a position that goes on among the followers is not seen where there is a commit
    opened(gateway).reset_group("billing", {0: 9, 1: 5})
    assert committed(client) == [8, 5]
    client.close()
    # and followers see nothing of commits
    assert opened(gateway).groups().column("position").to_pylist() == [9, 5]


def test_a_group_of_no_followers_has_no_position(gateway: GatewayServer) -> None:
    for group in ("shipping", "x" * 300):
        client = consumer(gateway, group)
        assert committed(client) == [confluent_kafka.OFFSET_INVALID] * 2
        client.close()


def test_groups_of_followers_are_listed_and_described_as_groups_without_members(gateway: GatewayServer) -> None:
    client = kafka_admin.AdminClient({"bootstrap.servers": gateway.address, "log_level": 0})
    listed = client.list_consumer_groups().result(30)
    assert [(each.group_id, each.state.name) for each in listed.valid] == [("billing", "EMPTY")]
    described = {name: each.result(30) for name, each in client.describe_consumer_groups(["billing", "no"]).items()}
    assert {name: each.state.name for name, each in described.items()} == {"billing": "EMPTY", "no": "DEAD"}
    asked = [confluent_kafka.ConsumerGroupTopicPartitions("billing")]
    (told,) = client.list_consumer_group_offsets(asked).values()
    places = [(each.topic, each.partition, each.offset) for each in told.result(30).topic_partitions]
    assert sorted(places) == [("clicks", 0, 6), ("clicks", 1, 4)]


def test_while_the_storage_does_not_answer_clients_ask_again_and_do_not_begin_anew(
    gateway: GatewayServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: GroupLog) -> Any:
        raise StorageError("no answer")

    schema = import_module("kio.schema.offset_fetch.v7.request")
    topic = schema.OffsetFetchRequestTopic(name="clicks", partition_indexes=(0,))
    asked = {"group_id": "billing", "topics": (topic,), "require_stable": False}
    with monkeypatch.context() as patched, Wire(gateway) as wire:
        patched.setattr(GroupLog, "load", fails)
        told = wire.ask(OFFSET_FETCH, 7, **asked)
        assert told.error_code is ErrorCode.coordinator_load_in_progress
        assert told.topics[0].partitions[0].error_code is ErrorCode.coordinator_load_in_progress
    with Wire(gateway) as wire:
        assert wire.ask(OFFSET_FETCH, 7, **asked).topics[0].partitions[0].committed_offset == 6
