"""Commands between topics and the log directories of Kafka brokers."""

from __future__ import annotations

from typing import Annotated, Any

import typer

import distlog
from distlog.cli.options.shared_options import DryRun, Json, Storage, Url, settings
from distlog.console.report import print_report, status_of


def adopt(
    directory: Annotated[
        str,
        typer.Argument(metavar="DIRECTORY", help="The log directory of a stopped broker, or a partition's folder."),
    ],
    url: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="URL",
            help="Copy: a log directory's topics to folders in URL, a partition's folder to the topic URL.",
        ),
    ] = None,
    *,
    topics: Annotated[
        list[str] | None, typer.Option("--topic", metavar="NAME", help="Only this topic. May be repeated.")
    ] = None,
    config: Annotated[
        list[Any], settings("--config", "A setting of the topics by Kafka's name, as in cleanup.policy=compact.")
    ],
    dry_run: DryRun = False,
    storage: Storage,
    as_json: Json = False,
) -> None:
    """Make topics of what a Kafka broker left.

    Without --to it is done in place. The exit status is 1 if some topic cannot be adopted.
    """
    report = distlog.adopt(
        directory, url, topics=topics, config=dict(config), dry_run=dry_run, storage_options=dict(storage)
    )
    print_report(report, as_json=as_json)
    raise typer.Exit(status_of(report))


def export(
    url: Url,
    log_dir: Annotated[
        str, typer.Argument(metavar="LOG_DIR", help="The log directory of a stopped broker, or a new folder.")
    ],
    *,
    partitions: Annotated[
        list[int] | None, typer.Option("--partition", metavar="N", help="Only this partition. May be repeated.")
    ] = None,
    storage: Storage,
    as_json: Json = False,
) -> None:
    """Write a topic as files that a Kafka broker opens.

    Exporting again adds what is new.
    """
    topic = distlog.open(url, storage_options=dict(storage))
    print_report(topic.export(log_dir, partitions), as_json=as_json)
