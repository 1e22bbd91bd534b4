"""Times from users."""

from __future__ import annotations

import re
from datetime import date, datetime, timedelta, timezone

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from distlog.core.arrays import MAX_LONG
from distlog.core.format.kernels.record_scan import to_microseconds
from distlog.core.times import to_ms


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1_700_000_000_123, 1_700_000_000_123),
        ("1700000000123", 1_700_000_000_123),
        ("-1", -1),
        ("2023-11-14T22:13:20Z", 1_700_000_000_000),
        ("2023-11-14T22:13:20", 1_700_000_000_000),
        ("2023-11-15T00:13:20.123+02:00", 1_700_000_000_123),
        (datetime(2023, 11, 14, 22, 13, 20), 1_700_000_000_000),
        (date(2023, 11, 14), 1_699_920_000_000),
        (datetime(2023, 11, 15, 0, 13, 20, tzinfo=timezone(timedelta(hours=2))), 1_700_000_000_000),
    ],
)
def test_a_time_without_a_zone_is_utc(value: object, expected: int) -> None:
    assert to_ms(value) == expected  # type: ignore[arg-type]


def test_fractions_of_a_millisecond_are_dropped_as_in_arrow() -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, 678_999, tzinfo=timezone.utc)
    assert to_ms(moment) == pa.scalar(moment, pa.timestamp("us", "UTC")).value // 1000 == 1_767_323_045_678


@pytest.mark.parametrize("more_us", [0, 1, 999])
def test_a_bound_with_a_fraction_of_a_millisecond_is_rounded_up(more_us: int) -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, 678_000 + more_us, tzinfo=timezone.utc)
    expected = 1_767_323_045_678 + (more_us > 0)
    assert to_ms(moment, round_up=True) == to_ms(moment.isoformat(), round_up=True) == expected
    assert to_ms(np.datetime64(moment.replace(tzinfo=None)), round_up=True) == expected
    assert to_ms(pd.Timestamp(moment) + pd.Timedelta(1, "ns"), round_up=True) == 1_767_323_045_679


def test_every_millisecond_of_a_datetime_is_exact() -> None:
    start = datetime(2026, 1, 2, tzinfo=timezone.utc)
    times = [to_ms(start + timedelta(milliseconds=number)) for number in range(2000)]
    assert times == list(range(times[0], times[0] + 2000))


@pytest.mark.parametrize("value", ["soon", "", "--5", None, 1.5, b"1", [], float("nan")])
def test_an_invalid_time_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=f"a time must be ms since 1970, .*: {re.escape(repr(value))}"):
        to_ms(value)  # type: ignore[arg-type]


LIMIT = MAX_LONG // 1000


@given(st.lists(st.integers(-MAX_LONG - 1, MAX_LONG) | st.integers(-LIMIT - 1, LIMIT + 1)))
@example([LIMIT, -LIMIT])
@example([LIMIT + 1])
@example([-LIMIT - 1])
@example([-MAX_LONG - 1])
def test_microseconds_are_exact_or_refused(times: list[int]) -> None:
    converted = np.empty(len(times), np.int64)
    fits = to_microseconds(np.array(times, np.int64), converted)
    expected = [1000 * time for time in times]
    assert fits == all(-MAX_LONG <= product <= MAX_LONG for product in expected)
    assert not fits or converted.tolist() == expected
