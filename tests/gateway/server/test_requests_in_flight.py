"""Produce requests of one connection: they share syncs or commits, and are answered in their order."""

from __future__ import annotations

import fcntl
import itertools
import sys
import termios
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from addresses import Address
from gateways import LIST_OFFSETS, PRODUCE, Wire, counted, produce_fields, producing, serving, until
from gateways import lingers as lingers
from kio.schema.errors import ErrorCode
from kio.schema.list_offsets.v7.request import ListOffsetsPartition, ListOffsetsTopic
from raw_batches import batch, record

import distlog
from distlog.core.storage.locks_and_pages import FileLock
from distlog.gateway.config import GatewayConfig
from distlog.gateway.gateway_server import GatewayServer
from distlog.gateway.topics import gathered_appends
from distlog.gateway.topics.gathered_appends import Completeness, Sender

pytestmark = pytest.mark.usefixtures("lingers")

NEVER_MS = 3_600_000
MOST_UNDER_WAY = 256


def data(value: bytes = b"v", *, producer: int = -1, sequence: int = -1) -> bytes:
    return batch([record(0, 0, b"k", value)], producer=(producer, 0 if producer >= 0 else -1, sequence))


@pytest.fixture
def address(memory_url: Address) -> Address:
    for name in ("clicks", "orders"):
        distlog.create(f"{memory_url.url}/{name}", 3)
    return memory_url


def started(address: Address, linger_ms: int = NEVER_MS, **settings: Any) -> GatewayServer:
    config = GatewayConfig(linger_ms=linger_ms, metadata_max_age_ms=50, **settings)
    return GatewayServer(address.url, port=0, config=config, storage_options=address.options)


def received(gateway: GatewayServer) -> float:
    return counted(gateway, "requests", api="Produce")


def sent(wire: Wire, batches: Sequence[bytes], *, acks: int = -1) -> list[int]:
    return [wire.send(PRODUCE, 9, **produce_fields(9, [("clicks", 0, batch)], acks)) for batch in batches]


def answered(wire: Wire, ids: Sequence[int]) -> list[Any]:
    bodies = [wire.answer(PRODUCE, 9, number) for number in ids]
    return [body.responses[0].partition_responses[0] for body in bodies]


def open_topic(address: Address) -> distlog.Topic:
    return distlog.open(f"{address.url}/clicks", storage_options=address.options)


def test_requests_of_one_connection_are_one_commit_and_answered_in_their_order(address: Address) -> None:
    with started(address) as gateway, Wire(gateway) as wire:
        ids = sent(wire, [data(b"%d" % number) for number in range(20)])
        until(lambda: received(gateway) == 20)
        gateway.stop()
        assert [partition.base_offset for partition in answered(wire, ids)] == [*range(20)]
    assert [row["operation"] for row in open_topic(address).history().to_pylist()] == ["append", "create"]
    values = open_topic(address).scan().to_table().column("value").to_pylist()
    assert values == [b"%d" % number for number in range(20)]


def test_five_batches_of_each_numbered_producer_do_not_wait_for_more(address: Address) -> None:
    with started(address) as gateway, Wire(gateway) as first, Wire(gateway) as other:
        ids = sent(first, [data(producer=7, sequence=number) for number in range(4)])
        first_of_other = sent(other, [data(producer=8, sequence=0)])
        until(lambda: received(gateway) == 5)
        ids += sent(first, [data(producer=7, sequence=4)])
        until(lambda: received(gateway) == 6)
        rest_of_other = sent(other, [data(producer=8, sequence=number) for number in range(1, 5)])
        response = answered(first, ids) + answered(other, first_of_other + rest_of_other)
        assert {partition.error_code for partition in response} == {ErrorCode.none}
    assert [row["operation"] for row in open_topic(address).history().to_pylist()] == ["append", "create"]


