"""Commands about topics as a whole, and about groups."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer

import distlog
from distlog.cli.options import AtTime, AtVersion, DryRun, Json, Storage, Url, open_at, settings, usage
from distlog.console import arguments, output
from distlog.console.output import Summary, print_report, status_of
from distlog.core.display import counted
from distlog.core.storage.storage import Storage as Folder
from distlog.core.topics.open_topic import check_root, copies_in

#: The columns of the printed tables. JSON has all columns.
_SEGMENT_COLUMNS = ("partition", "base_offset", "next_offset", "log_bytes", "stem")
_COMMIT_COLUMNS = ("version", "timestamp", "operation", "records_added", "segments")


def create(
    url: Url,
    *,
    partitions: Annotated[int, typer.Option(min=1, metavar="N", help="The number of partitions.")] = 1,
    config: Annotated[
        list[Any], settings("--config", "A setting of the topic by Kafka's name, as in retention.ms=604800000.")
    ],
    storage: Storage,
    as_json: Json = False,
) -> None:
    """Create a topic."""
    try:
        topic = distlog.create(url, partitions, dict(config), dict(storage))
    except distlog.InvalidTopicError as error:
        raise typer.BadParameter(str(error), param_hint="URL") from None
    text = f"created {topic.url} with {counted(partitions, 'partition')}"
    facts = {"url": topic.url, "version": topic.version, "partitions": topic.partitions}
    print_report(Summary(text, facts), as_json=as_json)


def _of_a_version(summary: Callable[[distlog.Topic], Summary]) -> Callable[..., None]:
    """The command that prints the `summary` of a topic, as it is now or was at a version or a time."""

    def command(
        url: Url, *, version: AtVersion = None, timestamp: AtTime = None, storage: Storage, as_json: Json = False
    ) -> None:
        print_report(summary(open_at(url, version, timestamp, storage)), as_json=as_json)

    command.__name__, command.__doc__ = summary.__name__, summary.__doc__
    return command


@_of_a_version
def describe(topic: distlog.Topic) -> Summary:
    """Show the partitions and the settings.

    It shows only settings that differ from their defaults; with --json, all settings.
    """
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
    facts = {"url": topic.url, "name": topic.name, "topic_id": topic.snapshot.topic_id, "version": topic.version}
    facts |= {"partitions": partitions, "config": topic.config.all()}
    return Summary("\n".join(lines), facts, partitions)


@_of_a_version
def segments(topic: distlog.Topic) -> Summary:
    """List the live segments, by partition and offset."""
    rows = output.rows_of(topic.segments().to_table())
    return Summary("", {"segments": rows}, rows, _SEGMENT_COLUMNS)


def history(
    url: Url,
    *,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="Only the newest N commits.")] = None,
    storage: Storage,
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
            help="The first offset at or after TIME: ms since 1970, ISO 8601, now, -1h, earliest, latest or "
            "max-timestamp.",
        ),
    ] = None,
    version: AtVersion = None,
    timestamp: AtTime = None,
    storage: Storage,
    as_json: Json = False,
) -> None:
    """Show where partitions begin and end, or offsets of a time."""
    topic = open_at(url, version, timestamp, storage)
    rows = _bounds(topic) if time is None else _at(topic, time)
    print_report(Summary("", {"partitions": rows}, rows), as_json=as_json)


def _bounds(topic: distlog.Topic) -> list[dict[str, Any]]:
    ends = topic.end_offsets()
    return [
        {"partition": number, "start_offset": start, "end_offset": ends[number]}
        for number, start in topic.start_offsets().items()
    ]


def _at(topic: distlog.Topic, time: int) -> list[dict[str, Any]]:
    rows = []
    for number, place in topic.offsets_for_times(time).items():
        offset, timestamp = (place[0], output.Milliseconds(place[1])) if place else (None, None)
        rows.append({"partition": number, "offset": offset, "timestamp": timestamp})
    return rows


def list_topics(
    root: Annotated[str, typer.Argument(metavar="ROOT", help="The folder of the topics, as in s3://bucket/logs.")],
    *,
    storage: Storage,
    as_json: Json = False,
) -> None:
    """List the topics right below a folder.

    The exit status is 1 if some topic cannot be opened; its error is on standard error, or in the JSON. So is a line
    for each topic that is a copy of another one's folder, and has its id.
    """
    errors: dict[str, distlog.DistlogError] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", distlog.TopicIdWarning)
        topics = distlog.topics(root, dict(storage), errors)
    rows, copies = [_row(topic) for topic in topics], copies_in(topics)
    if not rows and not errors:
        _check_root(root, dict(storage))
    if not rows and not errors and not as_json:
        print(f"distlog: there is no topic right below {root}", file=sys.stderr)
    damaged = {name: str(error) for name, error in sorted(errors.items())}
    report = Summary("", {"topics": rows, "errors": damaged, "copies": copies, "ok": not errors}, rows)
    print_report(report, as_json=as_json)
    for line in () if as_json else (*damaged.values(), *(f"{name} {text}" for name, text in copies.items())):
        print(f"distlog: {output.text(line)}", file=sys.stderr)
    raise typer.Exit(status_of(report))


def _check_root(root: str, storage: dict[str, Any]) -> None:
    """Raise TopicNotFoundError for what was hardly meant as the folder of topics."""
    folder = Folder(root, storage)
    if not folder.is_there():
        raise distlog.TopicNotFoundError("nothing is here: check the address", root=root)
    check_root(folder)


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
    new_id: Annotated[
        bool,
        typer.Option("--new-id", help="Have a new topic id, as a copy of a topic's folder must in the same root."),
    ] = False,
    seal: Annotated[
        bool, typer.Option("--seal", help="Seal the active segments, as before a copy to an object store.")
    ] = False,
    storage: Storage,
    as_json: Json = False,
) -> None:
    """Change settings, the number of partitions, and the id.

    The partitions are one commit, the settings another, the id a third. With more partitions, keys go to other ones
    than before; a key's older records stay where they are. With a new id, all that have the topic open must open it
    again, as after a drop; groups keep their positions.
    """
    changes: dict[str, object | None] = {**dict(config), **dict.fromkeys(unset or ())}
    if not changes and partitions is None and not (new_id or seal):
        raise typer.BadParameter("give a change, as in --config retention.ms=-1", param_hint="--config")
    if both := {name for name, _ in config}.intersection(unset or ()):
        raise typer.BadParameter(f"set or unset {min(both)}, not both", param_hint="--unset")
    topic = distlog.open(url, storage_options=dict(storage))
    # a wrong setting is an error before the first commit
    topic.config.changed(changes)
    if partitions is not None:
        topic.create_partitions(partitions)
    if changes:
        topic.alter_config(changes)
    if seal:
        topic.seal()
    topic_id = topic.assign_new_id() if new_id else topic.snapshot.topic_id
    if new_id:
        topic = distlog.open(url, storage_options=dict(storage))
    lines = [f"{topic.name} version {topic.version}"]
    lines += [f"{name}={topic.config.all().get(name, 'default')}" for name in changes]
    lines += [f"partitions={topic.partitions}"] if partitions is not None else []
    lines += [f"topic_id={topic_id}"] if new_id else []
    facts = {
        "url": topic.url,
        "topic_id": topic_id,
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
    """End a topic.

    Vacuum deletes its files when file.delete.delay.ms has passed. An active segment that is damaged is cut first, as
    `distlog repair` does, and that is logged.
    """
    if as_json and not yes:
        raise typer.BadParameter("give it with --json, which does not ask", param_hint="--yes")
    topic = distlog.open(url, storage_options=dict(storage))
    if not yes:
        print(f"drop {topic.url} with {counted(topic.partitions, 'partition')}? [y/N]: ", end="", file=sys.stderr)
        sys.stderr.flush()
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise distlog.DistlogError("nothing is dropped: answer y, or give --yes", url=topic.url)
    topic.drop()
    print_report(Summary(f"dropped {topic.url}", {"url": topic.url, "dropped": True}), as_json=as_json)


def restore(
    url: Url,
    *,
    version: Annotated[
        int,
        typer.Option("--version", metavar="N", parser=usage(arguments.version), help="The version to go back to."),
    ],
    dry_run: DryRun = False,
    storage: Storage,
    as_json: Json = False,
) -> None:
    """Bring back the records of an earlier version.

    One commit takes back the changes that retention, delete-records and compact made since. Later records stay.
    Records whose files vacuum has deleted are not brought back.
    """
    topic = distlog.open(url, storage_options=dict(storage))
    print_report(topic.restore(version, dry_run=dry_run), as_json=as_json)


def groups(
    url: Url,
    *,
    group: Annotated[str | None, typer.Option(metavar="NAME", help="Only this group.")] = None,
    reset: Annotated[
        Any,
        typer.Option(
            metavar="WHERE",
            parser=usage(arguments.start),
            help="Set its positions: earliest, latest, a time in ISO 8601, now, -1h, an offset, or 0:10,1:7.",
        ),
    ] = None,
    from_kafka: Annotated[
        str | None,
        typer.Option(metavar="GROUP", help="Set its positions to the positions of this group of Kafka's clients."),
    ] = None,
    to_kafka: Annotated[
        str | None,
        typer.Option(metavar="GROUP", help="Commit its positions for this group of Kafka's clients."),
    ] = None,
    delete: Annotated[bool, typer.Option("--delete", help="Forget its positions.")] = False,
    storage: Storage,
    as_json: Json = False,
) -> None:
    """Show the positions of groups of followers, or change them.

    A group's members lose their partitions by a change. Live members join again; so end them before a --delete.
    --from-kafka and --to-kafka refuse to set the positions of a group with members, and --to-kafka works while no
    gateway runs.
    """
    changes = [reset is not None, from_kafka is not None, to_kafka is not None, delete]
    if any(changes) and group is None:
        raise typer.BadParameter("name the group", param_hint="--group")
    if sum(changes) > 1:
        raise typer.BadParameter("give one change, not several", param_hint="--group")
    topic = distlog.open(url, storage_options=dict(storage))
    if group is not None and (reset is not None or from_kafka is not None):
        topic.reset_group(group, reset, kafka=from_kafka)
    rows = [row for row in output.rows_of(topic.groups()) if group in (None, row["group"])]
    if group is not None and not rows:
        raise distlog.GroupNotFoundError("there is no such group", group=group)
    if to_kafka is not None:
        _commit_for_kafka(topic, to_kafka, {row["partition"]: row["position"] for row in rows})
        report = {"group": group, "kafka_group": to_kafka, "positions": rows}
        print_report(Summary(f"committed the positions of {group} for {to_kafka}", report), as_json=as_json)
        return
    if group is not None and delete:
        topic.delete_group(group)
        print_report(Summary(f"deleted {group}", {"group": group, "deleted": True}), as_json=as_json)
        return
    print_report(Summary("", {"groups": rows}, rows), as_json=as_json)


def _commit_for_kafka(topic: distlog.Topic, kafka: str, positions: Mapping[int, int | None]) -> None:
    # it needs kio, and the other commands here do not
    from distlog.gateway.groups.committed_offsets import commit_positions

    known = {number: at for number, at in positions.items() if at is not None}
    commit_positions(topic.storage, kafka, known, since_ms=topic.snapshot.replaced_ms)


def adopt(
    directories: Annotated[
        list[str],
        typer.Argument(
            metavar="DIRECTORY...",
            help="The log directories of stopped brokers, or partitions' folders of one topic.",
        ),
    ],
    url: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="URL",
            help="Copy: log directories' topics to folders in URL, partitions' folders to the topic URL.",
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
    """Make topics of the log directories of Kafka brokers.

    Without --to it is done in place, with one directory. Topics of an earlier adoption get the new records. The exit
    status is 1 if some topic cannot be adopted.
    """
    report = distlog.adopt(
        directories, url, topics=topics, config=dict(config), dry_run=dry_run, storage_options=dict(storage)
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

    Exporting again adds the new records.
    """
    topic = distlog.open(url, storage_options=dict(storage))
    print_report(topic.export(log_dir, partitions), as_json=as_json)


