"""Commands that maintain a topic, and one that tries its storage."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

import distlog
from distlog.cli.options import DryRun, Json, Storage, Url, usage
from distlog.console import arguments, output
from distlog.console.output import Report, print_report, status_of
from distlog.core.display import Progress
from distlog.core.maintain.repair import rebuild_indexes
from distlog.core.maintain.vacuum import vacuum as vacuum_files
from distlog.core.maintain.verify import verify as verify_all
from distlog.core.opening import naming_topics
from distlog.core.segments.topic_handle import topic_log
from distlog.core.storage.storage import Storage as Folder
from distlog.core.storage.store_check import check_store as check
from distlog.core.times import now_ms


def retention(url: Url, *, dry_run: DryRun = False, storage: Storage, as_json: Json = False) -> None:
    """Delete segments past retention.ms or retention.bytes.

    Vacuum deletes the files later.
    """
    _end(distlog.open(url, storage_options=dict(storage)).retention(dry_run=dry_run), as_json)


def delete_records(
    url: Url,
    *,
    before: Annotated[
        list[Any],
        typer.Option(
            metavar="[PARTITION:]OFFSET",
            parser=usage(arguments.partition_offset),
            help="Delete the records before this offset; -1 deletes all. May be repeated.",
        ),
    ],
    partition: Annotated[
        int | None, typer.Option(metavar="N", help="Apply a --before without a partition to partition N.")
    ] = None,
    storage: Storage,
    as_json: Json = False,
) -> None:
    """Delete the records before an offset."""
    starts: dict[int, int] = {}
    for prefix, offset in before:
        number = partition if prefix is None else prefix
        if number is None:
            raise typer.BadParameter("write PARTITION:OFFSET, or add --partition", param_hint="--before")
        if number in starts:
            raise typer.BadParameter(f"partition {number} is set twice: set it once", param_hint="--before")
        starts[number] = offset
    _end(distlog.open(url, storage_options=dict(storage)).delete_records(starts), as_json)


def compact(
    url: Url,
    *,
    dry_run: DryRun = False,
    memory: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="BYTES",
            show_default=False,
            help="Use up to BYTES of memory to merge small segments; more means fewer requests. Default: the "
            "minimum, 360 MiB on an object store.",
        ),
    ] = 0,
    storage: Storage,
    as_json: Json = False,
) -> None:
    """Keep the last record of each key, or merge small segments.

    If the topic's cleanup.policy contains compact, the last record of each key stays. Otherwise small segments are
    merged. The exit status is 1 if a partition or a merge fails.
    """
    _end(distlog.open(url, storage_options=dict(storage)).compact(dry_run=dry_run, memory=memory), as_json)


def rebuild_index(
    url: Url,
    *,
    force: Annotated[
        bool,
        typer.Option("--force", help="Also rebuild valid indexes that differ from the topic's current settings."),
    ] = False,
    dry_run: DryRun = False,
    storage: Storage,
    as_json: Json = False,
) -> None:
    """Rebuild bad and missing indexes from the logs.

    The exit status is 1 if a log is damaged.
    """
    topic = distlog.open(url, storage_options=dict(storage))
    with _progress("rebuilding", topic) as progress:
        report, _ = rebuild_indexes(
            topic.handle, topic.snapshot, force=force, dry_run=dry_run, on_progress=progress.add
        )
    _end(report, as_json)


def repair(url: Url, *, dry_run: DryRun = False, storage: Storage, as_json: Json = False) -> None:
    """Truncate damaged active segments.

    Use it when an active segment refuses appends, which no crash causes. The records after the damage are lost, and
    their offsets are reused. If you have a copy of the file, restore that instead.
    """
    print_report(distlog.open(url, storage_options=dict(storage)).repair(dry_run=dry_run), as_json=as_json)


def verify(url: Url, *, storage: Storage, as_json: Json = False) -> None:
    """Check every checksum, record, index and commit.

    Nothing is changed. The exit status is 1 if a check fails.
    """
    topic = distlog.open(url, storage_options=dict(storage))
    with _progress("verifying", topic) as progress:
        report = verify_all(topic.handle, topic.checked_snapshot, on_progress=progress.add)
    print_report(report, as_json=as_json)
    if not as_json:
        for anomaly in report.topic_anomalies:
            print(output.text(str(anomaly)))
    raise typer.Exit(status_of(report))


def _progress(label: str, topic: distlog.Topic) -> Progress:
    sizes = (int(state.segments.log_bytes.sum()) for state in topic.checked_snapshot.partitions)
    return Progress(label, total_bytes=sum(sizes))


def vacuum(url: Url, *, dry_run: DryRun = False, storage: Storage, as_json: Json = False) -> None:
    """Delete files that nothing refers to.

    It also works on a dropped topic.
    """
    folder = Folder(url, dict(storage))
    with naming_topics(folder):
        report = vacuum_files(folder, topic_log(folder), dry_run=dry_run)
    _end(report, as_json)


def _end(report: Report, as_json: bool) -> None:
    """Print the report, and exit with the report's status."""
    print_report(report, as_json=as_json)
    raise typer.Exit(status_of(report))


def check_store(
    url: Annotated[str, typer.Argument(metavar="URL", help="Folder for topics: s3://bucket/logs.")],
    *,
    storage: Storage,
    as_json: Json = False,
) -> None:
    """Check that a store can hold topics, and measure it.

    It tests conditional writes, ranges, listings, deletes and the clock, and deletes what it writes.
    """
    _end(check(Folder(url, dict(storage)), now_ms, time.monotonic), as_json)
