"""Topics of records all through some days, and the times of the records read."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from distlog import Topic

DAY = 86_400_000
OCTOBER = int(datetime(2025, 10, 1, tzinfo=timezone.utc).timestamp() * 1000)


def of_day(day: int, count: int = 1000) -> list[dict[str, Any]]:
    """Records all through a day, counted from the first of October."""
    return [{"value": b"day %d" % day, "timestamp": OCTOBER + day * DAY + n * DAY // count} for n in range(count)]


def timestamps(topic: Topic, **bounds: Any) -> list[int]:
    return topic.scan(**bounds).to_table()["timestamp"].cast("int64").to_pylist()
