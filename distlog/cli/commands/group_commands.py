"""The command about groups of followers, as Kafka's kafka-consumer-groups."""

from __future__ import annotations

from typing import Annotated, Any

import typer

import distlog
from distlog.cli.options.shared_options import Json, Storage, Url, usage
from distlog.console import arguments, output
from distlog.console.report import Summary, print_report


def groups(
    url: Url,
    *,
    group: Annotated[str | None, typer.Option(metavar="NAME", help="Only this group.")] = None,
    reset: Annotated[
        Any,
        typer.Option(
            metavar="WHERE",
            parser=usage(arguments.start),
            help="Set its positions: earliest, latest, a time in ISO 8601, an offset, or offsets as in 0:10,1:7.",
        ),
    ] = None,
    delete: Annotated[bool, typer.Option("--delete", help="Forget its positions.")] = False,
    storage: Storage,
    as_json: Json = False,
) -> None:
    """Show the positions of groups of followers, or change them.

    A group's members lose their partitions by a change. Those that live join again; so end them before a --delete.
    """
    if (reset is not None or delete) and group is None:
        raise typer.BadParameter("say which", param_hint="--group")
    if reset is not None and delete:
        raise typer.BadParameter("give --reset or --delete, not both", param_hint="--delete")
    topic = distlog.open(url, storage_options=dict(storage))
    if group is not None and reset is not None:
        topic.reset_group(group, reset)
    rows = [row for row in output.rows_of(topic.groups()) if group in (None, row["group"])]
    if group is not None and not rows:
        raise distlog.DistlogError("there is no such group", group=group)
    if group is not None and delete:
        topic.delete_group(group)
        print_report(Summary(f"deleted {group}", {"group": group, "deleted": True}), as_json=as_json)
        return
    print_report(Summary("", {"groups": rows}, rows), as_json=as_json)
