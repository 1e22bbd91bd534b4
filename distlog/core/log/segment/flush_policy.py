"""When a log must be synced: the rules of `flush.messages` and `flush.ms`, as Kafka's UnifiedLog and LogManager ask.

An append counts messages, and whoever made it waits for the sync. Somebody must look at the time also while nobody
appends: a writer does for what it wrote itself, the LogManager for what any process wrote.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import NamedTuple

from distlog.core.config import MAX_LONG, TopicConfig
from distlog.core.segments.segment_state import Numbers, places

_ends = itemgetter(*places(("next_offset", "position", "flushed_offset", "flushed_position", "flushed_ms")))


class Unflushed(NamedTuple):
    """The end of a log that is not known to be on the device: its offsets and bytes, and when the last sync began.

    The time is in ms since 1970; before the first sync, it is when the segment was created.
    """

    messages: int
    size: int
    flushed_ms: int

    @classmethod
    def of(cls, numbers: Numbers) -> Unflushed:
        """That of the segment with these numbers."""
        end, position, flushed_end, flushed_position, flushed_ms = _ends(numbers.tolist())
        return cls(end - flushed_end, position - flushed_position, flushed_ms)


def is_flush_due(unflushed: Unflushed, config: TopicConfig, clock: Callable[[], int]) -> bool:
    """Whether `flush.messages` wait for a sync, or some wait and the last sync was `flush.ms` ago by the `clock`."""
    if unflushed.messages <= 0 or unflushed.messages >= config.flush_messages:
        return unflushed.messages > 0
    # a clock that was set back counts as a long time, since nobody knows how long it was
    return config.flush_ms < MAX_LONG and abs(clock() - unflushed.flushed_ms) >= config.flush_ms
