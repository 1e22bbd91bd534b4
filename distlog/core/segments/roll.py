"""Decides when a segment ends by time: Kafka's `LogSegment.shouldRoll`, for segments that are written in bulk.

A segment's time begins with its first batch. The segment ends before a batch whose largest timestamp is more than
`segment.ms` after that. So if records are in the order of their times, each segment spans `segment.ms`, and retention
can delete them piece by piece. If the first batch is not in that order, its time is its largest timestamp, as in
Kafka: later records that are older do not begin another segment.
"""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt

from distlog.core.config import TopicConfig
from distlog.core.times import NO_TIMESTAMP


def time_span(config: TopicConfig) -> int:
    """The time in ms that the records of one segment may span; also at most `max.compaction.lag.ms` if compacted."""
    if "compact" in config.cleanup_policy:
        return min(config.segment_ms, config.max_compaction_lag_ms)
    return config.segment_ms


def jittered(span_ms: int, config: TopicConfig, random: Random) -> int:
    """`span_ms` less a random part of `segment.jitter.ms`, so that not all partitions roll at once; at least 0."""
    jitter = min(config.segment_jitter_ms, span_ms)
    return span_ms - (random.randrange(jitter) if jitter else 0)


def begin_of(first: int, smallest: int, largest: int, span_ms: int) -> int:
    """The time in ms at which a segment's span begins, by its first records' timestamps; -1 if none has any."""
    in_order = 0 <= first == smallest and largest - first <= span_ms
    return first if in_order else largest


class RollTime:
    """Tells which batches come too late for the open segment; times in ms."""

    def __init__(self, span_ms: int) -> None:
        self.span_ms = span_ms
        self._begin = NO_TIMESTAMP
        self._opened_ms = 0

    def open(self, batch: npt.NDArray[Any], smallest: int, now_ms: int) -> None:
        """Begin a segment with `batch`, a BATCH row."""
        self._begin = begin_of(int(batch["base_timestamp"]), smallest, int(batch["max_timestamp"]), self.span_ms)
        self._opened_ms = now_ms

    def room(self, batches: npt.NDArray[Any], now_ms: int) -> int:
        """How many of the next `batches` may join; without record times, none if the clock is past the span."""
        if self._begin < 0:
            return 0 if now_ms - self._opened_ms > self.span_ms else len(batches)
        late = batches["max_timestamp"] - self._begin > self.span_ms
        return int(np.argmax(late)) if late.any() else len(batches)
