"""The commands that run services, and prepare for them."""

from __future__ import annotations

import getpass
import os
import sys
from collections import ChainMap
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

import typer

from distlog.cli import options as listener
from distlog.cli.options import Json, Storage, usage
from distlog.cli.processes import fork_processes
from distlog.cli.services import LOOPBACK, Service, keep_what_is_loaded, raise_open_files
from distlog.console import output
from distlog.console.output import Summary, print_report
from distlog.core.errors import InvalidConfigError
from distlog.core.log_manager.broker_config import parse_properties
from distlog.core.opening import check_root
from distlog.core.storage.storage import Storage as Folder
from distlog.core.warm_up import warm_up
from distlog.gateway.config import STANDARD_AUTHORIZER, AclSettings, GatewayConfig, with_settings
from distlog.gateway.security.users_file import check_name, new_secrets, read_users, write_users


def broker_settings(text: str) -> dict[str, str]:
    """Parse a properties file or `NAME=VALUE`. Raises ValueError for other text."""
    if not os.path.isfile(text):
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise ValueError(f"{text!r} is not a file or NAME=VALUE")
        return {name: value}
    try:
        with open(text, encoding="utf-8") as file:
            return parse_properties(file.read())
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read {text}: {error}") from None


BrokerSettings = Annotated[
    list[Any],
    typer.Option(
        metavar="FILE|NAME=VALUE",
        parser=usage(broker_settings),
        default_factory=list,
        show_default=False,
        help="Set Kafka broker settings by a server.properties file or NAME=VALUE. May be repeated; the last wins.",
    ),
]
MetricsPort = Annotated[
    int | None,
    typer.Option(metavar="PORT", min=0, max=65535, help="Serve Prometheus metrics on this port; 0 picks a free one."),
]
MetricsHost = Annotated[str, typer.Option(metavar="ADDRESS", help="Serve metrics at this address.")]


def run(
    *,
    root: Annotated[
        list[str], typer.Option(metavar="URL", help="Maintain the topics in this folder. May be repeated.")
    ],
    config: BrokerSettings,
    is_single: Annotated[bool, typer.Option("--once", help="Run each task once and exit.")] = False,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = LOOPBACK,
    storage: Storage,
    as_json: Json = False,
) -> None:
    """Maintain all topics in a folder until SIGTERM.

    It runs retention, compaction, vacuum, flushes and checkpoints on Kafka's schedule. A failed task is reported and
    retried. With --json, each line is an object. With --once, the exit status is 1 if a task failed.
    """
    settings = dict(ChainMap(*reversed(config)))
    service = Service(root, settings, dict(storage), as_json=as_json)
    metrics = None if metrics_port is None else (metrics_host, metrics_port)
    raise typer.Exit(service.run_once() if is_single else service.run(metrics))


