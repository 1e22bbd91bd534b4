"""The streaming source: the driver plans where each micro-batch ends, and tasks read its splits."""

from __future__ import annotations

import dataclasses
import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from distlog.core.commits.commit_log import CurrentSnapshot
from distlog.core.commits.segment_table import SegmentInfo, SegmentTable
from distlog.core.commits.snapshot import PartitionState, Snapshot
from distlog.core.commits.snapshot_loader import CommitFiles
from distlog.core.errors import (
    CorruptIndexError,
    CorruptMetadataError,
    DistlogError,
    InvalidConfigError,
    OffsetOutOfRangeError,
    SnapshotTooOldError,
    TopicNotFoundError,
    UnsupportedVersionError,
)
from distlog.core.log.live_snapshot import LiveSnapshot
from distlog.core.read.conditions import Ranges
from distlog.core.read.lookup import LATEST, OffsetAndTime
from distlog.core.read.scan import plan_slices
from distlog.core.segments.chunks import Isolation, SegmentSlice
from distlog.core.segments.producer_states import last_stable_offset
from distlog.core.segments.segment_reader import SegmentReader, TopicHandle, topic_log
from distlog.core.storage.storage import Storage
from distlog.spark.batch_source import Split, SplitReader, SplitSize, split
from distlog.spark.options import (
    READ_NAMES,
    STREAM_NAMES,
    Options,
    ReadOptions,
    chosen_partitions,
    first_of_times,
    held_offset,
    is_entry,
    offsets_json,
    out_of_range,
    start_offset,
)
from distlog.spark.versions import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)


class DistlogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One stream: Spark keeps one object in the driver, which plans, and sends another to the tasks, which read."""

    def __init__(
        self, options: StreamOptions, schema: StructType, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._storage, self._schema = options.read.storage, schema
        self._limits = options.limits
        self._plan: StreamPlan | None = StreamPlan(options, clock)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_plan": None}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        # a constant: `latestOffset` resolves the options, and stores the start in its result
        return dict(INITIAL)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return one of the limits, which Spark passes to `latestOffset`; there all limits apply."""
        limits = self._limits
        if limits.max_offsets is not None:
            return ReadMaxRows(limits.max_offsets)
        if limits.max_bytes is not None:
            return ReadMaxBytes(limits.max_bytes)
        return ReadAllAvailable() if limits.min_offsets is None else ReadMinRows(limits.min_offsets)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self._planner.freeze()

    def latestOffset(self, start: Mapping[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the end of the batch from `start` on; `start` without new records."""
        return dict(self._planner.next_end(start, limited=not isinstance(limit, ReadAllAvailable)))

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the newest offsets, for the lag in Spark's progress; sends no request."""
        return dict(self._planner.head())

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[InputPartition]:
        return list(self._planner.splits(start, end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Spark makes a partition for an empty batch
        if not isinstance(partition, StreamSplit):
            return iter(())
        return SplitReader(self._storage, partition.prefix, self._schema).read(partition)

    @property
    def _planner(self) -> StreamPlan:
        if self._plan is None:
            raise RuntimeError("a stream is planned in the driver only")
        return self._plan


class RefusedStreamReader(DistlogStreamReader):
    """A stream with wrong options: raises `error` when Spark plans the stream."""

    def __init__(self, error: InvalidConfigError) -> None:
        self._error = error

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        raise self._error

    @property
    def _planner(self) -> StreamPlan:
        raise self._error


class WholeStreamReader(DistlogStreamReader):
    """A stream for a Spark before 4.2, which requests the topic's end and does not pass the start of a batch."""

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Report an impossible start here, since `latestOffset` gets no start."""
        self._planner.check_start()
        return super().initialOffset()

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # noqa: N802 - Spark's name
        """Return the end of the log, where the next batch ends."""
        return dict(self._planner.whole_end())

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[InputPartition]:
        self._planner.check_same_topic(start, end)
        return super().partitions(start, end)


class StreamPlan:
    """The driver's part of one stream: it keeps the topic's snapshot from batch to batch. `clock` gives seconds."""

    def __init__(self, options: StreamOptions, clock: Callable[[], float]) -> None:
        self._options, self._name = options.read, options.read.storage.name
        self._topic = WatchedTopic(options.read.storage, clock)
        self._admission = Admission(options.limits, clock)
        self._loss = DataLoss(options.read.fail_on_data_loss)
        self._heads: dict[int, tuple[PartitionState, int]] = {}
        self._first: StreamOffset | None = None
        self._target: StreamOffset | None = None
        self._last_end: Json = INITIAL

    def freeze(self) -> None:
        self._target = self._head(self._topic.refreshed())

    def head(self) -> Json:
        """Return the end of the log as of the last refresh, or the stream's end, and the unread offsets and bytes."""
        snapshot = self._topic.latest
        head, planned = self._target or self._head(snapshot), StreamOffset.parse(self._last_end)
        value = head.to_json()
        if planned is None or not head.topic_id == planned.topic_id == snapshot.topic_id:
            return value
        unread = {}
        for number, end in head.offsets.items():
            first = snapshot.partitions[number].log_start_offset
            if (position := max(planned.offsets.get(number, first), first)) < end:
                unread[number] = position, end
        records = {number: end - start for number, (start, end) in unread.items()}
        sizes = {number: log_bytes(snapshot.partitions[number].segments, *span) for number, span in unread.items()}
        backlogs = {OFFSETS_BEHIND: records, BYTES_BEHIND: sizes}
        return {**value, **{name: offsets_json(head.topic, ends) for name, ends in backlogs.items()}}

    def next_end(self, start: Json, *, limited: bool) -> Json:
        """Return the end of the batch from `start` on; `start` if there is nothing to read."""
        self._last_end = end = self._next_end(start, limited=limited)
        return end

    def _next_end(self, start: Json, *, limited: bool) -> Json:
        snapshot = self._topic.refreshed()
        previous = offset_in(start, self._name, snapshot)
        if previous and "version" not in start:
            # the checkpoint of Spark's Kafka source becomes one of this source, even without new records
            start = previous.to_json()
        position = previous or self._start(snapshot)
        if _was_deleted(snapshot, position) or self._has_missed_its_end(snapshot):
            self._loss.report_other_topic(self._name, snapshot, position.topic)
            if snapshot.dropped or self._has_missed_its_end(snapshot):
                return start
            position = StreamOffset(self._name, snapshot.topic_id, {})
        starts = position.offsets if previous is None else self._starts(snapshot, position, previous)
        available = self._available(snapshot, {**position.offsets, **starts})
        if limited and self._target is None and self._admission.waits(available) and previous:
            return start
        ends = {number: end for number, (_, end) in available.items()}
        if limited:
            ends = self._admission.ends(self._topic.reader, snapshot, available)
        if previous and (previous.topic_id, previous.offsets) == (snapshot.topic_id, ends):
            return start
        return StreamOffset(self._name, snapshot.topic_id, ends, starts).to_json()

    def whole_end(self) -> Json:
        """Return the end of a batch up to the log's end, for a Spark that does not pass the batch's start."""
        snapshot = self._topic.refreshed()
        if snapshot.dropped:
            raise TopicNotFoundError(f"the stream's topic was dropped: {_ADVICE}", topic=self._name)
        if self._first is None:
            # the stream may continue from its checkpoint, and then needs no start
            with suppress(InvalidConfigError, OffsetOutOfRangeError):
                self._start(snapshot)
        first = self._first.offsets if self._first and self._first.topic_id == snapshot.topic_id else {}
        return dataclasses.replace(self._head(snapshot), first=first).to_json()

    def check_same_topic(self, start: Json, end: Json) -> None:
        """Report a topic that was created again between the two offsets; raises as `next_end`."""
        snapshot = self._topic.latest
        previous, last = (offset_in(offset, self._name, snapshot) for offset in (start, end))
        if previous and last and previous.topic_id != last.topic_id:
            self._loss.report_other_topic(self._name, snapshot, previous.topic)

    def check_start(self) -> None:
        """Raise InvalidConfigError or OffsetOutOfRangeError if the stream cannot begin at its start."""
        self._start(self._topic.refreshed())

    def splits(self, start: Json, end: Json) -> list[StreamSplit]:
        """Return the splits of the batch from `start` (in) to `end` (out); the same records each time."""
        snapshot = self._topic.latest
        previous, last = (offset_in(offset, self._name, snapshot) for offset in (start, end))
        if last is None or previous == last:
            return []
        if _was_deleted(snapshot, last):
            self._loss.report_other_topic(self._name, snapshot, last.topic)
            return []
        previous_offsets = previous.offsets if previous and previous.topic_id == last.topic_id else {}
        if previous is None and "version" not in end:
            # Spark's Kafka source stores the start of its first batch in another file
            raise InvalidConfigError(
                "the first batch of this checkpoint was started by Spark's Kafka source and is not done: finish it "
                "there, or choose another checkpointLocation",
                topic=last.topic,
            )
        # a new partition of the batch begins at its first record, as in Spark's Kafka source
        first_offsets = {} if previous else last.first
        starts = {**dict.fromkeys(last.offsets, 0), **first_offsets, **previous_offsets, **last.starts}
        bounds = self._bounds(snapshot, starts, last)
        slices, isolation = plan_slices(self._topic.reader, snapshot, bounds, self._options.isolation)
        size = SplitSize(os.cpu_count() or 1, self._options.min_partitions, self._options.max_records)
        return [StreamSplit(snapshot.name, group, isolation) for group in split(slices, size)]

    def _start(self, snapshot: Snapshot) -> StreamOffset:
        """Return the start of the stream by the options, resolved once, since the latest offset changes."""
        if snapshot.dropped or self._has_missed_its_end(snapshot):
            raise TopicNotFoundError("the topic was dropped: start the query when it exists", topic=self._name)
        if self._first is None or self._first.topic_id != snapshot.topic_id:
            partitions = chosen_partitions(snapshot, self._options)
            self._options.start.check(self._name, partitions)
            records = first_of_times(self._topic.reader, snapshot, partitions, self._options.start)
            states = snapshot.partitions
            starts = {
                number: self._start_offset(states[number], number, records.get(number)) for number in partitions
            }
            self._first = StreamOffset(self._name, snapshot.topic_id, starts)
        return self._first

    def _start_offset(self, state: PartitionState, partition: int, first_record: OffsetAndTime | None) -> int:
        readable = dataclasses.replace(state, log_end_offset=self._readable_end(state, partition))
        offset = start_offset(readable, partition, self._options, first_record)
        return held_offset(state, partition, offset, self._options)

    def _starts(self, snapshot: Snapshot, position: StreamOffset, previous: StreamOffset) -> dict[int, int]:
        """Return the log starts of the partitions that are new to the stream."""
        states = snapshot.partitions
        new = [number for number in chosen_partitions(snapshot, self._options) if number not in position.offsets]
        if position is previous:
            return {number: self._loss.check_start(states[number], number, 0) for number in new}
        return {number: states[number].log_start_offset for number in new}

    def _available(self, snapshot: Snapshot, positions: Mapping[int, int]) -> Ranges:
        partitions = set(chosen_partitions(snapshot, self._options))
        ranges = {}
        for number, position in positions.items():
            if number not in partitions:
                self._loss.report_missing_partition(self._name, number)
                continue
            state = snapshot.partitions[number]
            low = self._loss.check_start(state, number, position)
            end = self._readable_end(state, number)
            if self._target:
                end = min(end, self._target.offsets.get(number, 0))
            ranges[number] = low, max(low, end)
        return ranges

    def _has_missed_its_end(self, snapshot: Snapshot) -> bool:
        return self._target is not None and _was_deleted(snapshot, self._target)

    def _bounds(self, snapshot: Snapshot, starts: Mapping[int, int], last: StreamOffset) -> Ranges:
        bounds = {}
        for number, end in last.offsets.items():
            start = starts.get(number, end)
            if start >= end:
                continue
            if number >= len(snapshot.partitions):
                self._loss.report_missing_partition(self._name, number)
                continue
            state = snapshot.partitions[number]
            low, high = self._loss.check_start(state, number, start), self._loss.check_end(state, number, end)
            if high > self._readable_end(state, number):
                text = (
                    "the unfinished batch reaches into an open transaction: finish it with the option that it "
                    "started with, kafka.isolation.level=read_uncommitted"
                )
                raise InvalidConfigError(text, partition=number, offset=high)
            bounds[number] = low, max(low, high)
        return bounds

    def _head(self, snapshot: Snapshot) -> StreamOffset:
        # a dropped topic has no partitions to choose
        partitions = [] if snapshot.dropped else chosen_partitions(snapshot, self._options)
        ends = {number: self._readable_end(snapshot.partitions[number], number) for number in partitions}
        return StreamOffset(self._name, snapshot.topic_id, ends)

    def _readable_end(self, state: PartitionState, partition: int) -> int:
        if self._options.isolation == "read_uncommitted":
            return state.log_end_offset
        head = self._heads.get(partition)
        if head is None or head[0] is not state:
            head = self._heads[partition] = state, last_stable_offset(self._topic.reader, state)
        return head[1]


#: The version of an offset's JSON, which Spark keeps in the checkpoint and compares as text.
FORMAT = 1
#: The start of a stream. A constant, since Spark requests the start several times, also after a restart.
INITIAL: Mapping[str, Any] = {"version": FORMAT, "initial": True}
#: Spark's progress shows these numbers by partition; named as the metrics of Spark's Kafka source.
OFFSETS_BEHIND, BYTES_BEHIND = "offsetsBehindLatest", "bytesBehindLatest"


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """The position of a stream: by partition, the next offset, as in offsets of Spark's Kafka source.

        {"version": 1, "topicId": "...", "offsets": {"clicks": {"0": 23, "1": 7}}, "starts": {"clicks": {"1": 0}}}

    `starts` has the starts of partitions that the previous offset lacks: a replayed batch reads the same records,
    even if its options now mean other offsets. A Spark before 4.2 does not pass the previous offset: there `first`
    has the starts of a stream that began here instead. A checkpoint of Spark's Kafka source has `offsets` alone, as
    {"clicks": {"0": 23}}: its topic_id is "", and it is taken to be of the current topic.
    """

    topic: str
    topic_id: str
    offsets: Mapping[int, int]
    starts: Mapping[int, int] = field(default_factory=dict)
    first: Mapping[int, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object; equal offsets give equal texts."""
        value = {"version": FORMAT, "topicId": self.topic_id, "offsets": offsets_json(self.topic, self.offsets)}
        more = {"starts": self.starts, "first": self.first}
        return value | {
            name: offsets_json(self.topic, offsets_by_partition)
            for name, offsets_by_partition in more.items()
            if offsets_by_partition
        }

    @classmethod
    def parse(cls, value: Mapping[str, Any]) -> StreamOffset | None:
        """Return the offset in a JSON object; None for INITIAL."""
        if value == INITIAL:
            return None
        version = value.get("version")
        if type(version) is int and version > FORMAT:
            raise UnsupportedVersionError("a newer distlog wrote this checkpoint: upgrade", version=version)
        if "version" not in value:
            return cls(_topic_of_kafka(value), "", _parsed(value, value)[1])
        topic_id = value.get("topicId")
        if version != FORMAT or not isinstance(topic_id, str) or not topic_id:
            raise _foreign(value)
        topic, offsets = _parsed(value.get("offsets"), value)
        more = {name: _parsed(value[name], value)[1] for name in ("starts", "first") if name in value}
        return cls(topic, topic_id, offsets, **more)


def offset_in(value: Mapping[str, Any], name: str, snapshot: Snapshot) -> StreamOffset | None:
    """Return the offset in a JSON object; an offset of Spark's Kafka source becomes one of the current topic."""
    offset = StreamOffset.parse(value)
    if offset is None or offset.topic_id:
        return offset
    if offset.topic != name:
        text = "the checkpoint is of Spark's Kafka source, and about another topic: choose another checkpointLocation"
        raise InvalidConfigError(text, topic=offset.topic, expected=name)
    return dataclasses.replace(offset, topic_id=snapshot.topic_id)


def _topic_of_kafka(value: Mapping[str, Any]) -> str:
    """Return the topic of an offset of Spark's Kafka source. Raises InvalidConfigError for several topics."""
    if len(value) > 1 and all(isinstance(offsets, dict) for offsets in value.values()):
        raise InvalidConfigError(
            "the checkpoint is of Spark's Kafka source, and about several topics: a stream reads one, so begin a "
            "query for each, with startingOffsets from this",
            offset=str(value)[:200],
        )
    return next(iter(value), "")


def _parsed(stored: Any, value: Mapping[str, Any]) -> tuple[str, dict[int, int]]:
    if not isinstance(stored, dict) or len(stored) != 1:
        raise _foreign(value)
    ((topic, offsets),) = stored.items()
    if not isinstance(offsets, dict) or not all(is_entry(*entry) and entry[1] >= 0 for entry in offsets.items()):
        raise _foreign(value)
    return topic, {int(number): offset for number, offset in offsets.items()}


def _foreign(value: Mapping[str, Any]) -> InvalidConfigError:
    return InvalidConfigError(
        "the checkpoint holds no offset of a distlog stream: choose another checkpointLocation",
        offset=str(value)[:200],
    )


#: Options of batch reads that a stream refuses, and advice: a stream has no end, and reads the newest version.
BATCH_ONLY = {
    "endingOffsets": "a stream has no end: leave it out, or stop at the end of the log with Trigger.AvailableNow",
    "endingOffsetsByTimestamp": "a stream has no end: leave it out",
    "endingTimestamp": "a stream has no end: leave it out",
    "endTime": "a stream has no end: leave it out, or filter by the column timestamp",
    "keys": "a stream reads all keys: leave it out, or filter by the column key",
    "pushFilters": "filters of a stream cannot be pushed down: leave it out",
    "startTime": "a stream starts at an offset: use startingTimestamp, or filter by the column timestamp",
    "tiered": "a bucket of Kafka's tiered storage cannot be a stream: leave it out",
    "tieredTopicId": "a bucket of Kafka's tiered storage cannot be a stream: leave it out",
    "timestampAsOf": "a stream follows the newest version: leave it out",
    "versionAsOf": "a stream follows the newest version: leave it out",
}

DEFAULT_DELAY = "15m"
_UNITS_MS = {"us": 0.001, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one micro-batch; None sets no limit. It waits for `min_offsets` at most `max_delay_s`."""

    max_offsets: int | None = None
    max_bytes: int | None = None
    min_offsets: int | None = None
    max_delay_s: float = 0.0

    @property
    def are_set(self) -> bool:
        return (self.max_offsets, self.max_bytes, self.min_offsets) != (None, None, None)


@dataclass(frozen=True, slots=True)
class StreamOptions:
    read: ReadOptions
    limits: Limits

    @classmethod
    def parse(cls, values: Mapping[str, str]) -> StreamOptions:
        """Parse the options. Raises InvalidConfigError, which never shows the value of a storage option."""
        options = Options(values, [*READ_NAMES, *STREAM_NAMES])
        for name, advice in BATCH_ONLY.items():
            if options.text(name) is not None:
                raise InvalidConfigError(f"option {name} is for batch reads: {advice}")
        limits = Limits(
            max_offsets=options.integer("maxOffsetsPerTrigger", 1),
            max_bytes=options.integer("maxBytesPerTrigger", 1),
            min_offsets=options.integer("minOffsetsPerTrigger", 1),
            max_delay_s=_duration_ms(options.text("maxTriggerDelay") or DEFAULT_DELAY) / 1000,
        )
        if limits.min_offsets and limits.max_offsets and limits.min_offsets > limits.max_offsets:
            raise InvalidConfigError(
                "minOffsetsPerTrigger must not be above maxOffsetsPerTrigger",
                minOffsetsPerTrigger=limits.min_offsets,
                maxOffsetsPerTrigger=limits.max_offsets,
            )
        return cls(ReadOptions.parse(values, default_start=LATEST), limits)


def _duration_ms(text: str) -> float:
    """Parse a duration as Spark writes it, `90s` or `15m`; a number alone is milliseconds."""
    match = re.fullmatch(r"(\d{1,12})\s*([a-z]*)", text.strip().lower(), re.ASCII)
    unit = _UNITS_MS.get(match[2] or "ms") if match else None
    if match is None or unit is None:
        raise InvalidConfigError("option maxTriggerDelay must be a duration like 500ms, 90s, 15m or 1h", value=text)
    return int(match[1]) * unit


#: The end offset of a batch, by partition.
Ends = dict[int, int]


class Admission:
    """Applies `limits` to one stream; `clock` gives seconds."""

    def __init__(self, limits: Limits, clock: Callable[[], float]) -> None:
        self._limits, self._clock = limits, clock
        self._last_batch: float | None = None

    def waits(self, available: Ranges) -> bool:
        """Return whether to wait for records: as in Kafka's source not before the first batch or past the delay."""
        least, now = self._limits.min_offsets, self._clock()
        if least is None or sum(end - start for start, end in available.values()) >= least:
            self._last_batch = now
            return False
        if self._last_batch is not None and now - self._last_batch < self._limits.max_delay_s:
            return True
        self._last_batch = now
        return False

    def ends(self, reader: SegmentReader, snapshot: Snapshot, available: Ranges) -> Ends:
        """Return the ends of the next batch within the `available` offsets (next, end)."""
        ends = {number: end for number, (_, end) in available.items()}
        if self._limits.max_offsets is not None:
            ends = ends_by_offsets(available, self._limits.max_offsets)
        if self._limits.max_bytes is not None:
            spans = {number: (start, ends[number]) for number, (start, _) in available.items()}
            ends = ends_by_bytes(reader, snapshot, spans, self._limits.max_bytes)
        return ends


def ends_by_offsets(available: Ranges, most: int) -> Ends:
    """Return the ends of about `most` offsets, shared by the partitions; each gets one, as in Kafka's source."""
    shares = _shares({number: end - start for number, (start, end) in available.items()}, most)
    return {number: min(end, start + shares.get(number, 0)) for number, (start, end) in available.items()}


def ends_by_bytes(reader: SegmentReader, snapshot: Snapshot, available: Ranges, most: int) -> Ends:
    """Return the ends of about `most` bytes of log, shared by the partitions; each gets at least one batch."""
    tables = {number: snapshot.partitions[number].segments for number in available}
    sizes = {number: log_bytes(tables[number], *span) for number, span in available.items()}
    if sum(sizes.values()) <= most:
        return {number: end for number, (_, end) in available.items()}
    shares = _shares(sizes, most)
    return {
        number: _end_after(reader, tables[number], *span, shares[number]) if number in shares else span[1]
        for number, span in available.items()
    }


def _shares(sizes: Mapping[int, int], most: int) -> dict[int, int]:
    """Share `most` in proportion to the sizes; each size above 0 gets at least 1."""
    total = sum(sizes.values())
    shares = {number: max(1, most * size // total) for number, size in sizes.items() if size > 0}
    surplus = max(most - sum(shares.values()), 0)
    rounded = [number for number in shares if most * sizes[number] >= total]
    for number in sorted(rounded, key=lambda number: most * sizes[number] % total, reverse=True)[:surplus]:
        shares[number] += 1
    return shares


def log_bytes(segments: SegmentTable, start: int, end: int) -> int:
    """Estimate the bytes of log between two offsets: at least 1, as if the records of a segment had equal sizes."""
    if start >= end:
        return 0
    rows = slice(segments.find(start), int(np.searchsorted(segments.base_offsets, end)))
    first, last = segments.base_offsets[rows], segments.next_offsets[rows]
    parts = (np.minimum(last, end) - np.maximum(first, start)) / (last - first)
    return max(1, int((segments.log_bytes[rows] * parts).sum()))


def _end_after(reader: SegmentReader, segments: SegmentTable, start: int, end: int, max_bytes: int) -> int:
    """Return the offset after `max_bytes` of log from `start` on, and after at least one batch; at most `end`."""
    row = segments.find(start)
    skipped = _position(reader, segments[row], start) if row < len(segments) else 0
    sizes = np.cumsum(segments.log_bytes[row:])
    full_segments = int(sizes.searchsorted(skipped + max_bytes, side="right"))
    if row + full_segments >= len(segments):
        return end
    segment = segments[row + full_segments]
    if segment.base_offset >= end:
        return end
    remaining = skipped + max_bytes - (int(sizes[full_segments - 1]) if full_segments else 0)
    return min(end, _cut(reader, segment, remaining, start if full_segments else max(start, segment.base_offset)))


def _position(reader: SegmentReader, segment: SegmentInfo, offset: int) -> int:
    """Return a position at or before the batch of `offset`, by the offset index; 0 without an index."""
    index = reader.offset_index(segment) if offset > segment.base_offset else None
    try:
        return index.lookup(offset - segment.shift).position if index else 0
    except CorruptIndexError:
        reader.forget_indexes(segment)
        return 0


def _cut(reader: SegmentReader, segment: SegmentInfo, position: int, start: int) -> int:
    """Return the end of the batch at or before `position`; of a later batch if that end is not above `start`."""
    index = reader.offset_index(segment)
    if index is None:
        return segment.next_offset if segment.base_offset <= start else segment.base_offset
    try:
        entry = index.position_floor(position)
        end = entry.offset + segment.shift + 1 if entry.position > 0 else segment.base_offset
        if end <= start:
            later = index.ceiling(start - segment.shift)
            end = later.offset + segment.shift + 1 if later else segment.next_offset
    except CorruptIndexError:
        reader.forget_indexes(segment)
        return segment.next_offset
    return min(end, segment.next_offset)


_ADVICE = "start again with a new checkpoint, or set failOnDataLoss=false to continue with the records that exist"

_log = logging.getLogger("distlog")


class DataLoss:
    """Reports lost records: raises the error if `fail` (failOnDataLoss), else warns once for each error."""

    def __init__(self, fail: bool) -> None:
        self._fail = fail
        self._warned: dict[int | None, str] = {}

    def report(self, error: DistlogError) -> None:
        if self._fail:
            raise error
        text, partition = str(error), error.details.get("partition")
        if self._warned.get(partition) != text:
            self._warned[partition] = text
            _log.warning("the stream continues, since failOnDataLoss is false: %s", text)

    def check_start(self, state: PartitionState, partition: int, offset: int) -> int:
        """Return the offset from which a stream at `offset` can continue: `offset`, or the nearest bound."""
        low, high = state.log_start_offset, state.log_end_offset
        if offset < low:
            text = f"records were deleted before the stream read them: {_ADVICE}"
            self.report(out_of_range(text, state, partition, offset))
        elif offset > high:
            self.report(_cut_off(state, partition, offset))
        return min(max(offset, low), high)

    def check_end(self, state: PartitionState, partition: int, offset: int) -> int:
        """Return the end of a batch that was planned up to `offset`: `offset`, or the log's end."""
        if offset > state.log_end_offset:
            self.report(_cut_off(state, partition, offset))
        return min(offset, state.log_end_offset)

    def report_other_topic(self, name: str, snapshot: Snapshot, former_name: str) -> None:
        """Report that the stream's topic `former_name` was dropped, or that the snapshot is of another topic."""
        if snapshot.dropped:
            reason = "the stream's topic was dropped"
        elif name == former_name:
            reason = "the stream's topic was dropped and created again, so its offsets changed"
        else:
            reason = f"the checkpoint is of another topic, {former_name}"
        self.report(TopicNotFoundError(f"{reason}: {_ADVICE}", topic=name))

    def report_missing_partition(self, name: str, partition: int) -> None:
        """Report that the options or the topic no longer have a partition that the stream has read."""
        text = f"the stream has read a partition that it does not have any more: check the option assign; {_ADVICE}"
        self.report(TopicNotFoundError(text, topic=name, partition=partition))


def _cut_off(state: PartitionState, partition: int, offset: int) -> OffsetOutOfRangeError:
    text = "the log ends before what the stream has read, as after a power loss, which cuts off what was not synced"
    return out_of_range(f"{text}: {_ADVICE}", state, partition, offset)


#: The least time between two refreshes of a snapshot of remote storage.
FRESH_S = 0.5
#: The time after which Spark polls an idle stream again (`spark.sql.streaming.pollingDelay`).
POLL_S = 0.01
#: The time between two checks that the last commit exists: without a check, a deleted folder looks idle.
CHECK_S = 10.0
#: Four times the time of refreshing an active segment; topics with many active segments are refreshed less often.
TAIL_S = 0.0004


class WatchedTopic:
    """The newest snapshot of the topic in `storage`, also after it was dropped or created again.

    A refresh costs one request if nothing is new. A remote storage has at most one in FRESH_S seconds by `clock`. On
    a local disk `refreshed` always refreshes, unless an idle stream would need a fifth of a core for it.
    """

    #: Reads the topic of the last refresh.
    reader: SegmentReader

    def __init__(self, storage: Storage, clock: Callable[[], float]) -> None:
        self._storage, self._clock = storage, clock
        self._log = topic_log(storage)
        self._live: LiveSnapshot | None = None
        self._latest: Snapshot | None = None
        self._next_refresh = self._next_check = 0.0

    @property
    def latest(self) -> Snapshot:
        return self._latest or self.refreshed()

    def refreshed(self) -> Snapshot:
        """Return the newest snapshot, with the current ends of active segments; the topic may be dropped."""
        now = self._clock()
        if self._latest is None or now >= self._next_refresh:
            self._latest = self._newest(now)
            active = sum(state.active is not None for state in self._latest.partitions)
            fresh_s = min(max(TAIL_S * active - POLL_S, 0.0), FRESH_S) if self._storage.is_local_disk else FRESH_S
            self._next_refresh = now + fresh_s
        return self._latest

    def _newest(self, now: float) -> Snapshot:
        try:
            if self._live and self._exists(self._live.snapshot, now):
                return self._live.refresh()
        except (TopicNotFoundError, CorruptMetadataError, SnapshotTooOldError):
            # the topic was dropped, and perhaps created again: versions continue unless the folder was deleted
            pass
        self._live = None
        self._next_check = now + CHECK_S
        snapshot = self._log.load(include_dropped=True)
        handle = TopicHandle.of(self._storage, snapshot.name, self._log)
        self._live, self.reader = LiveSnapshot(handle, CurrentSnapshot(self._log, snapshot)), handle.reader
        return self._live.snapshot

    def _exists(self, snapshot: Snapshot, now: float) -> bool:
        """Return whether the commit of `snapshot` is still in the folder; checked once in CHECK_S seconds."""
        if now < self._next_check:
            return True
        self._next_check = now + CHECK_S
        commit = CommitFiles(self._storage).read(snapshot.version)
        return commit is not None and commit.id == snapshot.commit_id


Json = Mapping[str, Any]


class StreamSplit(Split):
    """A split with the `prefix` of the names of the partitions' folders: a stream's tasks read no commit."""

    def __init__(self, prefix: str, slices: list[SegmentSlice], isolation: Isolation) -> None:
        super().__init__(slices, isolation)
        self.prefix = prefix


def _was_deleted(snapshot: Snapshot, offset: StreamOffset) -> bool:
    return snapshot.dropped or snapshot.topic_id != offset.topic_id
