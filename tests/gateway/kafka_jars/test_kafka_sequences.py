"""As in a real broker, the first batch of an unknown producer may have any sequence: its state may be expired."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import Producer
from gateways import PRODUCE, Wire, produce_fields, producing
from gateways import gateway as gateway
from kafka_broker import Broker, needs_kafka
from kio.schema.errors import ErrorCode
from raw_batches import batch, record
from transactional_clients import RawProducer

from distlog.core.format.record_batch import TRANSACTIONAL
from distlog.gateway.gateway_server import GatewayServer

pytestmark = needs_kafka
NONE, OUT_OF_ORDER = ErrorCode.none, ErrorCode.out_of_order_sequence_number


def test_a_first_batch_of_any_sequence_number_is_taken_as_by_a_broker(
    gateway: GatewayServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with Broker(tmp_path_factory.mktemp("broker")).running() as broker:
        broker.create({"clicks": 2})
        with Wire(broker) as wire:
            _init(broker.address)
            of_broker = codes_of_first_batches(wire)
            assert (of_broker, in_transaction(wire, "b", version=12)) == ([NONE, OUT_OF_ORDER, NONE], OUT_OF_ORDER)
    with Wire(gateway) as wire:
        assert codes_of_first_batches(wire) == of_broker


def _init(address: str) -> None:
    """Wait until the broker coordinates transactions, and leads the topic's partitions."""
    producer = Producer({"bootstrap.servers": address, "transactional.id": "first"})
    producer.init_transactions(60)
    producer.begin_transaction()
    for number in range(2):
        producer.produce("clicks", b"v", partition=number)
    producer.commit_transaction(60)


def codes_of_first_batches(wire: Wire) -> list[ErrorCode]:
    numbered = [producing(wire, data(4711, 0, sequence), version=12).error_code for sequence in (5, 9)]
    return [*numbered, in_transaction(wire, "a", version=9)]


def in_transaction(wire: Wire, id: str, version: int) -> ErrorCode:
    producer = RawProducer(wire, id)
    assert producer.init() is NONE
    if version < 12:
        assert producer.add(("clicks", 0)) == [NONE]
    records = data(producer.producer_id, producer.epoch, 5, attributes=TRANSACTIONAL)
    fields: dict[str, Any] = {**produce_fields(version, [("clicks", 0, records)]), "transactional_id": id}
    ((answer,),) = [response.partition_responses for response in wire.ask(PRODUCE, version, **fields).responses]
    code: ErrorCode = answer.error_code
    return code


def data(producer: int, epoch: int, sequence: int, **fields: int) -> bytes:
    return batch([record(0, 0, b"k", b"v")], producer=(producer, epoch, sequence), **fields)
