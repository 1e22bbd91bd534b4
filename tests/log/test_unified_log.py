"""Kafka's UnifiedLogTest on direct appends: testReadAtLogGap, testRetentionIdempotency, and two others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from partition_logs import Process, append, new_topic
from raw_batches import batch, record
from topics import NOW, Clock

import distlog
from distlog.core.format.record_batch import read_headers
from distlog.core.topic import Topic

HOUR = 3_600_000


class Log(Process):
    def __init__(self, folder: Path, **settings: Any) -> None:
        super().__init__(new_topic(folder / "events", **settings), clock=Clock())

    def fill(self, segments: int, count: int = 5, *, time: int = NOW, active: bool = True) -> None:
        """Append `segments` segments of `count` records; the last one stays active."""
        for number in range(segments):
            for _ in range(count):
                append(self[0], b"value", time=time)
            if number < segments - 1 or not active:
                self[0].roll()

    @property
    def now(self) -> Topic:
        return self.topic().refresh()

    @property
    def bounds(self) -> tuple[int, int]:
        topic = self.now
        return topic.start_offsets()[0], topic.end_offsets()[0]

    @property
    def segments(self) -> int:
        return int(self.now.segments().num_rows)


def offsets(fetched: Any) -> list[int]:
    return read_headers(bytes(fetched))["base_offset"].tolist()  # type: ignore[no-any-return]


def keyed(*keys: bytes | None, time: int = NOW) -> bytes:
    rows = [record(delta, 0, key, b"v") for delta, key in enumerate(keys)]
    return batch(rows, base_timestamp=time, max_timestamp=time)


def test_a_read_in_a_gap_returns_the_next_record(tmp_path: Path) -> None:
    log = Log(tmp_path, cleanup_policy="compact", min_cleanable_dirty_ratio=0.0)
    for key in (b"a", b"b", b"b", b"b"):
        log[0].append_batches(keyed(key))
    log[0].roll()
    log[0].append_batches(keyed(b"b"))
    log[0].roll()
    log[0].append_batches(keyed(b"c"))
    log.topic().compact()
    topic = log.now
    assert [record.offset for record in topic.records(0)] == [0, 4, 5]
    for offset, first in ((0, 0), (1, 4), (2, 4), (3, 4), (4, 4), (5, 5)):
        assert offsets(topic.read(0, offset, 1)) == [first]
        assert [record.offset for record in topic.records(0, offset, 1)] == [first]


def test_retention_is_idempotent(tmp_path: Path) -> None:
    log = Log(tmp_path, retention_ms=HOUR)
    log.fill(1, time=NOW + 24 * HOUR, active=False)
    log.fill(2, time=NOW - 24 * HOUR, active=False)
    log.fill(1)
    # the first one has a future time, and keeps the later ones
    log.now.retention()
    assert (log.bounds, log.segments) == ((0, 20), 4)
    log.now.delete_records({0: 1})
    log.now.retention()
    assert (log.bounds, log.segments) == ((1, 20), 4)
    log.now.delete_records({0: 5})
    log.now.retention()
    assert (log.bounds, log.segments) == ((15, 20), 1)
    version = log.head().version
    log.now.retention()
    assert log.head().version == version


def test_segments_below_the_log_start_are_deleted(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.fill(3)
    for start, count in ((1, 3), (6, 2), (15, 0)):
        log.now.delete_records({0: start})
        log.now.retention()
        assert (log.bounds, log.segments) == ((start, 15), count)
    assert append(log[0], b"next") == (15, 16)


def test_the_largest_time_is_found_with_its_offset(tmp_path: Path) -> None:
    log = Log(tmp_path)
    for time in (NOW, NOW + 1, NOW - 5):
        append(log[0], b"value", time=time)
    assert log.now.offsets_for_times(distlog.MAX_TIMESTAMP) == {0: (1, NOW + 1)}
    log[0].roll()
    append(log[0], b"value", time=NOW + 1)
    assert log.now.offsets_for_times(distlog.MAX_TIMESTAMP) == {0: (1, NOW + 1)}
