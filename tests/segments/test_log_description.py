"""The batches with index entries: Kafka's rule in plain Python against the description of a log."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from golden import DATA
from hypothesis import given
from hypothesis import strategies as st

from distlog.core.format.indexes import OFFSET_ENTRY, TIME_ENTRY
from distlog.core.format.record_batch import BATCH, read_headers
from distlog.core.segments.segment_state import LogDescription

#: index.interval.bytes of the broker of the golden files of message format 2
BROKER_INTERVAL = 512

Rows = list[tuple[int, int, int]]


def model(rows: Rows, interval: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    offset_entries, time_entries = [], []
    position = since = 0
    newest = (-1, 0)
    for size, last_offset, timestamp in rows:
        if timestamp > newest[0]:
            newest = (timestamp, last_offset)
        if since > interval:
            offset_entries.append((last_offset, position))
            time_entries.append(newest)
            since = 0
        since += size
        position += size
    time_entries.append(newest)
    entries = [entry for previous, entry in pairwise([(-1, 0), *time_entries]) if entry[0] > previous[0]]
    return offset_entries, entries


@given(
    st.lists(st.tuples(st.integers(61, 300), st.integers(0, 3), st.integers(-1, 20)), max_size=60),
    st.integers(0, 700),
    st.integers(1, 20),
)
def test_entries_follow_the_rule_for_any_batches(parts: Rows, interval: int, step: int) -> None:
    batches = np.zeros(len(parts), BATCH)
    batches["size"], batches["last_offset_delta"], batches["max_timestamp"] = np.array(parts).reshape(-1, 3).T
    ends = np.cumsum(batches["last_offset_delta"].astype(np.int64) + 1)
    batches["base_offset"] = ends - 1 - batches["last_offset_delta"]
    description = LogDescription(interval_bytes=interval)
    for start in range(0, len(parts), step):
        part = batches[start : start + step].copy()
        part["position"] = np.cumsum(part["size"]) - part["size"]
        description.add(bytes(part["size"].sum()), part)
    files = description.finish()
    rows = list(zip(batches["size"].tolist(), (ends - 1).tolist(), batches["max_timestamp"].tolist(), strict=True))
    offset_entries, time_entries = model(rows, interval)
    assert np.frombuffer(files[".index"], OFFSET_ENTRY).tolist() == offset_entries
    assert np.frombuffer(files[".timeindex"], TIME_ENTRY).tolist() == time_entries


#: Stages with one batch per append; the cleaner and old producers append several batches together.
LOGS = sorted((DATA / "kafka-4.1" / "first").rglob("*.log"))


@pytest.mark.parametrize("log", LOGS, ids=lambda log: f"{log.parent.name}-{log.stem[-4:]}")
def test_the_indexes_equal_the_brokers(log: Path) -> None:
    description = LogDescription(int(log.stem), interval_bytes=BROKER_INTERVAL)
    description.add(log.read_bytes(), read_headers(log.read_bytes()))
    for suffix, data in description.finish().items():
        assert data == log.with_suffix(suffix).read_bytes()
