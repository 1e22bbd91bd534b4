"""The commands that append and print records."""

from __future__ import annotations

import sys
import time
from typing import Annotated

import typer

import distlog
from distlog.cli import options, reading
from distlog.cli.input import (
    COMPRESSED,
    STANDARD_INPUT,
    AppendedInput,
    Appending,
    FilePart,
    Format,
    Input,
    Interrupt,
    size_of,
)
from distlog.cli.line_formats import Fields, with_headers
from distlog.cli.options import AtTime, AtVersion, Json, Storage, Url, open_at
from distlog.cli.reading import RecordFormat, printing
from distlog.console.arguments import FromEnd
from distlog.console.output import DONE, FAILED, Summary, print_report
from distlog.core.config import MAX_INT
from distlog.core.display import Progress, counted
from distlog.core.dump.dump import dump as dump_files
from distlog.core.dump.log_dump import DumpedFile
from distlog.core.dump.output import DumpOptions, DumpOutput
from distlog.core.errors import DistlogError, InvalidRecordError
from distlog.core.topics.append_commit import expiry_text
from distlog.core.topics.appendable import early_text

# ---
# The command that appends files, or a stream as it comes.


def append(
    url: Url,
    files: options.Files = None,
    *,
    kind: options.InputFormat = Format.TEXT,
    key: options.Key = None,
    value: options.Value = None,
    timestamp: options.Timestamp = None,
    timestamp_unit: options.TimeUnit = options.Unit.MS,
    key_separator: options.KeySeparator = None,
    headers: options.Headers,
    partition: options.Partition = None,
    bad_lines: options.OnBadLine = options.BadLines.FAIL,
    commit_interval: options.CommitInterval = 5.0,
    compression: options.Compression = None,
    storage: Storage,
    as_json: Json = False,
) -> None:
    """Append files in one commit, or a stream as it comes.

    Files are appended all or none. A stream is committed every few seconds, and also when Ctrl-C or SIGTERM ends it.
    At a bad line of a stream, the lines before it are appended.
    """
    source = Input(kind, Fields(key, value, timestamp, timestamp_unit.value), key_separator)
    source.check()
    topic = distlog.open(url, storage_options=dict(storage))
    paths = files or [STANDARD_INPUT]
    size = size_of(paths)
    seconds = commit_interval if size is None else None
    shown_size = None if any(path.endswith(COMPRESSED) for path in paths) else size
    with (
        Interrupt() as interrupt,
        Progress("appending", total_bytes=shown_size) as progress,
        Appending(topic, partition, compression, seconds, time.monotonic) as appending,
    ):
        skipped, is_told = 0, False
        for path in paths:
            rows = 0
            for part in interrupt.until(source.parts(path, appending.wait)):
                if part is not None:
                    skipped += _take(appending, part, path, rows, headers, skip=bad_lines is options.BadLines.SKIP)
                    rows += part.parsed.records.num_rows
                    progress.add(part.parsed.records.num_rows, part.size)
                appending.commit_if_due()
                # a stream may have no end
                if appending.appended.records and not is_told and (wrong_name := source.missed.error()):
                    print(f"distlog: so far {wrong_name}", file=sys.stderr, flush=True)
                    is_told = True
            # a stream that a signal ends may end inside of a row
            if not (interrupt.signal and size is not None) and (rest := source.rest()):
                skipped += _take(appending, rest, path, rows, headers, skip=bad_lines is options.BadLines.SKIP)
        wrong_name = None if interrupt.signal else source.missed.error()
        if wrong_name or (interrupt.signal and size is not None):
            appending.abort()
        if wrong_name:
            raise wrong_name
    _report(topic, appending.appended, skipped, interrupt.signal, as_json=as_json)
    raise typer.Exit(128 + interrupt.signal if interrupt.signal else DONE)


def _take(
    appending: Appending, part: FilePart, path: str, rows: int, headers: list[tuple[str, str]], *, skip: bool
) -> int:
    """Append the records of a part, before which the file had so many `rows`; returns how many lines were left out.

    Raises InvalidRecordError for the first bad line, when it has taken the records before, unless lines may be bad.
    """
    parsed = part.parsed
    bad = None if skip else next(iter(parsed.bad), None)
    good = parsed.records if bad is None else parsed.records.slice(0, bad.records_before)
    file = None if path == STANDARD_INPUT else path
    try:
        appending.append(with_headers(good, headers))
    except DistlogError as error:
        error.details["file"] = file
        if error.details.get("row") is not None:
            error.details["row"] += rows
        raise
    if bad is not None:
        reason = f"{bad.reason} (--bad-lines skip leaves such lines out)"
        raise InvalidRecordError(reason, file=file, line=bad.line)
    return len(parsed.bad)


