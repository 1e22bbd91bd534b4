"""Converts the times that callers give, and reads the clocks of the system."""

from __future__ import annotations

import operator
import time
from collections.abc import Callable
from datetime import date, datetime, timedelta, timezone

import numpy as np

from distlog.core.errors import InvalidConfigError

#: A record without a time (Kafka's RecordBatch.NO_TIMESTAMP).
NO_TIMESTAMP = -1

#: By unit of time: the divisor and the factor that convert a number to milliseconds, and the name of the unit.
_UNITS = {
    "s": (1, 1000, "seconds"), "ms": (1, 1, "milliseconds"),
    "us": (1000, 1, "microseconds"), "ns": (1_000_000, 1, "nanoseconds"),
}  # fmt: skip
TIME_UNITS = tuple(_UNITS)
_TOO_LATE_MS = 10**14  # in the year 5138; a larger number is a time in a smaller unit
#: The rule for a number that is a time, for the texts of errors.
WHOLE_TIME = "a timestamp is a whole number of milliseconds since 1970, or of the unit that timestamp_unit names"

Time = int | str | date | np.datetime64
"""A time: ms since 1970, a datetime or date (of Python, pandas or numpy; UTC without a zone), or ISO 8601 text."""

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MILLISECOND = timedelta(milliseconds=1)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def elapsed_s() -> float:
    """Return the seconds of a clock that never goes back and, on Linux, also runs while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


def fastest(clock: Callable[[], int]) -> tuple[Callable[[], int], int]:
    """Return `clock`, or an equal clock whose calls take less time, and the number of its units in a millisecond."""
    return (time.time_ns, 1_000_000) if clock is now_ms else (clock, 1)


def check_unit(unit: str) -> str:
    if unit not in TIME_UNITS:
        text = f"timestamp_unit must be one of {', '.join(TIME_UNITS)}"
        raise InvalidConfigError(text, timestamp_unit=ascii(unit)[:100])
    return unit


def scale(unit: str) -> tuple[int, int]:
    return _UNITS[unit][:2]


def in_ms(number: int, unit: str) -> int:
    """Convert units to whole milliseconds, rounding down. A number below 0 is not a time, and does not change."""
    divisor, factor = scale(unit)
    return number if number < 0 else number // divisor * factor


def wrong_unit(number: int, unit: str = "ms") -> str | None:
    """Return an error text if `number` is too large for a time in `unit`, else None."""
    if in_ms(number, unit) < _TOO_LATE_MS:
        return None
    likely = next((name for name in TIME_UNITS if in_ms(number, name) < _TOO_LATE_MS), "ns")
    return (
        f"a timestamp is {_UNITS[unit][2]} since 1970, and this looks like {_UNITS[likely][2]}: "
        f"give the unit, {likely}, as timestamp_unit"
    )


def to_ms(value: Time, unit: str = "ms", *, round_up: bool = False) -> int:
    """Return the ms since 1970 of a number in `unit`, a datetime of Python, pandas or numpy, or ISO 8601 text.

    A time without a zone is in UTC, and a date is its midnight. Fractions of a millisecond are cut off, as in Arrow;
    with `round_up` they are rounded up, as for a bound of records' times.
    """
    try:
        if isinstance(value, str):
            text = value.strip()
            if text.removeprefix("-").isdecimal():
                return in_ms(int(text), unit)
            value = datetime.fromisoformat(text[:-1] + "+00:00" if text.endswith("Z") else text)
        if isinstance(value, np.datetime64):
            if np.isnat(value):
                raise ValueError("not a time")
            rounded = value.astype("datetime64[ms]")
            value = int(rounded.astype(np.int64)) + int(round_up and rounded < value)
        if isinstance(value, date) and not isinstance(value, datetime):
            value = datetime(value.year, value.month, value.day)
        if isinstance(value, datetime):
            aware = value if value.tzinfo else value.replace(tzinfo=timezone.utc)
            # `//` rounds down, so a negated quotient is rounded up
            time_ms = -((_EPOCH - aware) // _MILLISECOND) if round_up else (aware - _EPOCH) // _MILLISECOND
            return int(time_ms)
        return in_ms(operator.index(value), unit)
    except (ValueError, TypeError):
        raise ValueError(f"a time must be ms since 1970, a datetime or ISO 8601 text: {value!r}") from None


def iso(time_ms: int) -> str:
    """Return a time in ms since 1970 as ISO 8601 text in UTC; `none` for NO_TIMESTAMP."""
    if time_ms == NO_TIMESTAMP:
        return "none"
    try:
        time = datetime.fromtimestamp(time_ms // 1000, timezone.utc)
    except (ValueError, OverflowError, OSError):
        return repr(int(time_ms))  # no datetime goes beyond the year 9999
    # on some systems, %Y has no leading zeros
    return f"{time.year:04}-{time:%m-%dT%H:%M:%S}.{time_ms % 1000:03}Z"
