"""Segments that are written first, and committed later."""

from __future__ import annotations

from typing import Any

from distlog.core.commits.segment_info import SegmentInfo
from distlog.core.topics.append_commit import AppendResult, commit_append
from distlog.core.topics.topic import Topic


def written(topic: Topic, *rows: dict[str, Any], partition: int | None = None) -> list[SegmentInfo]:
    """The segments of `rows`, written and not committed."""
    appender = topic.appender()
    appender.append(rows, partition)
    return appender.close()


def committed(topic: Topic, segments: list[SegmentInfo], **batch: Any) -> AppendResult:
    """Commit `segments` from the topic's snapshot, however old it is."""
    result, snapshot = commit_append(topic.handle, topic.snapshot, segments, read_version=topic.version, **batch)
    topic.advance(snapshot)
    return result
