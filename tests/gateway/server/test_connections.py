"""Connections: frames in any chunks, order, limits; invalid data costs a client nothing but its connection."""

from __future__ import annotations

import random
import socket
import struct
from pathlib import Path
from typing import Any

import pytest
from gateways import (
    API_VERSIONS,
    FETCH,
    INIT_PRODUCER_ID,
    METADATA,
    NO_WAIT,
    PRODUCE,
    Wire,
    framed,
    open_topic,
    produce_fields,
    request,
    serving,
    until,
)
from gateways import frequent_polls as frequent_polls
from gateways import gateway as gateway
from kio.schema.errors import ErrorCode
from raw_batches import batch, record

from distlog import StorageError
from distlog.gateway.apis import APIS
from distlog.gateway.gateway_server import GatewayServer
from distlog.gateway.protocol.messages import LARGEST_OTHER_BYTES
from distlog.gateway.server.socket_server import listening_sockets

REACHABLE, UNREACHABLE = (
    (socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, 0)) for host in ("127.0.0.1", "192.0.2.1")
)

SOFTWARE = {"client_software_name": "a-test", "client_software_version": "1"}
DATA = batch([record(0)])
LARGE = batch([record(0, 0, None, b"x" * 700_000)])


def is_well(gateway: GatewayServer) -> bool:
    with Wire(gateway) as wire:
        return bool(wire.ask(API_VERSIONS, 3, **SOFTWARE).error_code is ErrorCode.none)


@pytest.mark.parametrize("addresses", [[REACHABLE, UNREACHABLE], [UNREACHABLE, REACHABLE]])
def test_addresses_of_a_name_that_the_machine_does_not_have_are_left_out(
    addresses: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: addresses)
    (listener,) = listening_sockets("a-name", 0)
    assert listener.getsockname()[0] == "127.0.0.1"
    listener.close()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [UNREACHABLE])
    with pytest.raises(StorageError, match="cannot listen: Cannot assign requested address"):
        listening_sockets("a-name", 0)


@pytest.mark.parametrize("version", range(5))
def test_a_client_gets_the_supported_versions(gateway: GatewayServer, version: int) -> None:
    with Wire(gateway) as wire:
        response = wire.ask(API_VERSIONS, version, **(SOFTWARE if version >= 3 else {}))
    expected = {(api.key, api.oldest, api.newest) for api in APIS.values()}
    assert {(key.api_key, key.min_version, key.max_version) for key in response.api_keys} == expected


def test_a_newer_client_is_answered_in_version_0(gateway: GatewayServer) -> None:
    with Wire(gateway) as wire:
        wire.socket.sendall(framed(struct.pack(">hhi", API_VERSIONS, 99, 1) + b"\xff\xff any content"))
        response = wire.answer(API_VERSIONS, 0, 1)
        assert response.error_code is ErrorCode.unsupported_version
        assert API_VERSIONS in {key.api_key for key in response.api_keys}
        assert wire.ask(API_VERSIONS, 3, **SOFTWARE).error_code is ErrorCode.none


def test_large_and_small_requests_in_one_packet_are_separated(gateway: GatewayServer) -> None:
    chance = random.Random(1)
    sizes = [chance.choice((1, 100, 60_000, 70_000, 200_000)) for _ in range(40)]
    frames = [
        framed(request(PRODUCE, 9, n, **produce_fields(9, [("clicks", 0, batch([record(0, value=b"x" * size)]))])))
        for n, size in enumerate(sizes)
    ]
    with Wire(gateway) as wire:
        stream, position = b"".join(frames), 0
        while position < len(stream):
            position += wire.socket.send(stream[position : position + chance.randrange(1, 150_000)])
        for number in range(len(sizes)):
            wire.answer(PRODUCE, 9, number)
    assert [len(value) for value in open_topic(gateway).scan().to_table().column("value").to_pylist()] == sizes


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        struct.pack(">i", -1),
        struct.pack(">i", 0),
        struct.pack(">i", (100 << 20) + 1),
        framed(b"\0"),
        framed(struct.pack(">hhi", 999, 0, 1)),
        framed(struct.pack(">hhi", PRODUCE, 2, 1)),
        framed(struct.pack(">hhi", FETCH, -1, 1)),
        framed(struct.pack(">hhih", METADATA, 1, 1, 30_000)),
        framed(struct.pack(">hhihi", METADATA, 1, 1, -1, 0x7FFFFFFF)),
        framed(struct.pack(">hhihiiiibi", FETCH, 4, 1, -1, -1, 0, 1, 1, 0, 0x7FFFFFFF) + bytes(40)),
        framed(struct.pack(">hhi", PRODUCE, 9, 1) + bytes([0xFF] * 100)),
    ],
)
def test_an_invalid_request_ends_the_connection(gateway: GatewayServer, sent: bytes) -> None:
    with Wire(gateway) as wire:
        wire.socket.sendall(sent)
        assert wire.is_closed
    assert is_well(gateway)


def test_garbage_closes_only_its_connections(gateway: GatewayServer) -> None:
    chance = random.Random(7)
    for _ in range(300):
        head = struct.pack(">hhi", chance.choice([*APIS]), chance.randrange(13), 1)
        with Wire(gateway) as wire:
            wire.socket.sendall(framed(head + chance.randbytes(chance.randrange(200))))
            wire.socket.shutdown(socket.SHUT_WR)
    assert is_well(gateway)
    until(lambda: gateway.connections == 0)


@pytest.mark.usefixtures("frequent_polls")
def test_an_idle_connection_is_closed(tmp_path: Path) -> None:
    with serving(tmp_path, connections_max_idle_ms=50) as gateway, Wire(gateway) as wire:
        assert wire.is_closed


def test_the_number_of_connections_is_bounded(tmp_path: Path) -> None:
    with serving(tmp_path, max_connections=3) as gateway:
        allowed = [Wire(gateway) for _ in range(3)]
        for wire in allowed:
            assert wire.ask(API_VERSIONS, 3, **SOFTWARE).error_code is ErrorCode.none
        with Wire(gateway) as one_more:
            assert one_more.is_closed
        allowed.pop().socket.close()
        until(lambda: gateway.connections == 2)
        assert is_well(gateway)


def test_a_request_that_fails_unexpectedly_ends_its_connection(
    gateway: GatewayServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a mistake of ours")

    monkeypatch.setitem(APIS, INIT_PRODUCER_ID, APIS[INIT_PRODUCER_ID]._replace(handle=broken))
    with Wire(gateway) as wire:
        wire.send(INIT_PRODUCER_ID, 4, transactional_id=None, transaction_timeout=NO_WAIT)
        assert wire.is_closed
    assert is_well(gateway)


def test_only_records_make_a_request_large(gateway: GatewayServer) -> None:
    # each topic is two bytes of the request, and some sixty of memory, read in the thread of all connections
    count = (LARGEST_OTHER_BYTES >> 1) + 1
    with Wire(gateway) as wire:
        wire.socket.sendall(framed(struct.pack(">hhihi", METADATA, 1, 1, -1, count) + bytes(2 * count)))
        assert wire.is_closed
    assert is_well(gateway)
