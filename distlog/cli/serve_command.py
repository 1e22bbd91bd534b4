"""`distlog serve`: the gateway as a service."""

from __future__ import annotations

import ipaddress
from typing import Annotated, Any

import typer

from distlog.cli.options import Json, Storage, usage
from distlog.cli.service_command import broker_settings
from distlog.core.errors import InvalidConfigError


def host_and_port(text: str) -> tuple[str, int]:
    """`HOST:PORT` as a pair; ValueError if it is none."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{text!r} is not HOST:PORT, as 127.0.0.1:9092")
    return host.strip("[]"), int(port)


def serve(
    *,
    root: Annotated[str, typer.Option(metavar="URL", help="The folder of the topics.")],
    listen: Annotated[
        Any,
        typer.Option(metavar="HOST:PORT", parser=usage(host_and_port), help="Where to listen; port 0: a free one."),
    ] = "127.0.0.1:9092",
    advertised: Annotated[
        Any,
        typer.Option(
            metavar="HOST:PORT",
            parser=usage(host_and_port),
            help="What clients are told to connect to; by default, where they did.",
        ),
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="Listen on another address than loopback, for everybody who reaches it."),
    ] = False,
    auto_create: Annotated[
        bool, typer.Option("--auto-create-topics", help="Create a topic when a client asks for it.")
    ] = False,
    config: Annotated[
        list[Any],
        typer.Option(
            metavar="FILE|NAME=VALUE",
            parser=usage(broker_settings),
            default_factory=list,
            show_default=False,
            help="Kafka's broker settings: a server.properties, or one setting. May be repeated; the last counts.",
        ),
    ],
    metrics_port: Annotated[
        int | None,
        typer.Option(
            metavar="PORT", min=0, max=65535, help="Serve metrics for Prometheus on this port; 0: a free one."
        ),
    ] = None,
    storage: Storage,
    as_json: Json = False,
) -> None:
    """Let Kafka's clients read and write the topics below a root, until SIGTERM.

    It speaks Kafka's protocol, and stands for all brokers of a cluster. With --json each line is an object.
    """
    try:
        from distlog.cli.gateway_service import serve as serve_until_signal
        from distlog.gateway.config import GatewayConfig
        from distlog.gateway.gateway_server import GatewayServer
    except ModuleNotFoundError as error:
        if error.name != "kio":
            raise
        raise InvalidConfigError("the gateway needs kio: pip install 'distlog[gateway]'") from None
    host, port = listen
    if not insecure and not _is_loopback(host):
        raise InvalidConfigError(
            "anybody who reaches this address could read and write all topics: add --insecure if that is meant",
            listen=f"{host}:{port}",
        )
    settings = {name: value for each in config for name, value in each.items()}
    gateway = GatewayServer(
        root,
        host,
        port,
        config=GatewayConfig(advertised=advertised, auto_create_topics=auto_create),
        settings=settings,
        storage_options=dict(storage),
    )
    raise typer.Exit(serve_until_signal(gateway, metrics_port=metrics_port, as_json=as_json))


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
