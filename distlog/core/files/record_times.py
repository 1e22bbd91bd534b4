"""Reads times of records in files: numbers of a unit, ISO 8601, or text in a format of `strptime`."""

from __future__ import annotations

import calendar
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distlog.core.arrays import MAX_LONG, Bytes, Flags, Longs, column_of, flags_of, integers, scalar_of
from distlog.core.errors import InvalidConfigError, InvalidRecordError
from distlog.core.times import NO_TIMESTAMP, WHOLE_TIME, to_ms, wrong_unit
from distlog.core.write.rows import scaled

_TEXT_KINDS = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)


@dataclass(frozen=True, slots=True)
class Times:
    """Times in ms since 1970 (int64; null for a missing or bad time), and the faults of bad times by row."""

    column: pa.Array
    faults: dict[int, str]


@dataclass(frozen=True, slots=True)
class TimeReader:
    """Reads times of one unit, or of a format of Python's `strptime`. A time without a zone is in UTC."""

    unit: str = "ms"
    time_format: str | None = None
    #: A time without a year gets the latest year in which it is at most a day after `now_ms`.
    now_ms: int = 0

    def check(self) -> None:
        """Raise InvalidConfigError if `time_format` is not a format of `strptime`."""
        if self.time_format is None:
            return
        # if the format is good, the only error is that the empty text does not match it
        try:
            datetime.strptime("", self.time_format)
        except (ValueError, re.error) as error:
            if "does not match format" not in str(error) and "unconverted data" not in str(error):
                raise InvalidConfigError(f"not a time format of strptime: {error}", format=self.time_format) from None

    def of_column(self, column: pa.Array) -> Times:
        """Return the times of a column of texts, numbers, dates or timestamps; an empty text is null."""
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        if any(is_text(column.type) for is_text in _TEXT_KINDS):
            return self._read_texts(column)
        if pa.types.is_date(column.type):
            column = column.cast(pa.timestamp("ms"))
        if pa.types.is_timestamp(column.type):
            kind = pa.timestamp("ms", column.type.tz)
            column = column.cast(options=pc.CastOptions(kind, allow_time_truncate=True)).cast(pa.int64())
            is_early = pc.fill_null(pc.less(column, scalar_of(0, pa.int64())), False)
            rows = np.flatnonzero(flags_of(is_early)).tolist()
            times = pc.if_else(is_early, pa.nulls(1, pa.int64())[0], column) if rows else column
            return Times(times, dict.fromkeys(rows, "a time before 1970"))
        times = times_of(column, self.unit)
        if times is not None:
            return Times(times, {})
        return self._read_values(column.to_pylist())

    def of_value(self, value: Any) -> int | None:
        """Return the time of a value. Raises ValueError with the reason."""
        if self.time_format is None or value is None:
            return time_of(value, self.unit)
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise ValueError(f"not a time in the format {self.time_format}: {value!r}")
        return self._parse_formatted(str(value))

    def _read_texts(self, column: pa.Array) -> Times:
        if self.time_format is None:
            try:
                texts = column.cast(pa.string())
                is_empty = pc.equal(texts, scalar_of("", pa.string()))
                times = times_of(pc.if_else(is_empty, pa.nulls(1, pa.string())[0], texts), self.unit)
            except pa.ArrowException:
                times = None
        else:
            fixed = FixedTimes.of(self.time_format)
            times = fixed.read(column.cast(pa.binary())) if fixed else None
        if times is not None:
            return Times(times, {})
        # `strptime` is slow and many records have the same time: read each distinct text once
        encoded = column.cast(pa.binary()).dictionary_encode()
        distinct_texts = [value.decode(errors="replace") for value in encoded.dictionary.to_pylist()]
        distinct_times = self._read_values(distinct_texts)
        times = distinct_times.column.take(encoded.indices)
        if not distinct_times.faults:
            return Times(times, {})
        bad = pc.is_in(encoded.indices, pa.array(sorted(distinct_times.faults), encoded.indices.type))
        rows = np.flatnonzero(flags_of(pc.fill_null(bad, False))).tolist()
        return Times(times, {row: distinct_times.faults[encoded.indices[row].as_py()] for row in rows})

    def _read_values(self, values: Sequence[Any]) -> Times:
        times, faults = list[int | None](), dict[int, str]()
        for row, value in enumerate(values):
            try:
                times.append(None if value == "" else self.of_value(value))
            except ValueError as error:  # noqa: PERF203 - a bad time must not hide the next
                times.append(None)
                faults[row] = f"not a time: {error}"
        return Times(column_of(times, pa.int64()), faults)

    def _parse_formatted(self, text: str) -> int:
        time_format = self.time_format or ""
        has_year = any(directive in "YyGcx" for directive in re.findall(r"%(.)", time_format, re.DOTALL))
        try:
            if has_year:
                return _ms_since_1970(datetime.strptime(text, time_format), text)
            return self._in_latest_year(text, time_format)
        except OverflowError as error:
            raise ValueError(str(error)) from None

    def _in_latest_year(self, text: str, time_format: str) -> int:
        latest = datetime.fromtimestamp(self.now_ms / 1000, timezone.utc) + timedelta(days=1)
        first_year = latest.year - 8  # 29 February is in leap years only, which are at most eight years apart
        for year in range(latest.year, first_year - 1, -1):
            try:
                time = datetime.strptime(f"{year} {text}", f"%Y {time_format}")
            except ValueError:
                if year == first_year:
                    raise
                continue
            if (time if time.tzinfo else time.replace(tzinfo=timezone.utc)) <= latest:
                return _ms_since_1970(time, text)
        raise ValueError(f"no year fits {text!r}")


