"""Clients that send slowly, read nothing, or use everything: other clients continue, and the gateway ends."""

from __future__ import annotations

import os
import resource
import socket
import ssl
import struct
import threading
import time
import tracemalloc
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from gateways import (
    API_VERSIONS,
    FETCH,
    INIT_PRODUCER_ID,
    NO_WAIT,
    PRODUCE,
    Wire,
    counted,
    fetch_fields,
    fetching,
    framed,
    produce_fields,
    producing,
    request,
    serving,
    until,
)
from gateways import frequent_polls as frequent_polls
from gateways import gateway as gateway
from kio.schema.errors import ErrorCode
from open_files import open_below
from raw_batches import batch, record
from tls_certificates import Authority

from distlog.core.config import TopicConfig
from distlog.core.errors import RecordTooLargeError
from distlog.core.format.compression import GZIP, LZ4, SNAPPY, ZSTD, compress
from distlog.core.log.producers import validate
from distlog.core.storage.locks_and_pages import FileLock
from distlog.gateway.apis import APIS
from distlog.gateway.config import GatewayConfig
from distlog.gateway.gateway_server import GatewayServer
from distlog.gateway.security.tls import TlsFiles
from distlog.gateway.server.socket_server import ConnectionTimeouts, SocketServer

LARGE = batch([record(0, 0, None, b"x" * 700_000)])


def is_well(gateway: GatewayServer) -> bool:
    with Wire(gateway) as wire:
        return bool(wire.ask(API_VERSIONS, 0).error_code is ErrorCode.none)


def are_served(gateway: GatewayServer, count: int) -> bool:
    with ExitStack() as stack, suppress(EOFError, ConnectionError):
        wires = [stack.enter_context(Wire(gateway)) for _ in range(count)]
        return all(wire.ask(API_VERSIONS, 0).error_code is ErrorCode.none for wire in wires)
    return False


def test_announced_requests_reserve_no_memory(root: Path) -> None:
    with serving(root, queued_max_request_bytes=4 << 20) as gateway:
        hostile = [Wire(gateway) for _ in range(50)]
        for wire in hostile:
            wire.socket.sendall(struct.pack(">i", 99 << 20) + bytes(100))
        with Wire(gateway) as wire:
            assert producing(wire, LARGE).base_offset == 0
        assert gateway.connections >= 50
        for wire in hostile:
            wire.socket.close()
        until(lambda: counted(gateway, "request_memory_bytes") == 0)


def test_requests_that_fill_the_memory_and_wait_for_each_other_go_on_one_after_the_other(root: Path) -> None:
    frame = framed(request(PRODUCE, 9, 1, **produce_fields(9, [("clicks", 0, LARGE)])))
    with serving(root, queued_max_request_bytes=1 << 20) as gateway:
        wires = [Wire(gateway) for _ in range(8)]
        for wire in wires:
            wire.socket.sendall(frame[:300_000])
        # each has its first part, and most wait for more
        until(lambda: counted(gateway, "request_memory_bytes") >= 8 * (64 << 10))
        senders = [threading.Thread(target=wire.socket.sendall, args=(frame[300_000:],)) for wire in wires]
        for sender in senders:
            sender.start()
        for wire in wires:
            wire.answer(PRODUCE, 9, 1)
            wire.socket.close()
        for sender in senders:
            sender.join()
        until(lambda: counted(gateway, "request_memory_bytes") == 0)


@pytest.mark.usefixtures("frequent_polls")
def test_a_request_that_comes_byte_by_byte_has_a_deadline(root: Path) -> None:
    with serving(root, request_timeout_ms=300) as gateway, Wire(gateway) as slow:
        slow.socket.sendall(struct.pack(">i", 10_000))
        end_s = time.monotonic() + 60
        with suppress(OSError):
            while time.monotonic() < end_s:
                slow.socket.sendall(b"x")
                time.sleep(0.02)
        assert time.monotonic() < end_s


@pytest.mark.usefixtures("frequent_polls")
def test_a_response_that_is_taken_byte_by_byte_has_a_deadline(root: Path) -> None:
    with serving(root, request_timeout_ms=300) as gateway, Wire(gateway) as producer:
        for _ in range(6):
            producing(producer, LARGE)
        with Wire(gateway, receive_bytes=4096) as slow:
            slow.send(FETCH, 12, **fetch_fields(12, [("clicks", 0, 0)], partition_max_bytes=16 << 20))
            end_s = time.monotonic() + 60
            while gateway.connections > 1:
                slow.socket.recv(2000)
                time.sleep(0.005)
                assert time.monotonic() < end_s
        assert len(fetching(producer, 0).records) > 700_000
    assert gateway.broker.fetch_memory.used == 0


