"""TLS: clients with TLS and a certificate are served, and a failed handshake closes only its connection."""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from gateways import (
    API_VERSIONS,
    FETCH,
    PRODUCE,
    Wire,
    counted,
    fetch_fields,
    produce_fields,
    producing,
    serving,
    until,
)
from kio.schema.errors import ErrorCode
from raw_batches import batch, record
from tls_certificates import KEY_PASSWORD, Authority, Certificate, TlsWire

import distlog
from distlog.core.errors import InvalidConfigError, StorageError
from distlog.core.storage.locks_and_pages import FileLock
from distlog.gateway.gateway_server import GatewayServer
from distlog.gateway.security.tls import TlsFiles

SOFTWARE = {"client_software_name": "a-test", "client_software_version": "1"}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def server(authority: Authority) -> Certificate:
    return authority.certificate("server")


@pytest.fixture(scope="module")
def gateway(
    authority: Authority, server: Certificate, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayServer]:
    root = tmp_path_factory.mktemp("root")
    distlog.create(str(root / "clicks"))
    tls = TlsFiles(certificate=server.certificate, key=server.key)
    with serving(root, tls=tls, authentication_timeout_ms=500) as served:
        yield served


def is_well(wire: Wire) -> bool:
    return bool(wire.ask(API_VERSIONS, 3, **SOFTWARE).error_code is ErrorCode.none)


def is_refused(gateway: GatewayServer, authority: Authority, certificate: Certificate | None) -> bool:
    """Whether a client with this certificate is refused; with TLS 1.3 it learns that when it reads."""
    try:
        with TlsWire(gateway, authority, certificate) as wire:
            return wire.socket.recv(1) == b""
    except (ssl.SSLError, ConnectionError):
        return True


@pytest.mark.parametrize("size", [1, 60_000, 900_000])
def test_records_of_any_size_go_through_tls(gateway: GatewayServer, authority: Authority, size: int) -> None:
    with TlsWire(gateway, authority) as wire:
        assert wire.socket.version() == "TLSv1.3"  # type: ignore[attr-defined]
        previous = producing(wire, batch([record(0)])).base_offset
        assert producing(wire, batch([record(0, 0, None, b"x" * size)])).base_offset == previous + 1


def close_tls(wire: Wire) -> None:
    """Close TLS, and wait until the gateway has closed the connection, as it does when it notices this."""
    assert wire.socket.unwrap().recv(1) == b""  # type: ignore[attr-defined]


def test_a_fetch_of_a_disconnected_client_ends(gateway: GatewayServer, authority: Authority) -> None:
    sent, lock = batch([record(0)]), FileLock(str(Path(gateway.root) / "clicks" / "clicks-0" / ".lock"))
    with TlsWire(gateway, authority) as wire:
        first = producing(wire, sent).base_offset
        with lock.held():
            fields = produce_fields(9, [("clicks", 0, sent)], acks=0)
            wire.send(PRODUCE, 9, **fields)
            wire.send(FETCH, 12, **fetch_fields(12, [("clicks", 0, 0)], max_wait_ms=60_000, min_bytes=1 << 30))
            wire.send(PRODUCE, 9, **fields)
            close_tls(wire)
    until(lambda: gateway.connections == 0)
    with TlsWire(gateway, authority) as wire:
        assert producing(wire, sent).base_offset == first + 3


def test_an_error_of_a_disconnected_client_without_acks_is_logged(
    gateway: GatewayServer, authority: Authority
) -> None:
    lock, previous = (
        FileLock(str(Path(gateway.root) / "clicks" / "clicks-0" / ".lock")),
        counted(gateway, "connections_hung_up"),
    )
    with TlsWire(gateway, authority) as wire:
        assert producing(wire, batch([record(0)])).error_code is ErrorCode.none
        with lock.held():
            for topic in ("clicks", "none"):
                wire.send(PRODUCE, 9, **produce_fields(9, [(topic, 0, batch([record(0)]))], acks=0))
            close_tls(wire)
    until(lambda: gateway.connections == 0)
    until(lambda: counted(gateway, "connections_hung_up") == previous + 1)


def test_invalid_tls_closes_only_its_connection(gateway: GatewayServer, authority: Authority) -> None:
    hello = b"\x16\x03\x01\xff\xff" + bytes(99)
    for sent in (b"\0\0\0\x0a\0\x12\0\0\0\0\0\1\xff\xff", b"GET / HTTP/1.1\r\n\r\n", hello):
        with Wire(gateway) as plain:
            plain.socket.sendall(sent)
            while plain.socket.recv(1000):
                pass
    with TlsWire(gateway, authority) as wire:
        assert is_well(wire)
    assert counted(gateway, "tls_handshakes_failed") >= 3


def test_clients_with_wrong_settings_are_logged(
    authority: Authority, server: Certificate, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "distlog")
    tls = TlsFiles(certificate=server.certificate, key=server.key, ca=authority.file, client_auth="required")
    with serving(tmp_path / "tls", tls=tls) as gateway:
        assert is_refused(gateway, authority, None)
        Wire(gateway).socket.close()
        until(lambda: counted(gateway, "tls_handshakes_failed") == 2)
        failed = [message for message in caplog.messages if message.startswith("connections that failed")]
    assert failed == [
        "connections that failed: 1 by a client at 127.0.0.1 (1, last: TLS: PEER_DID_NOT_RETURN_A_CERTIFICATE)"
    ]


