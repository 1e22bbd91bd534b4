"""Times as callers give them, and the one place that asks the clock."""

from __future__ import annotations

import time
from datetime import datetime, timezone

Time = int | str | datetime


def now_ms() -> int:
    """The time of day in milliseconds since 1970: the clock that is passed to whatever needs one."""
    return time.time_ns() // 1_000_000


def to_ms(value: Time) -> int:
    """Milliseconds since 1970 of an int (taken as it is), a datetime, or ISO 8601 text; no zone means UTC.

    Raises ValueError for text that is neither digits nor ISO 8601.
    """
    if isinstance(value, str):
        text = value.strip()
        if text.lstrip("-").isdigit():
            return int(text)
        value = datetime.fromisoformat(text[:-1] + "+00:00" if text.endswith("Z") else text)
    if isinstance(value, datetime):
        aware = value if value.tzinfo else value.replace(tzinfo=timezone.utc)
        return round(aware.timestamp() * 1000)
    return int(value)
