"""The rows of a checkpoint as columns of its tables, checked; an older or newer library may have written them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Container, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distlog.core.arrow_arrays import booleans, numbers_of, texts
from distlog.core.commits.format import bundle_parts, fields
from distlog.core.commits.format.fields import Integer, Text
from distlog.core.commits.format.segment_info import SegmentInfo
from distlog.core.commits.state import segment_table, transaction_columns
from distlog.core.commits.state.segment_table import SegmentTable


def segments_of(rows: pa.StructArray, counts: Sequence[int], log_end_offsets: Sequence[int]) -> pa.RecordBatch:
    """The checked columns of a SegmentTable: `counts[i]` segments of partition i, below its log end offset.

    Older libraries wrote fewer columns, newer ones write more. Raises ValueError for what no library wrote.
    """
    segments = _segment_columns(rows)
    _check_segments(segments, counts, log_end_offsets)
    return segments


def transactions_of(rows: pa.StructArray, now_ms: int) -> pa.RecordBatch:
    """The checked columns of a TransactionTable, none of which is later than `now_ms`; raises ValueError."""
    if rows.null_count:
        raise ValueError("its transactions are malformed")
    names = transaction_columns.SCHEMA.names
    known = [rows.field(name) for name in names if name not in ("in_order", "unknown")]
    transactions = _batch([*known, *_in_order_of(rows, _unknown_of(rows, names))], transaction_columns.SCHEMA)
    _check_transactions(transactions, now_ms)
    return transactions


def _segment_columns(rows: pa.StructArray) -> pa.RecordBatch:
    stored = {spec.name for spec in rows.type}
    if rows.null_count or stored - set(segment_table.SCHEMA.names) or _any_unknown(rows, stored):
        return SegmentTable.of([_segment(row) for row in rows.to_pylist()]).columns()
    defaults = {spec.name: spec.default for spec in dataclasses.fields(SegmentInfo) if spec.name not in stored}
    return _batch(
        [
            rows.field(spec.name) if spec.name in stored else pa.array([defaults[spec.name]] * len(rows), spec.type)
            for spec in segment_table.SCHEMA
        ],
        segment_table.SCHEMA,
    )


def _any_unknown(rows: pa.StructArray, stored: Container[str]) -> bool:
    return "unknown" in stored and bool(pc.any(pc.not_equal(rows.field("unknown"), ""), min_count=0).as_py())


def _segment(row: dict[str, Any]) -> SegmentInfo:
    # this library may know fields that an older one kept as unknown
    kept = json.loads(row.pop("unknown", "") or "{}")
    return fields.read(SegmentInfo, {**{name: value for name, value in row.items() if value is not None}, **kept})


def _unknown_of(rows: pa.StructArray, known: Container[str]) -> pa.Array:
    """The fields of each row that only a newer library knows: kept as unknown before, or columns of its own."""
    stored = [spec.name for spec in rows.type]
    newer = [name for name in stored if name not in known]
    kept = rows.field("unknown") if "unknown" in stored else texts([""] * len(rows))
    if not newer:
        return kept
    columns = zip(kept.to_pylist(), *(rows.field(name).to_pylist() for name in newer), strict=True)
    return pa.array([_with(text, dict(zip(newer, values, strict=True))) for text, *values in columns], pa.string())


def _in_order_of(rows: pa.StructArray, unknown: pa.Array) -> tuple[pa.Array, pa.Array]:
    """The columns `in_order` and `unknown`; a library that did not know `in_order` kept it as unknown."""
    if "in_order" in [spec.name for spec in rows.type]:
        return rows.field("in_order"), unknown
    if not pc.any(pc.not_equal(unknown, ""), min_count=0).as_py():
        return booleans(np.zeros(len(rows), bool)), unknown
    kept = [dict(json.loads(text or "{}")) for text in unknown.to_pylist()]
    in_order = pa.array([fields.boolean(one.pop("in_order", False)) for one in kept], pa.bool_())
    return in_order, pa.array([json.dumps(one, sort_keys=True) if one else "" for one in kept], pa.string())


def _with(unknown: str, newer: Mapping[str, Any]) -> str:
    found = {name: value for name, value in newer.items() if value is not None}
    return json.dumps({**json.loads(unknown or "{}"), **found}, sort_keys=True) if found else unknown


def _batch(columns: Sequence[pa.Array], schema: pa.Schema) -> pa.RecordBatch:
    if [column.type for column in columns] != schema.types or any(column.null_count for column in columns):
        raise ValueError("its rows are malformed")
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _check_segments(segments: pa.RecordBatch, counts: Sequence[int], log_end_offsets: Sequence[int]) -> None:
    """Check all segments at once, as `fields` and `SegmentInfo.check` check one, and `fold` their order."""
    for name, check in fields.checks(SegmentInfo).items():
        _check_column(name, segments[name], check)
    owner, base, end = (numbers_of(segments[name]) for name in ("partition", "base_offset", "next_offset"))
    if not np.array_equal(owner, np.repeat(np.arange(len(counts)), counts)):
        raise ValueError("its segments are not in the order of their partitions")
    limit = np.array(log_end_offsets, np.int64)[owner]
    limit[:-1] = np.where(owner[:-1] == owner[1:], base[1:], limit[:-1])
    if np.any(base >= end) or np.any(end > limit) or np.any(numbers_of(segments["record_count"]) > end - base):
        raise ValueError("its segments overlap, or end above their log")
    is_bundled = numbers_of(segments["log_position"]) >= 0
    if np.any(is_bundled):
        bundle_parts.check(segments.filter(booleans(is_bundled)))


def _check_column(name: str, column: pa.Array, check: fields.Check) -> None:
    if isinstance(check, Integer) and len(column):
        bounds = pc.min_max(column).as_py()
        legal = check.low <= bounds["min"] and bounds["max"] <= check.high
    elif isinstance(check, Text):
        legal = pc.all(pc.match_substring_regex(column, rf"^(?:{check.pattern})\z"), min_count=0).as_py()
    else:
        legal = True
    if not legal:
        raise ValueError(f"a segment's {name} is out of its range")


def _check_transactions(transactions: pa.RecordBatch, now_ms: int) -> None:
    times = numbers_of(transactions["timestamp_ms"])
    if np.any(np.diff(times) < 0) or np.any(times > now_ms) or np.any(times < 0):
        raise ValueError("its transactions are not in the order of time")
    for column in transactions["offsets"].flatten().flatten():
        if column.null_count or np.any(numbers_of(column) < 0):
            raise ValueError("the offsets of a transaction are malformed")
