"""What Kafka's tests of a whole log hold, of partitions that are appended to in place, by their names there.

- UnifiedLogTest: testReadAtLogGap, testReadWithTooSmallMaxLength, testAppendMessageWithNullPayload,
  testCompactedTopicConstraints, testTimeBasedLogRollJitter, testRetentionIdempotency,
  testThatGarbageCollectingSegmentsDoesntChangeOffset, testLogDeletionAfterDeleteRecords,
  testCannotIncrementLogStartOffsetPastHighWatermark, testFetchOffsetByTimestampWithMaxTimestampIncludesTimestamp,
  testRollSegmentThatAlreadyExists, shouldDeleteSizeBasedSegments,
  shouldNotDeleteSizeBasedSegmentsWhenUnderRetentionSize, shouldDeleteTimeBasedSegmentsReadyToBeDeleted,
  shouldNotDeleteTimeBasedSegmentsWhenNoneReadyToBeDeleted, shouldNotDeleteSegmentsWhenPolicyDoesNotIncludeDelete,
  shouldDeleteStartOffsetBreachedSegmentsWhenPolicyDoesNotIncludeDelete,
  shouldDeleteSegmentsReadyToBeDeletedWhenCleanupPolicyIsCompactAndDelete.
- LocalLogTest: of testTruncateFullyAndStartAt that a log of which all is deleted goes on at its end offset.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from partition_logs import Process, append, new_topic, sealed
from raw_batches import batch, record
from topics import NOW, Clock

import distlog
from distlog.core.errors import OffsetOutOfRangeError, RecordValidationError
from distlog.core.format.record_batch import read_headers
from distlog.core.topic import Topic

HOUR = 3_600_000


class Log(Process):
    """A process that appends to one partition, each batch of one record."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        super().__init__(new_topic(folder / "events", **settings), clock=Clock())

    def fill(self, segments: int, count: int = 5, *, time: int = NOW, active: bool = True) -> None:
        """Append so many segments of so many records; the last one stays active."""
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


def test_a_read_in_a_gap_gives_what_comes_next_also_in_the_next_segment(tmp_path: Path) -> None:
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