def test_time_is_measured_from_the_first_byte_and_a_large_one_has_more_of_it() -> None:

    now = [0.0]
    timeouts = ConnectionTimeouts(lambda: now[0], GatewayConfig())
    timeouts.begin_receiving(10 << 20)
    for now[0] in range(0, 41, 10):
        timeouts.note_activity()
        timeouts.begin_receiving(0)
        assert timeouts.close_reason(is_idle=False, is_authenticated=True) is None
    now[0] = 40.5
    assert "too slow" in str(timeouts.close_reason(is_idle=False, is_authenticated=True))
    timeouts.end_receiving()
    assert timeouts.close_reason(is_idle=False, is_authenticated=True) is None
    now[0] = 641
    assert "idle" in str(timeouts.close_reason(is_idle=True, is_authenticated=True))
    assert "did not authenticate" in str(timeouts.close_reason(is_idle=True, is_authenticated=False))


def test_the_connections_of_one_address_are_bounded(root: Path) -> None:
    with serving(root, max_connections_per_ip=2) as gateway:
        allowed = [Wire(gateway), Wire(gateway)]
        with Wire(gateway) as one_more:
            assert one_more.is_closed
        other = socket.create_connection(("127.0.0.1", gateway.port), source_address=("127.0.0.2", 0))
        other.sendall(framed(request(API_VERSIONS, 0, 1)))
        assert other.recv(4)
        other.close()
        allowed.pop().socket.close()
        until(lambda: gateway.connections == 1)
        assert is_well(gateway)
        allowed.pop().socket.close()


def test_a_network_of_ipv6_addresses_has_the_connections_of_one_address() -> None:
    nothing: Any = None
    server = SocketServer(GatewayConfig(max_connections_per_ip=2), *[nothing] * 7)
    local = "::1", 9092
    sessions = [server.admit((f"2001:db8::{number}", 1), local) for number in range(3)]
    assert [session is not None for session in sessions] == [True, True, False]
    assert server.admit(("2001:db8:0:1::1", 1), local) is not None
    assert sessions[0] is not None
    server.disconnected(sessions[0])
    assert server.admit(("2001:db8::9", 1), local) is not None


def test_short_connections_leave_nothing(root: Path) -> None:
    with serving(root, max_connections=20, max_connections_per_ip=20) as gateway:
        for number in range(300):
            wire = Wire(gateway)
            if number % 3:
                wire.socket.setsockopt(1, 13, struct.pack("ii", 1, 0))
            wire.socket.close()
        until(lambda: gateway.connections == 0)
        until(lambda: are_served(gateway, 20))


def test_a_process_without_free_sockets_serves_its_connections(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    occupied, fillers = [socket.socket() for _ in range(3)], list[int]()
    with serving(root) as gateway, Wire(gateway) as previous:
        assert previous.ask(API_VERSIONS, 0).error_code is ErrorCode.none
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 1, hard))
        try:
            with suppress(OSError):
                while True:
                    fillers.append(os.dup(0))
            for other in occupied:
                other.connect(("127.0.0.1", gateway.port))
            until(lambda: "cannot accept a connection: Too many open files" in caplog.text)
            assert previous.ask(API_VERSIONS, 0).error_code is ErrorCode.none
        finally:
            for filler in fillers:
                os.close(filler)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for other in occupied:
            other.sendall(framed(request(API_VERSIONS, 0, 1)))
            assert other.recv(4)
            other.close()


