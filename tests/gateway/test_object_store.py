"""A gateway over an object store: requests of all connections are gathered into one bundle and one commit."""

from __future__ import annotations

import logging
import select
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from addresses import Address
from gateway_pairs import SESSION_MS
from gateways import FETCH, PRODUCE, Wire, counted, fetch_fields, produce_fields, producing, until
from gateways import frequent_polls as frequent_polls
from gateways import lingers as lingers
from kio.schema.errors import ErrorCode
from raw_batches import batch, record

import distlog
from distlog.gateway.config import GatewayConfig
from distlog.gateway.gateway_server import GatewayServer
from distlog.gateway.groups.offsets_topic import OffsetsTopic
from distlog.gateway.root_records import DynamicConfigs


def data(value: bytes = b"v", *, producer: int = -1, sequence: int = -1) -> bytes:
    return batch([record(0, 0, b"k", value)], producer=(producer, 0 if producer >= 0 else -1, sequence))


def started(address: Address, linger_ms: int = 20) -> GatewayServer:
    config = GatewayConfig(linger_ms=linger_ms, metadata_max_age_ms=50, broker_session_timeout_ms=SESSION_MS)
    return GatewayServer(address.url, port=0, config=config, storage_options=address.options)


@pytest.fixture
def address(memory_url: Address) -> Address:
    distlog.create(f"{memory_url.url}/clicks", 3)
    return memory_url


@pytest.fixture
def gateway(address: Address) -> Iterator[GatewayServer]:
    with started(address) as served:
        yield served


def open_topic(address: Address) -> distlog.Topic:
    return distlog.open(f"{address.url}/clicks", storage_options=address.options)


@pytest.mark.usefixtures("lingers")
def test_requests_of_many_connections_are_one_commit(address: Address) -> None:
    with started(address, linger_ms=3_600_000) as gateway:
        wires = [Wire(gateway) for _ in range(6)]
        correlation_ids = [
            wire.send(PRODUCE, 9, **produce_fields(9, [("clicks", number % 3, data(b"%d" % number))]))
            for number, wire in enumerate(wires)
        ]
        until(lambda: counted(gateway, "requests", api="Produce") == 6)
        gateway.stop()
        responses = [wire.answer(PRODUCE, 9, number) for wire, number in zip(wires, correlation_ids, strict=True)]
    offsets = [response.responses[0].partition_responses[0].base_offset for response in responses]
    assert sorted(offsets) == [0, 0, 0, 1, 1, 1]
    topic = open_topic(address)
    assert [row["operation"] for row in topic.history().to_pylist()] == ["append", "create"]
    assert topic.end_offsets() == {0: 2, 1: 2, 2: 2}
    assert len(set(topic.segments().column("stem").to_pylist())) == 1


