"""Commands about topics as a whole that Kafka's kafka-topics and kafka-configs have: list, alter and drop."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

import distlog
from distlog.cli.options.shared_options import DryRun, Json, Storage, Url, settings, usage
from distlog.console import arguments
from distlog.console.report import Summary, print_report
from distlog.core.storage.storage import Storage as Folder


def list_topics(
    root: Annotated[str, typer.Argument(metavar="ROOT", help="The folder of the topics, as in s3://bucket/logs.")],
    *,
    storage: Storage,
    as_json: Json = False,
) -> None:
    """List the topics right below a folder."""
    rows = [_row(topic) for topic in distlog.topics(root, storage_options=dict(storage))]
    if not rows and not Folder(root, dict(storage)).is_there():
        raise distlog.TopicNotFoundError("nothing is here: check the address", root=root)
    if not rows and not as_json:
        print(f"distlog: there is no topic right below {root}", file=sys.stderr)
    print_report(Summary("", {"topics": rows}, rows), as_json=as_json)


def _row(topic: distlog.Topic) -> dict[str, Any]:
    states = topic.live_snapshot.partitions
    return {
        "topic": topic.name,
        "partitions": topic.partitions,
        "version": topic.version,
        "segments": sum(len(state.segments) for state in states),
        "bytes": sum(int(state.segments.log_bytes.sum()) for state in states),
        "cleanup.policy": topic.config.cleanup_policy,
    }


def alter(
    url: Url,
    *,
    partitions: Annotated[
        int | None, typer.Option("--partitions", metavar="N", min=1, help="Have N partitions, more than now.")
    ] = None,
    config: Annotated[list[Any], settings("--config", "A setting by Kafka's name, as in retention.ms=604800000.")],
    unset: Annotated[
        list[str] | None, typer.Option("--unset", metavar="NAME", help="Back to its default. May be repeated.")
    ] = None,
    storage: Storage,
    as_json: Json = False,
) -> None:
    """Change settings and the number of partitions.

    The settings are one commit, the partitions another. With more partitions, keys go to other ones than before; a
    key's older records stay where they are.
    """
    changes: dict[str, object | None] = {**dict(config), **dict.fromkeys(unset or ())}
    if not changes and partitions is None:
        raise typer.BadParameter("say what to change, as in --config retention.ms=-1", param_hint="--config")
    topic = distlog.open(url, storage_options=dict(storage))
    if changes:
        topic.alter_config(changes)
    if partitions is not None:
        topic.create_partitions(partitions)
    lines = [f"{topic.name} version {topic.version}"]
    lines += [f"{name}={topic.config.all().get(name, 'default')}" for name in changes]
    lines += [f"partitions={topic.partitions}"] if partitions is not None else []
    facts = {
        "url": topic.url,
        "version": topic.version,
        "config": topic.config.overrides(),
        "partitions": topic.partitions,
    }
    print_report(Summary("\n".join(lines), facts), as_json=as_json)


def drop(
    url: Url,
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    storage: Storage,
    as_json: Json = False,
) -> None:
    """End a topic. Vacuum deletes its files when file.delete.delay.ms has passed."""
    if as_json and not yes:
        raise typer.BadParameter("give it with --json, which asks nobody", param_hint="--yes")
    topic = distlog.open(url, storage_options=dict(storage))
    if not yes and not typer.confirm(f"drop {topic.url} with {topic.partitions} partitions?", err=True):
        raise typer.Exit(1)
    topic.drop()
    print_report(Summary(f"dropped {topic.url}", {"url": topic.url, "dropped": True}), as_json=as_json)


def restore(
    url: Url,
    *,
    version: Annotated[
        int, typer.Option("--version", metavar="N", parser=usage(arguments.version), help="What it had at version N.")
    ],
    dry_run: DryRun = False,
    storage: Storage,
    as_json: Json = False,
) -> None:
    """Bring back what a version had and vacuum has not deleted.

    One commit takes back what retention, delete-records and compact did since. Later records stay.
    """
    topic = distlog.open(url, storage_options=dict(storage))
    print_report(topic.restore(version, dry_run=dry_run), as_json=as_json)
