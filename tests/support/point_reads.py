"""Reads of a few records from an offset on, what they must give, and an active segment to read them from."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

from adopted import Rows
from logs import START

import distlog
from distlog import Record, Topic


def active(url: str, count: int, size: int = 10, **settings: Any) -> Topic:
    """A topic of `count` records in an active segment, most values of `size` bytes, in batches of a few."""
    bounds = {"batch.bytes": f"{3 * size + 90}", "index.interval.bytes": "100"}
    topic = distlog.create(url, config={**bounds, **settings})
    with topic.writer() as writer:
        for number in range(count):
            value = None if number % 5 == 4 else b"%d" % number * (size // len(str(number)))
            writer.append(value, key=b"k" if number % 2 else None, timestamp=START + 10 * number)
    assert topic.refresh().live_snapshot.partitions[0].active
    return topic


def rows_from(topic: Topic, offset: int, limit: int | None = 1) -> Rows:
    """The records of the partition from `offset` on, at most `limit`."""
    return _without_partition(_as_rows(topic.records(0, offset, limit)))


def expected_rows_from(expected: Rows, offset: int, limit: int | None = 1) -> Rows:
    """The rows that `found` must return."""
    return _without_partition(islice((row for row in expected if row["offset"] >= offset), limit))


def _as_rows(records: Iterable[Record]) -> Rows:
    headers = ("key", "value")
    return [
        {**record._asdict(), "headers": [dict(zip(headers, pair, strict=True)) for pair in record.headers]}
        for record in records
    ]


def _without_partition(rows: Iterable[dict[str, Any]]) -> Rows:
    return [{name: row[name] for name in row if name != "partition"} for row in rows]
