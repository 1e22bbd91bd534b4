"""Records of a local log go out as they lie in its file: from the page cache, unless they are encrypted."""

from __future__ import annotations

import errno
import logging
import os
import socket
from pathlib import Path

import pytest
from gateways import FETCH, Wire, counted, fetch_fields, fetching, limit_send_buffers, producing, serving, until
from gateways import gateway as gateway
from raw_batches import batch, record
from tls_certificates import Authority, TlsWire

import distlog
from distlog.core.format.kernels.native import COMPILED
from distlog.gateway.gateway_server import GatewayServer
from distlog.gateway.security.tls import TlsFiles

pytestmark = pytest.mark.skipif(not COMPILED, reason="headers are found by compiled code")

VALUES = [b"%d" % number * 150_000 for number in range(8)]
ALL = fetch_fields(12, [("clicks", 0, 0), ("clicks", 1, 0)], partition_max_bytes=16 << 20)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    counts, real = list[int](), os.sendfile

    def sendfile(*arguments: int) -> int:
        counts.append(real(*arguments))
        return counts[-1]

    monkeypatch.setattr(os, "sendfile", sendfile)
    return counts


def filled(wire: Wire) -> None:
    for value in VALUES:
        for partition in (0, 1):
            producing(wire, batch([record(0, 0, None, value)]), partition)


def is_all(records: bytes) -> bool:
    batches = [batch([record(0, 0, None, value)], base_offset=number) for number, value in enumerate(VALUES)]
    epoch = slice(12, 16)
    for sent_batch in batches:
        actual, records = bytearray(records[: len(sent_batch)]), records[len(sent_batch) :]
        actual[epoch] = sent_batch[epoch]
        if actual != sent_batch:
            return False
    return not records


def asked_by_a_slow_client(gateway: GatewayServer) -> Wire:
    limit_send_buffers(gateway)
    slow = Wire(gateway, receive_bytes=4096)
    slow.send(FETCH, 12, **ALL)
    assert slow.socket.recv(1, socket.MSG_PEEK)
    return slow


def test_records_go_out_from_the_page_cache(gateway: GatewayServer, sent: list[int]) -> None:
    with Wire(gateway) as wire:
        filled(wire)
        ((responses, _),) = [response.partitions for response in wire.ask(FETCH, 12, **ALL).responses]
        assert is_all(responses.records)
        sent.clear()
        assert is_all(fetching(wire, 0, partition_max_bytes=16 << 20).records)
    assert sum(sent) > len(responses.records) // 2


def test_a_slow_client_gets_each_byte_once(gateway: GatewayServer, sent: list[int]) -> None:
    with Wire(gateway) as wire:
        filled(wire)
    until(lambda: gateway.connections == 0)
    with asked_by_a_slow_client(gateway) as slow:
        assert gateway.broker.fetch_memory.used > 0
        (topic,) = slow.answer(FETCH, 12, 1).responses
        assert [is_all(partition.records) for partition in topic.partitions] == [True, True]
        until(lambda: gateway.broker.fetch_memory.used == 0)
    assert len(sent) > 2


def test_a_log_that_is_cut_while_it_is_sent_ends_the_connection(gateway: GatewayServer) -> None:
    with Wire(gateway) as wire:
        filled(wire)
    until(lambda: gateway.connections == 0)
    with asked_by_a_slow_client(gateway) as slow:
        for log in Path(gateway.root).glob("clicks/*/*.log"):
            os.truncate(log, 1000)
        with pytest.raises((EOFError, ConnectionResetError)):
            slow.frame()
    until(lambda: gateway.broker.fetch_memory.used == 0)


def test_a_failing_disk_is_logged_at_once_and_each_minute(
    gateway: GatewayServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def failing(*_: int) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with Wire(gateway) as wire:
        filled(wire)
    monkeypatch.setattr(os, "sendfile", failing)
    for _ in range(3):
        with Wire(gateway) as wire:
            wire.send(FETCH, 12, **ALL)
            with pytest.raises((EOFError, ConnectionResetError)):
                wire.frame()
    (responses,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert "clicks-0/" in responses.message
    assert "cannot read: Input/output error, position=0" in responses.message
    assert counted(gateway, "unreadable_files") == 3


def test_encrypted_records_are_read(tmp_path: Path, sent: list[int]) -> None:
    authority = Authority(tmp_path)
    server = authority.certificate("server")
    distlog.create(str(tmp_path / "root" / "clicks"), partitions=2)
    files = TlsFiles(certificate=server.certificate, key=server.key)
    with serving(tmp_path / "root", tls=files) as gateway, TlsWire(gateway, authority) as wire:
        filled(wire)
        (topic,) = wire.ask(FETCH, 12, **ALL).responses
        assert [is_all(partition.records) for partition in topic.partitions] == [True, True]
    assert not sent
