"""SASL on the wire: requests before authentication, and failed authentications."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from gateways import API_VERSIONS, FETCH, METADATA, PRODUCE, counted, framed, request, serving, until
from gateways import frequent_polls as frequent_polls
from kio.schema.errors import ErrorCode
from users_files import AUTHENTICATE, HANDSHAKE, PASSWORD, SaslWire, client_first, client_last, users_file

import distlog
from distlog.gateway.gateway_server import GatewayServer
from distlog.gateway.security.authentication import MECHANISMS, PLAIN, Authentication
from distlog.gateway.security.users_file import UsersFile, write_users

SOFTWARE = {"client_software_name": "a-test", "client_software_version": "1"}
ALL = {
    "include_cluster_authorized_operations": False,
    "include_topic_authorized_operations": False,
    "allow_auto_topic_creation": False,
    "topics": None,
}


@contextmanager
def guarded(folder: Path, mechanisms: tuple[str, ...] = MECHANISMS, **settings: Any) -> Iterator[GatewayServer]:
    root = folder / "root"
    distlog.create(str(root / "clicks"))
    users = Authentication(UsersFile(users_file(folder, "alice", "bob")), mechanisms)
    with serving(root, authentication=users, **{"failed_authentication_delay_ms": 50, **settings}) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayServer]:
    with guarded(tmp_path_factory.mktemp("guarded")) as served:
        yield served


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_an_authenticated_user_is_served(gateway: GatewayServer, mechanism: str) -> None:
    previous = counted(gateway, "authentications", mechanism=mechanism, result="ok")
    with SaslWire(gateway) as wire:
        assert wire.ask(API_VERSIONS, 3, **SOFTWARE).error_code is ErrorCode.none
        reply = wire.log_in(mechanism=mechanism)
        assert (reply.error_code, reply.session_lifetime.total_seconds()) == (ErrorCode.none, 0)
        assert "clicks" in {topic.name for topic in wire.ask(METADATA, 8, **ALL).topics}
    assert counted(gateway, "authentications", mechanism=mechanism, result="ok") == previous + 1


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("name", ["alice", "mallory"])
def test_a_failed_authentication_is_answered_and_closed(gateway: GatewayServer, mechanism: str, name: str) -> None:
    previous = counted(gateway, "authentications", mechanism=mechanism, result="failed")
    with SaslWire(gateway) as wire:
        reply = wire.log_in(name, "another", mechanism)
        assert reply.error_code is ErrorCode.sasl_authentication_failed
        assert reply.error_message == f"Authentication failed: invalid credentials with SASL mechanism {mechanism}"
        assert wire.is_closed
    assert counted(gateway, "authentications", mechanism=mechanism, result="failed") == previous + 1


@pytest.mark.parametrize("api_key", [METADATA, FETCH, PRODUCE])
@pytest.mark.parametrize("steps", range(3))
def test_nothing_is_answered_before_authentication(gateway: GatewayServer, api_key: int, steps: int) -> None:
    with SaslWire(gateway) as wire:
        if steps:
            wire.choose("SCRAM-SHA-256")
        if steps > 1:
            wire.prove(client_first("alice"))
        wire.socket.sendall(framed(struct.pack(">hhi", api_key, 4, 1) + bytes(100)))
        assert wire.is_closed


def test_requests_after_a_proof_are_handled_only_if_it_is_valid(gateway: GatewayServer) -> None:
    for password, served in ((PASSWORD, True), ("wrong", False)):
        with SaslWire(gateway) as wire:
            tokens = {"mechanism": PLAIN}, {"auth_bytes": f"\0alice\0{password}".encode()}
            wire.socket.sendall(
                framed(request(HANDSHAKE, 1, 1, **tokens[0]))
                + framed(request(AUTHENTICATE, 2, 2, **tokens[1]))
                + framed(request(METADATA, 8, 3, **ALL))
            )
            assert wire.answer(HANDSHAKE, 1, 1).mechanisms == MECHANISMS
            assert (wire.answer(AUTHENTICATE, 2, 2).error_code is ErrorCode.none) is served
            if served:
                assert "clicks" in {topic.name for topic in wire.answer(METADATA, 8, 3).topics}
            else:
                assert wire.is_closed


def test_an_unknown_mechanism_is_refused_with_the_enabled_ones(tmp_path: Path) -> None:
    with guarded(tmp_path, ("SCRAM-SHA-512",)) as gateway:
        for mechanism in ("GSSAPI", PLAIN, "SCRAM-SHA-256", ""):
            with SaslWire(gateway) as wire:
                reply = wire.choose(mechanism)
                assert (reply.error_code, reply.mechanisms) == (
                    ErrorCode.unsupported_sasl_mechanism,
                    ("SCRAM-SHA-512",),
                )
                assert wire.is_closed


def test_steps_in_another_order_are_illegal(gateway: GatewayServer) -> None:
    with SaslWire(gateway) as wire:
        assert wire.prove(b"\0alice\0x").error_code is ErrorCode.illegal_sasl_state
        wire.choose("SCRAM-SHA-256")
        assert wire.choose(PLAIN).error_code is ErrorCode.illegal_sasl_state
        last = client_last("SCRAM-SHA-256", "alice", PASSWORD, "r=x,s=c2FsdA==,i=4096")
        assert wire.prove(last).error_code is ErrorCode.sasl_authentication_failed
        assert wire.is_closed


def test_an_authenticated_user_cannot_change(gateway: GatewayServer) -> None:
    with SaslWire(gateway) as wire:
        wire.log_in()
        assert wire.choose(PLAIN).error_code is ErrorCode.illegal_sasl_state
        assert wire.prove(f"\0bob\0{PASSWORD}".encode()).error_code is ErrorCode.illegal_sasl_state


def test_without_sasl_it_is_illegal(tmp_path: Path) -> None:
    with serving(tmp_path) as gateway, SaslWire(gateway) as wire:
        assert wire.choose(PLAIN).error_code is ErrorCode.illegal_sasl_state


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_an_old_client_sends_bare_tokens_after_handshake_0(gateway: GatewayServer, mechanism: str) -> None:
    with SaslWire(gateway) as wire:
        wire.choose(mechanism, version=0)
        if mechanism == PLAIN:
            wire.socket.sendall(framed(f"\0alice\0{PASSWORD}".encode()))
            assert wire.frame() == b""
        else:
            wire.socket.sendall(framed(client_first("alice")))
            first = wire.frame().decode()
            wire.socket.sendall(framed(client_last(mechanism, "alice", PASSWORD, first)))
            assert wire.frame().startswith(b"v=")
        assert wire.ask(API_VERSIONS, 3, **SOFTWARE).error_code is ErrorCode.none
    with SaslWire(gateway) as wire:
        wire.choose(mechanism, version=0)
        wire.socket.sendall(framed(b"\0alice\0wrong"))
        assert wire.is_closed


def test_a_failure_delays_only_its_client(tmp_path: Path) -> None:
    settings = {"failed_authentication_delay_ms": 600}
    with guarded(tmp_path, **settings) as gateway, SaslWire(gateway) as guessing, SaslWire(gateway) as user:
        guessing.choose(PLAIN)
        started_s = time.monotonic()
        number = guessing.send(AUTHENTICATE, 2, auth_bytes=b"\0alice\0guess")
        assert user.log_in().error_code is ErrorCode.none
        guessing.answer(AUTHENTICATE, 2, number)
        assert time.monotonic() - started_s >= 0.6


@pytest.mark.usefixtures("frequent_polls")
def test_a_slow_authentication_is_closed(tmp_path: Path) -> None:
    with (
        guarded(tmp_path, authentication_timeout_ms=1000) as gateway,
        SaslWire(gateway) as silent,
        SaslWire(gateway) as half,
        SaslWire(gateway) as user,
    ):
        assert user.log_in().error_code is ErrorCode.none
        half.choose("SCRAM-SHA-256")
        half.prove(client_first("alice"))
        half.socket.sendall(b"\0")
        assert silent.is_closed
        assert half.is_closed
        assert user.ask(API_VERSIONS, 3, **SOFTWARE).error_code is ErrorCode.none


def test_an_unknown_client_may_send_less(gateway: GatewayServer) -> None:
    with SaslWire(gateway) as wire:
        wire.socket.settimeout(60)
        wire.socket.sendall(struct.pack(">i", (512 << 10) + 1))
        assert wire.is_closed


@pytest.mark.usefixtures("frequent_polls")
def test_changed_and_deleted_users_are_disconnected(tmp_path: Path) -> None:
    with guarded(tmp_path) as gateway, SaslWire(gateway) as alice, SaslWire(gateway) as bob:
        assert alice.log_in("alice", mechanism="SCRAM-SHA-512").error_code is ErrorCode.none
        assert bob.log_in("bob").error_code is ErrorCode.none
        path = users_file(tmp_path, "carol")
        with SaslWire(gateway) as carol:
            assert carol.log_in("carol").error_code is ErrorCode.none
        users_file(tmp_path, "alice", password="another")
        assert alice.is_closed
        assert bob.ask(API_VERSIONS, 3, **SOFTWARE).error_code is ErrorCode.none
        write_users(path, lambda users: users.without_user("bob"))
        assert bob.is_closed


@pytest.mark.usefixtures("frequent_polls")
def test_a_broken_file_of_users_is_ignored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with guarded(tmp_path) as gateway, SaslWire(gateway) as wire, SaslWire(gateway) as other:
        assert wire.log_in().error_code is ErrorCode.none
        (tmp_path / "users.json").write_text("{")
        assert other.log_in().error_code is ErrorCode.none
        until(lambda: "the former users stay valid" in caplog.text)
        assert wire.ask(API_VERSIONS, 3, **SOFTWARE).error_code is ErrorCode.none
    assert PASSWORD not in caplog.text
