"""Fetch and ListOffsets, word for word: batches as they are stored, limits, and waits that an append ends."""

from __future__ import annotations

import threading
import time
import uuid
from pathlib import Path

import pytest
from gateways import FETCH, LIST_OFFSETS, Wire, counted, fetch_fields, fetching, open_topic, producing, serving, until
from gateways import gateway as gateway
from kio.schema.errors import ErrorCode
from raw_batches import batch, record

import distlog
from distlog.gateway.gateway_server import GatewayServer
from distlog.gateway.server.delayed_operations import DelayedFetches


def data(value: bytes = b"v", timestamp: int = 1000) -> bytes:
    return batch([record(0, 0, None, value)], base_timestamp=timestamp, max_timestamp=timestamp)


def filled(wire: Wire, count: int) -> None:
    for number in range(count):
        assert producing(wire, data(b"%d" % number)).base_offset == number


def offsets_in(records: bytes) -> list[int]:
    actual, position = [], 0
    while position < len(records):
        actual.append(int.from_bytes(records[position : position + 8], "big"))
        position += 12 + int.from_bytes(records[position + 8 : position + 12], "big")
    return actual


@pytest.mark.parametrize("version", range(4, 13))
def test_each_version_gets_the_batches_as_they_were_sent(gateway: GatewayServer, version: int) -> None:
    with Wire(gateway) as wire:
        filled(wire, 3)
        response = fetching(wire, 1, version=version)
    assert (response.error_code, response.high_watermark, response.last_stable_offset) == (ErrorCode.none, 3, 3)
    assert offsets_in(response.records) == [1, 2]
    # the log sets only the offset and the leader epoch
    assert response.records[16 : len(response.records) // 2] == data(b"1")[16:]


def test_batches_of_a_commit_have_the_offsets_that_the_commit_gave(gateway: GatewayServer) -> None:
    for number in range(3):
        open_topic(gateway).append([{"value": b"%d" % number}], partition=0)
    with Wire(gateway) as wire:
        assert [offsets_in(fetching(wire, offset).records) for offset in range(4)] == [[0], [1], [2], []]


def test_the_first_batch_is_whole_with_any_limits(gateway: GatewayServer) -> None:
    with Wire(gateway) as wire:
        filled(wire, 3)
        assert offsets_in(fetching(wire, 0, partition_max_bytes=1).records) == [0]
        assert offsets_in(fetching(wire, 0, max_bytes=1).records) == [0]


def test_only_the_first_batch_of_a_response_may_be_too_large(gateway: GatewayServer) -> None:
    with Wire(gateway) as wire:
        filled(wire, 1)
        producing(wire, data(), partition=1)
        fields = fetch_fields(12, [("clicks", 0, 0), ("clicks", 1, 0)], max_bytes=len(data()) + 10)
        (topic,) = wire.ask(FETCH, 12, **fields).responses
        assert [offsets_in(partition.records) for partition in topic.partitions] == [[0], []]


@pytest.mark.parametrize("offset", [-1, 2, 1 << 40])
def test_an_offset_out_of_range_is_answered_at_once(gateway: GatewayServer, offset: int) -> None:
    with Wire(gateway) as wire:
        filled(wire, 1)
        response = fetching(wire, offset, max_wait_ms=30_000)
        assert response.error_code is ErrorCode.offset_out_of_range


def test_an_unknown_partition_is_answered_at_once(gateway: GatewayServer) -> None:
    with Wire(gateway) as wire:
        for topic, partition in (("clicks", 2), ("none", 0), ("not/a/name", 0)):
            response = fetching(wire, 0, partition, topic=topic, max_wait_ms=30_000)
            assert response.error_code in (ErrorCode.unknown_topic_or_partition, ErrorCode.invalid_topic_exception)


def test_a_fetch_waits_until_a_client_appends(gateway: GatewayServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DelayedFetches, "_check", lambda self: None)
    with Wire(gateway) as consumer, Wire(gateway) as producer:
        fields = fetch_fields(12, [("clicks", 0, 0), ("clicks", 1, 0)], max_wait_ms=30_000)
        correlation_id = consumer.send(FETCH, 12, **fields)
        until(lambda: len(gateway.broker.fetches) == 1)
        producing(producer, data(), partition=1)
        (topic,) = consumer.answer(FETCH, 12, correlation_id).responses
    assert [offsets_in(partition.records) for partition in topic.partitions] == [[], [0]]


def test_a_fetch_waits_until_another_process_appends(gateway: GatewayServer) -> None:
    topic = open_topic(gateway)
    with Wire(gateway) as consumer:
        for offset, append in enumerate((_directly, _by_commit, _directly)):
            correlation_id = consumer.send(FETCH, 12, **fetch_fields(12, [("clicks", 0, offset)], max_wait_ms=30_000))
            until(lambda: len(gateway.broker.fetches) == 1)
            append(topic)
            (response,) = consumer.answer(FETCH, 12, correlation_id).responses[0].partitions
            assert offsets_in(response.records) == [offset]


def _directly(topic: distlog.Topic) -> None:
    with topic.writer() as writer:
        writer.append(b"v", partition=0)


def _by_commit(topic: distlog.Topic) -> None:
    topic.append([{"value": b"v"}], partition=0)


def test_a_fetch_waits_for_as_many_bytes_as_it_asks_for(gateway: GatewayServer) -> None:
    with Wire(gateway) as consumer, Wire(gateway) as producer:
        size = len(data())
        fields = fetch_fields(12, [("clicks", 0, 0)], max_wait_ms=30_000, min_bytes=3 * size)
        correlation_id = consumer.send(FETCH, 12, **fields)
        for _ in range(3):
            until(lambda: len(gateway.broker.fetches) == 1)
            producing(producer, data())
        (response,) = consumer.answer(FETCH, 12, correlation_id).responses[0].partitions
    assert offsets_in(response.records) == [0, 1, 2]


def test_a_fetch_returns_present_records_at_its_timeout(gateway: GatewayServer) -> None:
    with Wire(gateway) as wire:
        filled(wire, 1)
        started_s = time.monotonic()
        response = fetching(wire, 0, max_wait_ms=100, min_bytes=1 << 20)
        assert time.monotonic() - started_s >= 0.1
        assert offsets_in(response.records) == [0]
        assert fetching(wire, 1, max_wait_ms=10).records == b""


def test_a_client_that_went_away_is_not_waited_for(gateway: GatewayServer) -> None:
    with Wire(gateway) as wire:
        wire.send(FETCH, 12, **fetch_fields(12, [("clicks", 0, 0)], max_wait_ms=30_000))
        until(lambda: len(gateway.broker.fetches) == 1)
    until(lambda: len(gateway.broker.fetches) == 0)


def test_the_end_of_the_gateway_answers_those_that_wait(gateway: GatewayServer) -> None:
    with Wire(gateway) as wire:
        correlation_id = wire.send(FETCH, 12, **fetch_fields(12, [("clicks", 0, 0)], max_wait_ms=30_000))
        until(lambda: len(gateway.broker.fetches) == 1)
        assert gateway.stop()
        (response,) = wire.answer(FETCH, 12, correlation_id).responses[0].partitions
        assert (response.error_code, response.records) == (ErrorCode.none, b"")
        assert wire.is_closed


def test_records_that_slow_clients_do_not_take_are_bounded(tmp_path: Path) -> None:
    distlog.create(str(tmp_path / "clicks"))
    large = data(b"x" * 1_000_000)
    with serving(tmp_path, fetch_memory_bytes=8 * len(large)) as gateway, Wire(gateway) as producer:
        for _ in range(8):
            producing(producer, large)
        slow = [Wire(gateway, receive_bytes=4096) for _ in range(6)]
        fields = fetch_fields(12, [("clicks", 0, 0)], partition_max_bytes=8 << 20)
        for wire in slow:
            wire.send(FETCH, 12, **fields)
        until(lambda: counted(gateway, "requests", api="Fetch") == len(slow))
        # the more they have, the less the next one gets: some memory is left for other clients
        assert len(fetching(producer, 0).records) > 900_000
        assert gateway.broker.fetch_memory.used <= 8 * len(large)
        for wire in slow:
            wire.socket.close()
        until(lambda: gateway.broker.fetch_memory.used == 0)
        assert len(fetching(producer, 0, partition_max_bytes=3 << 20).records) > 1_900_000


@pytest.mark.parametrize("version", range(1, 10))
def test_list_offsets_finds_all_special_times(gateway: GatewayServer, version: int) -> None:
    with Wire(gateway) as wire:
        for timestamp in (1000, 3000, 2000):
            producing(wire, data(timestamp=timestamp))
        times = {
            -1: (3, -1),
            -2: (0, -1),
            -3: (1, 3000),
            -4: (0, -1),
            -5: (-1, -1),
            1500: (1, 3000),
            1000: (0, 1000),
            4000: (-1, -1),
        }
        for timestamp, expected in times.items():
            assert listed(wire, version, timestamp) == expected
        assert [listed(wire, version, time, partition=1) for time in (-1, -2, -3)] == [(0, -1), (0, -1), (-1, -1)]


def listed(wire: Wire, version: int, timestamp: int, partition: int = 0) -> tuple[int, int]:
    from importlib import import_module

    schema = import_module(f"kio.schema.list_offsets.v{version}.request")
    requested = schema.ListOffsetsPartition(partition_index=partition, timestamp=timestamp)
    topic = schema.ListOffsetsTopic(name="clicks", partitions=(requested,))
    fields = {"isolation_level": 0} if version >= 2 else {}
    (response,) = wire.ask(LIST_OFFSETS, version, replica_id=-1, topics=(topic,), **fields).topics[0].partitions
    assert response.error_code is ErrorCode.none
    return response.offset, response.timestamp


def test_many_consumers_of_one_partition_get_each_record_once(gateway: GatewayServer) -> None:
    actual: list[list[int]] = []

    def consume() -> None:
        with Wire(gateway) as wire:
            offsets: list[int] = []
            while len(offsets) < 50:
                response = fetching(wire, len(offsets), max_wait_ms=10_000)
                offsets += offsets_in(response.records)
            actual.append(offsets)

    threads = [threading.Thread(target=consume) for _ in range(4)]
    for thread in threads:
        thread.start()
    with Wire(gateway) as wire:
        filled(wire, 50)
    for thread in threads:
        thread.join()
    assert actual == [list(range(50))] * 4


@pytest.mark.parametrize("version", [12, 17])
def test_a_gateway_offers_no_fetch_session(gateway: GatewayServer, version: int) -> None:
    topic = open_topic(gateway)
    topic.append([{"partition": 0, "value": b"v"}])
    partition = (uuid.UUID(topic.snapshot.topic_id) if version > 12 else "clicks", 0, 0)
    with Wire(gateway) as wire:
        opening = wire.ask(FETCH, version, **fetch_fields(version, [partition], session_id=0, session_epoch=0))
        assert opening.session_id == 0
        assert opening.responses[0].partitions[0].records
        next_fetch = wire.ask(FETCH, version, **fetch_fields(version, [], session_id=7, session_epoch=1))
        assert next_fetch.error_code is ErrorCode.fetch_session_id_not_found
