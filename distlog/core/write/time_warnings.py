"""Warns of times of another unit, and of records that retention deletes, once for each topic and process."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Sequence

from distlog.core.commits.segment_info import SegmentInfo
from distlog.core.commits.segment_table import SegmentTable
from distlog.core.commits.snapshot import Snapshot
from distlog.core.config import TopicConfig
from distlog.core.display import counted
from distlog.core.errors import RetentionWarning, TimestampWarning
from distlog.core.times import NO_TIMESTAMP, in_ms, iso, wrong_unit

#: 1990: numbers that are taken for milliseconds, and count seconds, are before it.
_USUAL_MS = 631_152_000_000

_warned = set[tuple[str, type[Warning]]]()


def warn_of_times(topic: str, snapshot: Snapshot, segments: Sequence[SegmentInfo], now_ms: int) -> None:
    if (early_ms := _early_of(segments)) is not None:
        warn_of_early(topic, snapshot.topic_id, early_ms)
    if expired := _records_beyond(segments, snapshot.config, now_ms):
        text = (
            f"{counted(expired, 'record')} {'is' if expired == 1 else 'are'} older than "
            f"retention.ms={snapshot.config.retention_ms}, so the next retention deletes them: to keep them, set "
            "retention.ms higher, or to -1"
        )
        _warn(topic, snapshot.topic_id, text, RetentionWarning)


def warn_of_early(topic: str, topic_id: str, early_ms: int) -> None:
    is_second = not is_early(in_ms(early_ms, "s")) and wrong_unit(early_ms, "s") is None
    looks = ", and looks like seconds" if is_second else ""
    text = (
        f"records have times before 1990, as {iso(early_ms)}: {early_ms} was taken for milliseconds{looks}; if "
        "numbers count another unit, convert them, or name it: timestamp_unit is s, ms, us or ns"
    )
    _warn(topic, topic_id, text, TimestampWarning)


def is_early(timestamp: int) -> bool:
    return NO_TIMESTAMP < timestamp < _USUAL_MS


def _warn(topic: str, topic_id: str, text: str, category: type[Warning]) -> None:
    if (topic_id, category) not in _warned:
        warnings.warn(f"{topic}: {text}", category, stacklevel=_caller())
        # not where the warning is an error
        _warned.add((topic_id, category))


def _caller() -> int:
    """The level in the stack, seen from the caller, of the first function that is not distlog's."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("distlog."):
        frame, level = frame.f_back, level + 1
    return level


def _early_of(segments: Iterable[SegmentInfo]) -> int | None:
    if isinstance(segments, SegmentTable):
        # of each column the smallest that is a time
        columns = (array[array >= 0] for array in (segments.min_timestamps, segments.max_timestamps))
        smallest = (int(array.min()) for array in columns if len(array))
        return min(filter(is_early, smallest), default=None)
    times = (time for segment in segments for time in (segment.min_timestamp, segment.max_timestamp))
    return min(filter(is_early, times), default=None)


def _records_beyond(segments: Sequence[SegmentInfo], config: TopicConfig, now_ms: int) -> int:
    """The number of records, in segments with no younger one, that retention is to delete by their time."""
    if "delete" not in config.cleanup_policy or config.retention_ms < 0:
        return 0
    limit = now_ms - config.retention_ms
    if isinstance(segments, SegmentTable):
        newest = segments.max_timestamps
        return int(segments.record_counts[(newest >= 0) & (newest < limit)].sum())
    return sum(segment.record_count for segment in segments if 0 <= segment.max_timestamp < limit)
