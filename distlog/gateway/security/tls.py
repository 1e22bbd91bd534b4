"""TLS for a listener, from the PEM files of a certificate, as Kafka's `ssl.*` settings have them."""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from distlog.core.errors import InvalidConfigError

#: The values of `ssl.client.auth`, and their meanings.
CLIENT_AUTH = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
_MAX_PASSWORD_BYTES = 1 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """The paths of PEM files: the certificate chain, its key, and the authorities of clients' certificates.

    `key_password_file` has the key's password in its first line, which is never kept.
    """

    certificate: str
    key: str
    ca: str | None = None
    client_auth: str = "none"
    key_password_file: str | None = None

    def context(self) -> ssl.SSLContext:
        """TLS 1.2 or newer, as a server. Raises InvalidConfigError, which names a file and no password."""
        self._check()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # renegotiation would let clients cause expensive work
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
        try:
            context.load_cert_chain(self.certificate, self.key, password=self._password)
        except (OSError, ValueError) as error:
            raise InvalidConfigError(
                f"cannot use the certificate and its key: {_reason(error)}",
                certfile=self.certificate,
                keyfile=self.key,
            ) from None
        if self.ca is not None:
            try:
                context.load_verify_locations(self.ca)
            except OSError as error:
                raise InvalidConfigError(
                    f"cannot use the certificates of clients' authorities: {_reason(error)}", cafile=self.ca
                ) from None
        context.verify_mode = CLIENT_AUTH[self.client_auth]
        return context

    def _check(self) -> None:
        if self.client_auth not in CLIENT_AUTH:
            raise InvalidConfigError(f"ssl.client.auth is one of {', '.join(CLIENT_AUTH)}", found=self.client_auth)
        if (self.ca is None) == (self.client_auth != "none"):
            raise InvalidConfigError(
                "clients' certificates need a file of authorities: give both settings, or neither",
                cafile=self.ca,
                client_auth=self.client_auth,
            )

    def _password(self) -> bytes:
        """The key's password; OpenSSL asks for it only if there is one, and would ask a terminal otherwise."""
        if self.key_password_file is None:
            raise ValueError("the key has a password, and no file with it is given")
        with open(self.key_password_file, "rb") as file:
            return file.read(_MAX_PASSWORD_BYTES).split(b"\n")[0].rstrip(b"\r")


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
    return str(reason)
