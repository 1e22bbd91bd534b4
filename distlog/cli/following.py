"""Follows a topic for `distlog read --follow`."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone

import pyarrow as pa

from distlog.cli.reading import Bounds
from distlog.core.following.followed_log import ends_of
from distlog.core.following.follower import Follower
from distlog.core.following.start import Start
from distlog.core.topics.topic import Topic


def batches(
    topic: Topic,
    partitions: Sequence[int] | None,
    bounds: Bounds,
    limit: int | None,
    columns: Sequence[str],
    group: str | None,
    timeout: float | None,
) -> Iterator[pa.RecordBatch]:
    """Batches of the records as they come, at most `limit` records in all, until SIGTERM or the timeout.

    What the caller has taken the next batch after is committed to the group.
    """
    start: Start | None = {number: bounds.start(topic, number) or 0 for number in range(topic.partitions)}
    if bounds.tail is None:
        start = bounds.offset if bounds.since is None else datetime.fromtimestamp(bounds.since / 1000, timezone.utc)
    read = (*columns, *(name for name in ("partition", "offset") if name not in columns))
    follower = topic.follow(partitions, start, group, timeout, read, isolation=bounds.isolation)
    with follower, _ended_by_signal(follower):
        while limit is None or limit > 0:
            batch = next(follower, None)
            if batch is None:
                return
            batch = batch.slice(0, limit)
            limit = None if limit is None else limit - batch.num_rows
            ends = ends_of(batch)
            yield batch.select(list(columns))
            if group is not None:
                follower.commit(ends)


@contextmanager
def _ended_by_signal(follower: Follower) -> Iterator[None]:
    """SIGTERM ends the iteration, so that the group need not wait for the lease."""
    before = signal.signal(signal.SIGTERM, lambda *_: follower.close())
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
