"""Commands that keep a topic in shape; each prints what it did, by partition or file, and may be repeated."""

from __future__ import annotations

from typing import Annotated, Any

import typer

import distlog
from distlog import arguments
from distlog.cli import output
from distlog.cli.options import Json, Storage, Url, usage
from distlog.core.maintenance.reports import DeleteRecordsReport, MergeReport, RetentionReport
from distlog.core.maintenance.vacuum import VacuumReport
from distlog.core.maintenance.vacuum import vacuum as vacuum_files
from distlog.core.storage import Storage as TopicStorage
from distlog.core.times import now_ms
from distlog.core.topic import topic_log

Report = RetentionReport | DeleteRecordsReport | MergeReport | VacuumReport
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")]


def retention(url: Url, *, dry_run: DryRun = False, storage: Storage, as_json: Json = False) -> None:
    """Let go of old segments, as the topic's settings say.

    Their files stay until vacuum.
    """
    _print(distlog.open(url, storage_options=dict(storage)).retention(dry_run=dry_run), as_json)


def delete_records(
    url: Url,
    *,
    before: Annotated[
        list[Any],
        typer.Option(
            metavar="[PARTITION:]OFFSET",
            parser=usage(arguments.partition_offset),
            help="The first record to keep; -1 keeps none. May be repeated.",
        ),
    ],
    partition: Annotated[int | None, typer.Option(help="The partition of an OFFSET that names none.")] = None,
    storage: Storage,
    as_json: Json = False,
) -> None:
    """Let go of the records below an offset."""
    starts = _by_partition(before, partition)
    _print(distlog.open(url, storage_options=dict(storage)).delete_records(starts), as_json)


def _by_partition(before: list[tuple[int | None, int]], partition: int | None) -> dict[int, int]:
    starts: dict[int, int] = {}
    for named, offset in before:
        number = partition if named is None else named
        if number is None:
            raise typer.BadParameter("write PARTITION:OFFSET, or give --partition too", param_hint="--before")
        if number in starts:
            raise typer.BadParameter(f"there are two for partition {number}", param_hint="--before")
        starts[number] = offset
    return starts


def compact(url: Url, *, dry_run: DryRun = False, storage: Storage, as_json: Json = False) -> None:
    """Merge small segments into larger ones."""
    _print(distlog.open(url, storage_options=dict(storage)).compact(dry_run=dry_run), as_json)


def vacuum(url: Url, *, dry_run: DryRun = False, storage: Storage, as_json: Json = False) -> None:
    """Delete the files that nobody can need any more; of a dropped topic too."""
    folder = TopicStorage(url, dict(storage))
    _print(vacuum_files(folder, topic_log(folder), now_ms, dry_run=dry_run), as_json)


def _print(report: Report, as_json: bool) -> None:
    if as_json:
        output.print_json(report.to_dict())
        return
    print(report)
    output.print_rows(output.rows_of(report.to_table()))
