"""Times of records as files have them: numbers of a unit, ISO 8601, or text in a format of `strptime`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distlog.core.arrays import column_of, integers, numbers_of, scalar_of
from distlog.core.errors import InvalidConfigError, InvalidRecordError
from distlog.core.files.fixed_times import FixedTimes
from distlog.core.limits import MAX_LONG
from distlog.core.times import NO_TIMESTAMP, WHOLE_TIME, to_ms, wrong_unit
from distlog.core.write.rows import scaled

_TEXTS = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)


@dataclass(frozen=True, slots=True)
class Times:
    """Milliseconds since 1970 (int64, null where there is no time), and the faults of values that are not times."""

    column: pa.Array
    faults: dict[int, str]


@dataclass(frozen=True, slots=True)
class TimeReader:
    """Reads times of one unit or format. A time without a zone is in UTC.

    `time_format` is one of Python's `strptime`. Without a year in it, a time is in the latest year that does not put
    it more than a day after `now_ms`; so 29 February is in the last leap year.
    """

    unit: str = "ms"
    time_format: str | None = None
    now_ms: int = 0

    def check(self) -> None:
        """Raise InvalidConfigError for a format that no text can have."""
        if self.time_format is None:
            return
        try:
            datetime.strptime("", self.time_format)
        except ValueError as error:
            if "does not match format" not in str(error) and "unconverted data" not in str(error):
                raise InvalidConfigError(f"not a time format of strptime: {error}", format=self.time_format) from None
        except re.error as error:
            raise InvalidConfigError(f"not a time format of strptime: {error}", format=self.time_format) from None

    def of_column(self, column: pa.Array) -> Times:
        """The times of a column of texts, numbers, dates or timestamps; an empty text is none."""
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        if any(is_text(column.type) for is_text in _TEXTS):
            return self._of_texts(column)
        if pa.types.is_date(column.type):
            column = column.cast(pa.timestamp("ms"))
        if pa.types.is_timestamp(column.type):
            kind = pa.timestamp("ms", column.type.tz)
            column = column.cast(options=pc.CastOptions(kind, allow_time_truncate=True)).cast(pa.int64())
            early = pc.less(column, integers([0])[0])
            return _without(column, pc.and_kleene(early, column.is_valid()), "a time before 1970")
        times = times_of(column, self.unit)
        if times is not None:
            return Times(times, {})
        return self._by_value(column.to_pylist())

    def of_value(self, value: Any) -> int | None:
        """The time of one value; None for none. Raises ValueError with the reason."""
        if self.time_format is None or value is None:
            return time_of(value, self.unit)
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise ValueError(f"not a time in the format {self.time_format}: {value!r}")
        return self._formatted(str(value))

    def _of_texts(self, column: pa.Array) -> Times:
        if self.time_format is None:
            try:
                texts = column.cast(pa.string())
                is_empty = pc.equal(texts, scalar_of("", pa.string()))
                times = times_of(pc.if_else(is_empty, pa.nulls(1, pa.string())[0], texts), self.unit)
            except pa.ArrowException:
                times = None
            if times is not None:
                return Times(times, {})
        elif (fixed := FixedTimes.of(self.time_format)) and (
            times := fixed.read(column.cast(pa.binary()))
        ) is not None:
            return Times(times, {})
        # most times of a log are of a few seconds
        encoded = column.cast(pa.binary()).dictionary_encode()
        distinct_times = self._by_value([value.decode(errors="replace") for value in encoded.dictionary.to_pylist()])
        times = distinct_times.column.take(encoded.indices)
        if not distinct_times.faults:
            return Times(times, {})
        bad = pc.is_in(encoded.indices, pa.array(sorted(distinct_times.faults), encoded.indices.type))
        rows = np.flatnonzero(numbers_of(pc.fill_null(bad, False).cast(pa.uint8()))).tolist()
        return Times(times, {row: distinct_times.faults[encoded.indices[row].as_py()] for row in rows})

    def _by_value(self, values: Sequence[Any]) -> Times:
        times, faults = list[int | None](), dict[int, str]()
        for row, value in enumerate(values):
            times.append(self._time_or_fault(value, row, faults))
        return Times(column_of(times, pa.int64()), faults)

    def _time_or_fault(self, value: Any, row: int, faults: dict[int, str]) -> int | None:
        try:
            return None if value == "" else self.of_value(value)
        except ValueError as error:
            faults[row] = f"not a time: {error}"
            return None

    def _formatted(self, text: str) -> int:
        form = self.time_format or ""
        try:
            if any(directive in "YyGcx" for directive in re.findall(r"%(.)", form, re.DOTALL)):
                return _checked(datetime.strptime(text, form), text)
            return self._in_latest_year(text, form)
        except OverflowError as error:
            raise ValueError(str(error)) from None

    def _in_latest_year(self, text: str, form: str) -> int:
        latest = datetime.fromtimestamp(self.now_ms / 1000, timezone.utc) + timedelta(days=1)
        # of eight years, one at least is a leap year
        for year in range(latest.year, latest.year - 9, -1):
            try:
                time = datetime.strptime(f"{year} {text}", f"%Y {form}")
            except ValueError:
                # 29 February, or no time at all
                if year == latest.year - 8:
                    raise
                continue
            if (time if time.tzinfo else time.replace(tzinfo=timezone.utc)) <= latest:
                return _checked(time, text)
        raise ValueError(f"no year fits {text!r}")


def _checked(time: datetime, text: str) -> int:
    ms = to_ms(time)
    if ms < 0:
        raise ValueError(f"it is before 1970: {text!r}")
    return ms


def _without(column: pa.Array, is_bad: pa.Array, reason: str) -> Times:
    rows = np.flatnonzero(numbers_of(is_bad.cast(pa.uint8()))).tolist()
    if not rows:
        return Times(column, {})
    return Times(pc.if_else(is_bad, pa.nulls(1, pa.int64())[0], column), dict.fromkeys(rows, reason))


def times_of(column: pa.Array, unit: str = "ms") -> pa.Array | None:
    """Milliseconds since 1970, of numbers of a unit, or of texts: all numbers, or all ISO 8601 (no zone: UTC)."""
    if pa.types.is_boolean(column.type):
        return None
    for kind in (pa.int64(), pa.timestamp("us", "UTC"), pa.timestamp("us")):
        try:
            times = column.cast(kind).cast(pa.int64())
        except pa.ArrowException:
            continue
        is_number = pa.types.is_integer(kind)
        earliest = pc.min(times).as_py()
        if earliest is not None and earliest < (NO_TIMESTAMP if is_number else 0):
            return None
        if not is_number:
            return pc.divide(times, integers([1000])[0])
        try:
            return scaled(times, unit)
        except InvalidRecordError:
            return None
    return None


def time_of(value: Any, unit: str = "ms") -> int | None:
    """A time, which is text or a number of units, as ms since 1970; raises ValueError."""
    if isinstance(value, str) and value.strip().removeprefix("-").isdecimal():
        value = int(value)
    time = to_ms(value, unit) if isinstance(value, str) or type(value) is int else value
    if type(value) is int and unit != "ms" and (wrong := wrong_unit(value, unit)):
        raise ValueError(wrong)
    if time is None or (type(time) is int and -1 <= time <= MAX_LONG):
        return time
    raise ValueError(f"{WHOLE_TIME} (--timestamp-unit), from 0 on, -1 for none, or null, not {value!r}")
