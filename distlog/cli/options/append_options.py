"""The arguments and options of `distlog append`."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any

import typer

from distlog.cli.input.inputs import Format
from distlog.cli.options.shared_options import settings


class BadLines(str, Enum):
    """What to do at a line that is no record."""

    FAIL = "fail"
    SKIP = "skip"


Files = Annotated[
    list[str] | None,
    typer.Argument(metavar="[FILE]...", show_default=False, help="Files; - or none is standard input."),
]
InputFormat = Annotated[
    Format,
    typer.Option(
        "--format",
        help="text: a line is a value. jsonl: an object, as read --json prints it, or with --key, --value or "
        "--timestamp of any kind. csv: its first line has names. parquet: a file.",
    ),
]
Key = Annotated[str | None, typer.Option("--key", metavar="FIELD", help="The field that is the key.")]
Value = Annotated[
    str | None,
    typer.Option("--value", metavar="FIELD", help="The field that is the value; by default all of the line."),
]
Timestamp = Annotated[
    str | None,
    typer.Option("--timestamp", metavar="FIELD", help="The field of the time: ms since 1970 or ISO 8601."),
]
KeySeparator = Annotated[
    str | None, typer.Option(metavar="TEXT", help="What stands between key and value in a line of text.")
]
Headers = Annotated[list[Any], settings("--header", "A header that each record gets.")]
Partition = Annotated[
    int | None,
    typer.Option(
        "--partition",
        "-p",
        metavar="N",
        help="The partition of all records. By default each record's field or key decides.",
    ),
]
OnBadLine = Annotated[
    BadLines, typer.Option("--bad-lines", help="At a line that is no record fail, or leave it out and count it.")
]
CommitInterval = Annotated[
    float,
    typer.Option(min=0, metavar="SECONDS", help="How often a stream is committed, which makes it visible."),
]
Compression = Annotated[
    str | None,
    typer.Option(
        metavar="CODEC", help="none, gzip, snappy, lz4 or zstd; used if the topic's compression.type is producer."
    ),
]
