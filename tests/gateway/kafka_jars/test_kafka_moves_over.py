"""Groups and transactional ids of a Kafka broker continue at a gateway and among consumers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gateways import serving, until
from kafka_broker import Broker, needs_kafka
from topic_consumers import drained, span

import distlog
from distlog.core.kafka.transactions import TRANSACTIONS_TOPIC, ProducerId, decode_key, decode_state

confluent_kafka = pytest.importorskip("confluent_kafka")
pytestmark = needs_kafka
QUIET = {"log_level": 0}


def offsets_of(*offsets: int) -> list[Any]:
    return [confluent_kafka.TopicPartition("clicks", number, offset) for number, offset in enumerate(offsets)]


def committing(address: str) -> Any:
    return confluent_kafka.Consumer(
        {"bootstrap.servers": address, "group.id": "billing", "enable.auto.commit": False, **QUIET}
    )


def has_committed(consumer: Any, *offsets: int) -> bool:
    try:
        consumer.commit(offsets=offsets_of(*offsets), asynchronous=False)
    except confluent_kafka.KafkaException as error:
        if error.args[0].code() != confluent_kafka.KafkaError.NOT_COORDINATOR:
            raise
        return False
    return True


def transactional(address: str) -> Any:
    producer = confluent_kafka.Producer({"bootstrap.servers": address, "transactional.id": "payments", **QUIET})
    producer.init_transactions(60)
    return producer


def test_groups_and_transactions_of_an_adopted_broker_go_on(tmp_path: Path) -> None:
    # Kafka's default; a gateway wants as many as there are for transactions
    broker, root = Broker(tmp_path, "offsets.topic.num.partitions=50"), str(tmp_path / "root")
    with broker.running():
        broker.create({"clicks": 2})
        producer = transactional(broker.address)
        for number in range(20):
            if number % 10 == 0:
                producer.begin_transaction()
            producer.produce("clicks", b"%d" % number, partition=number % 2)
            if number % 10 == 9:
                producer.commit_transaction(60)
        consumer = committing(broker.address)
        until(lambda: has_committed(consumer, 3, 4))
        consumer.close()
    distlog.adopt(str(broker.data), root)
    topic = distlog.open(f"{root}/clicks")
    topic.reset_group("billing", kafka="billing")
    assert topic.groups().column("position").to_pylist() == [3, 4]
    with topic.consume(group="billing", timeout=0) as consumer:
        actual = drained(consumer)
        assert actual[0] == (0, 3)
        assert (1, 4) in actual
        assert not {*span(0, 0, 3), *span(1, 0, 4)} & {*actual}
        consumer.commit({0: 5})
    with serving(root) as gateway:
        consumer = committing(gateway.address)
        assert [committed.offset for committed in consumer.committed(offsets_of(0, 0), 60)] == [3, 4]
        consumer.close()
        again = transactional(gateway.address)
        again.begin_transaction()
        again.produce("clicks", b"one more", partition=0)
        again.commit_transaction(60)
    values = [record.value for record in topic.refresh().records(0, isolation="read_committed")]
    assert values == [*(b"%d" % number for number in range(0, 20, 2)), b"one more"]
    first, *_, last = producers(root)
    # the gateway knows the broker's producer, and fences it
    assert (first.id, first.epoch < last.epoch) == (last.id, True)


def producers(root: str) -> list[ProducerId]:
    rows = distlog.open(f"{root}/{TRANSACTIONS_TOPIC}").scan(columns=["key", "value"]).to_table().to_pylist()
    return [decode_state("payments", row["value"]).producer for row in rows if decode_key(row["key"]) == "payments"]
