"""Merging after each append of a stream: few live segments, few copies of each record, bounded work."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable
from dataclasses import replace

import histories
import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_files import after_write
from searches import examples
from topics import TINY, contents, topic_on, values

import distlog
from distlog.core.commits.deduplication import NO_TRANSACTIONS
from distlog.core.commits.partition_table import PartitionTable
from distlog.core.commits.segment_table import NO_SEGMENTS, SegmentInfo
from distlog.core.commits.snapshot import PartitionState, Snapshot
from distlog.core.config import TopicConfig
from distlog.core.errors import CommitConflictError
from distlog.core.maintain import merge
from distlog.core.maintain.group_rewrite import SegmentGroup
from distlog.core.maintain.merge import (
    LARGE_GROWTH,
    MAX_TAIL_SEGMENT_BYTES,
    TAIL_SEGMENTS,
    merge_tails,
    plan_tail_merge,
)
from distlog.core.storage.storage import Storage
from distlog.core.topic import Topic
from distlog.core.write.append import commit_append

KB, MB = 1000, 1_000_000


class Stream:
    """A partition that gets one segment per micro-batch, without files; `copies` counts the copies of each."""

    def __init__(self, config: TopicConfig | None = None) -> None:
        self.config = config or TopicConfig()
        self.table = NO_SEGMENTS
        self.end = self.appended = self.copied = 0
        self.most_segments = self.most_at_once = 0
        self._copies: dict[str, int] = {}
        self._smallest: dict[str, int] = {}

    def run(self, sizes: Iterable[int]) -> Stream:
        """Append a micro-batch of each of `sizes` bytes of log."""
        for size in sizes:
            self._append(size)
            groups = self.plan()
            self.most_at_once = max(self.most_at_once, sum(group.log_bytes for group in groups))
            for group in groups:
                self._merge(group)
            self.most_segments = max(self.most_segments, len(self.table))
        return self

    def plan(self) -> list[SegmentGroup]:
        state = PartitionState(log_end_offset=self.end, segments=self.table)
        return plan_tail_merge(
            snapshot_of(self.config, state), {0: 1}, max_bytes=MAX_TAIL_SEGMENT_BYTES, max_segments=512
        )

    def _append(self, size: int) -> None:
        segment = histories.segment(0, self.end, 10, log_bytes=size)
        self._copies[segment.stem], self._smallest[segment.stem] = 0, size
        self.table, self.end, self.appended = self.table.appended([segment]), self.end + 10, self.appended + size

    def _merge(self, group: SegmentGroup) -> None:
        first, last = group.segments[0], group.segments[-1]
        segment = histories.segment(
            0, first.base_offset, last.next_offset - first.base_offset, log_bytes=group.log_bytes
        )
        copies = 1 + max(self._copies.pop(stem) for stem in group.stems)
        smallest = min(self._smallest.pop(stem) for stem in group.stems)
        assert (
            2 * max(group.segments.log_bytes)
            <= group.log_bytes
            <= min(self.config.segment_size, MAX_TAIL_SEGMENT_BYTES)
        )
        assert copies <= math.log2(group.log_bytes / smallest) + 1
        self._copies[segment.stem], self._smallest[segment.stem] = copies, smallest
        self.table = self.table.replaced(group.stems, [segment])
        self.copied += group.log_bytes

    @property
    def most_copies(self) -> int:
        return max(self._copies.values())


def snapshot_of(config: TopicConfig, *states: PartitionState) -> Snapshot:
    return Snapshot(
        version=1,
        commit_id="",
        topic_id="",
        name="clicks",
        timestamp_ms=0,
        config=config,
        partitions=PartitionTable.of(states),
        transactions=NO_TRANSACTIONS,
    )


@pytest.mark.long
def test_thousands_of_micro_batches_leave_few_segments_and_copy_each_byte_few_times() -> None:
    stream = Stream().run([10 * KB] * 2_500)
    levels = math.ceil(math.log(2_500, LARGE_GROWTH))
    assert stream.most_segments <= (LARGE_GROWTH - 1) * levels + 1
    assert stream.copied <= levels * stream.appended
    assert stream.most_copies <= levels
    assert stream.most_at_once <= MAX_TAIL_SEGMENT_BYTES


@pytest.mark.long
def test_micro_batches_of_any_sizes_leave_few_small_segments() -> None:
    sizes = [int(10 ** (2 + 5 * ((number * 7919) % 1000) / 1000)) for number in range(3000)]
    stream = Stream().run(sizes)
    assert stream.most_segments <= 4 * stream.appended / MAX_TAIL_SEGMENT_BYTES + 60
    assert stream.copied <= 4 * stream.appended


def test_large_segments_are_left_alone_and_the_merged_ones_do_not_grow_beyond_their_limit() -> None:
    large = Stream().run([100 * MB] * 50)
    assert (large.copied, len(large.table)) == (0, 50)
    medium = Stream().run([3 * MB] * 400)
    assert max(medium.table.log_bytes) <= MAX_TAIL_SEGMENT_BYTES
    assert len(medium.table) < 2.5 * medium.appended / MAX_TAIL_SEGMENT_BYTES + LARGE_GROWTH
    small = TopicConfig.parse({"internal.segment.bytes": MB})
    limited = Stream(small).run([50 * KB] * 400)
    assert max(limited.table.log_bytes) <= MB


@examples(15)
@given(st.lists(st.integers(60, 100_000), min_size=30, max_size=120), st.integers(100, 300_000))
def test_the_merged_segments_always_fit_and_double(sizes: list[int], segment_bytes: int) -> None:
    Stream(TopicConfig.parse({"internal.segment.bytes": segment_bytes})).run(sizes)


def test_the_work_after_one_append_is_bounded_and_the_smallest_groups_come_first() -> None:
    def partition(number: int, size: int) -> PartitionState:
        segments = [histories.segment(number, 10 * index, 10, log_bytes=size) for index in range(8)]
        return PartitionState(log_end_offset=80, segments=NO_SEGMENTS.appended(segments))

    snapshot = snapshot_of(TopicConfig(), *(partition(number, (15 - number) * MB) for number in range(15)))

    def selected(max_bytes: int, max_segments: int) -> list[int]:
        groups = plan_tail_merge(
            snapshot, dict.fromkeys(range(15), 1), max_bytes=max_bytes, max_segments=max_segments
        )
        return [group.partition for group in groups]

    assert selected(8 * MB, 512) == [14]
    assert selected(8 * MB + 1, 512) == [14, 13]
    assert selected(MAX_TAIL_SEGMENT_BYTES, 17) == [14, 13, 12]
    assert selected(1 << 40, 512) == list(range(14, -1, -1))
    only = plan_tail_merge(snapshot, {7: 1}, max_bytes=MAX_TAIL_SEGMENT_BYTES, max_segments=512)
    assert [group.partition for group in only] == [7]


def test_old_small_segments_are_left_to_a_merge_of_all() -> None:
    segments = [histories.segment(0, 10 * number, 10, log_bytes=100) for number in range(1000)]
    state = PartitionState(log_end_offset=10_000, segments=NO_SEGMENTS.appended(segments))
    for appended in (1, 500):
        (group,) = plan_tail_merge(snapshot_of(TopicConfig(), state), {0: appended}, max_bytes=1, max_segments=1)
        assert len(group.segments) == TAIL_SEGMENTS + appended
    assert group.segments[-1].next_offset == 10_000
    started = replace(state, log_start_offset=9_955)
    (group,) = plan_tail_merge(snapshot_of(TopicConfig(), started), {0: 1}, max_bytes=1, max_segments=1) or [None]
    assert group is None or group.segments[0].base_offset >= 9_950


def test_a_compacted_topic_is_left_to_compaction() -> None:
    stream = Stream(TopicConfig.parse({"cleanup.policy": "compact"})).run([100] * 20)
    assert len(stream.table) == 20


def append(topic: Topic, *numbers: int) -> list[SegmentInfo]:
    appender = topic.appender()
    appender.append(values(numbers))
    segments = appender.close()
    _, after = commit_append(topic.handle, topic.snapshot, segments, read_version=topic.version)
    topic.advance(after)
    return segments


def test_a_stream_of_real_segments_reads_the_same_and_is_sound(storage: Storage) -> None:
    topic = topic_on(storage, 1, {"index.interval.bytes": 50})
    for number in range(100):
        appended = append(topic, 2 * number, 2 * number + 1)
        _, snapshot = merge_tails(topic.handle, topic.snapshot, appended)
        topic.advance(snapshot)
    assert contents(topic) == {0: [b"v%d" % number for number in range(200)]}
    assert topic.segments().num_rows <= 3 * (LARGE_GROWTH - 1)
    assert topic.verify().ok
    assert topic.compact().ok
    assert topic.segments().num_rows <= 2


def test_only_partitions_with_new_rows_are_checked(storage: Storage) -> None:
    topic = topic_on(storage, 2)
    for _ in range(10):
        topic.append(values([1]), 0)
    topic.append(values([1]), 1)
    (last,) = topic.snapshot.partitions[1].segments
    assert merge_tails(topic.handle, topic.snapshot, [last]) == (None, topic.snapshot)
    report, after = merge_tails(topic.handle, topic.snapshot, topic.snapshot.partitions[0].segments[-1:])
    assert report
    assert [len(group.segments) for group in report.groups] == [10]
    assert after.version == topic.version + 1


def test_a_merge_that_loses_every_race_is_given_up_soon(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    now = itertools.count(0, merge.COMMIT_TIMEOUT_S)
    topic = topic_on(storage, 1, TINY, monotonic=lambda: float(next(now)), sleep=lambda _: None)
    for _ in range(8):
        appended = append(topic, 1)
    other = distlog.open(storage.url)
    after_write(monkeypatch, lambda path: "/_commits/" not in path, lambda: other.append([{"value": b"x"}]))
    with pytest.raises(CommitConflictError, match="other commits came first"):
        merge_tails(topic.handle, topic.snapshot, appended)
    assert other.refresh().scan().count() == 9


def test_work_grows_with_what_was_appended(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[dict[str, int]] = []
    monkeypatch.setattr(merge, "plan_tail_merge", lambda *_, **most: reads.append(most) or [])
    snapshot = snapshot_of(TopicConfig(), PartitionState())
    small = histories.segment(log_bytes=100)
    merge_tails(None, snapshot, [small])  # type: ignore[arg-type]
    merge_tails(None, snapshot, [dataclasses.replace(small, log_bytes=MB)] * 1000)  # type: ignore[arg-type]
    assert reads == [
        {"max_bytes": MAX_TAIL_SEGMENT_BYTES, "max_segments": 512},
        {"max_bytes": 4000 * MB, "max_segments": 2000},
    ]
