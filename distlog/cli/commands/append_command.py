"""The command that appends files, or a stream as it comes."""

from __future__ import annotations

import time

import typer

import distlog
from distlog.cli.input.appending import Appending, Taken
from distlog.cli.input.field_formats import Fields
from distlog.cli.input.inputs import STANDARD_INPUT, Format, Input, Part, size_of
from distlog.cli.input.interrupt import Interrupt
from distlog.cli.input.line_formats import with_headers
from distlog.cli.options import append_options as options
from distlog.cli.options.shared_options import Json, Storage, Url
from distlog.console.report import DONE, Summary, print_report
from distlog.core.display.progress import Progress
from distlog.core.display.units import counted
from distlog.core.errors import DistlogError, InvalidRecordError
from distlog.core.topics.appending.retention_warning import expiry_text


def append(
    url: Url,
    files: options.Files = None,
    *,
    kind: options.InputFormat = Format.TEXT,
    key: options.Key = None,
    value: options.Value = None,
    timestamp: options.Timestamp = None,
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
    source = Input(kind, Fields(key, value, timestamp), key_separator)
    source.check()
    topic = distlog.open(url, storage_options=dict(storage))
    paths = files or [STANDARD_INPUT]
    size = size_of(paths)
    seconds = commit_interval if size is None else None
    with (
        Interrupt() as interrupt,
        Progress("appending", total_bytes=size) as progress,
        Appending(topic, partition, compression, seconds, time.monotonic) as appending,
    ):
        skipped = 0
        for path in paths:
            for part in interrupt.until(source.parts(path, appending.wait)):
                if part is not None:
                    skipped += _take(appending, part, path, headers, skip=bad_lines is options.BadLines.SKIP)
                    progress.add(part.parsed.records.num_rows, part.size)
                appending.commit_if_due()
        if interrupt.signal and size is not None:
            appending.abort()
    _report(topic, appending.taken, skipped, interrupt.signal, as_json=as_json)
    raise typer.Exit(128 + interrupt.signal if interrupt.signal else DONE)


def _take(appending: Appending, part: Part, path: str, headers: list[tuple[str, str]], *, skip: bool) -> int:
    """Append the records of a part; returns how many lines were left out.

    Raises InvalidRecordError for the first bad line, when it has taken the records before, unless lines may be bad.
    """
    parsed = part.parsed
    bad = None if skip or not parsed.bad else parsed.bad[0]
    good = parsed.records if bad is None else parsed.records.slice(0, bad.records_before)
    file = None if path == STANDARD_INPUT else path
    try:
        appending.append(with_headers(good, headers))
    except DistlogError as error:
        error.details["file"] = file
        raise
    if bad is not None:
        raise InvalidRecordError(f"{bad.reason} (--bad-lines skip leaves such lines out)", file=file, line=bad.line)
    return len(parsed.bad)


def _report(topic: distlog.Topic, taken: Taken, skipped: int, signal_number: int, *, as_json: bool) -> None:
    ranges = "".join(f", partition {number} [{first}, {end})" for number, (first, end) in taken.offsets.items())
    text = f"{'interrupted: ' if signal_number else ''}appended {counted(taken.records, 'record')}{ranges}"
    text += f"; left out {counted(skipped, 'bad line')}" if skipped else ""
    text += f"; {expiry_text(taken.expired, topic.config.retention_ms)}" if taken.expired else ""
    facts = {
        "version": taken.version,
        "records": taken.records,
        "offsets": taken.offsets,
        "skipped": skipped,
        "expired": taken.expired,
        "interrupted": signal_number != 0,
    }
    print_report(Summary(text, facts), as_json=as_json)