def _ms_since_1970(time: datetime, text: str) -> int:
    ms = to_ms(time)
    if ms < 0:
        raise ValueError(f"the time is before 1970: {text!r}")
    return ms


def times_of(column: pa.Array, unit: str = "ms") -> pa.Array | None:
    """Return the ms since 1970 of numbers in `unit` (integers or texts) or ISO 8601 texts; None for other values."""
    if pa.types.is_boolean(column.type):
        return None
    for kind in (pa.int64(), pa.timestamp("us", "UTC"), pa.timestamp("us")):
        try:
            times = column.cast(kind).cast(pa.int64())
        except pa.ArrowException:
            continue
        is_number = pa.types.is_integer(kind)
        earliest = pc.min(times).as_py()
        first_valid = NO_TIMESTAMP if is_number else 0
        if earliest is not None and earliest < first_valid:
            return None
        if not is_number:
            return pc.divide(times, scalar_of(1000, pa.int64()))
        try:
            return scaled(times, unit)
        except InvalidRecordError:
            return None
    return None


def time_of(value: Any, unit: str = "ms") -> int | None:
    """Return the ms since 1970 of a number in `unit` or an ISO 8601 text; None for None. Raises ValueError."""
    if isinstance(value, str) and value.strip().removeprefix("-").isdecimal():
        value = int(value)
    time = to_ms(value, unit) if isinstance(value, str) or type(value) is int else value
    # numbers of ms are checked when their records are appended
    if type(value) is int and unit != "ms" and (wrong := wrong_unit(value, unit)):
        raise ValueError(wrong)
    if time is None or (type(time) is int and -1 <= time <= MAX_LONG):
        return time
    raise ValueError(f"{WHOLE_TIME} (--timestamp-unit), from 0 on, -1 for none, or null, not {value!r}")


#: The number of digits of each directive of `strptime`, and its smallest and largest value.
_DIRECTIVES = {
    "Y": (4, 1970, 9999),
    "m": (2, 1, 12),
    "d": (2, 1, 31),
    "H": (2, 0, 23),
    "M": (2, 0, 59),
    "S": (2, 0, 59),
}
_WIDTHS = {name: width for name, (width, _, _) in _DIRECTIVES.items()} | {"b": 3, "z": 5}
_MINUTE_MS, _DAY_MS = 60_000, 86_400_000