def host_and_port(text: str) -> tuple[str, int]:
    """Parse `HOST:PORT`. Raises ValueError for other text."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{text!r} is not HOST:PORT (127.0.0.1:9092)")
    return host.strip("[]"), int(port)


Listen = Annotated[
    Any,
    typer.Option(
        metavar="HOST:PORT", parser=usage(host_and_port), help="Listen on this address; port 0 picks a free one."
    ),
]
Advertised = Annotated[
    Any,
    typer.Option(
        metavar="HOST:PORT",
        parser=usage(host_and_port),
        help="Advertise this address to clients. Default: the address that a client connected to.",
    ),
]

AutoCreate = Annotated[
    bool, typer.Option("--auto-create-topics", help="Create a missing topic when a client asks for it.")
]
Acls = Annotated[
    bool, typer.Option("--acls", help="Authorize requests by ACLs; name an administrator in super.users.")
]
Maintain = Annotated[
    bool, typer.Option("--maintain", help="Also run the tasks of `distlog run`. Set it on one of several gateways.")
]


Processes = Annotated[
    int,
    typer.Option(min=1, max=1000, metavar="N", help="Run N processes on consecutive ports; all stop when one exits."),
]


Address = tuple[str, int] | None


def address_of(process: int, address: Address) -> Address:
    """Return the address of a process: consecutive ports, or a free one for port 0."""
    return address and (address[0], address[1] and address[1] + process)


def _check_ports(processes: int, *addresses: Address) -> None:
    for address in addresses:
        if address and address[1] + processes - 1 > 65535:
            raise typer.BadParameter(f"not enough ports after {address[1]}", param_hint="--processes")


def serve(
    *,
    root: Annotated[str, typer.Option(metavar="URL", help="Serve the topics in this folder.")],
    listen: Listen = "127.0.0.1:9092",
    advertised: Advertised = None,
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="Allow clients without authentication, and PLAIN passwords without TLS."),
    ] = False,
    ssl_certfile: listener.Certfile = None,
    ssl_keyfile: listener.Keyfile = None,
    ssl_key_password_file: listener.KeyPassword = None,
    ssl_cafile: listener.Cafile = None,
    ssl_crlfile: listener.Crlfile = None,
    ssl_client_auth: listener.ClientAuth = "none",
    sasl_users: listener.SaslUsers = None,
    sasl_mechanisms: listener.SaslMechanisms = listener.ALL_MECHANISMS,
    processes: Processes = 1,
    linger_ms: Annotated[
        int, typer.Option(min=0, metavar="MS", help="Wait up to MS to commit appends together, on an object store.")
    ] = 250,
    auto_create: AutoCreate = False,
    acls: Acls = False,
    maintain: Maintain = False,
    config: BrokerSettings,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = LOOPBACK,
    storage: Storage,
    as_json: Json = False,
) -> None:
    """Serve the topics in a folder to Kafka clients.

    It speaks Kafka's protocol and acts as all brokers of a cluster, until SIGTERM. With --json, each line is an
    object.
    """
    from distlog.cli.services import serve as serve_until_signal
    from distlog.gateway.cluster import Maintenance
    from distlog.gateway.gateway_server import GatewayServer

    tls = listener.tls_files(
        ssl_certfile, ssl_keyfile, ssl_key_password_file, ssl_cafile, ssl_crlfile, ssl_client_auth
    )
    metrics = None if metrics_port is None else (metrics_host, metrics_port)
    _check_ports(processes, listen, advertised, metrics)
    names = listener.mechanisms(sasl_mechanisms)
    safe = listener.listener_arguments(listen, tls, sasl_users, names, insecure=insecure)
    settings = dict(ChainMap(*reversed(config)))
    # before the fork: a wrong setting is reported once, not by each process
    limits = _config(settings, processes=processes, linger_ms=linger_ms, auto_create=auto_create, acls=acls)
    number = _forked(processes) if processes > 1 else 0
    _check_root(Folder(root, dict(storage)), is_first=not number)
    limits = replace(limits, process=number, advertised=address_of(number, advertised))
    safe["port"] = listen[1] and listen[1] + number
    gateway = GatewayServer(root, config=limits, settings=settings, storage_options=dict(storage), **safe)
    tasks = partial(Maintenance, root, settings, dict(storage)) if maintain and not number else None
    process = number if processes > 1 else None
    serve_until_signal(gateway, tasks, address_of(number, metrics), as_json=as_json, process=process)


def _config(
    settings: Mapping[str, object], *, processes: int, linger_ms: int, auto_create: bool, acls: bool
) -> GatewayConfig:
    options = GatewayConfig(
        processes=processes,
        linger_ms=linger_ms,
        auto_create_topics=auto_create,
        acls=AclSettings(authorizer=STANDARD_AUTHORIZER if acls else ""),
        open_files=raise_open_files(),
    )
    return with_settings(options, settings)


def _check_root(root: Folder, *, is_first: bool) -> None:
    """Report a new root, which may be a typo. Raises TopicNotFoundError for a topic."""
    check_root(root)
    # the gateway reports a file at this path better
    if is_first and root.is_local and not os.path.exists(os.path.normpath(root.local_path(""))):
        print(f"distlog: {output.text(root.url)} does not exist: creating it as a new root", file=sys.stderr)


def _forked(processes: int) -> int:
    """Fork processes that share loaded code; returns the number of this process."""
    from distlog.gateway.gateway_server import warm_up

    warm_up()
    keep_what_is_loaded()
    return fork_processes(processes)


def users(
    file: Annotated[str, typer.Argument(metavar="FILE", help="File of users; --set creates it.")],
    *,
    name: Annotated[
        str | None, typer.Option("--set", metavar="NAME", help="Add a user, or change the password.")
    ] = None,
    delete: Annotated[str | None, typer.Option(metavar="NAME", help="Delete a user and disconnect it.")] = None,
    as_json: Json = False,
) -> None:
    """Show and change the users of a gateway.

    The password comes from a prompt, or from a line on standard input. Only hashes are stored. A gateway applies a
    change within a second.
    """
    if name is not None and delete is not None:
        raise typer.BadParameter("cannot be combined with --set", param_hint="--delete")
    if name is not None:
        secrets = new_secrets(_password(check_name(name)), os.urandom)
        write_users(file, lambda users: users.with_user(name, secrets))
        print_report(Summary(f"set {name}", {"user": name, "set": True}), as_json=as_json)
    elif delete is not None:
        read_users(file)
        write_users(file, lambda users: users.without_user(delete))
        print_report(Summary(f"deleted {delete}", {"user": delete, "deleted": True}), as_json=as_json)
    else:
        names = sorted(read_users(file).secrets)
        print_report(Summary("\n".join(names), {"users": names}), as_json=as_json)


def _password(name: str) -> str:
    """Read a password from a terminal without echo, or from standard input. Raises InvalidConfigError."""
    if sys.stdin.isatty():
        password = getpass.getpass(f"password of {name}: ")
        if getpass.getpass("again: ") != password:
            raise InvalidConfigError("the passwords differ")
    else:
        password = sys.stdin.readline().rstrip("\r\n")
    if not password:
        raise InvalidConfigError("the password is empty")
    if "\0" in password:
        raise InvalidConfigError("the password contains NUL, which SASL cannot send")
    return password


def warmup(*, as_json: Json = False) -> None:
    """Compile distlog's kernels ahead of time.

    It takes about 15 seconds of CPU. Run it after installing, or while building a container image. The code is stored
    in NUMBA_CACHE_DIR if set, else next to the library, in the user's cache folder, or in the temporary folder.
    """
    print_report(warm_up(), as_json=as_json)
