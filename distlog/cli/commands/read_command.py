"""The command that prints records."""

from __future__ import annotations

import sys

import typer

import distlog
from distlog.cli import following, reading
from distlog.cli.options import read_options as options
from distlog.cli.options.shared_options import AtTime, AtVersion, Json, Storage, Url, open_at
from distlog.cli.printing import RecordFormat, printing
from distlog.console.arguments import FromEnd


def read(
    url: Url,
    *,
    partition: options.Partitions = None,
    offset: options.StartOffset = None,
    tail: options.Tail = None,
    limit: options.Limit = None,
    since: options.Since = None,
    until: options.Until = None,
    columns: options.Columns = None,
    shown: RecordFormat = None,
    follow: options.Follow = False,
    group: options.Group = None,
    timeout: options.Timeout = None,
    committed: options.Committed = False,
    version: AtVersion = None,
    timestamp: AtTime = None,
    storage: Storage,
    as_json: Json = False,
) -> None:
    """Print records.

    With --json, each line is an object that append --format jsonl can read.
    """
    if isinstance(offset, FromEnd) and tail is None:
        offset, tail = None, int(offset)
    bounds = reading.Bounds(
        offset=offset,
        tail=tail,
        since=since,
        until=until,
        isolation="read_committed" if committed else "read_uncommitted",
    )
    follows = follow or group is not None or timeout is not None
    _check(bounds, follows=follows, is_old=version is not None or timestamp is not None)
    topic = open_at(url, version, timestamp, storage)
    how = printing(topic.name, columns, shown, as_json=as_json)
    if follows:
        batches = following.batches(topic, partition, bounds, limit, how.columns, group, timeout)
    else:
        batches = reading.batches(topic, partition or range(topic.partitions), bounds, limit, how.columns)
    for number, batch in enumerate(batches):
        how.show(batch, number == 0)
        if follows:
            sys.stdout.flush()


def _check(bounds: reading.Bounds, *, follows: bool, is_old: bool) -> None:
    """Raise BadParameter for options that do not go together."""
    if sum(each is not None for each in (bounds.offset, bounds.tail, bounds.since)) > 1:
        raise typer.BadParameter("give one of --offset, --tail and --since", param_hint="--offset")
    if bounds.until is not None and follows:
        raise typer.BadParameter("records that come have no end in time; leave it out", param_hint="--until")
    if bounds.offset == distlog.LATEST and not follows:
        raise typer.BadParameter("latest is where to begin to --follow", param_hint="--offset")
    if is_old and follows:
        raise typer.BadParameter("nothing comes to an old version: leave out --version", param_hint="--follow")
