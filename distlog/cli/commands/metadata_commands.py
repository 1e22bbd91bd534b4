"""Commands about a topic as a whole. None of them reads records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

import distlog
from distlog.cli.options.shared_options import AtTime, AtVersion, Json, Storage, Url, open_at, settings, usage
from distlog.console import arguments, output
from distlog.console.report import Summary, print_report
from distlog.core.display.units import counted

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


def _of_a_version(told: Callable[[distlog.Topic], Summary]) -> Callable[..., None]:
    """The command that prints what is `told` of a topic, as it is now or was at a version or a time."""

    def command(
        url: Url, *, version: AtVersion = None, timestamp: AtTime = None, storage: Storage, as_json: Json = False
    ) -> None:
        print_report(told(open_at(url, version, timestamp, storage)), as_json=as_json)

    command.__name__, command.__doc__ = told.__name__, told.__doc__
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
    facts = {"url": topic.url, "name": topic.name, "version": topic.version}
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
    shown = [{**row, "segments": f"+{row['segments_added']} -{row['segments_removed']}"} for row in rows]
    print_report(Summary("", {"commits": rows}, shown, _COMMIT_COLUMNS), as_json=as_json)


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
    for number, found in topic.offsets_for_times(time).items():
        offset, timestamp = (found[0], output.Milliseconds(found[1])) if found else (None, None)
        rows.append({"partition": number, "offset": offset, "timestamp": timestamp})
    return rows
