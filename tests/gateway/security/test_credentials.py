"""The messages of RFC 4616 and RFC 5802 by which clients authenticate, and malformed ones."""

from __future__ import annotations

from base64 import b64decode, b64encode

import pytest
from users_files import NONCE, PASSWORD, client_first, client_last, users_file

from distlog.core.errors import StorageError, UnsupportedVersionError
from distlog.gateway.security.authentication import (
    AuthenticationFailedError,
    ScramExchange,
    check_plain,
    new_nonce,
    read_plain,
)
from distlog.gateway.security.users_file import HASHES, Users, new_secrets, parse_users, read_users, secret_of


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> Users:
    return read_users(users_file(tmp_path_factory.mktemp("users"), "alice", "b=o,b"))


def test_scram_sha_256_is_that_of_rfc_7677() -> None:
    salt = b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    secrets = {mechanism: secret_of(mechanism, "pencil", salt, 4096) for mechanism in HASHES}
    exchange = ScramExchange("SCRAM-SHA-256", Users(b"", {"user": secrets}), lambda: "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    first = exchange.first(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    nonce = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    assert first.decode() == f"r={nonce},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    answer, proved = exchange.last(f"c=biws,r={nonce},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=".encode())
    assert (answer, proved.name) == (b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=", "user")


@pytest.mark.parametrize("mechanism", HASHES)
@pytest.mark.parametrize("name", ["alice", "b=o,b"])
def test_scram_takes_the_password_and_no_other(users: Users, mechanism: str, name: str) -> None:
    for password, fits in ((PASSWORD, True), (PASSWORD + " ", False), ("", False)):
        exchange = ScramExchange(mechanism, users, new_nonce)
        last = client_last(mechanism, name, password, exchange.first(client_first(name)).decode())
        if fits:
            assert exchange.last(last)[1].name == name
        else:
            with pytest.raises(AuthenticationFailedError):
                exchange.last(last)


@pytest.mark.parametrize("mechanism", HASHES)
def test_an_unknown_user_gets_a_challenge_and_is_refused(users: Users, mechanism: str) -> None:
    answers = set()
    for _ in range(2):
        exchange = ScramExchange(mechanism, users, lambda: "nonce")
        first = exchange.first(client_first("mallory")).decode()
        answers.add(first)
        with pytest.raises(AuthenticationFailedError, match="unknown user, or wrong password"):
            exchange.last(client_last(mechanism, "mallory", PASSWORD, first))
    assert len(answers) == 1
    other = ScramExchange(mechanism, users, lambda: "nonce").first(client_first("trudy")).decode()
    assert other not in answers


@pytest.mark.parametrize("mechanism", HASHES)
def test_the_keys_of_an_unknown_user_never_match(users: Users, mechanism: str) -> None:
    # whoever knows that the stored key is all zeros can make a signature, but no preimage of zeros
    exchange = ScramExchange(mechanism, users, new_nonce)
    nonce = exchange.first(client_first("mallory")).decode().split(",")[0][2:]
    size = len(users.secret("mallory", mechanism)[0].stored_key)
    with pytest.raises(AuthenticationFailedError):
        exchange.last(f"c=biws,r={nonce},p={b64encode(bytes(size)).decode()}".encode())


@pytest.mark.parametrize(
    "token",
    [
        b"",
        b"n,,n=alice",
        b"n,,r=nonce,n=alice",
        b"n,,n=,r=nonce",
        b"n,,n=al=ice,r=nonce",
        b"n,,n=alice,r=",
        b"n,,m=must,n=alice,r=nonce",
        b"n,a=bob,n=alice,r=nonce",
        b"p=tls-unique,,n=alice,r=nonce",
        b"n,,n=" + b"a" * 256 + b",r=nonce",
        b"n,,n=alice,r=" + b"x" * 9000,
        b"n,,n=\xff,r=nonce",
    ],
)
def test_a_first_message_of_another_form_fails(users: Users, token: bytes) -> None:
    with pytest.raises(AuthenticationFailedError):
        ScramExchange("SCRAM-SHA-256", users, new_nonce).first(token)


@pytest.mark.parametrize(
    ("part", "other"),
    [("c=biws", "c=eSws"), ("c=biws", "c=!"), (f"r={NONCE}", "r="), ("p=", "p=AA"), ("p=", "x=1,"), ("c=biws,", "")],
)
def test_a_last_message_that_was_changed_fails(users: Users, part: str, other: str) -> None:
    exchange = ScramExchange("SCRAM-SHA-256", users, new_nonce)
    last = client_last("SCRAM-SHA-256", "alice", PASSWORD, exchange.first(client_first("alice")).decode()).decode()
    with pytest.raises(AuthenticationFailedError):
        exchange.last(last.replace(part, other, 1).encode())


@pytest.mark.parametrize("changed", [{"binding": "eSws"}, {"suffix": "x"}])
def test_a_proof_of_another_exchange_fails(users: Users, changed: dict[str, str]) -> None:
    exchange = ScramExchange("SCRAM-SHA-256", users, new_nonce)
    first = exchange.first(client_first("alice")).decode()
    with pytest.raises(AuthenticationFailedError, match="malformed"):
        exchange.last(client_last("SCRAM-SHA-256", "alice", PASSWORD, first, **changed))  # type: ignore[arg-type]


def test_the_nonce_of_an_old_librdkafka_is_recognized(users: Users) -> None:
    """Before 2.6.1 it puts its own nonce before the server's, which begins with it."""
    exchange = ScramExchange("SCRAM-SHA-256", users, new_nonce)
    first = exchange.first(client_first("alice")).decode()
    twice = client_last("SCRAM-SHA-256", "alice", PASSWORD, first).replace(b"r=", f"r={NONCE}".encode(), 1)
    with pytest.raises(AuthenticationFailedError, match=r"nonce twice, .*librdkafka before 2\.6\.1: upgrade"):
        exchange.last(twice)


def test_plain_takes_the_password_and_no_other(users: Users) -> None:
    assert check_plain(read_plain(f"\0alice\0{PASSWORD}".encode()), users).name == "alice"
    assert check_plain(read_plain(f"alice\0alice\0{PASSWORD}".encode()), users).name == "alice"


@pytest.mark.parametrize(
    "token",
    [
        "",
        "\0alice\0",
        "\0alice\0wrong",
        f"\0mallory\0{PASSWORD}",
        f"\0\0{PASSWORD}",
        f"bob\0alice\0{PASSWORD}",
        f"\0alice\0{PASSWORD}\0",
        f"alice\0{PASSWORD}",
    ],
)
def test_plain_fails_for_anything_else(users: Users, token: str) -> None:
    with pytest.raises(AuthenticationFailedError):
        check_plain(read_plain(token.encode()), users)


def test_an_unknown_user_costs_as_many_iterations_as_a_wrong_password(
    users: Users, monkeypatch: pytest.MonkeyPatch
) -> None:
    import hashlib

    results: list[int] = []
    true = hashlib.pbkdf2_hmac
    monkeypatch.setattr(hashlib, "pbkdf2_hmac", lambda *args: results.append(args[3]) or true(*args[:3], 1))
    created = users.with_user("new", new_secrets("other", lambda size: bytes(size)))
    for name in ("new", "mallory"):
        results.clear()
        with pytest.raises(AuthenticationFailedError):
            check_plain(read_plain(f"\0{name}\0wrong".encode()), created)
        assert results == [16_384]


def test_no_secret_is_printed(users: Users) -> None:
    shown = repr(users) + repr(users.secret("alice", "SCRAM-SHA-256")) + str(users)
    for secret in users.secrets["alice"].values():
        assert repr(secret.stored_key) not in shown
        assert repr(secret.server_key) not in shown
    assert PASSWORD not in users.to_json()


def test_users_round_trip(users: Users) -> None:
    assert parse_users(users.to_json()) == users


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        '{"format": 2, "decoy": "", "users": {}}',
        '{"format": 1, "decoy": "", "users": {}}',
        "[" * 100_000,
        '{"format": 1, "decoy": "jkS1w9U8LVNAwNf9DFqqjenFEXJA8ULzBB9BOpo+LHw=", "users": {"alice": {}}}',
        '{"format": 1, "decoy": "jkS1w9U8LVNAwNf9DFqqjenFEXJA8ULzBB9BOpo+LHw=", "users": {"al\\nice": {}}}',
    ],
)
def test_an_invalid_file_of_users_is_refused(text: str) -> None:
    with pytest.raises((StorageError, UnsupportedVersionError)):
        parse_users(text)


@pytest.mark.parametrize(("old", "new"), [("4096", "4095"), ("4096", "1048577"), ("4096", '"4096"'), ("4096", "1e9")])
def test_a_secret_out_of_its_bounds_is_refused(users: Users, old: str, new: str) -> None:
    with pytest.raises(StorageError, match="credentials are incomplete"):
        parse_users(users.to_json().replace(old, new, 1))
