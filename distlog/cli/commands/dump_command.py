"""The command that prints what is in Kafka's files."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from distlog.cli.options.shared_options import Json, Storage
from distlog.console.report import FAILED
from distlog.core.config import MAX_INT
from distlog.core.dump.dump import dump as dump_files
from distlog.core.dump.dumped_file import DumpedFile
from distlog.core.dump.options import DumpOptions
from distlog.core.dump.output import DumpOutput


def dump(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE",
            help="Paths or URLs of .log, .index, .timeindex, .txnindex, .snapshot files, leader-epoch-checkpoint.",
        ),
    ],
    *,
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
        bool, typer.Option("--index-sanity-check", help="Check of indexes what a broker checks when it starts.")
    ] = False,
    max_bytes: Annotated[
        int, typer.Option(min=0, metavar="N", show_default=False, help="Read only the first N bytes of logs.")
    ] = MAX_INT,
    storage: Storage,
    as_json: Json = False,
) -> None:
    """Print what is in Kafka's files, as kafka-dump-log does.

    With --json each line is an object. What is wrong with the files goes to standard error, or into objects too.
    """
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
    dump_files((DumpedFile.at(file, dict(storage)) for file in files), options, output)
    sys.stdout.buffer.flush()
    if output.failures:
        raise typer.Exit(FAILED)
