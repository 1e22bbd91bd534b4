"""Filter pushdown, which `pushFilters=true` turns on: filters narrow the plan of a read.

Every filter is also returned to Spark, which applies it to each row. So a filter that we do not understand costs
time, but never gives a wrong row. Pushdown is not the default, because Spark 4.3.0 keeps the plan of the first scan
of a DataFrame for all its later scans: a narrowed plan is right for only one action per `load()`.
"""

from __future__ import annotations

from collections.abc import Iterable
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

from distlog.core.config import MAX_LONG, MIN_LONG
from distlog.core.reading.slices.time_range import ALWAYS, TimeRange
from distlog.core.times import to_ms
from distlog.spark.source.batch_source import DistlogReader
from distlog.spark.source.bounds import Ranges


class FilteringReader(DistlogReader):
    """A reader that skips what cannot pass the filters: partitions, segments, batches, and records by their time."""

    _filters: tuple[Filter, ...] = ()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Keep the filters, and return all of them, so that Spark applies them too."""
        self._filters = tuple(filters)
        return filters

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_filters": ()}

    def _narrow(self, bounds: Ranges, times: TimeRange) -> tuple[Ranges, TimeRange]:
        for each in self._filters:
            bounds = _narrowed(each, bounds)
            times = times.within(_times(each))
        return bounds, times


def _narrowed(each: Filter, bounds: Ranges) -> Ranges:
    column = getattr(each, "attribute", None)
    if column == ("partition",):
        return {number: span for number, span in bounds.items() if _may_hold(each, number)}
    if column == ("offset",):
        return {number: _offsets(each, *span) for number, span in bounds.items()}
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


def _times(each: Filter) -> TimeRange:
    """The times, in ms, at which records may pass the filter.

    Records without a timestamp are no special case: their time is -1 for Spark too.
    """
    values = each.value if isinstance(each, In) else (getattr(each, "value", None),)
    if getattr(each, "attribute", None) != ("timestamp",) or not values:
        return ALWAYS
    # a time without a zone would be in the session's zone
    if not all(isinstance(value, datetime) and value.tzinfo for value in values):
        return ALWAYS
    oldest, newest = to_ms(min(values)), to_ms(max(values))
    return TimeRange(
        oldest if isinstance(each, (EqualTo, In, GreaterThan, GreaterThanOrEqual)) else MIN_LONG,
        newest if isinstance(each, (EqualTo, In, LessThan, LessThanOrEqual)) else MAX_LONG,
    )
