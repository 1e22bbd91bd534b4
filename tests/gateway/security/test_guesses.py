"""Clients that guess passwords: others do not wait for them, the guesses become slow, and the log stays short."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from gateways import counted, serving, until
from kio.schema.errors import ErrorCode
from users_files import AUTHENTICATE, PASSWORD, SaslWire, users_file

from distlog.gateway.gateway_server import GatewayServer
from distlog.gateway.security import authentication
from distlog.gateway.security.authentication import (
    MECHANISMS,
    PLAIN,
    Authentication,
    FailedLogins,
    KnownPasswords,
    PlainLogin,
)
from distlog.gateway.security.users_file import UsersFile, read_users, secret_of, write_users


class Checks:
    """The checks of passwords, each of which waits until the test lets it continue."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.passwords: list[str] = []
        self.go_on, self.is_held = threading.Semaphore(0), False
        monkeypatch.setattr(authentication, "secret_of", self._secret_of)

    def _secret_of(self, mechanism: str, password: str, salt: bytes, iterations: int) -> Any:
        self.passwords.append(password)
        if self.is_held:
            self.go_on.acquire(timeout=300)
        return secret_of(mechanism, password, salt, iterations)


@contextmanager
def guarded(folder: Path, *names: str, **settings: Any) -> Iterator[GatewayServer]:
    users = Authentication(UsersFile(users_file(folder, *names)))
    with serving(folder / "root", authentication=users, **settings) as gateway:
        yield gateway


def send_guess(wire: SaslWire, user: str, password: str) -> int:
    wire.choose(PLAIN)
    return wire.send(AUTHENTICATE, 2, auth_bytes=f"\0{user}\0{password}".encode())


def test_scram_and_known_passwords_do_not_wait_for_guesses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checks = Checks(monkeypatch)
    with guarded(tmp_path, "alice", "bob") as gateway, ExitStack() as clients:
        with SaslWire(gateway) as bob:
            assert bob.log_in("bob").error_code is ErrorCode.none
        checks.is_held = True
        for number in range(20):
            wire = clients.enter_context(SaslWire(gateway))
            send_guess(wire, "alice", f"guess {number}")
        until(lambda: len(checks.passwords) == 2)
        for mechanism in MECHANISMS:
            with SaslWire(gateway) as bob:
                assert bob.log_in("bob", mechanism=mechanism).error_code is ErrorCode.none
        assert checks.passwords[1:] == ["guess 0"]
        checks.is_held = False
        checks.go_on.release()


def test_the_users_of_an_address_are_scheduled_fairly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checks, api = Checks(monkeypatch), "SaslAuthenticate"
    with guarded(tmp_path, "alice", "bob") as gateway, SaslWire(gateway) as bob, ExitStack() as clients:
        checks.is_held = True
        for number in range(20):
            wire = clients.enter_context(SaslWire(gateway))
            send_guess(wire, "alice", f"guess {number}")
        until(lambda: checks.passwords == ["guess 0"] and counted(gateway, "requests", api=api) == 20)
        sent = send_guess(bob, "bob", PASSWORD)
        until(lambda: counted(gateway, "requests", api=api) == 21)
        checks.is_held = False
        checks.go_on.release()
        assert bob.answer(AUTHENTICATE, 2, sent).error_code is ErrorCode.none
        assert checks.passwords.index(PASSWORD) <= 2


def test_a_password_is_known_for_a_while_and_as_long_as_the_user_has_it(tmp_path: Path) -> None:
    now_s = [0.0]
    path = users_file(tmp_path, "alice", "bob")
    cached, users = KnownPasswords(lambda: now_s[0]), read_users(path)
    alice = PlainLogin("alice", PASSWORD)
    assert cached.user(alice, users) is None
    cached.add(alice, users.secret("alice", "SCRAM-SHA-256")[0])
    actual = cached.user(alice, users)
    assert actual is not None
    assert actual.name == "alice"
    for other in (PlainLogin("bob", PASSWORD), PlainLogin("alice", "wrong"), PlainLogin("alice\0", PASSWORD)):
        assert cached.user(other, users) is None
    users_file(tmp_path, "alice", password="new")
    assert cached.user(alice, read_users(path)) is None
    write_users(path, lambda users: users.without_user("alice"))
    assert cached.user(alice, read_users(path)) is None
    now_s[0] = 600
    assert cached.user(alice, users) is not None
    now_s[0] = 601
    assert cached.user(alice, users) is None
    assert PASSWORD not in repr(alice) + repr(vars(cached))


def test_repeated_failures_lengthen_the_wait_of_an_address() -> None:
    now_s = [0.0]
    failures = FailedLogins(lambda: now_s[0])
    assert [failures.note_failure("a", 1) for _ in range(10)] == [1] * 10
    assert [failures.note_failure("a", 1) for _ in range(10)] == pytest.approx(
        [1.1 + number / 10 for number in range(10)]
    )
    assert failures.note_failure("b", 1) == 1
    assert [failures.note_failure("a", 1) for _ in range(1000)][-1] == 20
    assert failures.note_failure("a", 30) == 30
    now_s[0] = 30.0
    assert failures.note_failure("b", 1) == 1
    now_s[0] = 300.0
    assert failures.note_failure("a", 1) == 1


def test_guesses_are_logged_as_a_summary_with_users_and_addresses(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "distlog")
    now_s, users = [0.0], Authentication(UsersFile(users_file(tmp_path, "alice")))
    users.failures = FailedLogins(lambda: now_s[0])
    with serving(tmp_path / "root", authentication=users, failed_authentication_delay_ms=0) as first:
        for number in range(30):
            with SaslWire(first) as wire:
                wire.log_in("alice", f"guess {number}")
        with SaslWire(first) as wire:
            wire.log_in("mallory\n", "guess")
        with SaslWire(first) as wire:
            wire.choose("GSSAPI")
        until(lambda: users.failures.log.total == 32)
        now_s[0] = 61
        users.failures.log.log()
        with SaslWire(first) as wire:
            wire.log_in("alice", "guess, too late for the second line")
        failed = counted(first, "authentications", mechanism=PLAIN, result="failed")
    lines = [message for message in caplog.messages if "authentication" in message]
    reason = "unknown user, or wrong password"
    assert lines == [
        f"failed authentications: 1 by alice at 127.0.0.1 (1, last: {reason})",
        f"failed authentications: 31 by alice at 127.0.0.1 (29, last: {reason}), "
        f"mallory\\n at 127.0.0.1 (1, last: {reason}), a client at 127.0.0.1 (1, last: no mechanism GSSAPI)",
        f"failed authentications: 1 by alice at 127.0.0.1 (1, last: {reason})",
    ]
    assert failed == 32
    assert "guess" not in caplog.text
