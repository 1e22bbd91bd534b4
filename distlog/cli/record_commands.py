"""Commands that append and print records."""

from __future__ import annotations

import sys
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import typer

import distlog
from distlog.cli import following, line_formats, reading
from distlog.cli.options import Follow, Group, Json, StartOffset, Storage, Tail, Timeout, Url, time, usage
from distlog.console.progress import Progress
from distlog.console.records import print_batch
from distlog.console.report import Summary, print_report
from distlog.core.batches.record_batch import COLUMNS
from distlog.core.maintenance.reports import counted
from distlog.core.reading.scan import check_columns
from distlog.core.topics.retention_warning import expiry_text
from distlog.core.transactions.isolation import IsolationLevel

#: The columns of the printed tables unless others are requested.
_SHOWN = tuple(name for name in COLUMNS if name != "timestamp_type")


class Format(str, Enum):
    """The format of the input's lines."""

    TEXT = "text"
    JSONL = "jsonl"


def append(
    url: Url,
    file: Annotated[Path, typer.Argument(metavar="[FILE]", help="The file to append; - is standard input.")] = Path(
        "-"
    ),
    *,
    line: Annotated[
        Format,
        typer.Option("--format", help="What a line holds: a value, or a JSON object as read --json prints it."),
    ] = Format.TEXT,
    key_separator: Annotated[
        str | None, typer.Option(metavar="TEXT", help="What stands between key and value in a line of text.")
    ] = None,
    partition: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="The partition of all records. By default each record's field or key decides."
        ),
    ] = None,
    compression: Annotated[
        str | None,
        typer.Option(
            metavar="CODEC",
            help="none, gzip, snappy, lz4 or zstd; used if the topic's compression.type is producer.",
        ),
    ] = None,
    storage: Storage,
    as_json: Json = False,
) -> None:
    """Append the lines of a file, all in one commit or none."""
    if key_separator is not None and (line is Format.JSONL or not key_separator):
        raise typer.BadParameter("give at least one character, and --format text", param_hint="--key-separator")
    parse = line_formats.jsonl_format if line is Format.JSONL else line_formats.text_format(key_separator)
    topic = distlog.open(url, storage_options=dict(storage))
    if str(file) == "-":
        result = _append(topic, sys.stdin.buffer, None, parse, (partition, compression))
    else:
        with file.open("rb") as source:
            result = _append(topic, source, file.stat().st_size, parse, (partition, compression))
    ranges = "".join(f", partition {number} [{first}, {end})" for number, (first, end) in result.offsets.items())
    text = f"appended {counted(result.record_count, 'record')}{ranges}"
    text += f"; {expiry_text(result.expired, topic.config.retention_ms)}" if result.expired else ""
    facts = {"version": result.version, "records": result.record_count, "offsets": result.offsets}
    facts["expired"] = result.expired
    print_report(Summary(text, facts), as_json=as_json)


def _append(
    topic: distlog.Topic,
    source: BinaryIO,
    size: int | None,
    parse: line_formats.LineFormat,
    chosen: tuple[int | None, str | None],
) -> distlog.AppendResult:
    lines, (partition, compression) = 0, chosen
    with (
        topic.transaction(compression=compression) as transaction,
        Progress("appending", total_bytes=size) as progress,
    ):
        for block in line_formats.blocks(source):
            rows = transaction.append(parse(block, lines), partition)
            lines += block.count(b"\n") + 1
            progress.add(rows, len(block) + 1)
    return transaction.result


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
    if sum(each is not None for each in (offset, tail, since)) > 1:
        raise typer.BadParameter("give one of --offset, --tail and --since", param_hint="--offset")
    follows = follow or group is not None or timeout is not None
    if until is not None and follows:
        raise typer.BadParameter("records that come have no end in time; leave it out", param_hint="--until")
    if offset == distlog.LATEST and not follows:
        raise typer.BadParameter("latest is where to begin to --follow", param_hint="--offset")
    topic = distlog.open(url, storage_options=dict(storage))
    columns = columns or (COLUMNS if as_json else _SHOWN)
    isolation: IsolationLevel = "read_committed" if committed else "read_uncommitted"
    bounds = reading.Bounds(offset=offset, tail=tail, since=since, until=until, isolation=isolation)
    if follows:
        batches = following.batches(topic, partition, bounds, limit, columns, group, timeout)
    else:
        batches = reading.batches(topic, partition or range(topic.partitions), bounds, limit, columns)
    for number, batch in enumerate(batches):
        print_batch(batch, as_json=as_json, titles=number == 0)
        if follows:
            sys.stdout.flush()
