"""The options of `distlog serve` about who may connect: TLS, SASL, and addresses that others reach."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from distlog.core.errors import InvalidConfigError
from distlog.gateway.security.authentication import Authentication
from distlog.gateway.security.credentials import MECHANISMS, PLAIN
from distlog.gateway.security.tls import CLIENT_AUTH, TlsFiles
from distlog.gateway.security.users_file import UsersFile

if TYPE_CHECKING:
    import ssl

_File = str | None


def _file(about: str) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(metavar="FILE", help=about)
    return option


Certfile = Annotated[_File, _file("Speak TLS by this certificate: PEM, with those between it and its root.")]
Keyfile = Annotated[_File, _file("The certificate's key: PEM.")]
KeyPassword = Annotated[_File, _file("Has the key's password in its first line.")]
Cafile = Annotated[_File, _file("Check clients' certificates by these authorities: PEM.")]
ClientAuth = Annotated[
    str, typer.Option(metavar="|".join(CLIENT_AUTH), help="Whether clients need certificates (ssl.client.auth).")
]
SaslUsers = Annotated[_File, _file("Only these users may connect: a file of `distlog users`.")]
SaslMechanisms = Annotated[
    str, typer.Option(metavar="NAME,NAME", help="How they may authenticate (sasl.enabled.mechanisms).")
]
_TLS_BUFFER_BYTES = 32 << 10
ALL_MECHANISMS = ",".join(MECHANISMS)


class Listener(NamedTuple):
    """Where to listen, and what is asked of clients there."""

    host: str
    port: int
    tls: TlsFiles | None
    users: str | None
    mechanisms: tuple[str, ...]

    def arguments(self, *, insecure: bool) -> dict[str, Any]:
        """What a gateway is told of it, by the names of GatewayServer.

        Raises InvalidConfigError and StorageError for files; and InvalidConfigError if others than this machine reach
        it, and it is neither safe nor meant to be `insecure`.
        """
        if not insecure and not is_loopback(self.host):
            self._check_safe()
        tls = self._context()
        users = None if self.users is None else Authentication(UsersFile(self.users), self.mechanisms)
        return {"host": self.host, "port": self.port, "tls": tls, "authentication": users}

    def _check_safe(self) -> None:
        listen = f"{self.host}:{self.port}"
        if self.users is None and (self.tls is None or self.tls.client_auth != "required"):
            raise InvalidConfigError(
                "anybody who reaches this address could read and write all topics: add --sasl-users, or"
                " --ssl-client-auth required, or --insecure if that is meant",
                listen=listen,
            )
        if self.tls is None and PLAIN in self.mechanisms:
            raise InvalidConfigError(
                "passwords of PLAIN could be read on their way: add --ssl-certfile, or"
                f" --sasl-mechanisms {','.join(each for each in MECHANISMS if each != PLAIN)},"
                " or --insecure if that is meant",
                listen=listen,
            )

    def _context(self) -> ssl.SSLContext | None:
        if self.tls is None:
            return None
        # takes time to import, which other commands should not
        from asyncio import sslproto

        # of each connection, for good; a record of TLS has 16 KiB
        sslproto.SSLProtocol.max_size = _TLS_BUFFER_BYTES
        return self.tls.context()


def tls_files(
    certfile: str | None, keyfile: str | None, password_file: str | None, cafile: str | None, client_auth: str
) -> TlsFiles | None:
    """The files of TLS, or None if there are none. Raises InvalidConfigError for a part of them."""
    if certfile is not None and keyfile is not None:
        return TlsFiles(
            certificate=certfile, key=keyfile, ca=cafile, client_auth=client_auth, key_password_file=password_file
        )
    if (certfile, keyfile, password_file, cafile, client_auth) != (None, None, None, None, "none"):
        raise InvalidConfigError("TLS needs --ssl-certfile and --ssl-keyfile", certfile=certfile, keyfile=keyfile)
    return None


def mechanisms(text: str) -> tuple[str, ...]:
    """The names between commas. Raises InvalidConfigError for one that there is not."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        if name not in MECHANISMS:
            raise InvalidConfigError(f"a mechanism of SASL is one of {', '.join(MECHANISMS)}", found=name)
    return names


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