def test_records_are_taken_while_groups_are_loaded(address: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    loads, goes_on = threading.Event(), threading.Event()

    def load(*_: object) -> Iterator[Any]:
        loads.set()
        assert goes_on.wait(120)
        return iter(())

    monkeypatch.setattr(OffsetsTopic, "load", load)
    gateway = started(address)
    starting = threading.Thread(target=gateway.start)
    starting.start()
    try:
        assert loads.wait(120)
        with Wire(gateway) as wire:
            assert producing(wire, data()).error_code is ErrorCode.none
        assert starting.is_alive()
        assert gateway.broker.groups.coordination.is_loading
    finally:
        goes_on.set()
        starting.join()
        gateway.stop()


def is_answered(wire: Wire) -> bool:
    """Whether a response comes within 0.2 s."""
    poll = select.poll()
    poll.register(wire.socket, select.POLLIN)
    return bool(poll.poll(200))


def test_a_batch_after_a_pause_does_not_linger(address: Address) -> None:
    with started(address, linger_ms=3_600_000) as gateway, Wire(gateway) as wire, Wire(gateway) as other:
        parts = [("clicks", number, data()) for number in range(3)]
        response = wire.ask(PRODUCE, 9, **produce_fields(9, parts))
        assert [partition.base_offset for partition in response.responses[0].partition_responses] == [0, 0, 0]
        correlation_id = other.send(PRODUCE, 9, **produce_fields(9, [("clicks", 0, data())]))
        until(lambda: counted(gateway, "requests", api="Produce") == 2)
        assert not is_answered(other)
        gateway.stop()
        assert other.answer(PRODUCE, 9, correlation_id).responses[0].partition_responses[0].base_offset == 1
    assert [row["operation"] for row in open_topic(address).history().to_pylist()] == ["append", "append", "create"]


@pytest.mark.usefixtures("lingers")
def test_a_full_gathering_does_not_wait(address: Address) -> None:
    config = GatewayConfig(linger_ms=3_600_000, linger_bytes=1000)
    with GatewayServer(address.url, port=0, config=config) as gateway, Wire(gateway) as wire:
        assert producing(wire, data(b"x" * 1000)).base_offset == 0


def test_a_fetch_waits_for_a_commit_of_this_gateway_and_of_others(gateway: GatewayServer, address: Address) -> None:
    with Wire(gateway) as consumer, Wire(gateway) as producer:
        for offset in range(2):
            fields = fetch_fields(12, [("clicks", 0, offset)], max_wait_ms=30_000)
            correlation_id = consumer.send(FETCH, 12, **fields)
            until(lambda: len(gateway.broker.fetches) == 1)
            if offset:
                open_topic(address).append([{"value": b"by a program"}], partition=0)
            else:
                producing(producer, data())
            (response,) = consumer.answer(FETCH, 12, correlation_id).responses[0].partitions
            assert response.records[:8] == offset.to_bytes(8, "big")


def test_sequence_numbers_are_checked_also_after_a_restart(address: Address) -> None:
    with started(address) as gateway, Wire(gateway) as wire:
        assert [producing(wire, data(producer=7, sequence=n)).base_offset for n in (0, 1, 1, 0)] == [0, 1, 1, 0]
    open_topic(address).append([{"value": b"between"}], partition=0)
    with started(address) as again, Wire(again) as wire:
        assert producing(wire, data(producer=7, sequence=1)).base_offset == 1
        assert producing(wire, data(producer=7, sequence=3)).error_code is ErrorCode.out_of_order_sequence_number
        assert producing(wire, data(producer=7, sequence=2)).base_offset == 3
    assert open_topic(address).end_offsets()[0] == 4


def test_sequence_numbers_are_known_when_segments_were_merged(gateway: GatewayServer, address: Address) -> None:
    with Wire(gateway) as wire:
        for number in range(4):
            producing(wire, data(producer=7, sequence=number))
        open_topic(address).append([{"value": b"between"}], partition=0)
        open_topic(address).compact()
        assert producing(wire, data(producer=7, sequence=4)).base_offset == 5
        assert producing(wire, data(producer=7, sequence=2)).base_offset == 2


@pytest.mark.usefixtures("lingers")
def test_a_batch_that_is_sent_again_before_its_commit_is_there_once(address: Address) -> None:
    with started(address, linger_ms=3_600_000) as gateway:
        wires = [Wire(gateway) for _ in range(2)]
        fields = produce_fields(9, [("clicks", 0, data(producer=7, sequence=0))])
        correlation_ids = [wire.send(PRODUCE, 9, **fields) for wire in wires]
        until(lambda: counted(gateway, "requests", api="Produce") == 2)
        gateway.stop()
        responses = [wire.answer(PRODUCE, 9, number) for wire, number in zip(wires, correlation_ids, strict=True)]
    assert [response.responses[0].partition_responses[0].base_offset for response in responses] == [0, 0]
    assert open_topic(address).end_offsets()[0] == 1


def test_two_gateways_append_to_one_topic(address: Address) -> None:
    with started(address) as first, started(address) as other:
        offsets: list[int] = []

        def produce(gateway: GatewayServer) -> None:
            with Wire(gateway) as wire:
                offsets.extend(producing(wire, data()).base_offset for _ in range(10))

        threads = [threading.Thread(target=produce, args=(gateway,)) for gateway in (first, other)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(offsets) == list(range(20))


@pytest.mark.s3
def test_confluent_kafka_writes_and_reads_on_s3(s3_url: Address) -> None:
    confluent_kafka = pytest.importorskip("confluent_kafka")
    distlog.create(f"{s3_url.url}/clicks", 2, storage_options=s3_url.options)
    with started(s3_url) as gateway:
        producer = confluent_kafka.Producer({"bootstrap.servers": gateway.address, "enable.idempotence": True})
        for number in range(200):
            producer.produce("clicks", b"%d" % number, partition=number % 2)
        assert producer.flush(300) == 0
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": gateway.address, "group.id": "a-test", "enable.auto.commit": False}
        )
        consumer.assign([confluent_kafka.TopicPartition("clicks", 1, 0)])
        assert [consumer.poll(120).value() for _ in range(100)] == [b"%d" % number for number in range(1, 200, 2)]
        consumer.close()
    rows = open_topic(s3_url).scan(partitions=[0]).to_table().column("value").to_pylist()
    assert rows == [b"%d" % number for number in range(0, 200, 2)]


@pytest.mark.usefixtures("lingers")
def test_a_batch_without_a_producer_before_it_does_not_hide_that_a_batch_is_sent_again(address: Address) -> None:
    with started(address) as gateway, Wire(gateway) as wire:
        assert producing(wire, data(producer=7, sequence=0)).base_offset == 0
    with started(address, linger_ms=3_600_000) as gateway:
        wires, requested = [Wire(gateway) for _ in range(2)], []
        for wire, sent in zip(wires, (data(), data(producer=7, sequence=0)), strict=True):
            requested.append(wire.send(PRODUCE, 9, **produce_fields(9, [("clicks", 0, sent)])))
            until(lambda: counted(gateway, "requests", api="Produce") == len(requested))
        gateway.stop()
        responses = [wire.answer(PRODUCE, 9, number) for wire, number in zip(wires, requested, strict=True)]
    assert [response.responses[0].partition_responses[0].base_offset for response in responses] == [1, 0]
    assert open_topic(address).end_offsets()[0] == 2


@pytest.mark.usefixtures("frequent_polls")
def test_a_failed_refresh_of_quotas_is_logged_and_retried(
    address: Address, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = list[None]()

    def failing_refresh(configs: DynamicConfigs) -> None:
        looks.append(None)
        raise FileNotFoundError("missing object")

    monkeypatch.setattr(DynamicConfigs, "refresh", failing_refresh)
    with caplog.at_level(logging.ERROR, "distlog"), started(address):
        until(lambda: len(looks) > 1)
    assert "reading quotas and settings of groups failed: missing object" in caplog.text
