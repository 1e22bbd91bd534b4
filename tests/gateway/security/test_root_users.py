"""Users that admin clients set: stored in the root, accepted by all gateways, with no secret shown."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gateways import Wire, open_topic, serving, until
from gateways import frequent_polls as frequent_polls
from kio.schema.errors import ErrorCode
from rights import UserWire, with_acls
from users_files import PASSWORD, SaslWire, users_file

from distlog.gateway.gateway_server import GatewayServer
from distlog.gateway.root_records import Credential, decode_credential, encode_credential
from distlog.gateway.security.authentication import PLAIN
from distlog.gateway.security.users_file import HASHES, secret_of
from distlog.gateway.topics.metadata_cache import CREDENTIALS_TOPIC
from distlog.gateway.transactions.transaction_log import internal_batch

DESCRIBE, ALTER = 50, 51
E = ErrorCode
CODES = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[GatewayServer]:
    with with_acls(tmp_path, failed_authentication_delay_ms=10) as served:
        yield served


def upsertion(name: str, password: str = "sesame", mechanism: str = "SCRAM-SHA-256", **fields: Any) -> dict[str, Any]:
    """A credential as a client sends it, with what RFC 5802 calls SaltedPassword."""
    salted = hashlib.pbkdf2_hmac(HASHES[mechanism], password.encode(), b"salt", 4096)
    created = {"iterations": 4096, "salt": b"salt", "salted_password": salted}
    return {"name": name, "mechanism": CODES[mechanism], **created, **fields}


def altered(wire: Wire, *upsertions: Any, deletions: Any = ()) -> dict[str, ErrorCode]:
    response = wire.plain(ALTER, 0, upsertions=upsertions, deletions=deletions)
    return {result.user: result.error_code for result in response.results}


def logs_in(gateway: GatewayServer, name: str, password: str, mechanism: str) -> bool:
    with SaslWire(gateway) as wire:
        return wire.log_in(name, password, mechanism).error_code is E.none


def described(wire: UserWire, *names: str) -> dict[str, Any]:
    response = wire.plain(DESCRIBE, 0, users=[{"name": name} for name in names] or None)
    return {
        result.user: result.error_code
        if result.error_code is not E.none
        else {info.mechanism: info.iterations for info in result.credential_infos}
        for result in response.results
    }


@pytest.mark.usefixtures("frequent_polls")
def test_users_of_the_root_log_in_at_all_gateways_and_outlive_them(tmp_path: Path, gateway: GatewayServer) -> None:
    with with_acls(tmp_path) as other, UserWire(gateway, "root") as root:
        assert not logs_in(gateway, "carol", "sesame", "SCRAM-SHA-256")
        assert altered(root, upsertion("carol"), upsertion("dave", mechanism="SCRAM-SHA-512")) == {
            "carol": E.none,
            "dave": E.none,
        }
        assert logs_in(gateway, "carol", "sesame", "SCRAM-SHA-256")
        assert logs_in(gateway, "carol", "sesame", PLAIN)
        assert not logs_in(gateway, "carol", "sesame", "SCRAM-SHA-512")
        assert not logs_in(gateway, "carol", "wrong", "SCRAM-SHA-256")
        assert logs_in(gateway, "dave", "sesame", "SCRAM-SHA-512")
        assert logs_in(gateway, "dave", "sesame", PLAIN)
        until(lambda: logs_in(other, "carol", "sesame", "SCRAM-SHA-256"))
        assert described(root) == {"carol": {1: 4096}, "dave": {2: 4096}}
        assert described(root, "carol", "alice") == {"carol": {1: 4096}, "alice": E.resource_not_found}
    with with_acls(tmp_path) as later:
        assert logs_in(later, "carol", "sesame", "SCRAM-SHA-256")


@pytest.mark.usefixtures("frequent_polls")
def test_a_user_that_is_deleted_or_has_another_password_is_disconnected(gateway: GatewayServer) -> None:
    with UserWire(gateway, "root") as root, SaslWire(gateway) as carol, SaslWire(gateway) as dave:
        assert set(altered(root, upsertion("carol"), upsertion("dave")).values()) == {E.none}
        for name, wire in (("carol", carol), ("dave", dave)):
            assert wire.log_in(name, "sesame", PLAIN).error_code is E.none
        assert altered(root, upsertion("carol", "new"), deletions=[{"name": "dave", "mechanism": 1}]) == {
            "carol": E.none,
            "dave": E.none,
        }
        assert carol.is_closed
        assert dave.is_closed
        assert not logs_in(gateway, "carol", "sesame", PLAIN)
        assert logs_in(gateway, "carol", "new", PLAIN)
        assert not logs_in(gateway, "dave", "sesame", PLAIN)
        assert described(root) == {"carol": {1: 4096}}


def test_invalid_credentials_are_refused_as_by_kafka(gateway: GatewayServer) -> None:
    with UserWire(gateway, "root") as root:
        for wrong, code in (
            (upsertion("carol", iterations=4095), E.unacceptable_credential),
            (upsertion("carol", iterations=16_385), E.unacceptable_credential),
            (upsertion("", iterations=4096), E.unacceptable_credential),
            (upsertion("carol\n"), E.unacceptable_credential),
            (upsertion("carol", salt=b""), E.unacceptable_credential),
            (upsertion("carol", salted_password=bytes(31)), E.unacceptable_credential),
            (upsertion("carol", mechanism="SCRAM-SHA-512", salted_password=bytes(32)), E.unacceptable_credential),
            (upsertion("carol") | {"mechanism": 0}, E.unsupported_sasl_mechanism),
            (upsertion("carol") | {"mechanism": 3}, E.unsupported_sasl_mechanism),
        ):
            # none of a user's changes is made if one is wrong
            assert altered(root, upsertion("carol"), wrong)[wrong["name"]] is code
        good = upsertion("carol")
        assert altered(root, good, good) == {"carol": E.duplicate_resource}
        # Kafka's controller accepts one credential of each user in a request
        other = upsertion("carol", mechanism="SCRAM-SHA-512")
        assert altered(root, good, other, upsertion("dave")) == {"carol": E.duplicate_resource, "dave": E.none}
        removal = {"name": "carol", "mechanism": 1}
        assert altered(root, other, deletions=[removal]) == {"carol": E.duplicate_resource}
        assert altered(root, deletions=[{**removal, "name": "dave"}]) == {"dave": E.none}
        assert altered(root, deletions=[{"name": "carol", "mechanism": 2}]) == {"carol": E.resource_not_found}
        assert described(root, "carol", "carol") == {"carol": E.duplicate_resource}
        assert described(root) == {"carol": {1: 4096}}


def test_the_file_of_users_comes_first(tmp_path: Path, gateway: GatewayServer) -> None:
    with UserWire(gateway, "root") as root:
        assert altered(root, upsertion("alice")) == {"alice": E.unacceptable_credential}
        assert altered(root, upsertion("carol")) == {"carol": E.none}
        users_file(tmp_path, "carol")
        assert logs_in(gateway, "carol", PASSWORD, PLAIN)
        assert not logs_in(gateway, "carol", "sesame", PLAIN)


def test_without_acls_clients_change_no_users(tmp_path: Path) -> None:
    with serving(tmp_path) as gateway, Wire(gateway) as wire:
        assert altered(wire, upsertion("carol")) == {"carol": E.security_disabled}
        # as where there are none: kafka-configs requests users together with their quotas, which need no ACLs
        response = wire.plain(DESCRIBE, 0, users=None)
        assert (response.error_code, response.results) == (E.none, ())
        assert CREDENTIALS_TOPIC not in gateway.broker.metadata.all_topics()


def test_no_secret_is_logged_or_shown(gateway: GatewayServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with UserWire(gateway, "root") as root:
        created = upsertion("carol")
        assert altered(root, created) == {"carol": E.none}
        response = root.plain(DESCRIBE, 0, users=None)
        assert root.plain(DESCRIBE, 0, users=()) == response
    secret = secret_of("SCRAM-SHA-256", "sesame", b"salt", 4096)
    assert gateway.broker.users is not None
    shown = caplog.text + repr(response) + repr(gateway.broker.users.secrets) + repr(secret)
    topic = open_topic(gateway, CREDENTIALS_TOPIC)
    (value,) = topic.scan().to_table().column("value").to_pylist()
    for hidden in (secret.stored_key, secret.server_key, created["salted_password"]):
        assert repr(hidden) not in shown
        assert hidden.hex() not in shown
    assert b"sesame" not in value
    assert created["salted_password"] not in value


def test_invalid_records_are_refused_without_their_content() -> None:
    secret = secret_of("SCRAM-SHA-256", "sesame", b"salt", 4096)
    key, value = encode_credential(Credential("carol", "SCRAM-SHA-256"), secret)
    assert decode_credential(key, value) == (Credential("carol", "SCRAM-SHA-256"), secret)
    assert decode_credential(key, None) == (Credential("carol", "SCRAM-SHA-256"), None)
    assert value is not None
    for other in (
        (b"", value),
        (b"null", value),
        (b"[]", value),
        (key.replace(b"256", b"1"), value),
        (key.replace(b"carol", b"\\u0007"), value),
        (b"{" * 100_000, value),
        (key, b"secret"),
        (key, b'{"iterations": 1, "secret": "x"}'),
        (key, value.replace(b"4096", b"1")),
    ):
        with pytest.raises(ValueError) as caught:  # noqa: PT011
            decode_credential(*other)
        assert "secret" not in str(caught.value)


def test_a_credential_that_is_not_understood_ends_the_one_before(gateway: GatewayServer) -> None:
    users, name = gateway.broker.users, Credential("carol", "SCRAM-SHA-256")
    assert users is not None
    secret = secret_of("SCRAM-SHA-256", "sesame", b"salt", 4096)
    users.alter([(name, secret)])
    assert logs_in(gateway, *("carol", "sesame", "SCRAM-SHA-256"))
    key, value = encode_credential(name, secret)
    assert value is not None
    hosted = gateway.broker.metadata.fresh_topic(CREDENTIALS_TOPIC)
    hosted.append_run(0, internal_batch([(key, value.replace(b"4096", b"9999999"))], 1), lambda snapshot: None)
    users.refresh()
    assert not logs_in(gateway, *("carol", "sesame", "SCRAM-SHA-256"))


def test_confluent_kafka_sets_and_shows_users(gateway: GatewayServer) -> None:
    admin = pytest.importorskip("confluent_kafka.admin")
    mechanism = admin.ScramMechanism.SCRAM_SHA_512

    def client(user: str, password: str) -> Any:
        return admin.AdminClient(
            {
                "bootstrap.servers": gateway.address,
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "SCRAM-SHA-512",
                "sasl.username": user,
                "sasl.password": password,
                "log_level": 0,
            }
        )

    root, info = client("root", PASSWORD), admin.ScramCredentialInfo(mechanism, 8192)
    created = admin.UserScramCredentialUpsertion("carol", info, b"sesame", b"some salt")
    for credential in root.alter_user_scram_credentials([created]).values():
        credential.result(30)
    reply = root.describe_user_scram_credentials(["carol"])["carol"].result(30)
    assert [(info.mechanism, info.iterations) for info in reply.scram_credential_infos] == [(mechanism, 8192)]
    assert client("carol", "sesame").list_topics(timeout=30).brokers
    for future in root.alter_user_scram_credentials([admin.UserScramCredentialDeletion("carol", mechanism)]).values():
        future.result(30)
    assert not logs_in(gateway, "carol", "sesame", "SCRAM-SHA-512")
