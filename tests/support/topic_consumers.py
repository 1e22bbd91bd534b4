"""Consumers with a simulated time: each pause ends at once, and may run a callback."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from distlog.core.read.consumer import ConsumeOptions, Consumer
from distlog.core.topic import Topic


class Time:
    """A clock in seconds. A pause moves it on, and then does the next of `events`, if there are any."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.pauses: list[float] = []
        self.events: deque[Callable[[], object]] = deque()

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now_s += seconds
        if self.events:
            self.events.popleft()()


def consume(topic: Topic, time: Time | None = None, **options: Any) -> Consumer:
    """A consumer of the topic, in a time of its own by default; it ends when nothing came for a second."""
    time = time or Time()
    arguments = {"timeout": 1.0, "clock": time, "sleep": time.sleep, **options}
    return ConsumeOptions(**arguments).begin(topic.handle, topic.snapshot)


def rows(batch: pa.RecordBatch) -> list[tuple[int, int]]:
    """The (partition, offset) of each record."""
    return list(zip(batch.column("partition").to_pylist(), batch.column("offset").to_pylist(), strict=True))


def drained(consumer: Consumer) -> list[tuple[int, int]]:
    """The (partition, offset) of the records that it returns until it ends."""
    return [row for batch in consumer for row in rows(batch)]


def span(partition: int, start: int, end: int) -> list[tuple[int, int]]:
    """The (partition, offset) of the offsets from `start` (in) to `end` (out)."""
    return [(partition, offset) for offset in range(start, end)]
