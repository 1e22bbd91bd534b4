"""Times as callers give them, and the only place that reads the clock."""

from __future__ import annotations

import operator
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone

import numpy as np

#: A record without a time (Kafka's RecordBatch.NO_TIMESTAMP).
NO_TIMESTAMP = -1

Time = int | str | datetime | np.datetime64

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MILLISECOND = timedelta(milliseconds=1)


def now_ms() -> int:
    """The time of day in milliseconds since 1970; it is passed as the clock to what needs one."""
    return time.time_ns() // 1_000_000


def elapsed_s() -> float:
    """Seconds since some moment, which only grow; they count while the machine sleeps too, where the system can."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


def fastest(clock: Callable[[], int]) -> tuple[Callable[[], int], int]:
    """What to read in place of `clock` where each nanosecond counts, and how many of its units are a millisecond."""
    return (time.time_ns, 1_000_000) if clock is now_ms else (clock, 1)


def to_ms(value: Time) -> int:
    """Milliseconds since 1970 of an int (taken as it is), a datetime of Python, pandas or numpy, or ISO 8601 text.

    No zone means UTC.
    Parts of a millisecond are cut off, as Arrow does. Raises ValueError for anything else.
    """
    try:
        if isinstance(value, str):
            text = value.strip()
            if text.removeprefix("-").isdecimal():
                return int(text)
            value = datetime.fromisoformat(text[:-1] + "+00:00" if text.endswith("Z") else text)
        if isinstance(value, np.datetime64):
            value = _of_numpy(value)
        if isinstance(value, datetime):
            aware = value if value.tzinfo else value.replace(tzinfo=timezone.utc)
            return int((aware - _EPOCH) // _MILLISECOND)
        return operator.index(value)
    except (ValueError, TypeError):
        raise ValueError(f"a time must be ms since 1970, a datetime or ISO 8601 text: {value!r}") from None


def _of_numpy(value: np.datetime64) -> int:
    if np.isnat(value):
        raise ValueError("not a time")
    return int(value.astype("datetime64[ms]").astype(np.int64))
