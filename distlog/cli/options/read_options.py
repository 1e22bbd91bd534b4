"""The options of `distlog read`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from distlog.cli.options.shared_options import time, usage
from distlog.console import arguments
from distlog.core.reading.scan import check_columns

Partitions = Annotated[
    list[int] | None,
    typer.Option("--partition", "-p", metavar="N", help="Only this partition. May be repeated."),
]
StartOffset = Annotated[
    Any,
    typer.Option(
        "--offset",
        "-o",
        metavar="OFFSET",
        parser=usage(arguments.offset_or_end),
        help="Start here; -5 is --tail 5. Or earliest; with --follow also latest, for what comes from now on.",
    ),
]
Tail = Annotated[
    int | None,
    typer.Option("--tail", metavar="N", min=0, help="Start N offsets before the end of each partition."),
]
Limit = Annotated[int | None, typer.Option("--limit", "-n", min=0, metavar="N", help="At most N records.")]
Since = Annotated[
    int | None,
    time("Only records at or after TIME: ms since 1970, ISO 8601 (UTC unless it names a zone), now, or -1h."),
]
Until = Annotated[int | None, time("Only records before TIME.")]
Columns = Annotated[
    Any,
    typer.Option(
        metavar="NAMES",
        parser=usage(lambda names: check_columns(names.split(","))),
        help="Only these columns, as in offset,value.",
    ),
]
Follow = Annotated[
    bool,
    typer.Option("--follow", "-f", help="Go on, with the records that come, until Ctrl-C; --since finds the start."),
]
Group = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Follow from this group's positions, share partitions with its members, and commit."
    ),
]
Timeout = Annotated[
    float | None, typer.Option(min=0, metavar="SECONDS", help="Follow until nothing came for so long.")
]
Committed = Annotated[
    bool, typer.Option("--committed", help="Only records that no open or aborted transaction holds.")
]
