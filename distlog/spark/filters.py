"""Filter pushdown, for those who ask for it with `pushFilters=true`: filters narrow what is planned.

Every filter is given back, so Spark applies it to each row all the same: a filter that is not understood costs
time, never a wrong row. But Spark 4.3.0 keeps the plan of the first scan of a DataFrame for all its later scans, so a
narrowed plan is right for one action per `load()` only; that is why this is not the default.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from distlog.core.commits.snapshot import Snapshot
from distlog.core.segments.segment import SegmentReader
from distlog.core.segments.time_lookup import offset_for_time
from distlog.core.times import to_ms
from distlog.spark.source import DistlogReader

Ranges = Mapping[int, tuple[int, int]]


class FilteringReader(DistlogReader):
    """A reader that leaves out partitions, segments and batches in which no row can pass the filters."""

    _filters: tuple[Filter, ...] = ()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Remember the filters, and leave all of them to Spark as well."""
        self._filters = tuple(filters)
        return filters

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_filters": ()}

    def _narrow(self, reader: SegmentReader, snapshot: Snapshot, bounds: Mapping[int, tuple[int, int]]) -> Ranges:
        for each in self._filters:
            bounds = _narrowed(each, reader, snapshot, bounds)
        return bounds


def _narrowed(each: Filter, reader: SegmentReader, snapshot: Snapshot, bounds: Ranges) -> Ranges:
    column = getattr(each, "attribute", None)
    if column == ("partition",):
        return {number: span for number, span in bounds.items() if _may_hold(each, number)}
    if column == ("offset",):
        return {number: _offsets(each, *span) for number, span in bounds.items()}
    if column == ("timestamp",) and isinstance(each, (EqualTo, GreaterThan, GreaterThanOrEqual)):
        return {number: _since(each.value, reader, snapshot, number, *span) for number, span in bounds.items()}
    return bounds


def _may_hold(each: Filter, partition: int) -> bool:
    if isinstance(each, In):
        return not each.value or partition in each.value
    start, end = _offsets(each, partition, partition + 1)
    return start < end


def _offsets(each: Filter, start: int, end: int) -> tuple[int, int]:
    """The part of [start, end) in which integers may pass the filter."""
    values = each.value if isinstance(each, In) else (getattr(each, "value", None),)
    if not values or not all(type(value) is int for value in values):
        return start, end
    low, high = start, end
    if isinstance(each, (EqualTo, In, GreaterThanOrEqual)):
        low = max(start, min(values))
    if isinstance(each, GreaterThan):
        low = max(start, values[0] + 1)
    if isinstance(each, (EqualTo, In, LessThanOrEqual)):
        high = min(end, max(values) + 1)
    if isinstance(each, LessThan):
        high = min(end, values[0])
    return (low, high) if low < high else (start, start)


def _since(
    time: Any, reader: SegmentReader, snapshot: Snapshot, partition: int, start: int, end: int
) -> tuple[int, int]:
    """Nothing before the first record of that time or later can pass; times need not be in order behind it."""
    if not isinstance(time, datetime) or time.timestamp() < 0:
        return start, end
    found = offset_for_time(
        reader, snapshot.partitions[partition], to_ms(time.replace(microsecond=time.microsecond // 1000 * 1000))
    )
    return min(max(start, found[0] if found else end), end), end