@dataclass(frozen=True, slots=True)
class FixedTimes:
    """A format with `%Y` whose directives, except `%f`, have a fixed width: numpy reads all texts at once."""

    #: The directives and the characters between them, in order.
    tokens: Sequence[str]

    @classmethod
    @lru_cache
    def of(cls, form: str) -> FixedTimes | None:
        """Return the format; None if only `strptime` can read it."""
        tokens = re.findall(r"%.|[^%]", form, re.DOTALL)
        names = [token[1] for token in tokens if len(token) == 2]
        is_known = form.isascii() and {*names} <= {*_WIDTHS, "f"} and len({*names}) == len(names)
        # a digit after a fraction or a zone may belong to the fraction or zone
        has_unclear_end = re.search(r"%f[%0-9]|%z[%0-9:]", form)
        if not is_known or "Y" not in names or {"m", "b"} <= {*names} or has_unclear_end:
            return None
        return cls(tuple(tokens))

    def read(self, texts: pa.Array) -> pa.Array | None:
        """Return the ms since 1970 of texts (binary); None unless all have the same length and are valid times."""
        count = len(texts)
        if not count or texts.null_count:
            return None
        ends = np.frombuffer(texts.buffers()[1], np.int32)[texts.offset : texts.offset + count + 1]
        size = int(ends[1] - ends[0])
        # `%f` has all characters that the other tokens do not have
        fraction_digits = size - sum(_WIDTHS.get(token[1:], 0) if len(token) == 2 else 1 for token in self.tokens)
        has_valid_size = 1 <= fraction_digits <= 6 if "%f" in self.tokens else fraction_digits == 0
        if not has_valid_size or (np.diff(ends) != size).any():
            return None
        characters = np.frombuffer(texts.buffers()[2], np.uint8)[ends[0] : ends[-1]].reshape(count, size)
        times, is_valid = self._times(characters, fraction_digits)
        return integers(times) if is_valid.all() else None

    def _times(self, characters: Bytes, fraction_digits: int) -> tuple[Longs, Flags]:
        # scalars stand for directives that the format lacks
        values: dict[str, Any] = {**dict.fromkeys("HMSfz", np.int64(0)), "m": np.int64(1), "d": np.int64(1)}
        is_valid, position = np.ones(len(characters), np.bool_), 0
        for token in self.tokens:
            name = token[1:]
            width = 1 if len(token) == 1 else (fraction_digits if name == "f" else _WIDTHS[name])
            column = characters[:, position : position + width]
            position += width
            if len(token) == 1:
                is_valid &= column[:, 0] == ord(token)
            elif name == "b":
                values["m"] = _months(column)
                is_valid &= values["m"] > 0
            elif name == "z":
                hours, minutes = _number(column[:, 1:3], is_valid), _number(column[:, 3:], is_valid)
                is_valid &= np.isin(column[:, 0], (ord("+"), ord("-"))) & (hours < 24) & (minutes < 60)
                values["z"] = np.where(column[:, 0] == ord("-"), -1, 1) * (hours * 60 + minutes)
            else:
                values[name] = _number(column, is_valid)
                _, smallest, largest = _DIRECTIVES.get(name, (0, 0, 10**6))
                is_valid &= (values[name] >= smallest) & (values[name] <= largest)
        months = (np.where(is_valid, values["Y"], 1970) - 1970) * 12 + np.where(is_valid, values["m"], 1) - 1
        days = months.astype("datetime64[M]").astype("datetime64[D]") + (values["d"] - 1)
        # a day that its month lacks is in the next month, as 31 June is 1 July
        is_valid &= days.astype("datetime64[M]").astype(np.int64) == months
        minutes = values["H"] * 60 + values["M"] - values["z"]
        ms = values["S"] * 1000 + values["f"] * 1000 // 10**fraction_digits
        times = days.astype(np.int64) * _DAY_MS + minutes * _MINUTE_MS + ms
        return times, is_valid & (times >= 0)


def _number(digits: Bytes, is_valid: Flags) -> Longs:
    """Return the number of each row of digits; `is_valid` becomes False for rows with other characters."""
    number = np.zeros(len(digits), np.int64)
    for column in digits.T:
        digit = column.astype(np.int64) - ord("0")
        is_valid &= (digit >= 0) & (digit <= 9)
        number = number * 10 + digit
    return number


def _months(names: Bytes) -> Longs:
    """Return the numbers of months by their short names, in any case; 0 for other texts."""
    numbers = np.zeros(len(names), np.int64)
    for number, name in enumerate(calendar.month_abbr):
        encoded = name.lower().encode()
        if len(encoded) == 3 and encoded.isalpha():
            numbers[((names | 0x20) == np.frombuffer(encoded, np.uint8)).all(axis=1)] = number
    return numbers
