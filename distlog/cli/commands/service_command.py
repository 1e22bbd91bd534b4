"""`distlog run`: the LogManager as a service, or once, as from a crontab."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from distlog.cli.options.shared_options import Json, Storage, usage
from distlog.cli.services.service import Service
from distlog.core.log_manager.properties_file import parse_properties


def broker_settings(text: str) -> dict[str, str]:
    """The settings of the properties file `text`, or of `NAME=VALUE`; ValueError if it is neither."""
    if not os.path.isfile(text):
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise ValueError(f"{text!r} is no file; to set one setting, write NAME=VALUE")
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
        help="Kafka's broker settings: a server.properties, or one setting. May be repeated; the last counts.",
    ),
]
MetricsPort = Annotated[
    int | None,
    typer.Option(metavar="PORT", min=0, max=65535, help="Serve metrics for Prometheus on this port; 0: a free one."),
]


def run(
    *,
    root: Annotated[list[str], typer.Option(metavar="URL", help="A folder of topics. May be repeated.")],
    config: BrokerSettings,
    once: Annotated[bool, typer.Option("--once", help="Run each task once, then end.")] = False,
    metrics_port: MetricsPort = None,
    storage: Storage,
    as_json: Json = False,
) -> None:
    """Maintain all topics below some roots, until SIGTERM.

    Retention, compaction, vacuum, flushes and checkpoint files on Kafka's schedule. What fails is reported, and
    tried again. With --json each line is an object. With --once the exit status is 1 if anything failed.
    """
    settings = {name: value for each in config for name, value in each.items()}
    service = Service(root, settings, dict(storage), as_json=as_json)
    raise typer.Exit(service.run_once() if once else service.run(metrics_port))