@pytest.mark.parametrize(("sent", "name"), [(b"\x16\x03\x01\x02\0\x01\0", "TLS"), (b"GET / HTTP/1.1\r\n", "HTTP")])
def test_a_client_of_another_protocol_is_logged_by_name(
    sent: bytes, name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(tmp_path) as gateway, Wire(gateway) as wire:
        wire.socket.sendall(sent)
        assert wire.is_closed
    (responses,) = [message for message in caplog.messages if "connections that failed" in message]
    assert f"ANONYMOUS at 127.0.0.1 (1, last: a request has an invalid length: it is {name}" in responses


def test_an_incomplete_handshake_times_out(gateway: GatewayServer, authority: Authority) -> None:
    halves = [Wire(gateway) for _ in range(20)]
    for number, wire in enumerate(halves):
        wire.socket.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[: number % 12])
    with TlsWire(gateway, authority) as wire:
        assert is_well(wire)
    for half in halves:
        assert half.is_closed
        half.socket.close()


def test_incomplete_handshakes_count_as_connections(
    authority: Authority, server: Certificate, tmp_path: Path
) -> None:
    tls = TlsFiles(certificate=server.certificate, key=server.key)
    with serving(tmp_path, tls=tls, max_connections=3) as gateway:
        halves = [Wire(gateway) for _ in range(3)]
        with Wire(gateway) as one_more:
            assert one_more.is_closed
        halves.pop().socket.close()

        def is_served() -> bool:
            try:
                with TlsWire(gateway, authority) as wire:
                    return is_well(wire)
            except OSError:
                return False

        until(is_served)
        for half in halves:
            half.socket.close()


@pytest.mark.parametrize("version", ["TLSv1", "TLSv1_1"])
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
def test_old_versions_of_tls_are_refused(gateway: GatewayServer, version: str) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = ssl.TLSVersion[version]
    with socket.create_connection(("127.0.0.1", gateway.port)) as plain, pytest.raises(ssl.SSLError):
        context.wrap_socket(plain)


def test_a_client_needs_a_certificate_of_the_authority(
    authority: Authority, server: Certificate, tmp_path: Path
) -> None:
    tls = TlsFiles(certificate=server.certificate, key=server.key, ca=authority.file, client_auth="required")
    stranger = Authority(tmp_path, "stranger").certificate("strange")
    with serving(tmp_path / "root", tls=tls) as gateway:
        for certificate in (None, stranger):
            assert is_refused(gateway, authority, certificate)
        with TlsWire(gateway, authority, authority.certificate("client")) as wire:
            assert is_well(wire)


def test_a_key_may_have_a_password(authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    locked = authority.certificate("locked", key_password=KEY_PASSWORD)
    (tmp_path / "password").write_text(KEY_PASSWORD + "\n")
    files = TlsFiles(certificate=locked.certificate, key=locked.key, key_password_file=str(tmp_path / "password"))
    with serving(tmp_path / "root", tls=files) as gateway, TlsWire(gateway, authority) as wire:
        assert is_well(wire)
    assert KEY_PASSWORD not in repr(files) + caplog.text


@pytest.mark.parametrize("password", [None, "", "another", "x" * 5000])
def test_a_key_without_its_password_is_refused_without_a_prompt(
    authority: Authority, tmp_path: Path, password: str | None
) -> None:
    locked = authority.certificate("locked", key_password=KEY_PASSWORD)
    path = None
    if password is not None:
        path = str(tmp_path / "password")
        (tmp_path / "password").write_text(password)
    with pytest.raises(StorageError, match="cannot use the certificate") as reply:
        TlsFiles(certificate=locked.certificate, key=locked.key, key_password_file=path).context()
    assert not password or password not in str(reply.value)


def test_wrong_files_are_reported(authority: Authority, server: Certificate, tmp_path: Path) -> None:
    other = authority.certificate("other")
    (tmp_path / "none.pem").write_text("nothing")
    for certificate, key in (
        (server.certificate, other.key),
        (server.key, server.key),
        (str(tmp_path / "none.pem"), server.key),
        (str(tmp_path / "missing.pem"), server.key),
    ):
        with pytest.raises(StorageError, match="cannot use the certificate and its key"):
            TlsFiles(certificate=certificate, key=key).context()
    pair = {"certificate": server.certificate, "key": server.key}
    for wrong in (
        {"client_auth": "required"},
        {"ca": authority.file},
        {"ca": authority.file, "client_auth": "maybe"},
    ):
        with pytest.raises(InvalidConfigError):
            TlsFiles(**pair, **wrong).context()  # type: ignore[arg-type]
    with pytest.raises(StorageError, match="cannot use the certificates of clients' authorities"):
        TlsFiles(**pair, ca=str(tmp_path / "none.pem"), client_auth="required").context()
