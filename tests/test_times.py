"""Times as people give them."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

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
        (datetime(2023, 11, 15, 0, 13, 20, tzinfo=timezone(timedelta(hours=2))), 1_700_000_000_000),
    ],
)
def test_a_time_without_a_zone_is_utc(value: object, expected: int) -> None:
    assert to_ms(value) == expected  # type: ignore[arg-type]


def test_text_that_is_no_time_is_refused() -> None:
    with pytest.raises(ValueError, match="soon"):
        to_ms("soon")
