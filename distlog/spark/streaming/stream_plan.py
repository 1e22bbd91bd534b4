"""Plans the micro-batches of a stream in the driver: where each ends, and what its tasks read."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import Any

from distlog.core.commits.state.snapshot import PartitionState, Snapshot
from distlog.core.errors import InvalidConfigError, TopicNotFoundError
from distlog.core.reading import scan_plan
from distlog.core.reading.slices.slices import SegmentSlice
from distlog.core.reading.stable_offset import last_stable_offset
from distlog.core.transactions.isolation import Isolation
from distlog.spark.source.bounds import Ranges, chosen_partitions, held_offset, start_offset
from distlog.spark.source.splits import Split, SplitSize, split
from distlog.spark.streaming.admission import Admission
from distlog.spark.streaming.data_loss import DataLoss
from distlog.spark.streaming.stream_offsets import StreamOffset
from distlog.spark.streaming.stream_options import StreamOptions
from distlog.spark.streaming.watched_topic import WatchedTopic

Json = Mapping[str, Any]


class StreamSplit(Split):
    """A split that also knows its topic: a stream's tasks learn the topic's name from nobody else."""

    def __init__(self, topic: str, slices: list[SegmentSlice], isolation: Isolation) -> None:
        super().__init__(slices, isolation)
        self.topic = topic


class StreamPlan:
    """The driver's part of one stream: it keeps the topic's snapshot from batch to batch. `clock` gives seconds."""

    def __init__(self, options: StreamOptions, clock: Callable[[], float]) -> None:
        self._options = options.read
        self._topic = WatchedTopic(options.read.storage, clock)
        self._admission = Admission(options.limits, clock)
        self._loss = DataLoss(options.read.fail_on_data_loss)
        self._heads: dict[int, tuple[PartitionState, int]] = {}
        self._first: StreamOffset | None = None
        self._target: StreamOffset | None = None

    def freeze(self) -> None:
        """Let the stream end where the topic ends now."""
        self._target = self._head(self._topic.look())

    def head(self) -> Json:
        """The offsets up to which the stream could read, as of the last look, or where it will end."""
        return (self._target or self._head(self._topic.known)).to_json()

    def next_end(self, start: Json, *, limited: bool) -> Json:
        """Where the batch from `start` on ends; `start` itself if there is nothing to read.

        Raises OffsetOutOfRangeError and TopicNotFoundError for lost records, unless they may be lost.
        """
        snapshot = self._topic.look()
        before = StreamOffset.parse(start)
        position = before or self._start(snapshot)
        if _is_gone(snapshot, position) or self._has_missed_its_end(snapshot):
            self._loss.topic_gone(snapshot.name, dropped=snapshot.dropped)
            if snapshot.dropped or self._has_missed_its_end(snapshot):
                return start
            position = StreamOffset(snapshot.name, snapshot.topic_id, {})
        starts = position.offsets if before is None else self._starts(snapshot, position, before)
        available = self._available(snapshot, {**position.offsets, **starts})
        if limited and self._target is None and self._admission.waits(available) and before:
            return start
        ends = {number: end for number, (_, end) in available.items()}
        if limited:
            ends = self._admission.ends(self._topic.reader, snapshot, available)
        if before and (before.topic_id, before.offsets) == (snapshot.topic_id, ends):
            return start
        return StreamOffset(snapshot.name, snapshot.topic_id, ends, starts).to_json()

    def splits(self, start: Json, end: Json) -> list[StreamSplit]:
        """What the tasks of the batch from `start` (in) to `end` (out) read; the same records each time.

        Raises as `next_end`.
        """
        before, last = StreamOffset.parse(start), StreamOffset.parse(end)
        snapshot = self._topic.known
        if last is None or before == last:
            return []
        if _is_gone(snapshot, last):
            self._loss.topic_gone(snapshot.name, dropped=snapshot.dropped)
            return []
        known = before.offsets if before and before.topic_id == last.topic_id else {}
        bounds = self._bounds(snapshot, {**known, **last.starts}, last)
        slices, isolation = scan_plan.plan(self._topic.reader, snapshot, bounds, self._options.isolation)
        size = SplitSize(os.cpu_count() or 1, self._options.min_partitions, self._options.max_records)
        return [StreamSplit(snapshot.name, group, isolation) for group in split(slices, size)]

    def _start(self, snapshot: Snapshot) -> StreamOffset:
        """Where the options say that the stream starts; found once, since `latest` is another offset later."""
        if snapshot.dropped or self._has_missed_its_end(snapshot):
            raise TopicNotFoundError("the topic was dropped: start the query when it exists", topic=snapshot.name)
        if self._first is None or self._first.topic_id != snapshot.topic_id:
            chosen = chosen_partitions(snapshot, self._options)
            self._options.start.check(snapshot.name, chosen)
            starts = {number: self._start_offset(snapshot.partitions[number], number) for number in chosen}
            self._first = StreamOffset(snapshot.name, snapshot.topic_id, starts)
        return self._first

    def _start_offset(self, state: PartitionState, partition: int) -> int:
        readable = dataclasses.replace(state, log_end_offset=self._readable_end(state, partition))
        offset = start_offset(self._topic.reader, readable, partition, self._options)
        return held_offset(state, partition, offset, self._options)

    def _starts(self, snapshot: Snapshot, position: StreamOffset, before: StreamOffset) -> dict[int, int]:
        """Where the partitions begin that the stream has not read before: at their log start."""
        states = snapshot.partitions
        new = [number for number in chosen_partitions(snapshot, self._options) if number not in position.offsets]
        if position is before:
            return {number: self._loss.check_start(states[number], number, 0) for number in new}
        return {number: states[number].log_start_offset for number in new}

    def _available(self, snapshot: Snapshot, positions: Mapping[int, int]) -> Ranges:
        """By partition the offsets (next, end) that the stream could read now."""
        chosen = set(chosen_partitions(snapshot, self._options))
        found = {}
        for number, position in positions.items():
            if number not in chosen:
                self._loss.partition_gone(snapshot.name, number)
                continue
            state = snapshot.partitions[number]
            low = self._loss.check_start(state, number, position)
            end = self._readable_end(state, number)
            found[number] = low, max(low, self._frozen(number, end))
        return found

    def _has_missed_its_end(self, snapshot: Snapshot) -> bool:
        """Whether the topic at whose end the stream should end is gone."""
        return self._target is not None and _is_gone(snapshot, self._target)

    def _frozen(self, partition: int, end: int) -> int:
        return min(end, self._target.offsets.get(partition, 0)) if self._target else end

    def _bounds(self, snapshot: Snapshot, starts: Mapping[int, int], last: StreamOffset) -> Ranges:
        bounds = {}
        for number, end in last.offsets.items():
            start = starts.get(number, end)
            if start >= end:
                continue
            if number >= len(snapshot.partitions):
                self._loss.partition_gone(snapshot.name, number)
                continue
            state = snapshot.partitions[number]
            low, high = self._loss.check_start(state, number, start), self._loss.check_end(state, number, end)
            if high > self._readable_end(state, number):
                raise InvalidConfigError(
                    "the batch that was begun reaches into an open transaction: finish it with the option "
                    "kafka.isolation.level=read_uncommitted, as it was begun",
                    partition=number,
                    offset=high,
                )
            bounds[number] = low, max(low, high)
        return bounds

    def _head(self, snapshot: Snapshot) -> StreamOffset:
        # a dropped topic has no partitions, so none can be chosen
        chosen = [] if snapshot.dropped else chosen_partitions(snapshot, self._options)
        ends = {number: self._readable_end(snapshot.partitions[number], number) for number in chosen}
        return StreamOffset(snapshot.name, snapshot.topic_id, ends)

    def _readable_end(self, state: PartitionState, partition: int) -> int:
        """The partition's log end offset, or its last stable offset for read_committed."""
        if self._options.isolation == "read_uncommitted":
            return state.log_end_offset
        known = self._heads.get(partition)
        if known is None or known[0] is not state:
            known = self._heads[partition] = state, last_stable_offset(self._topic.reader, state)
        return known[1]


def _is_gone(snapshot: Snapshot, offset: StreamOffset) -> bool:
    return snapshot.dropped or snapshot.topic_id != offset.topic_id
