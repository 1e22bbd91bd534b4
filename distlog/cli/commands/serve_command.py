"""`distlog serve`: the gateway as a service."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import typer

from distlog.cli.commands.service_command import BrokerSettings, MetricsPort
from distlog.cli.options import listener_options as listener
from distlog.cli.options.shared_options import Json, Storage, usage
from distlog.cli.services.open_files import raise_open_files


def host_and_port(text: str) -> tuple[str, int]:
    """`HOST:PORT` as a pair; ValueError if it is none."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{text!r} is not HOST:PORT, as 127.0.0.1:9092")
    return host.strip("[]"), int(port)


Listen = Annotated[
    Any, typer.Option(metavar="HOST:PORT", parser=usage(host_and_port), help="Where to listen; port 0: a free one.")
]
Advertised = Annotated[
    Any,
    typer.Option(
        metavar="HOST:PORT",
        parser=usage(host_and_port),
        help="What clients are told to connect to; by default, where they did.",
    ),
]

Maintain = Annotated[
    bool, typer.Option("--maintain", help="Also run the tasks of `distlog run`; of several gateways, one does.")
]


def serve(
    *,
    root: Annotated[str, typer.Option(metavar="URL", help="The folder of the topics.")],
    listen: Listen = "127.0.0.1:9092",
    advertised: Advertised = None,
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="Let everybody in who reaches an address, or PLAIN passwords be read."),
    ] = False,
    ssl_certfile: listener.Certfile = None,
    ssl_keyfile: listener.Keyfile = None,
    ssl_key_password_file: listener.KeyPassword = None,
    ssl_cafile: listener.Cafile = None,
    ssl_client_auth: listener.ClientAuth = "none",
    sasl_users: listener.SaslUsers = None,
    sasl_mechanisms: listener.SaslMechanisms = listener.ALL_MECHANISMS,
    linger_ms: Annotated[
        int, typer.Option(min=0, metavar="MS", help="On an object store, how long an append waits for others.")
    ] = 250,
    auto_create: Annotated[
        bool, typer.Option("--auto-create-topics", help="Create a topic when a client asks for it.")
    ] = False,
    maintain: Maintain = False,
    config: BrokerSettings,
    metrics_port: MetricsPort = None,
    storage: Storage,
    as_json: Json = False,
) -> None:
    """Let Kafka's clients use the topics below a root.

    It speaks Kafka's protocol, and stands for all brokers of a cluster, until SIGTERM. With --json each line is an
    object.
    """
    try:
        from distlog.cli.services.gateway_service import serve as serve_until_signal
        from distlog.gateway.cluster.maintenance import Maintenance
        from distlog.gateway.config import GatewayConfig
        from distlog.gateway.gateway_server import GatewayServer
    except ModuleNotFoundError as error:
        if error.name != "kio":
            raise
        raise ModuleNotFoundError("the gateway needs kio: pip install 'distlog[gateway]'", name=error.name) from None
    tls = listener.tls_files(ssl_certfile, ssl_keyfile, ssl_key_password_file, ssl_cafile, ssl_client_auth)
    where = listener.Listener(listen[0], listen[1], tls, sasl_users, listener.mechanisms(sasl_mechanisms))
    settings = {name: value for each in config for name, value in each.items()}
    limits = GatewayConfig(
        advertised=advertised,
        linger_ms=linger_ms,
        auto_create_topics=auto_create,
        open_files=raise_open_files(),
    )
    safe = where.arguments(insecure=insecure)
    gateway = GatewayServer(root, config=limits, settings=settings, storage_options=dict(storage), **safe)
    tasks = partial(Maintenance, root, settings, dict(storage)) if maintain else None
    raise typer.Exit(serve_until_signal(gateway, tasks, metrics_port=metrics_port, as_json=as_json))
