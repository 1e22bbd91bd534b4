"""How `distlog read` prints records: as a table or tabbed lines, JSON, CSV, or in a format with conversions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import pyarrow as pa
import typer

from distlog.cli.options.shared_options import usage
from distlog.console.conversions import Conversions
from distlog.console.record_lines import csv_rows
from distlog.console.records import print_batch, print_bytes
from distlog.core.batches.record_batch import COLUMNS
from distlog.core.errors import InvalidConfigError

#: The columns for people unless others are asked for. JSON has all.
_FOR_PEOPLE = tuple(name for name in COLUMNS if name != "timestamp_type")


@dataclass(frozen=True, slots=True)
class Printing:
    """What is printed of each batch. `show` gets a batch, and whether it is the first."""

    columns: Sequence[str]
    show: Callable[[pa.RecordBatch, bool], None]


def record_format(text: str) -> str | Conversions:
    """`json`, `csv`, or a format with conversions; raises ValueError."""
    return text if text in ("json", "csv") else Conversions.parse(text)


RecordFormat = Annotated[
    Any,
    typer.Option(
        "--format",
        metavar="FORMAT",
        parser=usage(record_format),
        help="json, csv, or a text as in '%k %v\\\\n', which is not ended by itself: %v %s value, %k key, %p "
        "partition, %o offset, %T ms since 1970, %h headers, %t topic, %S %K bytes of value and key, %%.",
    ),
]


def printing(
    topic: str, columns: Sequence[str] | None, chosen: str | Conversions | None, *, as_json: bool
) -> Printing:
    """How to print records of a topic. Raises InvalidConfigError for choices that do not go together."""
    if as_json and chosen not in (None, "json"):
        raise InvalidConfigError("give --json or --format, not both")
    if isinstance(chosen, Conversions):
        if columns:
            raise InvalidConfigError("a --format with conversions says itself what to print: leave out --columns")
        return Printing(chosen.columns, lambda batch, _: print_bytes(chosen.texts(batch, topic)))
    if chosen == "csv":
        return Printing(columns or _FOR_PEOPLE, lambda batch, first: print_bytes(csv_rows(batch, titles=first)))
    is_json = as_json or chosen == "json"
    return Printing(
        columns or (COLUMNS if is_json else _FOR_PEOPLE),
        lambda batch, first: print_batch(batch, as_json=is_json, titles=first),
    )