def test_a_read_of_a_few_bytes_gives_one_whole_batch(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.fill(1)
    for size in (1, 60):
        assert offsets(log.now.read(0, 2, size)) == [2]
    assert len(log.now.read(0, 2, 0)) == 0
    assert len(log.now.read(0, 5, 1)) == 0


def test_a_record_without_a_value_comes_back_without_one(tmp_path: Path) -> None:
    log = Log(tmp_path)
    for value in (None, b""):
        log[0].append_batches(batch([record(0, 0, b"k", value)], base_timestamp=NOW, max_timestamp=NOW))
    for seal in (False, True):
        if seal:
            log[0].roll()
        assert [(record.key, record.value) for record in log.now.records(0)] == [(b"k", None), (b"k", b"")]


@pytest.mark.parametrize(
    ("keys", "wrong"), [((None,), [0]), ((None, b"k"), [0]), ((b"k", None), [1]), ((b"k", b"l"), [])]
)
def test_a_compacted_topic_tells_which_record_has_no_key(
    keys: tuple[bytes | None, ...], wrong: list[int], tmp_path: Path
) -> None:
    log = Log(tmp_path, cleanup_policy="compact")
    if wrong:
        with pytest.raises(RecordValidationError) as refused:
            log[0].append_batches(keyed(*keys))
        assert [number for number, _ in refused.value.record_errors] == wrong
        assert log.bounds == (0, 0)
    else:
        assert log[0].append_batches(keyed(*keys)).appended[:2] == (0, 2)


def test_a_segment_rolls_by_the_time_of_records_less_a_jitter(tmp_path: Path) -> None:
    log = Log(tmp_path, segment_ms=HOUR, segment_jitter_ms=HOUR // 6)
    append(log[0], b"first", time=NOW)
    append(log[0], b"before any jitter", time=NOW + HOUR - HOUR // 6)
    assert sealed(log.head()) == []
    append(log[0], b"behind every jitter", time=NOW + HOUR + 1)
    assert sealed(log.head()) == [(0, 2)]


def test_retention_that_has_done_its_work_does_nothing_more(tmp_path: Path) -> None:
    log = Log(tmp_path, retention_ms=HOUR)
    log.fill(1, time=NOW + 24 * HOUR, active=False)
    log.fill(2, time=NOW - 24 * HOUR, active=False)
    log.fill(1)
    # the first one is of a time to come, and keeps those behind it
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


@pytest.mark.parametrize("count", [0, 1, 25])
def test_deleting_all_segments_leaves_the_end_offset(count: int, tmp_path: Path) -> None:
    log = Log(tmp_path, retention_ms=0, internal_segment_bytes=600)
    for _ in range(count):
        append(log[0], b"value", time=NOW - HOUR)
    log.now.retention()
    assert (log.bounds, log.segments) == ((count, count), 0)
    assert append(log[0], b"next") == (count, count + 1)
    assert log.now.offsets_for_times({0: distlog.EARLIEST}) == {0: (count, -1)}


def test_segments_below_the_log_start_go(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.fill(3)
    for start, left in ((1, 3), (6, 2), (15, 0)):
        log.now.delete_records({0: start})
        log.now.retention()
        assert (log.bounds, log.segments) == ((start, 15), left)
    assert append(log[0], b"next") == (15, 16)


def test_no_log_starts_behind_its_end(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.fill(1)
    with pytest.raises(OffsetOutOfRangeError):
        log.now.delete_records({0: 6})
    assert log.bounds == (0, 5)


def test_the_largest_time_is_found_with_its_offset(tmp_path: Path) -> None:
    log = Log(tmp_path)
    for time in (NOW, NOW + 1, NOW - 5):
        append(log[0], b"value", time=time)
    assert log.now.offsets_for_times(distlog.MAX_TIMESTAMP) == {0: (1, NOW + 1)}
    log[0].roll()
    append(log[0], b"value", time=NOW + 1)
    assert log.now.offsets_for_times(distlog.MAX_TIMESTAMP) == {0: (1, NOW + 1)}


def test_an_empty_segment_does_not_roll(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log[0].roll()
    assert log.head().version == 0
    log.fill(1)
    log[0].roll()
    version = log.head().version
    log[0].roll()
    assert log.head().version == version
    assert append(log[0], b"next") == (5, 6)


RECORD = 72


@pytest.mark.parametrize(
    ("settings", "time", "start"),
    [
        ({"retention_bytes": 10 * RECORD}, NOW, 5),
        ({"retention_bytes": 15 * RECORD}, NOW, 0),
        ({"retention_ms": HOUR}, NOW - 2 * HOUR, 15),
        ({"retention_ms": HOUR}, NOW - HOUR, 0),
        ({"retention_ms": HOUR, "cleanup_policy": "compact"}, NOW - 2 * HOUR, 0),
        ({"retention_ms": HOUR, "cleanup_policy": "compact,delete"}, NOW - 2 * HOUR, 15),
    ],
    ids=["too large", "not too large", "too old", "not too old", "only compacted", "compacted, too old"],
)
def test_segments_that_are_too_large_or_too_old_go(
    settings: dict[str, Any], time: int, start: int, tmp_path: Path
) -> None:
    log = Log(tmp_path, **settings)
    for _ in range(3):
        for _ in range(5):
            log[0].append_batches(keyed(b"key", time=time))
        log[0].roll()
    assert log.now.segments()["log_bytes"].to_pylist() == [5 * RECORD] * 3
    log.now.retention()
    assert log.bounds == (start, 15)


def test_a_compacted_log_that_starts_later_loses_what_is_below(tmp_path: Path) -> None:
    log = Log(tmp_path, cleanup_policy="compact,delete", retention_ms=HOUR)
    log.fill(3)
    log.now.delete_records({0: 5})
    log.now.alter_config({"cleanup.policy": "compact"})
    log.now.retention()
    assert (log.bounds, log.segments) == ((5, 15), 2)
