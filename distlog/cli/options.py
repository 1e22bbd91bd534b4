"""The arguments and options of commands."""

from __future__ import annotations

import os
from collections.abc import Callable
from enum import Enum
from typing import Annotated, Any, TypeVar

import typer

import distlog
from distlog.console import arguments
from distlog.console.arguments import APPEND_HELP, unescaped
from distlog.core.errors import InvalidConfigError
from distlog.core.paths import COMMITS_DIR
from distlog.core.read.scan import check_columns
from distlog.gateway.security.authentication import MECHANISMS, PLAIN, Authentication
from distlog.gateway.security.tls import CLIENT_AUTH, TlsFiles, is_loopback
from distlog.gateway.security.users_file import UsersFile

S = TypeVar("S")
T = TypeVar("T")


def usage(parse: Callable[[S], T]) -> Callable[[S], T]:
    """Wrap `parse` for typer: its ValueError becomes a usage error."""

    def parsed(text: S) -> T:
        try:
            return parse(text)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None

    return parsed


def _with_unique_names(pairs: Any) -> Any:
    # `Any`, since typer fails at a generic type in Python 3.10
    usage(arguments.check_unique_names)(pairs)
    return pairs


def settings(name: str, about: str, *, repeats_names: bool = False) -> Any:
    """An option NAME=VALUE that may be repeated, with the same name only if `repeats_names`."""
    return typer.Option(
        name,
        metavar="NAME=VALUE",
        parser=usage(arguments.setting),
        callback=None if repeats_names else _with_unique_names,
        default_factory=list,
        show_default=False,
        help=f"{about} May be repeated.",
    )


def _record_time(about: str) -> Any:
    return typer.Option(metavar="TIME", parser=usage(arguments.record_time), help=about)


def _topics(incomplete: str) -> list[str]:
    """Complete the local path of a topic: topics, and folders that may hold topics."""
    folder, start = os.path.split(incomplete)
    try:
        entries = [entry for entry in os.scandir(folder or ".") if entry.name.startswith(start) and entry.is_dir()]
    except OSError:
        return []
    paths = [os.path.join(folder, entry.name) for entry in entries if start or not entry.name.startswith(".")]
    return sorted(path if os.path.isdir(os.path.join(path, COMMITS_DIR)) else f"{path}/" for path in paths)


