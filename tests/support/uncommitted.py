"""Segments that are written first, and committed later, and the storages to write them to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from addresses import Address

from distlog.core.commits.segment_table import SegmentInfo
from distlog.core.storage.storage import Storage
from distlog.core.topic import Topic
from distlog.core.write.append import AppendResult, commit_append


@pytest.fixture
def storage(storage_url: Address) -> Storage:
    """The folder of a topic, on each kind of storage in turn."""
    return Storage(*storage_url)


@pytest.fixture
def local(tmp_path: Path) -> Storage:
    return Storage(str(tmp_path / "topic"))


def written(topic: Topic, *rows: dict[str, Any], partition: int | None = None) -> list[SegmentInfo]:
    appender = topic.appender()
    appender.append(rows, partition)
    return appender.close()


def committed(topic: Topic, segments: list[SegmentInfo], **batch: Any) -> AppendResult:
    """Commit `segments` from the topic's snapshot, however old it is."""
    result, snapshot = commit_append(topic.handle, topic.snapshot, segments, read_version=topic.version, **batch)
    topic.advance(snapshot)
    return result