def transactions(
    url: Url,
    *,
    hanging: Annotated[bool, typer.Option("--hanging", help="Only transactions that will never end.")] = False,
    producers: Annotated[
        bool, typer.Option("--producers", help="List the producers of each partition instead.")
    ] = False,
    abort: Annotated[
        list[Any] | None,
        typer.Option(
            metavar="PARTITION:OFFSET",
            parser=usage(arguments.partition_offset),
            help="Abort the transaction that is open from this offset on. May be repeated.",
        ),
    ] = None,
    storage: Storage,
    as_json: Json = False,
) -> None:
    """List open transactions of a topic, or abort hanging ones.

    Readers of committed records wait before an open transaction. One whose coordinator lives is not aborted.
    """
    topic = distlog.open(url, storage_options=dict(storage))
    if abort and (hanging or producers):
        raise typer.BadParameter("give it alone", param_hint="--abort")
    if abort:
        aborted = [topic.abort_transaction(_partition(number), offset).to_dict() for number, offset in abort]
        lines = [f"aborted {each['producer_id']} at {each['partition']}:{each['start_offset']}" for each in aborted]
        print_report(Summary("\n".join(lines), {"aborted": aborted}), as_json=as_json)
        return
    if producers:
        rows = output.rows_of(topic.producers())
        print_report(Summary("", {"producers": rows}, rows), as_json=as_json)
        return
    report = topic.open_transactions()
    print_report(report.hanging if hanging else report, as_json=as_json)


def _partition(number: int | None) -> int:
    if number is None:
        raise typer.BadParameter("write PARTITION:OFFSET", param_hint="--abort")
    return number
