"""Commands about topics as a whole, and about groups."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from typing import Annotated, Any

import typer

import distlog
from distlog.cli.options import AtTime, AtVersion, DryRun, Json, StorageOptions, Url, open_at, settings, usage
from distlog.console import arguments, output
from distlog.console.output import Summary, print_report, status_of
from distlog.core.display import counted
from distlog.core.format.key_index import LEAST_LOG_BYTES
from distlog.core.opening import check_root, copies_in
from distlog.core.storage.storage import Storage

#: The columns of the printed tables. JSON has all columns.
_SEGMENT_COLUMNS = ("partition", "base_offset", "next_offset", "log_bytes", "stem")
_COMMIT_COLUMNS = ("version", "timestamp", "operation", "records_added", "segments")


def create(
    url: Url,
    *,
    partitions: Annotated[int, typer.Option(min=1, metavar="N", help="Create N partitions.")] = 1,
    config: Annotated[
        list[Any], settings("--config", "Set a topic setting by Kafka's name: retention.ms=604800000.")
    ],
    storage: StorageOptions,
    as_json: Json = False,
) -> None:
    """Create a topic."""
    try:
        topic = distlog.create(url, partitions, dict(config), dict(storage))
    except distlog.InvalidTopicError as error:
        raise typer.BadParameter(str(error), param_hint="URL") from None
    text = f"created {topic.url} with {counted(partitions, 'partition')}"
    fields = {"url": topic.url, "version": topic.version, "partitions": topic.partitions}
    print_report(Summary(text, fields), as_json=as_json)


def describe(
    url: Url, *, version: AtVersion = None, timestamp: AtTime = None, storage: StorageOptions, as_json: Json = False
) -> None:
    """Show partitions and settings.

    Only settings that differ from their defaults are shown; with --json, all settings.
    """
    topic = open_at(url, version, timestamp, storage)
    # the live snapshot adds to the newest version the appends to active segments, which are in no commit yet
    partitions = [
        {
            "partition": number,
            "start_offset": state.log_start_offset,
            "end_offset": state.log_end_offset,
            "segments": len(state.segments),
            "bytes": int(state.segments.log_bytes.sum()),
        }
        for number, state in enumerate(topic.live_snapshot.partitions)
    ]
    lines = [f"{topic.name} version {topic.version} at {topic.url}"]
    lines += [f"{name}={value}" for name, value in topic.config.overrides().items()]
    tables = [state.segments for state in topic.live_snapshot.partitions]
    # smaller segments need no key index, since scanning one is fast
    unindexed = sum(
        int(((table.log_bytes > LEAST_LOG_BYTES) & (table.array("key_index_bytes") == 0)).sum()) for table in tables
    )
    if unindexed:
        lines.append(
            f"reads by key scan {counted(unindexed, 'segment')}: set key.index.enable, and rebuild the indexes"
        )
    fields = {"url": topic.url, "name": topic.name, "topic_id": topic.snapshot.topic_id, "version": topic.version}
    fields |= {"partitions": partitions, "config": topic.config.all(), "segments_without_key_index": unindexed}
    print_report(Summary("\n".join(lines), fields, partitions), as_json=as_json)


def segments(
    url: Url, *, version: AtVersion = None, timestamp: AtTime = None, storage: StorageOptions, as_json: Json = False
) -> None:
    """List the segments."""
    rows = output.rows_of(open_at(url, version, timestamp, storage).segments().to_table())
    print_report(Summary("", {"segments": rows}, rows, _SEGMENT_COLUMNS), as_json=as_json)


def history(
    url: Url,
    *,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="Print only the newest N commits.")] = None,
    storage: StorageOptions,
    as_json: Json = False,
) -> None:
    """List the commits, newest first."""
    rows = output.rows_of(distlog.open(url, storage_options=dict(storage)).history(limit).to_table())
    table = [{**row, "segments": f"+{row['segments_added']} -{row['segments_removed']}"} for row in rows]
    print_report(Summary("", {"commits": rows}, table, _COMMIT_COLUMNS), as_json=as_json)


def offsets(
    url: Url,
    *,
    time: Annotated[
        int | None,
        typer.Option(
            metavar="TIME",
            parser=usage(arguments.time_or_special),
            help="Find the first offset at or after TIME: ms since 1970, ISO 8601, now, -1h, earliest, latest or "
            "max-timestamp.",
        ),
    ] = None,
    version: AtVersion = None,
    timestamp: AtTime = None,
    storage: StorageOptions,
    as_json: Json = False,
) -> None:
    """Show start and end offsets, or find the offsets of a time."""
    topic = open_at(url, version, timestamp, storage)
    if time is not None:
        rows = _offsets_of_time(topic, time)
    else:
        bounds = zip(topic.start_offsets().items(), topic.end_offsets().values(), strict=True)
        rows = [{"partition": number, "start_offset": start, "end_offset": end} for (number, start), end in bounds]
    print_report(Summary("", {"partitions": rows}, rows), as_json=as_json)


def _offsets_of_time(topic: distlog.Topic, time: int) -> list[dict[str, Any]]:
    rows = []
    for number, position in topic.offsets_for_times(time).items():
        offset, timestamp = (position[0], output.Milliseconds(position[1])) if position else (None, None)
        rows.append({"partition": number, "offset": offset, "timestamp": timestamp})
    return rows


def list_topics(
    root: Annotated[
        str, typer.Argument(metavar="ROOT", help="Folder that holds the topics: logs or s3://bucket/logs.")
    ],
    *,
    storage: StorageOptions,
    as_json: Json = False,
) -> None:
    """List the topics in a folder.

    The exit status is 1 if a topic cannot be opened. Errors go to standard error, or into the JSON. Warnings about
    copied topics with the ids of their originals go to the same place, but do not change the exit status.
    """
    errors: dict[str, distlog.DistlogError] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", distlog.TopicIdWarning)  # printed below
        topics = distlog.topics(root, dict(storage), errors)
    rows = [_row(topic) for topic in topics]
    copy_warnings = copies_in(topics)
    if not rows and not errors:
        _check_root(root, dict(storage))
        if not as_json:
            print(f"distlog: no topics in {root}", file=sys.stderr)
    error_texts = {name: str(error) for name, error in sorted(errors.items())}
    report = Summary("", {"topics": rows, "errors": error_texts, "copies": copy_warnings, "ok": not errors}, rows)
    print_report(report, as_json=as_json)
    if not as_json:
        for line in (*error_texts.values(), *(f"{name} {text}" for name, text in copy_warnings.items())):
            print(f"distlog: {output.text(line)}", file=sys.stderr)
    raise typer.Exit(status_of(report))


def _check_root(root: str, storage: dict[str, Any]) -> None:
    """Raise TopicNotFoundError for a missing folder, or the folder of a topic."""
    folder = Storage(root, storage)
    if not folder.exists():
        raise distlog.TopicNotFoundError("the folder does not exist: check the address", root=root)
    check_root(folder)


def _row(topic: distlog.Topic) -> dict[str, Any]:
    tables = [state.segments for state in topic.live_snapshot.partitions]
    return {
        "topic": topic.name,
        "partitions": topic.partitions,
        "version": topic.version,
        "segments": sum(map(len, tables)),
        "bytes": sum(int(table.log_bytes.sum()) for table in tables),
        "cleanup.policy": topic.config.cleanup_policy,
    }


def alter(
    url: Url,
    *,
    partitions: Annotated[
        int | None,
        typer.Option("--partitions", metavar="N", min=1, help="Grow to N partitions; the number cannot shrink."),
    ] = None,
    config: Annotated[
        list[Any], settings("--config", "Set a topic setting by Kafka's name: retention.ms=604800000.")
    ],
    unset: Annotated[
        list[str] | None, typer.Option("--unset", metavar="NAME", help="Reset NAME to its default. May be repeated.")
    ] = None,
    new_id: Annotated[
        bool, typer.Option("--new-id", help="Assign a new topic id, for a copied folder in the same root.")
    ] = False,
    seal: Annotated[
        bool, typer.Option("--seal", help="Seal the active segments, for a copy of the folder to an object store.")
    ] = False,
    storage: StorageOptions,
    as_json: Json = False,
) -> None:
    """Change settings, add partitions, or assign an id.

    Partitions, settings and id are separate commits. After --partitions, keys may go to other partitions, but older
    records stay. After --new-id, programs must open the topic again. Consumer groups keep their offsets.
    """
    changes: dict[str, object | None] = {**dict(config), **dict.fromkeys(unset or ())}
    if not changes and partitions is None and not (new_id or seal):
        text = "nothing to change: add an option, as in --config retention.ms=-1"
        raise typer.BadParameter(text, param_hint="--config")
    if conflicts := {name for name, _ in config}.intersection(unset or ()):
        raise typer.BadParameter(f"{min(conflicts)} is also set by --config", param_hint="--unset")
    topic = distlog.open(url, storage_options=dict(storage))
    topic.config.changed(changes)  # raises for a wrong setting, before the first commit
    if partitions is not None:
        topic.create_partitions(partitions)
    if changes:
        topic.alter_config(changes)
    if seal:
        topic.seal()
    if new_id:
        topic.assign_new_id()
        topic = distlog.open(url, storage_options=dict(storage))  # the open one reads and writes by its former id
    lines = [f"{topic.name} version {topic.version}"]
    lines += [f"{name}={topic.config.all().get(name, 'default')}" for name in changes]
    lines += [f"partitions={topic.partitions}"] if partitions is not None else []
    lines += [f"topic_id={topic.snapshot.topic_id}"] if new_id else []
    fields = {
        "url": topic.url,
        "topic_id": topic.snapshot.topic_id,
        "version": topic.version,
        "config": topic.config.overrides(),
        "partitions": topic.partitions,
    }
    print_report(Summary("\n".join(lines), fields), as_json=as_json)


def drop(
    url: Url,
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    storage: StorageOptions,
    as_json: Json = False,
) -> None:
    """Delete a topic.

    Vacuum deletes the files after file.delete.delay.ms. The active segments are sealed. A damaged one
    is first truncated, as by `distlog repair`, and the loss is logged.
    """
    if as_json and not yes:
        raise typer.BadParameter("required with --json, which cannot ask for confirmation", param_hint="--yes")
    topic = distlog.open(url, storage_options=dict(storage))
    if not yes:
        print(f"drop {topic.url} with {counted(topic.partitions, 'partition')}? [y/N]: ", end="", file=sys.stderr)
        sys.stderr.flush()
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise distlog.DistlogError("not dropped: answer y, or add --yes", url=topic.url)
    topic.drop()
    print_report(Summary(f"dropped {topic.url}", {"url": topic.url, "dropped": True}), as_json=as_json)


def restore(
    url: Url,
    *,
    version: Annotated[
        int,
        typer.Option(
            "--version", metavar="N", parser=usage(arguments.version), help="Restore the records of version N."
        ),
    ],
    dry_run: DryRun = False,
    storage: StorageOptions,
    as_json: Json = False,
) -> None:
    """Restore deleted records.

    One commit reverts what retention, delete-records and compact removed since --version. Newer records stay. Records
    whose files vacuum has deleted cannot be restored.
    """
    print_report(distlog.open(url, storage_options=dict(storage)).restore(version, dry_run=dry_run), as_json=as_json)


def groups(
    url: Url,
    *,
    group: Annotated[str | None, typer.Option(metavar="NAME", help="Show or change only this group.")] = None,
    reset: Annotated[
        Any,
        typer.Option(
            metavar="WHERE",
            parser=usage(arguments.start),
            help="Set the committed offsets: earliest, latest, an ISO 8601 time, now, -1h, an offset, or 0:10,1:7.",
        ),
    ] = None,
    from_kafka: Annotated[
        str | None, typer.Option(metavar="GROUP", help="Copy the committed offsets of this group of Kafka clients.")
    ] = None,
    to_kafka: Annotated[
        str | None, typer.Option(metavar="GROUP", help="Copy the committed offsets to this group of Kafka clients.")
    ] = None,
    delete: Annotated[bool, typer.Option("--delete", help="Delete the group and its committed offsets.")] = False,
    storage: StorageOptions,
    as_json: Json = False,
) -> None:
    """Show, reset or delete consumer groups.

    A change takes the partitions from the group's members, which then join again. Stop them before --delete, since a
    live member creates the group again. --from-kafka and --to-kafka fail if the changed group has members. --to-kafka
    also fails while a gateway runs.
    """
    changes = [reset is not None, from_kafka is not None, to_kafka is not None, delete]
    if any(changes) and group is None:
        raise typer.BadParameter("required with --reset, --from-kafka, --to-kafka and --delete", param_hint="--group")
    if sum(changes) > 1:
        text = "--reset, --from-kafka, --to-kafka and --delete cannot be combined"
        raise typer.BadParameter(text, param_hint="--group")
    topic = distlog.open(url, storage_options=dict(storage))
    if group is not None and (reset is not None or from_kafka is not None):
        topic.reset_group(group, reset, kafka=from_kafka)
    rows = [row for row in output.rows_of(topic.groups()) if group in (None, row["group"])]
    if group is not None and not rows:
        raise distlog.GroupNotFoundError("consumer group not found: check its name", group=group)
    if to_kafka is not None:
        _commit_for_kafka(topic, to_kafka, {row["partition"]: row["position"] for row in rows})
        fields = {"group": group, "kafka_group": to_kafka, "positions": rows}
        print_report(Summary(f"committed the offsets of {group} for {to_kafka}", fields), as_json=as_json)
        return
    if group is not None and delete:
        topic.delete_group(group)
        print_report(Summary(f"deleted {group}", {"group": group, "deleted": True}), as_json=as_json)
        return
    print_report(Summary("", {"groups": rows}, rows), as_json=as_json)


def _commit_for_kafka(topic: distlog.Topic, kafka_group: str, positions: Mapping[int, int | None]) -> None:
    # slow to import, and needs the package kio
    from distlog.gateway.groups.committed_offsets import commit_positions

    committed = {number: offset for number, offset in positions.items() if offset is not None}
    # an offset from before `replaced_ms` is one of a dropped topic of this name
    commit_positions(topic.storage, kafka_group, committed, since_ms=topic.snapshot.replaced_ms)


def adopt(
    directories: Annotated[
        list[str],
        typer.Argument(
            metavar="DIRECTORY", help="Log directories of stopped brokers, or partition folders of one topic."
        ),
    ],
    url: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="URL",
            help="Copy log directories to topics in the folder URL, or partition folders to the topic URL. "
            "Default: import one directory without a copy.",
        ),
    ] = None,
    *,
    topics: Annotated[
        list[str] | None, typer.Option("--topic", metavar="NAME", help="Import only this topic. May be repeated.")
    ] = None,
    config: Annotated[
        list[Any], settings("--config", "Set a setting of the topics by Kafka's name: cleanup.policy=compact.")
    ],
    dry_run: DryRun = False,
    storage: StorageOptions,
    as_json: Json = False,
) -> None:
    """Import Kafka log directories as topics.

    Run it again to import new records. The exit status is 1 if a topic cannot be imported.
    """
    report = distlog.adopt(
        directories, url, topics=topics, config=dict(config), dry_run=dry_run, storage_options=dict(storage)
    )
    print_report(report, as_json=as_json)
    raise typer.Exit(status_of(report))


def export(
    url: Url,
    log_dir: Annotated[
        str, typer.Argument(metavar="LOG_DIR", help="Log directory of a stopped broker, or a new folder.")
    ],
    *,
    partitions: Annotated[
        list[int] | None,
        typer.Option("--partition", metavar="N", help="Export only this partition. May be repeated."),
    ] = None,
    storage: StorageOptions,
    as_json: Json = False,
) -> None:
    """Write a topic as a Kafka log directory.

    Run it again to export new records.
    """
    print_report(distlog.open(url, storage_options=dict(storage)).export(log_dir, partitions), as_json=as_json)


def transactions(
    url: Url,
    *,
    hanging: Annotated[bool, typer.Option("--hanging", help="List only transactions that will never end.")] = False,
    producers: Annotated[
        bool, typer.Option("--producers", help="List the producers of each partition instead.")
    ] = False,
    abort: Annotated[
        list[Any] | None,
        typer.Option(
            metavar="PARTITION:OFFSET",
            parser=usage(arguments.partition_offset),
            help="Abort the transaction that starts at this offset. May be repeated.",
        ),
    ] = None,
    storage: StorageOptions,
    as_json: Json = False,
) -> None:
    """List open transactions, or abort hanging ones.

    Readers of committed records wait for open transactions. A transaction with a live coordinator cannot be aborted.
    """
    topic = distlog.open(url, storage_options=dict(storage))
    if abort and (hanging or producers):
        raise typer.BadParameter("cannot be combined with --hanging or --producers", param_hint="--abort")
    if abort:
        if any(number is None for number, _ in abort):
            raise typer.BadParameter("write PARTITION:OFFSET", param_hint="--abort")
        aborted = [topic.abort_transaction(number, offset).to_dict() for number, offset in abort]
        lines = [f"aborted {row['producer_id']} at {row['partition']}:{row['start_offset']}" for row in aborted]
        print_report(Summary("\n".join(lines), {"aborted": aborted}), as_json=as_json)
        return
    if producers:
        rows = output.rows_of(topic.producers())
        print_report(Summary("", {"producers": rows}, rows), as_json=as_json)
        return
    report = topic.open_transactions()
    print_report(report.hanging if hanging else report, as_json=as_json)
