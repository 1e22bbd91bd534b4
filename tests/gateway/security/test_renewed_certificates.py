"""Certificates that change while a gateway runs, and the users that clients are by their certificates."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from gateways import API_VERSIONS, Wire, serving, until
from gateways import frequent_polls as frequent_polls
from kio.schema.errors import ErrorCode
from rights import codes, right
from tls_certificates import Authority, Certificate, TlsWire

import distlog
from distlog.core.errors import InvalidConfigError, StorageError
from distlog.gateway.config import STANDARD_AUTHORIZER, AclSettings
from distlog.gateway.gateway_server import GatewayServer
from distlog.gateway.security.tls import PrincipalMapper, TlsFiles, subject_name

pytestmark = pytest.mark.usefixtures("frequent_polls")

SOFTWARE = {"client_software_name": "a-test", "client_software_version": "1"}


class UserTlsWire(TlsWire):
    @property
    def serial(self) -> int:
        der = self.socket.getpeercert(binary_form=True)  # type: ignore[attr-defined]
        return x509.load_der_x509_certificate(der).serial_number


def is_well(wire: Wire) -> bool:
    response = wire.ask(API_VERSIONS, 3, **SOFTWARE)
    return bool(response.error_code is ErrorCode.none)


def is_served(gateway: GatewayServer, authority: Authority, certificate: Certificate | None) -> bool:
    try:
        with UserTlsWire(gateway, authority, certificate) as wire:
            return is_well(wire)
    except (OSError, EOFError):
        return False


def replace(path: str, by: str) -> None:
    Path(f"{path}.new").write_bytes(Path(by).read_bytes())
    os.replace(f"{path}.new", path)


def test_a_renewed_certificate_is_that_of_new_connections_and_none_is_dropped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "distlog")
    authority = Authority(tmp_path)
    server, renewed = authority.certificate("server"), authority.certificate("renewed")
    files = TlsFiles(certificate=server.certificate, key=server.key)
    with serving(tmp_path / "root", tls=files) as gateway, UserTlsWire(gateway, authority) as previous:
        first = previous.serial
        replace(server.certificate, renewed.certificate)
        until(lambda: "the former certificate stays in use" in caplog.text)
        with UserTlsWire(gateway, authority) as wire:
            assert wire.serial == first
        replace(server.key, renewed.key)
        until(lambda: "the certificate was read again" in caplog.text)
        with UserTlsWire(gateway, authority) as wire:
            assert wire.serial != first
            assert is_well(wire)
        assert is_well(previous)


@pytest.mark.long
def test_a_revoked_certificate_is_refused_also_when_the_list_changes(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server, alice, bob = (authority.certificate(name) for name in ("server", "alice", "bob"))
    crl = authority.revoked(bob)
    files = TlsFiles(
        certificate=server.certificate, key=server.key, ca=authority.file, crl=crl, client_auth="required"
    )
    with serving(tmp_path / "root", tls=files) as gateway:
        assert is_served(gateway, authority, alice)
        assert not is_served(gateway, authority, bob)
        authority.revoked(alice)
        until(lambda: not is_served(gateway, authority, alice))
        assert is_served(gateway, authority, bob)
    with pytest.raises(InvalidConfigError, match="a CRL needs its authorities"):
        TlsFiles(certificate=server.certificate, key=server.key, crl=crl).context()
    with pytest.raises(StorageError, match="cannot use the CRL"):
        TlsFiles(
            certificate=server.certificate, key=server.key, ca=authority.file, crl=server.key, client_auth="required"
        ).context()


@pytest.mark.long
def test_a_certificate_of_an_authority_that_was_revoked_is_refused(tmp_path: Path) -> None:
    root = Authority(tmp_path)
    middle = Authority(tmp_path, "middle", root)
    server, alice = root.certificate("server"), middle.certificate("alice")
    Path(alice.certificate).write_bytes(Path(alice.certificate).read_bytes() + Path(middle.file).read_bytes())

    def lists(*revoked: Certificate) -> str:
        texts = [Path(path).read_bytes() for path in (root.revoked(*revoked), middle.revoked())]
        (tmp_path / "all.new").write_bytes(b"".join(texts))
        os.replace(tmp_path / "all.new", tmp_path / "all.crl")
        return str(tmp_path / "all.crl")

    files = TlsFiles(
        certificate=server.certificate, key=server.key, ca=root.file, crl=lists(), client_auth="required"
    )
    with serving(tmp_path / "root", tls=files) as gateway:
        assert is_served(gateway, root, alice)
        lists(Certificate(middle.file, ""))
        until(lambda: not is_served(gateway, root, alice))


@contextmanager
def with_rules(folder: Path, authority: Authority, rules: str, **settings: Any) -> Iterator[GatewayServer]:
    server = authority.certificate("server")
    files = TlsFiles(certificate=server.certificate, key=server.key, ca=authority.file, client_auth="requested")
    with serving(folder / "root", tls=files, principal_mapping_rules=rules, **settings) as gateway:
        yield gateway


def test_a_client_is_the_user_that_its_certificate_names(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    alice, bob = authority.certificate("Alice"), authority.certificate("bob")
    distlog.create(str(tmp_path / "root" / "clicks"))
    acls = AclSettings(authorizer=STANDARD_AUTHORIZER)
    topics = [{"name": "clicks"}]
    with with_rules(tmp_path, authority, "RULE:CN=(A.*)/$1/L", acls=acls) as gateway:
        assert gateway.broker.acls is not None
        gateway.broker.acls.create([right("READ topic clicks"), right("READ topic clicks", "User:bob")])
        with UserTlsWire(gateway, authority, alice) as wire:
            assert codes(wire.plain(3, 12, topics=topics)) == {ErrorCode.none}
        # no rule is for bob; a client without a certificate has no name
        assert not is_served(gateway, authority, bob)
        with UserTlsWire(gateway, authority) as wire:
            assert ErrorCode.topic_authorization_failed in codes(wire.plain(3, 12, topics=topics))
    with with_rules(tmp_path, authority, "DEFAULT", acls=acls) as gateway:
        assert gateway.broker.acls is not None
        gateway.broker.acls.create([right("READ topic clicks", "User:CN=bob")])
        for certificate, code in ((bob, ErrorCode.none), (alice, ErrorCode.topic_authorization_failed)):
            with UserTlsWire(gateway, authority, certificate) as wire:
                assert wire.plain(3, 12, topics=topics).topics[0].error_code is code


def test_a_certificate_without_a_user_is_anonymous(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "distlog")
    authority = Authority(tmp_path)
    nobody = authority.certificate("")
    distlog.create(str(tmp_path / "root" / "clicks"))
    acls = AclSettings(authorizer=STANDARD_AUTHORIZER)
    with with_rules(tmp_path, authority, "DEFAULT", acls=acls) as gateway:
        assert gateway.broker.acls is not None
        gateway.broker.acls.create([right("READ topic clicks", "User:ANONYMOUS")])
        with UserTlsWire(gateway, authority, nobody) as wire:
            assert codes(wire.plain(3, 12, topics=[{"name": "clicks"}])) == {ErrorCode.none}
    # rules without DEFAULT are not for it
    with with_rules(tmp_path, authority, "RULE:CN=(.*)/$1/") as gateway:
        assert not is_served(gateway, authority, nobody)
        until(lambda: "matches its certificate: an empty subject" in caplog.text, 20)


def test_a_subject_is_written_by_rfc_2253() -> None:
    subject = (
        (("countryName", "US"),),
        (("organizationName", 'a, "b" + c\\d; <e>'),),
        (("organizationalUnitName", " #x "), ("userId", "#7")),
        (("commonName", "alice"),),
    )
    assert subject_name({"subject": subject}) == (
        'CN=alice,OU=\\ #x\\ +UID=\\#7,O=a\\, \\"b\\" \\+ c\\\\d\\; \\<e\\>,C=US'
    )
    assert subject_name({}) == ""


def test_rules_map_subjects_to_users_as_in_kafka() -> None:
    rules = (
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/, RULE:^CN=(.*?),OU=(.*?),.*$/$1@$2/L,"
        "RULE:^.*UID=(.*)$/a\\/$1/U,DEFAULT"
    )
    mapper = PrincipalMapper(rules)
    for subject, name in (
        ("CN=kafka1,OU=ServiceUsers,O=x", "kafka1"),
        ("CN=Kafka1,OU=Adm,O=x", "kafka1@adm"),
        ("O=x,uid=duke", "O=x,uid=duke"),
        ("O=x,UID=duke", "A/DUKE"),
        ("CN=other", "CN=other"),
        ("CN=a\nb", None),
        ("CN=" + "x" * 1024, None),
    ):
        assert PrincipalMapper(rules).name(subject) == mapper.name(subject) == name
    assert PrincipalMapper("").name("CN=a") == "CN=a"
    # only a whole name counts, and a name that is not empty
    assert PrincipalMapper("RULE:CN=a/x/").name("CN=ab") is None
    assert PrincipalMapper("RULE:CN=a(b?)/$1/").name("CN=a") is None
    for wrong in ("RULE:(/x/", "RULE:a/$1/", "RULE:a/b", "OTHER", "DEFAULT,RULE:a/b/X"):
        with pytest.raises(InvalidConfigError):
            PrincipalMapper(wrong)
    with pytest.raises(InvalidConfigError, match=r"rules=OTHER/x"):
        PrincipalMapper("DEFAULT,OTHER/x")
