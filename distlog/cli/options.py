"""The arguments and options of commands."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable
from enum import Enum
from typing import Annotated, Any, TypeVar

import typer

import distlog
from distlog.console import arguments
from distlog.console.append_help import APPEND_HELP
from distlog.core.errors import InvalidConfigError
from distlog.core.files.text_lines import unescaped
from distlog.core.paths import COMMITS_DIR
from distlog.core.reading.scan import check_columns
from distlog.gateway.security.authentication import MECHANISMS, PLAIN, Authentication
from distlog.gateway.security.tls import CLIENT_AUTH, TlsFiles
from distlog.gateway.security.users_file import UsersFile

S = TypeVar("S")
T = TypeVar("T")


def usage(parse: Callable[[S], T]) -> Callable[[S], T]:
    """Wraps `parse` for typer: its ValueError becomes an error of the command line."""

    def parsed(given: S) -> T:
        try:
            return parse(given)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None

    return parsed


def _given_once(pairs: Any) -> Any:
    # typer fails at a type with parameters in Python 3.10
    usage(arguments.given_once)(pairs)
    return pairs


def settings(name: str, about: str, *, twice: bool = False) -> Any:
    """An option NAME=VALUE that may be repeated; with one name only if it may be given `twice`."""
    return typer.Option(
        name,
        metavar="NAME=VALUE",
        parser=usage(arguments.setting),
        callback=None if twice else _given_once,
        default_factory=list,
        show_default=False,
        help=f"{about} May be repeated.",
    )


def time(about: str) -> Any:
    """An option whose value is a time that a record may have."""
    return typer.Option(metavar="TIME", parser=usage(arguments.record_time), help=about)


def _topics(incomplete: str) -> list[str]:
    """Completes the path of a topic on a local disk: topics, and folders that may hold some."""
    folder, start = os.path.split(incomplete)
    try:
        entries = [each for each in os.scandir(folder or ".") if each.name.startswith(start) and each.is_dir()]
    except OSError:
        return []
    paths = [os.path.join(folder, each.name) for each in entries if start or not each.name.startswith(".")]
    return sorted(path if os.path.isdir(os.path.join(path, COMMITS_DIR)) else f"{path}/" for path in paths)


Url = Annotated[
    str,
    typer.Argument(
        metavar="URL", help="The path or URL of the topic, as in s3://bucket/logs/clicks.", autocompletion=_topics
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Change nothing; only print what would be done.")]
Storage = Annotated[list[Any], settings("--storage", "A setting of the storage client, as in endpoint_url=URL.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
AtVersion = Annotated[
    int | None,
    typer.Option("--version", metavar="N", parser=usage(arguments.version), help="As it was at version N."),
]
AtTime = Annotated[
    int | None,
    typer.Option("--timestamp", metavar="TIME", parser=usage(arguments.time), help="As it was at TIME."),
]


def open_at(url: str, version: int | None, timestamp: int | None, storage: list[Any]) -> distlog.Topic:
    """The topic now, or read-only at a version or a time. Raises BadParameter for both."""
    if version is not None and timestamp is not None:
        raise typer.BadParameter("give a version or a time, not both", param_hint="--timestamp")
    return distlog.open(url, version, timestamp, dict(storage))


class BadLines(str, Enum):
    """The treatment of a line that is no record."""

    FAIL = "fail"
    SKIP = "skip"


class Format(str, Enum):
    """The format of the input."""

    TEXT = "text"
    JSONL = "jsonl"
    RECORDS = "records"
    CSV = "csv"
    PARQUET = "parquet"


class Unit(str, Enum):
    """The unit of times that are numbers."""

    S = "s"
    MS = "ms"
    US = "us"
    NS = "ns"


def _help(name: str, *others: str, **more: Any) -> Any:
    """The option of this name, as the job describes it too."""
    metavar, text = APPEND_HELP[name]
    return typer.Option(name, *others, metavar=metavar, help=text, **more)


Files = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[FILE]...",
        show_default=False,
        help="Files, folders, patterns like 'logs/*.gz' and URLs like s3://bucket/logs; - or none is standard input.",
    ),
]
InputFormat = Annotated[Format | None, _help("--format")]
Key = Annotated[str | None, _help("--key")]
Value = Annotated[str | None, _help("--value")]
Timestamp = Annotated[str | None, _help("--timestamp")]
TimeUnit = Annotated[Unit, _help("--timestamp-unit")]
Pattern = Annotated[str | None, _help("--pattern")]
TimeFormat = Annotated[str | None, _help("--time-format")]
KeySeparator = Annotated[str | None, _help("--key-separator", parser=usage(unescaped))]
Headers = Annotated[list[Any], settings("--header", APPEND_HELP["--header"].text, twice=True)]
Partition = Annotated[int | None, _help("--partition", "-p")]
OnBadLine = Annotated[BadLines, _help("--bad-lines")]
AppId = Annotated[str | None, _help("--app-id")]
BatchId = Annotated[str | None, _help("--batch-id")]
Compression = Annotated[str | None, _help("--compression")]
CommitInterval = Annotated[
    float,
    typer.Option(min=0, metavar="SECONDS", help="How often a stream is committed, which makes it visible."),
]


Partitions = Annotated[
    list[int] | None,
    typer.Option("--partition", "-p", metavar="N", help="Only this partition. May be repeated."),
]
StartOffset = Annotated[
    Any,
    typer.Option(
        "--offset",
        "-o",
        metavar="OFFSET",
        parser=usage(arguments.offset_or_end),
        help="Start here; -5 is --tail 5. Or earliest; with --follow also latest: only new records.",
    ),
]
Tail = Annotated[
    int | None,
    typer.Option("--tail", metavar="N", min=0, help="Start N offsets before the end of each partition."),
]
Limit = Annotated[int | None, typer.Option("--limit", "-n", min=0, metavar="N", help="At most N records.")]
Since = Annotated[
    int | None,
    time("Only records at or after TIME: ms since 1970, ISO 8601 (UTC unless it names a zone), now, or -1h."),
]
Until = Annotated[int | None, time("Only records before TIME.")]
Columns = Annotated[
    Any,
    typer.Option(
        metavar="NAMES",
        parser=usage(lambda names: check_columns(names.split(","))),
        help="Only these columns, as in offset,value.",
    ),
]
Follow = Annotated[
    bool,
    typer.Option("--follow", "-f", help="Go on, with the records that come, until Ctrl-C; --since finds the start."),
]
Group = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Follow from this group's positions, share partitions with its members, and commit."
    ),
]
Timeout = Annotated[
    float | None, typer.Option(min=0, metavar="SECONDS", help="Follow until nothing came for so long.")
]
Committed = Annotated[
    bool, typer.Option("--committed", help="Only records that no open or aborted transaction holds.")
]


_File = str | None


def _file(about: str) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(metavar="FILE", help=about)
    return option


Certfile = Annotated[
    _File, _file("Speak TLS by this certificate: PEM, with the certificates between it and its root.")
]
Keyfile = Annotated[_File, _file("The certificate's key: PEM.")]
KeyPassword = Annotated[_File, _file("Has the key's password in its first line.")]
Cafile = Annotated[_File, _file("Check clients' certificates by these authorities: PEM.")]
Crlfile = Annotated[_File, _file("Refuse clients' certificates that are in these lists of revoked ones: PEM.")]
ClientAuth = Annotated[
    str, typer.Option(metavar="|".join(CLIENT_AUTH), help="Whether clients need certificates (ssl.client.auth).")
]
SaslUsers = Annotated[_File, _file("Only these users may connect: a file of `distlog users`.")]
SaslMechanisms = Annotated[
    str, typer.Option(metavar="NAME,NAME", help="How they may authenticate (sasl.enabled.mechanisms).")
]
_TLS_BUFFER_BYTES = 32 << 10
ALL_MECHANISMS = ",".join(MECHANISMS)


def listener_arguments(
    address: tuple[str, int], tls: TlsFiles | None, users: str | None, names: tuple[str, ...], *, insecure: bool
) -> dict[str, Any]:
    """Settings of a listener by the names of GatewayServer's arguments; raises InvalidConfigError if unsafe."""
    host, port = address
    if not insecure and not is_loopback(host):
        if users is None and (tls is None or tls.client_auth != "required"):
            raise InvalidConfigError(
                "any client that reaches this address could read and write all topics: add --sasl-users, or"
                " --ssl-client-auth required, or --insecure if that is meant",
                listen=f"{host}:{port}",
            )
        if tls is None and PLAIN in names:
            raise InvalidConfigError(
                "passwords of PLAIN could be read on their way: add --ssl-certfile, or"
                f" --sasl-mechanisms {','.join(each for each in MECHANISMS if each != PLAIN)},"
                " or --insecure if that is meant",
                listen=f"{host}:{port}",
            )
    if tls is not None:
        # takes time to import, which other commands should not
        from asyncio import sslproto

        # of each connection, for good; a record of TLS has 16 KiB
        sslproto.SSLProtocol.max_size = _TLS_BUFFER_BYTES  # type: ignore[attr-defined]  # of Python 3.11, as the gateway
        # an error of these files comes before one of the users
        tls.context()
    authentication = None if users is None else Authentication(UsersFile(users), names)
    return {"host": host, "port": port, "tls": tls, "authentication": authentication}


def tls_files(
    certfile: str | None,
    keyfile: str | None,
    password_file: str | None,
    cafile: str | None,
    crlfile: str | None,
    client_auth: str,
) -> TlsFiles | None:
    """The files of TLS, or None if there are none. Raises InvalidConfigError for a part of them."""
    if certfile is not None and keyfile is not None:
        return TlsFiles(
            certificate=certfile,
            key=keyfile,
            ca=cafile,
            crl=crlfile,
            client_auth=client_auth,
            key_password_file=password_file,
        )
    if (certfile, keyfile, password_file, cafile, crlfile, client_auth) != (None, None, None, None, None, "none"):
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
    """True if only this machine reaches the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