def _report(
    topic: distlog.Topic, appended: AppendedInput, skipped: int, signal_number: int, *, as_json: bool
) -> None:
    ranges = "".join(f", partition {number} [{first}, {end})" for number, (first, end) in appended.offsets.items())
    text = f"{'interrupted: ' if signal_number else ''}appended {counted(appended.records, 'record')}{ranges}"
    text += f"; left out {counted(skipped, 'bad line')}" if skipped else ""
    text += f"; {expiry_text(appended.expired, topic.config.retention_ms)}" if appended.expired else ""
    text += f"; {early_text(appended.early_ms)}" if appended.early_ms is not None else ""
    facts = {
        "version": appended.version,
        "records": appended.records,
        "offsets": appended.offsets,
        "skipped": skipped,
        "expired": appended.expired,
        "early_ms": appended.early_ms,
        "interrupted": signal_number != 0,
    }
    print_report(Summary(text, facts), as_json=as_json)


# ---
# The command that prints records.


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
        batches = reading.followed_batches(topic, partition, bounds, limit, how.columns, group, timeout)
    else:
        batches = reading.batches(topic, partition or range(topic.partitions), bounds, limit, how.columns)
    for number, batch in enumerate(batches):
        how.show(batch, number == 0)
        if follows:
            sys.stdout.flush()
    # here an error is told as any other
    sys.stdout.flush()


def _check(bounds: reading.Bounds, *, follows: bool, is_old: bool) -> None:
    """Raise BadParameter for options that do not go together."""
    if sum(each is not None for each in (bounds.offset, bounds.tail, bounds.since)) > 1:
        raise typer.BadParameter("give one of --offset, --tail and --since", param_hint="--offset")
    if bounds.until is not None and follows:
        raise typer.BadParameter("new records have no end in time; leave it out", param_hint="--until")
    if bounds.offset == distlog.LATEST and not follows:
        raise typer.BadParameter("latest needs --follow, which begins there", param_hint="--offset")
    if is_old and follows:
        raise typer.BadParameter("an old version gets no records: leave out --version", param_hint="--follow")


# ---
# The command that prints the content of Kafka's files.


def dump(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE...",
            show_default=False,
            help="Paths or URLs of .log, .index, .timeindex, .txnindex, .snapshot files, leader-epoch-checkpoint.",
        ),
    ] = None,
    *,
    more_files: Annotated[
        list[str] | None,
        typer.Option(
            "--files", metavar="FILE,...", help="The same, as kafka-dump-log takes them, with commas between."
        ),
    ] = None,
    print_data_log: Annotated[
        bool, typer.Option("--print-data-log", help="Print the records, with their keys and payloads.")
    ] = False,
    deep_iteration: Annotated[
        bool, typer.Option("--deep-iteration", help="Print the records, without keys and payloads.")
    ] = False,
    skip_record_metadata: Annotated[
        bool, typer.Option("--skip-record-metadata", help="Print only keys and payloads of records.")
    ] = False,
    verify_index_only: Annotated[
        bool,
        typer.Option("--verify-index-only", help="Compare indexes with their logs, without their entries."),
    ] = False,
    index_sanity_check: Annotated[
        bool, typer.Option("--index-sanity-check", help="Check indexes as a broker does when it starts.")
    ] = False,
    max_bytes: Annotated[
        int, typer.Option(min=0, metavar="N", show_default=False, help="Read only the first N bytes of logs.")
    ] = MAX_INT,
    storage: Storage,
    as_json: Json = False,
) -> None:
    """Print the content of Kafka's files, like kafka-dump-log.

    With --json each line is an object. Damage in the files goes to standard error, or into objects too.
    """
    addresses = [*(files or ()), *(file for text in more_files or () for file in text.split(",") if file)]
    if not addresses:
        raise typer.BadParameter("Missing argument 'FILE', or --files")
    options = DumpOptions(
        print_data_log=print_data_log,
        deep_iteration=deep_iteration,
        skip_record_metadata=skip_record_metadata,
        verify_index_only=verify_index_only,
        index_sanity_check=index_sanity_check,
        max_bytes=max_bytes,
    )
    sys.stdout.flush()
    output = DumpOutput(sys.stdout.buffer, sys.stderr.buffer, as_json)
    dump_files((DumpedFile.at(file, dict(storage)) for file in addresses), options, output)
    sys.stdout.buffer.flush()
    if output.failures:
        raise typer.Exit(FAILED)
