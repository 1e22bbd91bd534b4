"""The picture of a topic, from its snapshot."""

from __future__ import annotations

from typing import Any

import numpy as np

from distlog.core.commits.state.snapshot import Snapshot
from distlog.core.display.units import counted, size_text
from distlog.core.plots.facts import SegmentFacts
from distlog.core.plots.figures import Times, topic_figure


def plot(snapshot: Snapshot, now_ms: int, times: Times | None) -> Any:
    """A matplotlib figure of the snapshot; `times` are the batches with the times of all records, if they count."""
    facts = segment_facts(snapshot)
    records = counted(int(facts.records.sum()), "record")
    segments, partitions = counted(len(facts.bytes), "segment"), counted(len(facts.partitions), "partition")
    size = size_text(int(facts.bytes.sum()))
    title = f"{snapshot.name}, version {snapshot.version}: {records}, {size}, {segments}, {partitions}"
    return topic_figure(title, facts, now_ms, snapshot.config.retention_ms, times)


def segment_facts(snapshot: Snapshot) -> SegmentFacts:
    """The facts of all segments; a time that is not known is that of the first record."""
    tables = [state.segments for state in snapshot.partitions]
    names = ("record_count", "log_bytes", "min_timestamp", "first_timestamp", "max_timestamp")
    records, size, oldest, first, last = (np.concatenate([table.array(name) for table in tables]) for name in names)
    numbers = np.arange(len(tables))
    partition = np.repeat(numbers, [len(table) for table in tables])
    return SegmentFacts(numbers, partition, records, size, np.where(oldest >= 0, oldest, first), last)
