"""Reads the objects and times of a block of lines all at once, by Arrow, without a Python object for each.

Each function returns None for lines that Arrow cannot take so: then they must be looked at one by one, which also
finds the line that is wrong.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from distlog.core.config import MAX_INT
from distlog.core.times import NO_TIMESTAMP


@dataclass(frozen=True, slots=True)
class Objects:
    """Lines, each an object, as bytes without their ends, and some fields of the objects."""

    lines: pa.Array
    fields: pa.RecordBatch


def split_lines(block: bytes) -> pa.Array:
    """The lines as bytes without their ends."""
    text = pa.scalar(block.replace(b"\r\n", b"\n").removesuffix(b"\r"), pa.binary())
    return pc.split_pattern(text, "\n").values


def objects_of(block: bytes, fields: Mapping[str, pa.DataType], *, others: str) -> Objects | None:
    """The objects of a block, one a line, with `fields` of these types; `others` is ignore or error.

    None also for blank lines, for a field twice in an object, and if a line ends within an object or has several.
    """
    lines = split_lines(block)
    if len(block) >= MAX_INT or not _are_delimited(lines):
        return None
    try:
        lines.cast(pa.string())  # Arrow does not look whether what is left out is UTF-8
        table = pyarrow.json.read_json(
            pa.BufferReader(block),
            pyarrow.json.ReadOptions(use_threads=False, block_size=len(block) + 1),
            pyarrow.json.ParseOptions(explicit_schema=pa.schema(fields.items()), unexpected_field_behavior=others),
        )
    except pa.ArrowException:
        return None
    # no object goes on where } and { meet, so as many objects as lines are one in each
    found = table.select(list(fields)).combine_chunks().to_batches() if table.num_rows == len(lines) else []
    return Objects(lines, found[0]) if found else None


def _are_delimited(lines: pa.Array) -> bool:
    # Arrow's reader crashes at a null ahead of the first object
    delimited = pc.and_(pc.starts_with(lines, "{"), pc.ends_with(lines, "}"))
    return bool(pc.all(delimited).as_py())


def first_object(block: bytes) -> Mapping[str, Any]:
    """The object of the first line, whose types the others may have; empty if it is none."""
    try:
        found = json.loads(block.partition(b"\n")[0])
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def times_of(column: pa.Array) -> pa.Array | None:
    """Milliseconds since 1970, of such numbers, or of texts that are all numbers or all ISO 8601 (no zone: UTC)."""
    for kind in (pa.int64(), pa.timestamp("us", "UTC"), pa.timestamp("us")):
        try:
            times = column.cast(kind).cast(pa.int64())
        except pa.ArrowException:
            continue
        is_number = pa.types.is_integer(kind)
        earliest = pc.min(times).as_py()
        if earliest is not None and earliest < (NO_TIMESTAMP if is_number else 0):
            return None
        return times if is_number else pc.divide(times, 1000)
    return None
