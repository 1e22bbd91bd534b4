"""Topics of small segments, and their merges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import distlog
from distlog.core.maintain.group_rewrite import SegmentGroup
from distlog.core.maintain.merge import merge
from distlog.core.topic import Topic

NOW = 1_700_000_000_000


def topic_of(folder: Path | str, appends: int, **config: Any) -> Topic:
    """A topic of two partitions and `appends` commits of ten records each."""
    settings = {name.replace("_", "."): value for name, value in {"retention_ms": -1, **config}.items()}
    topic = distlog.create(f"{folder}/log", partitions=2, config=settings)
    for number in range(appends):
        rows = [
            {"value": f"{number}.{row}", "key": f"{row}", "timestamp": NOW + 10 * number - row} for row in range(10)
        ]
        topic.append(rows)
    return topic


def merged(topic: Topic, **options: Any) -> list[SegmentGroup]:
    """Merge without an error, and have the topic see it; the groups that were merged."""
    report, snapshot = merge(topic.handle, topic.snapshot, **options)
    topic.advance(snapshot)
    assert report.ok
    return list(report.groups)
