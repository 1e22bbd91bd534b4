"""Small batches are appended by the network's thread itself, where that needs no wait."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gateways import (
    METADATA,
    PRODUCE,
    Wire,
    fetching,
    framed,
    open_topic,
    produce_fields,
    producing,
    request,
    serving,
    until,
)
from kio.schema.errors import ErrorCode
from raw_batches import batch, record

import distlog
from distlog.core.log.partition_log import PartitionLog, WouldWaitError
from distlog.core.storage.locks_and_pages import FileLock
from distlog.gateway.gateway_server import GatewayServer
from distlog.gateway.server import delayed_operations
from distlog.gateway.server.fairness import CpuShares
from distlog.gateway.server.request import FrameReader

NO_SYNC = {"flush.messages": 1 << 40}
NETWORK, HANDLER = "kafka-network-thread", "kafka-request-handler"


def data(value: bytes = b"v", **fields: Any) -> bytes:
    return batch([record(0, 0, b"k", value)], **fields)


def numbered(number: int, *, partition: int = 0, acks: int = -1) -> bytes:
    return framed(request(PRODUCE, 9, number, **produce_fields(9, [("clicks", partition, data())], acks=acks)))


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the threads that appended, or tried, without a number: but not where an append would wait."""
    names: list[str] = []
    append = PartitionLog.append_batches

    def noted(log: PartitionLog, *args: Any, **fields: Any) -> Any:
        names.append(threading.current_thread().name.rstrip("-0123456789"))
        try:
            return append(log, *args, **fields)
        except WouldWaitError:
            names.pop()
            raise

    monkeypatch.setattr(PartitionLog, "append_batches", noted)
    return names


@pytest.fixture
def gateway(tmp_path: Path, threads: list[str]) -> Iterator[GatewayServer]:
    distlog.create(str(tmp_path / "clicks"), partitions=2, config=NO_SYNC)
    with serving(tmp_path) as served, Wire(served) as wire:
        for partition in (0, 1):
            assert producing(wire, data(b"first"), partition).error_code is ErrorCode.none
        assert threads == [HANDLER] * 2
        threads.clear()
        yield served


def values(topic: distlog.Topic, partition: int = 0) -> list[bytes]:
    actual: list[bytes] = topic.scan(partitions=[partition]).to_table()["value"].to_pylist()
    return actual


def test_a_small_batch_for_an_open_log_is_appended_by_the_network_s_thread(
    gateway: GatewayServer, threads: list[str]
) -> None:
    topic_id = uuid.UUID(open_topic(gateway).snapshot.topic_id)
    with Wire(gateway) as wire:
        assert producing(wire, data(b"second")).base_offset == 1
        assert producing(wire, data(b"third"), topic=topic_id, version=13).base_offset == 2
        assert fetching(wire, 1).records
    assert threads == [NETWORK] * 2
    assert values(open_topic(gateway)) == [b"first", b"second", b"third"]


def test_next_batches_of_known_producers_are_appended_at_once(gateway: GatewayServer, threads: list[str]) -> None:
    with Wire(gateway) as wire:
        for sequence, offset in ((0, 1), (1, 2), (2, 3), (2, 3)):
            assert producing(wire, data(producer=(7, 0, sequence))).base_offset == offset
        assert producing(wire, data(producer=(7, 0, 9))).error_code is ErrorCode.out_of_order_sequence_number
        # the first one, a duplicate, and one after a gap are compared with the log
        assert threads == [HANDLER, NETWORK, NETWORK, HANDLER, HANDLER]
        threads.clear()
        for _ in range(3):
            producing(wire, data(bytes(100_000)))
        assert producing(wire, data(producer=(7, 0, 3))).base_offset == 7
    assert threads == [NETWORK] * 3 + [HANDLER]


@pytest.mark.parametrize(
    ("config", "fields"),
    [
        pytest.param({"flush.messages": 1}, {}, id="a topic that syncs each batch"),
        pytest.param(
            {}, {"base_timestamp": 9 * 10**11, "max_timestamp": 9 * 10**11}, id="a batch that begins a segment"
        ),
        pytest.param({}, {"attributes": 1}, id="a compressed batch"),
        pytest.param({}, {"attributes": 16, "producer": (7, 0, 0)}, id="a batch of a transaction"),
    ],
)
def test_slow_requests_go_to_a_handler(
    gateway: GatewayServer, threads: list[str], config: dict[str, Any], fields: dict[str, Any]
) -> None:
    if config:
        open_topic(gateway).alter_config(config)
        gateway.broker.metadata.topic("clicks").refresh(0)
    with Wire(gateway) as wire:
        for _ in range(3 if config else 1):
            producing(wire, data(b"other", **fields))
    assert NETWORK not in threads