def test_five_requests_of_an_idempotent_producer_do_not_wait_for_more(address: Address) -> None:
    with started(address) as gateway, Wire(gateway) as wire:
        batches = [("clicks", number % 3, data(producer=7, sequence=number // 3)) for number in range(5)]
        ids = [wire.send(PRODUCE, 9, **produce_fields(9, [batch])) for batch in batches]
        assert {result.error_code for result in answered(wire, ids)} == {ErrorCode.none}
    assert open_topic(address).version == 1


@pytest.mark.parametrize("is_idempotent", [False, True])
def test_a_full_window_ends_the_linger(
    address: Address, monkeypatch: pytest.MonkeyPatch, is_idempotent: bool
) -> None:
    monkeypatch.setattr(gathered_appends, "_BURST_S", 0.05)
    sequences, rounds, linger_s = itertools.count(), 10, 2.0

    def send_four(wire: Wire, size: int) -> float:
        start_s = time.monotonic()
        producer = 7 if is_idempotent else -1
        numbers = [next(sequences) if is_idempotent else -1 for _ in range(4)]
        ids = sent(wire, [data(bytes(size), producer=producer, sequence=number) for number in numbers])
        assert {result.error_code for result in answered(wire, ids)} == {ErrorCode.none}
        return time.monotonic() - start_s

    with started(address, linger_ms=int(1000 * linger_s)) as gateway, Wire(gateway) as wire:
        answered(wire, sent(wire, [data()]))
        assert send_four(wire, 20_000) > linger_s / 2
        assert sum(send_four(wire, 20_000) for _ in range(rounds)) < rounds * linger_s / 2
        assert send_four(wire, 100) > linger_s / 2


def test_the_window_of_a_client_is_learned_from_its_pauses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gathered_appends, "_BURST_S", 0.2)
    sender, soon_s = Sender(), 10.0

    def send(now_s: float, requests: int) -> list[Completeness]:
        states = list[Completeness]()
        for number in range(requests):
            sender.send(now_s, soon_s)
            states.append(sender.completeness(number + 1, is_idempotent=False))
        return states

    unknown, sending, waiting = Completeness.UNKNOWN, Completeness.SENDING, Completeness.WAITING
    assert send(100.0, 2) == [unknown] * 2
    sender.answer(2, 101.0)
    assert send(101.5, 2) == [sending, waiting]
    sender.answer(2, 102.0)
    assert send(102.5, 3) == [sending, waiting, unknown]
    sender.answer(3, 103.0)
    assert send(103.5, 3) == [sending, sending, waiting]
    # what it sends during the commit is of the next one
    assert send(103.9, 1) == [unknown]
    sender.answer(3, 104.0)
    assert send(104.5, 1) == [unknown]
    sender.answer(2, 105.0)
    assert send(105.5, 1) == [sending]
    sender.answer(1, 106.0)
    # without a backlog it may send at any time
    assert send(117.0, 1) == [unknown]


def test_a_batch_is_appended_while_an_earlier_one_of_its_connection_waits_for_a_sync(tmp_path: Path) -> None:
    topic = distlog.create(str(tmp_path / "clicks"), 2)
    with serving(tmp_path) as gateway, Wire(gateway) as wire:
        answered(wire, sent(wire, [data()]))
        with FileLock(str(tmp_path / "clicks" / "clicks-0" / ".flush")).held():
            ids = sent(wire, [data(), data()])
            ids.append(wire.send(PRODUCE, 9, **produce_fields(9, [("clicks", 1, data())])))
            until(lambda: topic.refresh().end_offsets() == {0: 3, 1: 1})
        assert [result.base_offset for result in answered(wire, ids)] == [1, 2, 0]


def unsent_bytes(wire: Wire) -> int:
    return int.from_bytes(fcntl.ioctl(wire.socket, termios.TIOCOUTQ, bytes(4)), sys.byteorder)


def test_a_connection_receives_again_after_a_request_of_as_many_bytes_as_it_holds(tmp_path: Path) -> None:
    topic, folder = distlog.create(str(tmp_path / "clicks"), 2), tmp_path / "clicks" / "clicks-0"
    with serving(tmp_path) as gateway, Wire(gateway) as wire, Wire(gateway) as other:
        answered(wire, sent(wire, [data()]))
        with FileLock(str(folder / ".flush")).held():
            with FileLock(str(folder / ".lock")).held():
                # the second request waits in the gateway until the first one is appended
                ids = sent(wire, [data(), data(b"x" * 100_000)])
                until(lambda: unsent_bytes(wire) == 0)
                other.ask(LIST_OFFSETS, 7, replica_id=-1, isolation_level=0, topics=())
            ids += sent(wire, [data()])
            until(lambda: topic.refresh().end_offsets() == {0: 4, 1: 0})
        assert [result.base_offset for result in answered(wire, ids)] == [1, 2, 3]


def test_a_request_of_another_kind_waits_until_those_before_it_are_answered(address: Address) -> None:
    with started(address, linger_ms=100) as gateway, Wire(gateway) as wire:
        ids = sent(wire, [data(), data()])
        requested = ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=-1)
        topics = (ListOffsetsTopic(name="clicks", partitions=(requested,)),)
        correlation_id = wire.send(LIST_OFFSETS, 7, replica_id=-1, isolation_level=0, topics=topics)
        ids_behind = sent(wire, [data()])
        assert [partition.base_offset for partition in answered(wire, ids)] == [0, 1]
        ((end,),) = [topic.partitions for topic in wire.answer(LIST_OFFSETS, 7, correlation_id).topics]
        assert end.offset == 2
        assert [partition.base_offset for partition in answered(wire, ids_behind)] == [2]


def test_a_refused_request_does_not_affect_others(address: Address) -> None:
    broken = bytearray(data())
    broken[-1] ^= 1
    with started(address, linger_ms=100) as gateway, Wire(gateway) as wire:
        ids = sent(wire, [data(), bytes(broken), data()])
        response = answered(wire, ids)
    assert [(partition.error_code, partition.base_offset) for partition in response] == [
        (ErrorCode.none, 0),
        (ErrorCode.corrupt_message, -1),
        (ErrorCode.none, 1),
    ]


def test_requests_without_acks_keep_their_order(address: Address) -> None:
    with started(address, linger_ms=100) as gateway, Wire(gateway) as wire:
        first = sent(wire, [data(b"0")])
        sent(wire, [data(b"1"), data(b"2")], acks=0)
        assert [partition.base_offset for partition in answered(wire, first + sent(wire, [data(b"3")]))] == [0, 3]


def test_requests_of_a_disconnected_client_are_committed(address: Address) -> None:
    with started(address) as gateway, Wire(gateway) as other:
        with Wire(gateway) as wire:
            sent(wire, [data(b"x" * 100_000) for _ in range(3)])
            until(lambda: received(gateway) == 3)
            assert counted(gateway, "request_memory_bytes") > 300_000
        until(lambda: gateway.connections == 1)
        gateway.broker.metadata.topic("clicks").commit_now()
        assert producing(other, data()).base_offset == 3
        until(lambda: counted(gateway, "request_memory_bytes") == 0)


def test_the_requests_in_flight_of_a_connection_are_bounded(address: Address) -> None:
    with started(address) as gateway, Wire(gateway) as wire, Wire(gateway) as other:
        sent(wire, [data()] * (MOST_UNDER_WAY + 50))
        until(lambda: received(gateway) == MOST_UNDER_WAY)
        sent(other, [data()])
        until(lambda: received(gateway) == MOST_UNDER_WAY + 1)


def test_requests_under_way_have_the_memory_of_all_requests_and_no_more(address: Address) -> None:
    limit = 4 << 20
    with started(address, linger_ms=50, queued_max_request_bytes=limit) as gateway, Wire(gateway) as wire:
        ids, most = sent(wire, [data(b"x" * 60_000)] * 10), 0
        for _ in range(10):
            ids += sent(wire, [data(b"x" * 60_000)] * 30)
            most = max(most, counted(gateway, "request_memory_bytes"))
        assert [partition.base_offset for partition in answered(wire, ids)] == [*range(310)]
        assert 0 < most < limit
        until(lambda: counted(gateway, "request_memory_bytes") == 0)


def test_a_topic_whose_thread_could_not_be_started_is_appended_to_when_one_can_be(
    address: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals, start = ["gathered-appends"], threading.Thread.start

    def start_later(thread: threading.Thread) -> None:
        if thread.name in refusals:
            refusals.remove(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    with started(address, linger_ms=1) as gateway, Wire(gateway) as wire:
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", start_later)
            assert producing(wire, data()).error_code is ErrorCode.unknown_server_error
        assert producing(wire, data()).base_offset == 0
