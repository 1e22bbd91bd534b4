"""Kafka clients share partitions as groups through the gateway, and resume where they stopped."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gateways import serving

import distlog
from distlog.gateway.config import GroupSettings
from distlog.gateway.gateway_server import GatewayServer

confluent_kafka = pytest.importorskip("confluent_kafka")
kafka_admin = pytest.importorskip("confluent_kafka.admin")
PARTITIONS, COUNT = 4, 100
AT_ONCE = GroupSettings(initial_rebalance_delay_ms=0)


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[GatewayServer]:
    topic = distlog.create(str(tmp_path / "clicks"), partitions=PARTITIONS)
    topic.append([{"value": b"%d" % n, "partition": n % PARTITIONS} for n in range(COUNT)])
    with serving(tmp_path, groups=AT_ONCE) as served:
        yield served


def consumer(gateway: GatewayServer, **settings: Any) -> Any:
    created = confluent_kafka.Consumer(
        {
            "bootstrap.servers": gateway.address,
            "group.id": "billing",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "heartbeat.interval.ms": 100,
            "topic.metadata.refresh.interval.ms": 500,
            **settings,
        }
    )
    created.subscribe(["clicks"])
    return created


def read_values(members: list[Any], count: int, timeout_s: float = 300) -> list[list[int]]:
    actual: list[list[int]] = [[] for _ in members]
    end = time.monotonic() + timeout_s
    while sum(map(len, actual)) < count:
        assert time.monotonic() < end, actual
        for member, values in zip(members, actual, strict=True):
            for record in member.consume(50, 0.05):
                assert record.error() is None
                values.append(int(record.value()))
    return actual


def shared(members: list[Any], timeout_s: float = 300) -> None:
    end = time.monotonic() + timeout_s
    while (
        not all(member.assignment() for member in members)
        or sum(len(member.assignment()) for member in members) != PARTITIONS
    ):
        assert time.monotonic() < end
        for member in members:
            member.poll(0.05)


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
def test_two_members_share_the_partitions_and_one_takes_over(gateway: GatewayServer, assignor: str) -> None:
    settings = {"partition.assignment.strategy": assignor}
    first = consumer(gateway, **settings)
    (values,) = read_values([first], COUNT)
    assert sorted(values) == list(range(COUNT))
    first.commit(asynchronous=False)
    second = consumer(gateway, **settings)
    shared([first, second])
    assert not {partition.partition for partition in first.assignment()} & {
        partition.partition for partition in second.assignment()
    }
    second.close()
    shared([first])
    distlog.open(f"{gateway.root}/clicks").append([{"value": b"%d" % n, "partition": n % 4} for n in range(8)])
    assert sorted(read_values([first], 8)[0]) == list(range(8))
    first.close()


def test_a_group_continues_after_a_restart_of_the_gateway(tmp_path: Path, gateway: GatewayServer) -> None:
    member = consumer(gateway)
    read_values([member], COUNT)
    member.commit(asynchronous=False)
    member.close()
    gateway.stop()
    distlog.open(f"{gateway.root}/clicks").append([{"value": b"1000", "partition": 0}])
    with serving(tmp_path, groups=AT_ONCE) as again:
        member = consumer(again)
        assert read_values([member], 1) == [[1000]]
        partitions = [confluent_kafka.TopicPartition("clicks", n) for n in range(PARTITIONS)]
        assert [committed.offset for committed in member.committed(partitions, 30)] == [
            COUNT // PARTITIONS
        ] * PARTITIONS
        member.close()


def test_a_static_member_that_starts_again_keeps_its_partitions(gateway: GatewayServer) -> None:
    admin = kafka_admin.AdminClient({"bootstrap.servers": gateway.address})
    first = consumer(gateway, **{"group.instance.id": "one"})
    read_values([first], COUNT)
    generation = described(admin)
    del first
    again = consumer(gateway, **{"group.instance.id": "one"})
    read_values([again], COUNT)
    assert described(admin)[1:] == generation[1:]
    again.close()


def described(admin: Any) -> tuple[Any, ...]:
    group = admin.describe_consumer_groups(["billing"], request_timeout=30)["billing"].result()
    return (
        [member.member_id for member in group.members],
        [member.group_instance_id for member in group.members],
        [[partition.partition for partition in member.assignment.topic_partitions] for member in group.members],
        str(group.state),
    )


def test_groups_are_listed_described_moved_and_deleted(gateway: GatewayServer) -> None:
    admin = kafka_admin.AdminClient({"bootstrap.servers": gateway.address})
    member = consumer(gateway)
    read_values([member], COUNT)
    assert [group.group_id for group in admin.list_consumer_groups(request_timeout=30).result().valid] == ["billing"]
    assert described(admin)[2] == [[0, 1, 2, 3]]
    with pytest.raises(confluent_kafka.KafkaException, match="NON_EMPTY_GROUP"):
        admin.delete_consumer_groups(["billing"], request_timeout=30)["billing"].result()
    member.close()
    partition = confluent_kafka.TopicPartition("clicks", 1, 20)
    moved = confluent_kafka.ConsumerGroupTopicPartitions("billing", [partition])
    admin.alter_consumer_group_offsets([moved], request_timeout=30)["billing"].result()
    requested = confluent_kafka.ConsumerGroupTopicPartitions("billing")
    actual = admin.list_consumer_group_offsets([requested], request_timeout=30)["billing"].result()
    assert [(partition.partition, partition.offset) for partition in actual.topic_partitions] == [(1, 20)]
    admin.delete_consumer_groups(["billing"], request_timeout=30)["billing"].result()
    assert admin.list_consumer_groups(request_timeout=30).result().valid == []


def test_kafka_python_is_a_member(gateway: GatewayServer) -> None:
    kafka = pytest.importorskip("kafka")
    member = kafka.KafkaConsumer(
        "clicks",
        bootstrap_servers=gateway.address,
        group_id="billing",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        consumer_timeout_ms=60_000,
    )
    values = [int(record.value) for _, record in zip(range(COUNT), member, strict=False)]
    assert sorted(values) == list(range(COUNT))
    member.commit()
    assert member.committed(kafka.TopicPartition("clicks", 0)) == COUNT // PARTITIONS
    member.close()


def test_aiokafka_is_a_member(gateway: GatewayServer) -> None:
    aiokafka = pytest.importorskip("aiokafka")

    async def read() -> list[int]:
        member = aiokafka.AIOKafkaConsumer(
            "clicks",
            bootstrap_servers=gateway.address,
            group_id="billing",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        await member.start()
        try:
            values = [int((await asyncio.wait_for(member.getone(), 60)).value) for _ in range(COUNT)]
            await member.commit()
            assert await member.committed(aiokafka.TopicPartition("clicks", 3)) == COUNT // PARTITIONS
            return values
        finally:
            await member.stop()

    assert sorted(asyncio.run(read())) == list(range(COUNT))