def test_reads_of_a_client_do_not_run_ahead_of_its_requests(
    gateway: GatewayServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    unframed = list[int]()
    received = FrameReader.received

    def noted(reader: FrameReader, count: int) -> None:
        received(reader, count)
        unframed.append(reader.unframed)

    monkeypatch.setattr(FrameReader, "received", noted)
    small, large = (
        framed(request(PRODUCE, 9, 1, **produce_fields(9, [("clicks", 0, data(bytes(size)))])))
        for size in (1000, 300_000)
    )
    with Wire(gateway) as wire:
        sender = threading.Thread(target=wire.socket.sendall, args=(small * 2000 + large + small,))
        sender.start()
        for _ in range(2002):
            wire.frame()
        sender.join()
    assert max(unframed) < 2 * 64 << 10


def test_requests_without_acks_before_a_close_are_appended(gateway: GatewayServer, tmp_path: Path) -> None:
    topic = distlog.create(str(tmp_path / "synced"))
    with Wire(gateway) as wire:
        for number in range(200):
            wire.send(PRODUCE, 9, **produce_fields(9, [("synced", 0, data(b"%d" % number))], acks=0))
    until(lambda: topic.refresh().end_offsets() == {0: 200})
    assert values(topic) == [b"%d" % number for number in range(200)]
    until(lambda: gateway.connections == 1)


def test_a_response_does_not_wait_for_the_next_request_where_that_waits(
    gateway: GatewayServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delayed_operations, "SHORT_WAIT_S", 3600)
    lock = FileLock(str(Path(gateway.root) / "clicks" / "clicks-1" / ".lock"))
    with Wire(gateway) as wire:
        with lock.held():
            wire.socket.sendall(numbered(0) + numbered(1, partition=1))
            assert wire.frame()[:4] == bytes(4)
        assert wire.frame()[:4] == b"\0\0\0\1"


def test_a_response_is_sent_if_the_next_request_gets_none(gateway: GatewayServer, threads: list[str]) -> None:
    def are_handled_at_once() -> bool:
        threads.clear()
        with Wire(gateway) as wire:
            wire.socket.sendall(numbered(0) + numbered(1, acks=0))
            assert wire.frame()[:4] == bytes(4)
            until(lambda: len(threads) == 2)
        return threads == [NETWORK] * 2

    # the network's thread has other work on a busy machine
    until(are_handled_at_once)


def test_the_network_thread_answers_others_while_a_lock_is_held(
    gateway: GatewayServer, threads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delayed_operations, "SHORT_WAIT_S", 3600)
    monkeypatch.setattr(gateway.broker.appends, "wait", lambda *_: pytest.fail("a thread was free to wait"))
    lock = FileLock(str(Path(gateway.root) / "clicks" / "clicks-0" / ".lock"))
    with Wire(gateway) as wire, Wire(gateway) as other:
        with lock.held():
            waiting = wire.send(PRODUCE, 9, **produce_fields(9, [("clicks", 0, data(b"waited"))]))
            until(lambda: threads == [NETWORK, HANDLER])
            assert producing(other, data(), 1).base_offset == 1
            other.ask(METADATA, 1, topics=())
        assert wire.answer(PRODUCE, 9, waiting).responses[0].partition_responses[0].base_offset == 1
    assert threads == [NETWORK, HANDLER, NETWORK]


def test_a_client_below_its_share_leaves_memory_to_others() -> None:
    now_s = 100.0
    shares = CpuShares(lambda: now_s)
    first, second = shares.share("first", "a"), shares.share("second", "a")
    assert shares.leaves_room(first)
    first.add_use(10, now_s)
    assert shares.leaves_room(first)
    second.add_use(0.01, now_s)
    assert not shares.leaves_room(first)
    assert shares.leaves_room(second)
    # and one client id of an owner no more than its part of the owner's
    other = shares.share("second", "b")
    other.add_use(0.5, now_s)
    assert not shares.leaves_room(other)
    now_s += 60
    assert shares.leaves_room(first)