Url = Annotated[
    str,
    typer.Argument(
        metavar="URL",
        help="Path or URL of the topic: logs/clicks or s3://bucket/logs/clicks.",
        autocompletion=_topics,
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would change, and change nothing.")]
StorageOptions = Annotated[list[Any], settings("--storage", "Set an option of the storage client: endpoint_url=URL.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
AtVersion = Annotated[
    int | None,
    typer.Option("--version", metavar="N", parser=usage(arguments.version), help="Read the topic as of version N."),
]
AtTime = Annotated[
    int | None,
    typer.Option("--timestamp", metavar="TIME", parser=usage(arguments.time), help="Read the topic as of TIME."),
]


def open_at(url: str, version: int | None, timestamp: int | None, storage: list[Any]) -> distlog.Topic:
    """Open the topic, read-only as of a version or a time if one is given. Raises BadParameter if both are given."""
    if version is not None and timestamp is not None:
        raise typer.BadParameter("--version and --timestamp cannot be combined", param_hint="--timestamp")
    return distlog.open(url, version, timestamp, dict(storage))


class BadLines(str, Enum):
    FAIL = "fail"
    SKIP = "skip"


class Format(str, Enum):
    TEXT = "text"
    JSONL = "jsonl"
    RECORDS = "records"
    CSV = "csv"
    PARQUET = "parquet"


class Unit(str, Enum):
    S = "s"
    MS = "ms"
    US = "us"
    NS = "ns"


def _append_option(name: str, *aliases: str, **more: Any) -> Any:
    metavar, text = APPEND_HELP[name]
    return typer.Option(name, *aliases, metavar=metavar, help=text, **more)


Files = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="FILE",
        show_default=False,
        help="Files, folders, patterns ('logs/*.gz') or URLs. Default: standard input (-).",
    ),
]
InputFormat = Annotated[Format | None, _append_option("--format")]
Key = Annotated[str | None, _append_option("--key")]
Value = Annotated[str | None, _append_option("--value")]
Timestamp = Annotated[str | None, _append_option("--timestamp")]
TimeUnit = Annotated[Unit, _append_option("--timestamp-unit")]
Pattern = Annotated[str | None, _append_option("--pattern")]
TimeFormat = Annotated[str | None, _append_option("--time-format")]
KeySeparator = Annotated[str | None, _append_option("--key-separator", parser=usage(unescaped))]
Headers = Annotated[list[Any], settings("--header", APPEND_HELP["--header"].text, repeats_names=True)]
Partition = Annotated[int | None, _append_option("--partition", "-p")]
OnBadLine = Annotated[BadLines, _append_option("--bad-lines")]
AppId = Annotated[str | None, _append_option("--app-id")]
BatchId = Annotated[str | None, _append_option("--batch-id")]
Compression = Annotated[str | None, _append_option("--compression")]
CommitInterval = Annotated[float, typer.Option(min=0, metavar="SECONDS", help="Commit a stream every SECONDS.")]

Partitions = Annotated[
    list[int] | None, typer.Option("--partition", "-p", metavar="N", help="Read only partition N. May be repeated.")
]
StartOffset = Annotated[
    Any,
    typer.Option(
        "--offset",
        "-o",
        metavar="OFFSET",
        parser=usage(arguments.offset_or_end),
        help="Start at OFFSET: a number, -5 (the same as --tail 5) or earliest; with --follow also latest.",
    ),
]
Tail = Annotated[
    int | None, typer.Option("--tail", metavar="N", min=0, help="Start N offsets before the end of each partition.")
]
Limit = Annotated[int | None, typer.Option("--limit", "-n", min=0, metavar="N", help="Print at most N records.")]
Since = Annotated[
    int | None,
    _record_time("Print records at or after TIME: ms since 1970, ISO 8601 (UTC if it has no zone), now, or -1h."),
]
Until = Annotated[int | None, _record_time("Print records before TIME.")]
Columns = Annotated[
    Any,
    typer.Option(
        metavar="NAMES",
        parser=usage(lambda names: check_columns(names.split(","))),
        help="Print only these columns: offset,value.",
    ),
]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Print new records too, until Ctrl-C or SIGTERM.")]
Group = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Follow as a member of consumer group NAME, and commit its offsets."),
]
Timeout = Annotated[
    float | None, typer.Option(min=0, metavar="SECONDS", help="Follow, and stop after SECONDS without new records.")
]
Keys = Annotated[
    list[str] | None,
    typer.Option("--key", metavar="KEY", help="Print the records with this key; give it again for more keys."),
]
Committed = Annotated[bool, typer.Option("--committed", help="Skip records of open and aborted transactions.")]

_Path = str | None


def _file_option(about: str) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(metavar="FILE", help=about)
    return option


Certfile = Annotated[_Path, _file_option("Use TLS with this certificate and its intermediate certificates (PEM).")]
Keyfile = Annotated[_Path, _file_option("Use this private key of the certificate (PEM).")]
KeyPassword = Annotated[_Path, _file_option("Read the password of the private key from the first line of FILE.")]
Cafile = Annotated[_Path, _file_option("Verify client certificates by these authorities (PEM).")]
Crlfile = Annotated[_Path, _file_option("Reject client certificates that these CRLs revoke (PEM).")]
ClientAuth = Annotated[
    str, typer.Option(metavar="|".join(CLIENT_AUTH), help="Set whether clients need certificates (ssl.client.auth).")
]
SaslUsers = Annotated[_Path, _file_option("Let only the users in FILE connect; `distlog users` writes it.")]
SaslMechanisms = Annotated[
    str, typer.Option(metavar="NAME,NAME", help="Enable these SASL mechanisms (sasl.enabled.mechanisms).")
]
ALL_MECHANISMS = ",".join(MECHANISMS)
#: The buffer of a TLS connection. asyncio's default is 256 KiB, but a TLS record has at most 16 KiB.
_TLS_BUFFER_BYTES = 32 << 10


def listener_arguments(
    address: tuple[str, int],
    tls: TlsFiles | None,
    users_path: str | None,
    mechanism_names: tuple[str, ...],
    *,
    insecure: bool,
) -> dict[str, Any]:
    """Return a listener's settings as arguments of GatewayServer. Raises InvalidConfigError if they are unsafe."""
    host, port = address
    if not insecure and not is_loopback(host):
        if users_path is None and (tls is None or tls.client_auth != "required"):
            raise InvalidConfigError(
                "any client that reaches this address could read and write all topics: add --sasl-users or"
                " --ssl-client-auth required, or accept that with --insecure",
                listen=f"{host}:{port}",
            )
        if tls is None and PLAIN in mechanism_names:
            raise InvalidConfigError(
                "PLAIN would send passwords unencrypted: add --ssl-certfile or"
                f" --sasl-mechanisms {','.join(name for name in MECHANISMS if name != PLAIN)},"
                " or accept that with --insecure",
                listen=f"{host}:{port}",
            )
    if tls is not None:
        # slow to import
        from asyncio import sslproto

        sslproto.SSLProtocol.max_size = _TLS_BUFFER_BYTES  # type: ignore[attr-defined]  # since Python 3.11
        # raises for wrong TLS files, before the users file is read
        tls.context()
    authentication = None if users_path is None else Authentication(UsersFile(users_path), mechanism_names)
    return {"host": host, "port": port, "tls": tls, "authentication": authentication}


def tls_files(certificate: str | None, key: str | None, client_auth: str, **files: str | None) -> TlsFiles | None:
    """Return the TLS files, or None if no option is set. Raises InvalidConfigError if a required file is missing."""
    if certificate is not None and key is not None:
        return TlsFiles(certificate=certificate, key=key, client_auth=client_auth, **files)
    if client_auth != "none" or any(path is not None for path in (certificate, key, *files.values())):
        raise InvalidConfigError("TLS needs --ssl-certfile and --ssl-keyfile", certfile=certificate, keyfile=key)
    return None


def mechanisms(text: str) -> tuple[str, ...]:
    """Parse comma-separated SASL mechanisms. Raises InvalidConfigError for an unknown mechanism."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        if name not in MECHANISMS:
            raise InvalidConfigError(f"unknown SASL mechanism: use {', '.join(MECHANISMS)}", mechanism=name)
    return names