@pytest.mark.parametrize("with_tls", [False, True])
def test_hostile_clients_cannot_delay_a_stop(root: Path, with_tls: bool) -> None:
    authority = Authority(root)
    files = authority.certificate("server")
    tls = TlsFiles(certificate=files.certificate, key=files.key) if with_tls else None
    gateway = GatewayServer(str(root), port=0, tls=tls).start()
    wires = [Wire(gateway, receive_bytes=4096) for _ in range(8)]
    if not with_tls:
        with Wire(gateway) as producer:
            for _ in range(6):
                producing(producer, LARGE)
        # one takes no response, one waits for records, one is in the middle, one has sent more than is read
        wires[0].send(FETCH, 12, **fetch_fields(12, [("clicks", 0, 0)], partition_max_bytes=16 << 20))
        wires[1].send(FETCH, 12, **fetch_fields(12, [("clicks", 0, 6)], max_wait_ms=60_000))
        wires[2].socket.sendall(struct.pack(">i", 99 << 20) + bytes(100_000))
        wires[3].socket.sendall(framed(request(API_VERSIONS, 0, 1)) * 5000)
    else:
        context = ssl.create_default_context(cafile=authority.file)
        secure = [context.wrap_socket(wire.socket, server_hostname="127.0.0.1") for wire in wires[:4]]
        wires[5].socket.sendall(b"\x16\x03\x01")
        assert secure
    start_s = time.monotonic()
    # one client would have it wait for 60 s, and it would give up on others after three quarters of what it may take
    assert gateway.stop(timeout_s=40)
    assert time.monotonic() - start_s < 30
    for wire in wires:
        wire.socket.close()


def test_a_blocked_handler_cannot_delay_a_stop(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on, waits = threading.Event(), threading.Event()

    def stuck(*_: object) -> None:
        waits.set()
        goes_on.wait(60)

    monkeypatch.setitem(APIS, INIT_PRODUCER_ID, APIS[INIT_PRODUCER_ID]._replace(handle=stuck))
    gateway = GatewayServer(str(root), port=0).start()
    with Wire(gateway) as wire:
        producing(wire, LARGE)
        wire.send(INIT_PRODUCER_ID, 4, transactional_id=None, transaction_timeout=NO_WAIT)
        assert waits.wait(120)
        started_s = time.monotonic()
        assert not gateway.stop(timeout_s=2)
        assert time.monotonic() - started_s < 30
        # appended records are durable all the same; on a busy machine a thread may still be about it
        until(lambda: not open_below(root / "clicks"))
        assert wire.is_closed
    goes_on.set()


def test_a_blocked_storage_cannot_delay_a_stop(root: Path) -> None:
    gateway = GatewayServer(str(root), port=0, settings={"flush.messages": 1000}).start()
    with Wire(gateway) as wire:
        producing(wire, LARGE)
    with FileLock(str(root / "clicks" / "clicks-0" / ".flush")).held():
        started_s = time.monotonic()
        assert not gateway.stop(timeout_s=0.2)
        assert time.monotonic() - started_s < 30
    until(lambda: not open_below(root / "clicks"))


def expanding(codec: int, size: int) -> bytes:
    records = [record(0, 0, None, bytes(size))]
    return batch(records, attributes=codec, section=compress(codec, records[0]))


@pytest.mark.long
@pytest.mark.parametrize("codec", [GZIP, LZ4, ZSTD])
def test_a_batch_that_expands_too_far_is_refused_and_costs_no_memory(gateway: GatewayServer, codec: int) -> None:
    with Wire(gateway) as wire:
        response = producing(wire, expanding(codec, 40 << 20))
        assert (response.error_code, response.base_offset) == (ErrorCode.message_too_large, -1)
        assert "expands to more than 32 times max.message.bytes" in response.error_message
        assert producing(wire, expanding(codec, 20 << 20)).base_offset == 0


@pytest.mark.parametrize("codec", [GZIP, LZ4, ZSTD])
def test_a_batch_that_expands_too_far_for_a_small_topic_is_refused(codec: int) -> None:
    config = TopicConfig.parse({"max.message.bytes": "200000"})
    with pytest.raises(RecordTooLargeError, match="expands to more than 32 times"):
        validate(expanding(codec, 32 << 20), config, 0)


def test_a_snappy_batch_has_no_room_for_a_bomb(gateway: GatewayServer) -> None:
    with Wire(gateway) as wire:
        assert producing(wire, expanding(SNAPPY, 40 << 20)).error_code is ErrorCode.message_too_large
        assert producing(wire, expanding(SNAPPY, 10 << 20)).base_offset == 0


@pytest.mark.long
def test_the_memory_for_a_bomb_is_bounded_by_its_topic() -> None:
    bomb = expanding(ZSTD, 128 << 20)
    tracemalloc.start()
    try:
        with pytest.raises(RecordTooLargeError):
            validate(bomb, TopicConfig(), 0)
        assert tracemalloc.get_traced_memory()[1] < 100 << 20
    finally:
        tracemalloc.stop()
    assert len(validate(bomb, TopicConfig.parse({"max.message.bytes": str(8 << 20)}), 1000).rows) == 1
