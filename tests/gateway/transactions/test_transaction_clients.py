"""Transactional producers of Kafka clients, with their defaults, and what readers see of their transactions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from gateways import gateway as gateway
from gateways import open_topic
from transacting import values_seen

from distlog.gateway.gateway_server import GatewayServer

confluent_kafka = pytest.importorskip("confluent_kafka")
PATIENCE_S = 60
SENT = {0: [b"one", b"three"], 1: [b"one", b"three"]}


def by_confluent(gateway: GatewayServer) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": gateway.address, "transactional.id": "payments"})
    producer.init_transactions(PATIENCE_S)
    reader = confluent_kafka.Consumer({"bootstrap.servers": gateway.address, "group.id": "billing"})
    for number, value in enumerate((b"one", b"two", b"three")):
        producer.begin_transaction()
        for partition in range(2):
            producer.produce("clicks", value, partition=partition)
        offset = confluent_kafka.TopicPartition("clicks", 0, number + 1)
        producer.send_offsets_to_transaction([offset], reader.consumer_group_metadata(), PATIENCE_S)
        producer.flush(PATIENCE_S)
        (producer.abort_transaction if value == b"two" else producer.commit_transaction)(PATIENCE_S)
    reader.close()


def by_kafka_python(gateway: GatewayServer) -> None:
    kafka = pytest.importorskip("kafka")
    producer = kafka.KafkaProducer(bootstrap_servers=gateway.address, transactional_id="payments")
    producer.init_transactions()
    for number, value in enumerate((b"one", b"two", b"three")):
        producer.begin_transaction()
        for partition in range(2):
            producer.send("clicks", value, partition=partition)
        offsets = {kafka.TopicPartition("clicks", 0): kafka.OffsetAndMetadata(number + 1, "", -1)}
        producer.send_offsets_to_transaction(offsets, "billing")
        producer.flush()
        (producer.abort_transaction if value == b"two" else producer.commit_transaction)()
    producer.close()


def by_aiokafka(gateway: GatewayServer) -> None:
    aiokafka = pytest.importorskip("aiokafka")

    async def work() -> None:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=gateway.address, transactional_id="payments")
        async with producer:
            for number, value in enumerate((b"one", b"two", b"three")):
                await producer.begin_transaction()
                for partition in range(2):
                    await producer.send_and_wait("clicks", value, partition=partition)
                offsets = {aiokafka.TopicPartition("clicks", 0): number + 1}
                await producer.send_offsets_to_transaction(offsets, "billing")
                await (producer.abort_transaction if value == b"two" else producer.commit_transaction)()

    asyncio.run(work())


@pytest.mark.parametrize("work", [by_confluent, by_kafka_python, by_aiokafka])
def test_a_client_commits_and_aborts_records_and_positions(
    gateway: GatewayServer, work: Callable[[GatewayServer], None]
) -> None:
    work(gateway)
    assert values_seen(open_topic(gateway)) == SENT
    asking = confluent_kafka.Consumer({"bootstrap.servers": gateway.address, "group.id": "billing"})
    (response,) = asking.committed([confluent_kafka.TopicPartition("clicks", 0)], PATIENCE_S)
    assert response.offset == 3
    asking.close()
    assert read(gateway, "read_committed") == SENT[0]
    assert read(gateway, "read_uncommitted") == [b"one", b"two", b"three"]


def read(gateway: GatewayServer, isolation: str) -> list[bytes]:
    settings: dict[str, Any] = {"group.id": isolation, "isolation.level": isolation, "enable.partition.eof": True}
    consumer = confluent_kafka.Consumer({"bootstrap.servers": gateway.address, **settings})
    consumer.assign([confluent_kafka.TopicPartition("clicks", 0, 0)])
    actual = list[bytes]()
    while (record := consumer.poll(PATIENCE_S)).error() is None:
        actual.append(record.value())
    assert record.error().code() == confluent_kafka.KafkaError._PARTITION_EOF
    consumer.close()
    return actual


def test_a_second_producer_with_the_id_fences_the_first(gateway: GatewayServer) -> None:
    settings = {"bootstrap.servers": gateway.address, "transactional.id": "payments", "log_level": 0}
    first, second = confluent_kafka.Producer(settings), confluent_kafka.Producer(settings)
    first.init_transactions(PATIENCE_S)
    first.begin_transaction()
    first.produce("clicks", b"zombie", partition=0)
    first.flush(PATIENCE_S)
    second.init_transactions(PATIENCE_S)
    with pytest.raises(confluent_kafka.KafkaException) as fenced:
        first.commit_transaction(PATIENCE_S)
    assert fenced.value.args[0].code() == confluent_kafka.KafkaError._FENCED
    second.begin_transaction()
    second.produce("clicks", b"alive", partition=0)
    second.commit_transaction(PATIENCE_S)
    assert values_seen(open_topic(gateway))[0] == [b"alive"]
