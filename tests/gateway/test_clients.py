"""Kafka clients write and read through the gateway, with their defaults; distlog reads what they wrote."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from gateways import gateway as gateway
from gateways import open_topic

from distlog.gateway.gateway_server import GatewayServer

confluent_kafka = pytest.importorskip("confluent_kafka")


def confluent_values(gateway: GatewayServer, partition: int, count: int) -> list[bytes]:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": gateway.address, "group.id": "a-test", "enable.auto.commit": False}
    )
    consumer.assign([confluent_kafka.TopicPartition("clicks", partition, 0)])
    try:
        actual = [consumer.poll(120) for _ in range(count)]
        assert [record.error() for record in actual] == [None] * count
        return [record.value() for record in actual]
    finally:
        consumer.close()


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_confluent_kafka_writes_and_reads_in_each_codec(gateway: GatewayServer, codec: str) -> None:
    codes: list[tuple[Any, int]] = []
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": gateway.address, "enable.idempotence": True, "compression.type": codec}
    )
    for number in range(1000):
        producer.produce(
            "clicks",
            f"value {number}",
            key=f"key {number}",
            partition=number % 2,
            on_delivery=lambda error, record: codes.append((error, record.offset())),
        )
    assert producer.flush(300) == 0
    assert sorted(codes, key=lambda code: code[1]) == [(None, number // 2) for number in range(1000)]
    assert confluent_values(gateway, 1, 500) == [b"value %d" % number for number in range(1, 1000, 2)]
    rows = open_topic(gateway).scan(partitions=[0]).to_table().to_pylist()
    assert [(row["offset"], row["key"], row["value"]) for row in rows] == [
        (number // 2, b"key %d" % number, b"value %d" % number) for number in range(0, 1000, 2)
    ]


def test_kafka_python_writes_and_reads(gateway: GatewayServer) -> None:
    kafka = pytest.importorskip("kafka")
    producer = kafka.KafkaProducer(bootstrap_servers=gateway.address)
    sent = [producer.send("clicks", b"%d" % number, partition=0) for number in range(100)]
    producer.flush(300)
    assert [future.get(120).offset for future in sent] == list(range(100))
    producer.close()
    consumer = kafka.KafkaConsumer(bootstrap_servers=gateway.address, auto_offset_reset="earliest")
    part = kafka.TopicPartition("clicks", 0)
    consumer.assign([part])
    assert [next(consumer).value for _ in range(100)] == [b"%d" % number for number in range(100)]
    assert (consumer.beginning_offsets([part]), consumer.end_offsets([part])) == ({part: 0}, {part: 100})
    consumer.close()


def test_aiokafka_writes_and_reads(gateway: GatewayServer) -> None:
    aiokafka = pytest.importorskip("aiokafka")

    async def read_all() -> list[bytes]:
        async with aiokafka.AIOKafkaProducer(bootstrap_servers=gateway.address, enable_idempotence=True) as producer:
            for number in range(100):
                await producer.send("clicks", b"%d" % number, partition=0)
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=gateway.address, auto_offset_reset="earliest")
        async with consumer:
            consumer.assign([aiokafka.TopicPartition("clicks", 0)])
            return [(await consumer.getone()).value for _ in range(100)]

    assert asyncio.run(read_all()) == [b"%d" % number for number in range(100)]


def test_a_client_reads_what_programs_append_directly_and_by_commits(gateway: GatewayServer) -> None:
    topic = open_topic(gateway)
    topic.append([{"value": b"committed"}], partition=0)
    with topic.writer() as writer:
        writer.append(b"in place", partition=0)
    topic.append([{"value": b"committed after"}], partition=0)
    assert confluent_values(gateway, 0, 3) == [b"committed", b"in place", b"committed after"]
