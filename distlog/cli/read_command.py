"""The command that prints records."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

import distlog
from distlog.cli import following, reading
from distlog.cli.options import Follow, Group, Json, StartOffset, Storage, Tail, Timeout, Url, time, usage
from distlog.cli.printing import RecordFormat, printing
from distlog.console.arguments import FromEnd
from distlog.core.reading.scan import check_columns
from distlog.core.transactions.isolation import IsolationLevel


def read(
    url: Url,
    *,
    partition: Annotated[
        list[int] | None,
        typer.Option("--partition", "-p", metavar="N", help="Only this partition. May be repeated."),
    ] = None,
    offset: StartOffset = None,
    tail: Tail = None,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=0, metavar="N", help="At most N records.")] = None,
    since: Annotated[
        int | None,
        time("Only records at or after TIME: ms since 1970, ISO 8601 (UTC unless it names a zone), now, or -1h."),
    ] = None,
    until: Annotated[int | None, time("Only records before TIME.")] = None,
    columns: Annotated[
        Any,
        typer.Option(
            metavar="NAMES",
            parser=usage(lambda names: check_columns(names.split(","))),
            help="Only these columns, as in offset,value.",
        ),
    ] = None,
    shown: RecordFormat = None,
    follow: Follow = False,
    group: Group = None,
    timeout: Timeout = None,
    committed: Annotated[
        bool, typer.Option("--committed", help="Only records that no open or aborted transaction holds.")
    ] = False,
    storage: Storage,
    as_json: Json = False,
) -> None:
    """Print records.

    With --json, each line is an object that append --format jsonl can read.
    """
    if isinstance(offset, FromEnd) and tail is None:
        offset, tail = None, int(offset)
    if sum(each is not None for each in (offset, tail, since)) > 1:
        raise typer.BadParameter("give one of --offset, --tail and --since", param_hint="--offset")
    follows = follow or group is not None or timeout is not None
    if until is not None and follows:
        raise typer.BadParameter("records that come have no end in time; leave it out", param_hint="--until")
    if offset == distlog.LATEST and not follows:
        raise typer.BadParameter("latest is where to begin to --follow", param_hint="--offset")
    topic = distlog.open(url, storage_options=dict(storage))
    how = printing(topic.name, columns, shown, as_json=as_json)
    isolation: IsolationLevel = "read_committed" if committed else "read_uncommitted"
    bounds = reading.Bounds(offset=offset, tail=tail, since=since, until=until, isolation=isolation)
    if follows:
        batches = following.batches(topic, partition, bounds, limit, how.columns, group, timeout)
    else:
        batches = reading.batches(topic, partition or range(topic.partitions), bounds, limit, how.columns)
    for number, batch in enumerate(batches):
        how.show(batch, number == 0)
        if follows:
            sys.stdout.flush()
