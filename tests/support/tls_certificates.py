"""Certificates for tests: an authority, a server at 127.0.0.1, and a client, with its connections."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from pathlib import Path
from typing import Any, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from gateways import Wire

from distlog.gateway.gateway_server import GatewayServer

KEY_PASSWORD = "a key's password"
_DAY = datetime.timedelta(days=1)


class Certificate(NamedTuple):
    certificate: str
    key: str


class Authority:
    """Signs certificates, whose files are in `folder`; `above` signed its own."""

    def __init__(self, folder: Path, name: str = "authority", above: Authority | None = None) -> None:
        self._folder, self._name = folder, name
        self._key = ec.generate_private_key(ec.SECP256R1())
        constraints = x509.BasicConstraints(ca=True, path_length=None)
        self._certificate = (above or self)._signed(name, self._key.public_key(), constraints)
        self.file = self._written(f"{name}.pem", self._certificate.public_bytes(serialization.Encoding.PEM))

    def certificate(self, name: str, *, key_password: str | None = None) -> Certificate:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._signed(name, key.public_key(), x509.BasicConstraints(ca=False, path_length=None))
        lock: Any = serialization.NoEncryption()
        if key_password is not None:
            lock = serialization.BestAvailableEncryption(key_password.encode())
        key_text = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, lock)
        return Certificate(
            self._written(f"{name}.pem", builder.public_bytes(serialization.Encoding.PEM)),
            self._written(f"{name}.key", key_text),
        )

    def revoked(self, *certificates: Certificate) -> str:
        now = datetime.datetime.now(datetime.timezone.utc)
        add_revoked_certificate = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(_named(self._name))
            .last_update(now - _DAY)
            .next_update(now + _DAY)
        )
        for certificate in certificates:
            number = x509.load_pem_x509_certificate(Path(certificate.certificate).read_bytes()).serial_number
            entry = x509.RevokedCertificateBuilder().serial_number(number).revocation_date(now - _DAY).build()
            add_revoked_certificate = add_revoked_certificate.add_revoked_certificate(entry)
        signed = add_revoked_certificate.sign(self._key, hashes.SHA256())
        return self._written(f"{self._name}.crl", signed.public_bytes(serialization.Encoding.PEM))

    def _signed(self, name: str, key: Any, constraints: x509.BasicConstraints) -> x509.Certificate:
        now = datetime.datetime.now(datetime.timezone.utc)
        names: list[x509.GeneralName] = [
            x509.DNSName("localhost"),
            x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
        ]
        return (
            x509.CertificateBuilder()
            .subject_name(_named(name))
            .issuer_name(_named(self._name))
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _DAY)
            .not_valid_after(now + _DAY)
            .add_extension(constraints, critical=True)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .sign(self._key, hashes.SHA256())
        )

    def _written(self, name: str, data: bytes) -> str:
        (self._folder / name).write_bytes(data)
        return str(self._folder / name)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)] if name else [])


class TlsWire(Wire):
    """A connection by TLS, to a server that it checks; `certificate` is the client's own."""

    def __init__(self, gateway: GatewayServer, authority: Authority, certificate: Certificate | None = None) -> None:
        super().__init__(gateway)
        context = ssl.create_default_context(cafile=authority.file)
        if certificate is not None:
            context.load_cert_chain(certificate.certificate, certificate.key)
        self.socket = context.wrap_socket(self.socket, server_hostname="127.0.0.1")
