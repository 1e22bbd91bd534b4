"""TLS for a listener with PEM files, as in Kafka's `ssl.*` settings."""

from __future__ import annotations

import ipaddress
import logging
import re
import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from distlog.core.errors import InvalidConfigError, StorageError
from distlog.gateway.security.users_file import stamp_of

_log = logging.getLogger("distlog.gateway")
#: The values of `ssl.client.auth`.
CLIENT_AUTH = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
#: The most bytes of a password file that are read. Its first line is the password.
_MAX_PASSWORD_BYTES = 1 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """Paths of PEM files. `crl` has the CRLs of all authorities from a client's certificate to its root."""

    certificate: str
    key: str
    ca: str | None = None
    client_auth: str = "none"
    key_password_file: str | None = None
    crl: str | None = None

    def context(self) -> ssl.SSLContext:
        if self.client_auth not in CLIENT_AUTH:
            text = f"ssl.client.auth must be one of {', '.join(CLIENT_AUTH)}"
            raise InvalidConfigError(text, found=self.client_auth)
        has_client_auth = self.client_auth != "none"
        if has_client_auth != (self.ca is not None):
            text = "set both ssl.client.auth and the certificates of clients' authorities, or neither"
            raise InvalidConfigError(text, cafile=self.ca, client_auth=self.client_auth)
        if self.crl is not None and self.ca is None:
            raise InvalidConfigError("a CRL needs its authorities' certificates: add their file", crlfile=self.crl)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # renegotiation would let clients cause expensive work
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
        with _storage_errors("the certificate and its key", certfile=self.certificate, keyfile=self.key):
            context.load_cert_chain(self.certificate, self.key, password=self._password)
        if self.ca is not None:
            with _storage_errors("the certificates of clients' authorities", cafile=self.ca):
                context.load_verify_locations(self.ca)
        if self.crl is not None:
            with _storage_errors("the CRL", crlfile=self.crl):
                context.load_verify_locations(self.crl)
            context.verify_flags |= ssl.VERIFY_CRL_CHECK_CHAIN
        context.verify_mode = CLIENT_AUTH[self.client_auth]
        return context

    def stamp(self) -> Sequence[object]:
        """Return a value that changes when a file changes."""
        paths = self.certificate, self.key, self.ca, self.crl, self.key_password_file
        return [stamp_of(path) for path in paths if path is not None]

    def _password(self) -> bytes:
        # without this callback, OpenSSL would ask for the password at the terminal
        if self.key_password_file is None:
            raise ValueError("the key has a password: add the file that contains it")
        with open(self.key_password_file, "rb") as file:
            return file.read(_MAX_PASSWORD_BYTES).split(b"\n")[0].rstrip(b"\r")


@contextmanager
def _storage_errors(files: str, **names: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
        raise StorageError(f"cannot use {files}: {reason}", **names) from None


class TlsContext:
    """The TLS context of the files. If the files become unusable, the former context stays in use."""

    def __init__(self, files: TlsFiles) -> None:
        self._files, self._stamp = files, files.stamp()
        #: The context of new connections. Existing connections keep theirs.
        self.current = files.context()

    def refresh(self) -> None:
        stamp = self._files.stamp()
        if stamp == self._stamp:
            return
        # set this before the files are read, so that the next refresh notices changes during the read
        self._stamp = stamp
        try:
            self.current = self._files.context()
        except StorageError as error:
            _log.warning("the former certificate stays in use: %s", error)
        else:
            _log.info("TLS: the certificate was read again from %s", self._files.certificate)


#: The abbreviations of attributes (RFC 2253) by their names in OpenSSL.
_SHORT_NAMES = {
    "commonName": "CN",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "countryName": "C",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
}
_ESCAPED = re.compile(r'([,+"\\<>;])')
#: `RULE:pattern/replacement/case` or DEFAULT, and the comma after the rule. A / in a pattern is written \/.
_RULE = re.compile(r"\s*(?:RULE:((?:\\/|[^/])*)/((?:\\/|[^/])*)/([LU]?)|(DEFAULT))\s*(?:,|$)")
_GROUP_REFERENCE = re.compile(r"\$(\d)")
#: The pattern, the replacement and the case of the rule DEFAULT.
_DEFAULT = re.compile(".*", re.DOTALL), "$0", ""
#: No rule matches a longer subject.
_MAX_NAME_BYTES = 1 << 10


def subject_name(certificate: Mapping[str, Any]) -> str:
    """Return the subject of a certificate (`SSLSocket.getpeercert`) in the form of RFC 2253 (`CN=a,O=b`)."""
    return ",".join(
        "+".join(f"{_SHORT_NAMES.get(kind, kind)}={_escaped(value)}" for kind, value in attributes)
        for attributes in reversed(certificate.get("subject", ()))
    )


def _escaped(value: str) -> str:
    escaped = _ESCAPED.sub(r"\\\1", value)
    if value.startswith((" ", "#")):
        escaped = f"\\{escaped}"
    return f"{escaped[:-1]}\\ " if value.endswith(" ") and len(value) > 1 else escaped


class PrincipalMapper:
    """Kafka's `ssl.principal.mapping.rules` (KIP-371): `RULE:pattern/replacement/[LU]` or DEFAULT, between commas.

    The first rule whose pattern matches the whole subject applies. In the replacement, $1 is the pattern's first
    group. L converts the name to lower case, U to upper case. DEFAULT keeps the subject. Raises InvalidConfigError.
    """

    def __init__(self, rules: str) -> None:
        self._rules: list[tuple[re.Pattern[str], str, str]] = []
        position, text = 0, rules.strip() or "DEFAULT"
        while position < len(text):
            match = _RULE.match(text, position)
            if match is None:
                problem = "a rule must be RULE:pattern/replacement/[LU], or DEFAULT"
                raise InvalidConfigError(problem, rules=text[position:])
            pattern, replacement, case, default = match.groups(default="")
            rule = _DEFAULT if default else _rule(pattern.replace("\\/", "/"), replacement.replace("\\/", "/"), case)
            self._rules.append(rule)
            position = match.end()

    def name(self, subject: str) -> str | None:
        """Return the user of a subject; None if no rule names one; "" (anonymous) only for an empty subject."""
        if not subject.isprintable() or len(subject.encode()) > _MAX_NAME_BYTES:
            return None
        for pattern, replacement, case in self._rules:
            match = pattern.fullmatch(subject)
            if match is not None:
                name = _GROUP_REFERENCE.sub(lambda group: match[int(group[1])] or "", replacement)  # noqa: B023
                if case:
                    name = name.lower() if case == "L" else name.upper()
                return None if subject and not name else name
        return None


def _rule(pattern: str, replacement: str, case: str) -> tuple[re.Pattern[str], str, str]:
    try:
        compiled = re.compile(pattern, re.DOTALL)
    except re.error as error:
        raise InvalidConfigError(f"a rule has a wrong pattern: {error}", pattern=pattern) from None
    if max(map(int, _GROUP_REFERENCE.findall(replacement)), default=0) > compiled.groups:
        raise InvalidConfigError("a replacement has a group that its pattern lacks", replacement=replacement)
    return compiled, replacement, case


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach the address."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
