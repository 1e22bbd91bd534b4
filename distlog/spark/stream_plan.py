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

from distlog.core import errors
from distlog.core.commits.commit_log import CurrentSnapshot
from distlog.core.commits.segment_table import SegmentInfo, SegmentTable
from distlog.core.commits.snapshot import PartitionState, Snapshot
from distlog.core.commits.snapshot_loader import CommitFiles
from distlog.core.log.live_snapshot import LiveSnapshot
from distlog.core.read.conditions import Ranges
from distlog.core.read.lookup import LATEST, OffsetAndTime
from distlog.core.read.scan import plan_slices
from distlog.core.segments.chunks import Isolation, SegmentSlice
from distlog.core.segments.producer_states import last_stable_offset
from distlog.core.segments.segment_reader import SegmentReader, TopicHandle, topic_log
from distlog.core.storage.storage import Storage
from distlog.spark import versions
from distlog.spark.batch_source import Split, SplitReader, SplitSize, divide
from distlog.spark.options import (
    READ_NAMES,
    STREAM_NAMES,
    Options,
    ReadOptions,
    first_by_time,
    is_entry,
    offset_in_log,
    offsets_json,
    out_of_range_error,
    resolved_start,
    selected_partitions,
)

_log = logging.getLogger("distlog")

#: An offset of the stream, as Spark passes and stores it.
OffsetJson = Mapping[str, Any]
#: The version of an offset's JSON. Spark keeps the JSON in the checkpoint, and compares it as text.
FORMAT = 1
#: The start of a stream. A constant, since Spark requests the start several times, also after a restart.
INITIAL_OFFSET: OffsetJson = {"version": FORMAT, "initial": True}
#: The JSON fields for `starts` and `stream_starts` of a StreamOffset, which only some offsets have.
_START_FIELDS = ("starts", "first")
#: Names of the unread amounts by partition in Spark's progress, as in Spark's Kafka source.
OFFSETS_BEHIND, BYTES_BEHIND = "offsetsBehindLatest", "bytesBehindLatest"

_CONTINUE_ADVICE = "start again with a new checkpoint, or set failOnDataLoss=false to read the records that exist"


class DistlogStreamReader(DataSourceStreamReader, versions.SupportsTriggerAvailableNow):
    """One stream, as Spark's reader: the driver's object plans, and its pickled copies read in tasks."""

    def __init__(
        self, options: StreamOptions, schema: StructType, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._storage, self._schema = options.read.storage, schema
        self._limits = options.limits
        self._plan: StreamPlan | None = StreamPlan(options, clock)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_plan": None}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return dict(INITIAL_OFFSET)  # `latestOffset` resolves the start and stores it

    def getDefaultReadLimit(self) -> versions.ReadLimit:  # noqa: N802 - Spark's name
        """Return one of the limits, since `latestOffset` applies all."""
        limits = self._limits
        if limits.max_offsets is not None:
            return versions.ReadMaxRows(limits.max_offsets)
        if limits.max_bytes is not None:
            return versions.ReadMaxBytes(limits.max_bytes)
        return versions.ReadAllAvailable() if limits.min_offsets is None else versions.ReadMinRows(limits.min_offsets)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self._planner.fix_end()

    def latestOffset(self, start: OffsetJson, limit: versions.ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the end of the batch from `start` on, or `start` if there are no new records."""
        return dict(self._planner.next_batch_end(start, limited=not isinstance(limit, versions.ReadAllAvailable)))

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the newest offsets, for the lag in Spark's progress; sends no request."""
        return dict(self._planner.end_and_lag())

    def partitions(self, start: OffsetJson, end: OffsetJson) -> list[InputPartition]:
        return list(self._planner.splits(start, end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, StreamSplit):  # Spark makes a partition for an empty batch
            return iter(())
        return SplitReader(self._storage, partition.prefix, self._schema).read(partition)

    @property
    def _planner(self) -> StreamPlan:
        if self._plan is None:
            text = "this copy of the stream's reader is in a task, and only the driver plans a stream"
            raise RuntimeError(f"{text}: start the query in the driver")
        return self._plan


class RefusedStreamReader(DistlogStreamReader):
    """A stream with wrong options: raises `error` when Spark plans the stream."""

    def __init__(self, error: errors.InvalidConfigError) -> None:
        self._error = error

    def getDefaultReadLimit(self) -> versions.ReadLimit:  # noqa: N802 - Spark's name
        raise self._error

    @property
    def _planner(self) -> StreamPlan:
        raise self._error


class UnlimitedStreamReader(DistlogStreamReader):
    """A stream for Spark before 4.2, which has no limits of batches, and passes no start to `latestOffset`."""

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return a constant. Raises for an impossible start, an error that `log_end` ignores."""
        self._planner.check_start()
        return super().initialOffset()

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # noqa: N802 - Spark's name
        return dict(self._planner.log_end())

    def partitions(self, start: OffsetJson, end: OffsetJson) -> list[InputPartition]:
        self._planner.report_recreated_topic(start, end)
        return super().partitions(start, end)


class StreamPlan:
    """Plans the batches of one stream, in the driver, with the topic's newest snapshot. `clock` returns seconds."""

    def __init__(self, options: StreamOptions, clock: Callable[[], float]) -> None:
        self._options, self._name = options.read, options.read.storage.name
        self._topic = WatchedTopic(options.read.storage, clock)
        self._admission = Admission(options.limits, clock)
        self._loss = DataLoss(options.read.fail_on_data_loss)
        # by partition: a state, and its last stable offset
        self._stable_ends: dict[int, tuple[PartitionState, int]] = {}
        self._start_offset: StreamOffset | None = None
        self._fixed_end: StreamOffset | None = None
        self._last_batch_end: OffsetJson = INITIAL_OFFSET

    def fix_end(self) -> None:
        """Make the current end of the log the end of the stream."""
        self._fixed_end = self._log_end(self._topic.refresh())

    def end_and_lag(self) -> OffsetJson:
        """Return the stream's end if it is fixed, else the log's end at the last refresh, with the unread amounts."""
        snapshot = self._topic.latest
        end = self._fixed_end or self._log_end(snapshot)
        last_batch_end, value = StreamOffset.parse(self._last_batch_end), end.to_json()
        if last_batch_end is None or not (end.topic_id == last_batch_end.topic_id == snapshot.topic_id):
            return value
        offset_lags, byte_lags = dict[int, int](), dict[int, int]()
        for number, end_offset in end.offsets.items():
            state = snapshot.partitions[number]
            next_offset = max(last_batch_end.offsets.get(number, 0), state.log_start_offset)
            if next_offset < end_offset:
                offset_lags[number] = end_offset - next_offset
                byte_lags[number] = log_bytes(state.segments, next_offset, end_offset)
        lags = {OFFSETS_BEHIND: offset_lags, BYTES_BEHIND: byte_lags}
        return {**value, **{name: offsets_json(end.topic, by_partition) for name, by_partition in lags.items()}}

    def next_batch_end(self, start: OffsetJson, *, limited: bool) -> OffsetJson:
        """Return the end of the batch from `start` on, or `start` if there is nothing to read."""
        self._last_batch_end = end = self._plan_batch_end(start, limited=limited)
        return end

    def _plan_batch_end(self, start: OffsetJson, *, limited: bool) -> OffsetJson:
        snapshot = self._topic.refresh()
        previous = parse_offset(start, self._name, snapshot)
        if previous and "version" not in start:
            # the checkpoint of Spark's Kafka source becomes one of this source, even without new records
            start = previous.to_json()
        batch_start = previous or self._resolve_start(snapshot)
        if _topic_was_deleted(snapshot, batch_start) or self._fixed_end_was_deleted(snapshot):
            self._loss.report_other_topic(self._name, snapshot, batch_start.topic)
            if snapshot.dropped or self._fixed_end_was_deleted(snapshot):
                return start  # there are no records to read
            # the topic was created again: all its partitions are new to the stream
            batch_start = StreamOffset(self._name, snapshot.topic_id, {})
        is_same_topic = previous is not None and previous.topic_id == snapshot.topic_id
        # the starts of partitions that the previous offset lacks; in the stream's first batch, of all partitions
        starts = self._new_starts(snapshot, batch_start, is_same_topic) if previous else batch_start.offsets
        available = self._available(snapshot, {**batch_start.offsets, **starts})
        # call `should_wait` for each batch, since it starts the delay of the next; the first batch does not wait
        if limited and self._fixed_end is None and self._admission.should_wait(available) and previous:
            return start
        ends = {number: end for number, (_, end) in available.items()}
        if limited:
            ends = self._admission.ends(self._topic.reader, snapshot, available)
        if previous and (previous.topic_id, previous.offsets) == (snapshot.topic_id, ends):
            return start
        return StreamOffset(self._name, snapshot.topic_id, ends, starts).to_json()

    def log_end(self) -> OffsetJson:
        """Return the end of a batch up to the log's end, for a Spark that does not pass the batch's start."""
        snapshot = self._topic.refresh()
        if snapshot.dropped:
            raise errors.TopicNotFoundError(f"the stream's topic was dropped: {_CONTINUE_ADVICE}", topic=self._name)
        start = self._start_offset
        if start is None:
            # an error may be ignored: a stream that continues from its checkpoint needs no start
            with suppress(errors.InvalidConfigError, errors.OffsetOutOfRangeError):
                start = self._resolve_start(snapshot)
        stream_starts = start.offsets if start and start.topic_id == snapshot.topic_id else {}
        return dataclasses.replace(self._log_end(snapshot), stream_starts=stream_starts).to_json()

    def report_recreated_topic(self, start: OffsetJson, end: OffsetJson) -> None:
        snapshot = self._topic.latest
        start_offset, end_offset = (parse_offset(value, self._name, snapshot) for value in (start, end))
        if start_offset and end_offset and start_offset.topic_id != end_offset.topic_id:
            self._loss.report_other_topic(self._name, snapshot, start_offset.topic)

    def check_start(self) -> None:
        self._resolve_start(self._topic.refresh())

    def splits(self, start: OffsetJson, end: OffsetJson) -> list[StreamSplit]:
        """Return the splits of the batch from `start` to `end` (exclusive), with the same records each time."""
        snapshot = self._topic.latest
        start_offset, end_offset = (parse_offset(value, self._name, snapshot) for value in (start, end))
        if end_offset is None or start_offset == end_offset:
            return []
        if _topic_was_deleted(snapshot, end_offset):
            self._loss.report_other_topic(self._name, snapshot, end_offset.topic)
            return []
        if start_offset is None and "version" not in end:
            # Spark's Kafka source stores the start of its first batch in another file
            raise errors.InvalidConfigError(
                "the first batch of this checkpoint was started by Spark's Kafka source and is not done: finish it "
                "there, or choose another checkpointLocation",
                topic=end_offset.topic,
            )
        # a partition without a start is new, and begins at its first record, as in Spark's Kafka source
        starts = dict.fromkeys(end_offset.offsets, 0)
        if start_offset is None:
            starts |= end_offset.stream_starts
        elif start_offset.topic_id == end_offset.topic_id:
            starts |= start_offset.offsets
        bounds = self._bounds(snapshot, {**starts, **end_offset.starts}, end_offset)
        slices, isolation = plan_slices(self._topic.reader, snapshot, bounds, self._options.isolation)
        size = SplitSize(os.cpu_count() or 1, self._options.min_partitions, self._options.max_records)
        return [StreamSplit(snapshot.name, group, isolation) for group in divide(slices, size)]

    def _resolve_start(self, snapshot: Snapshot) -> StreamOffset:
        """Return the start of the stream by the options, resolved once, since the latest offset changes."""
        if snapshot.dropped or self._fixed_end_was_deleted(snapshot):
            raise errors.TopicNotFoundError("the topic was dropped: start the query when it exists", topic=self._name)
        if self._start_offset is None or self._start_offset.topic_id != snapshot.topic_id:
            partitions = selected_partitions(snapshot, self._options)
            self._options.start.check(self._name, partitions)
            records = first_by_time(self._topic.reader, snapshot, partitions, self._options.start)
            states = snapshot.partitions
            starts = {n: self._partition_start(states[n], n, records.get(n)) for n in partitions}
            self._start_offset = StreamOffset(self._name, snapshot.topic_id, starts)
        return self._start_offset

    def _partition_start(self, state: PartitionState, partition: int, first_record: OffsetAndTime | None) -> int:
        readable = dataclasses.replace(state, log_end_offset=self._readable_end(state, partition))
        offset = resolved_start(readable, partition, self._options, first_record)
        return offset_in_log(state, partition, offset, self._options)

    def _new_starts(self, snapshot: Snapshot, batch_start: StreamOffset, is_same_topic: bool) -> dict[int, int]:
        """Return the log starts of the partitions that are new to the stream; reports what was deleted from them."""
        states = snapshot.partitions
        numbers = [n for n in selected_partitions(snapshot, self._options) if n not in batch_start.offsets]
        if is_same_topic:
            return {number: self._loss.start_in_log(states[number], number, 0) for number in numbers}
        # the report that the former topic was dropped covers all its partitions
        return {number: states[number].log_start_offset for number in numbers}

    def _available(self, snapshot: Snapshot, next_offsets: Mapping[int, int]) -> Ranges:
        """Return the offsets (next, end) that the stream can read, by partition."""
        partitions = set(selected_partitions(snapshot, self._options))
        ranges = {}
        for number, next_offset in next_offsets.items():
            if number not in partitions:
                self._loss.report_missing_partition(self._name, number)
                continue
            state = snapshot.partitions[number]
            start = self._loss.start_in_log(state, number, next_offset)
            end = self._readable_end(state, number)
            if self._fixed_end:
                end = min(end, self._fixed_end.offsets.get(number, 0))
            ranges[number] = start, max(start, end)
        return ranges

    def _fixed_end_was_deleted(self, snapshot: Snapshot) -> bool:
        return self._fixed_end is not None and _topic_was_deleted(snapshot, self._fixed_end)

    def _bounds(self, snapshot: Snapshot, starts: Mapping[int, int], end_offset: StreamOffset) -> Ranges:
        """Return the offsets (start, end) of a planned batch that the log still has, by partition."""
        bounds = {}
        for number, end in end_offset.offsets.items():
            start = starts.get(number, end)
            if start >= end:
                continue
            if number >= len(snapshot.partitions):
                self._loss.report_missing_partition(self._name, number)
                continue
            state = snapshot.partitions[number]
            start, end = self._loss.start_in_log(state, number, start), self._loss.end_in_log(state, number, end)
            if end > self._readable_end(state, number):
                text = (
                    "the unfinished batch reaches into an open transaction: finish it with the option that it "
                    "started with, kafka.isolation.level=read_uncommitted"
                )
                raise errors.InvalidConfigError(text, partition=number, offset=end)
            bounds[number] = start, max(start, end)
        return bounds

    def _log_end(self, snapshot: Snapshot) -> StreamOffset:
        # a dropped topic has no partitions to choose
        partitions = [] if snapshot.dropped else selected_partitions(snapshot, self._options)
        ends = {number: self._readable_end(snapshot.partitions[number], number) for number in partitions}
        return StreamOffset(self._name, snapshot.topic_id, ends)

    def _readable_end(self, state: PartitionState, partition: int) -> int:
        if self._options.isolation == "read_uncommitted":
            return state.log_end_offset
        cached_state, stable_end = self._stable_ends.get(partition, (None, 0))
        if cached_state is not state:
            stable_end = last_stable_offset(self._topic.reader, state)
            self._stable_ends[partition] = state, stable_end
        return stable_end


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """The position of a stream: by partition, the next offset, as in offsets of Spark's Kafka source.

        {"version": 1, "topicId": "...", "offsets": {"clicks": {"0": 23, "1": 7}}, "starts": {"clicks": {"1": 0}}}

    `starts` has the starts of partitions that the previous offset lacks, so that a replayed batch reads the same
    records, even if its options mean other offsets now. `stream_starts`, in JSON `first`, is for Spark before 4.2,
    which passes no previous offset: the start of the stream, in case this offset ends the first batch. An offset of
    Spark's Kafka source is only {"clicks": {"0": 23}}: its `topic_id` is "", which stands for the current topic.
    """

    topic: str
    topic_id: str
    offsets: Mapping[int, int]
    starts: Mapping[int, int] = field(default_factory=dict)
    stream_starts: Mapping[int, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object; equal offsets give equal texts."""
        value = {"version": FORMAT, "topicId": self.topic_id, "offsets": offsets_json(self.topic, self.offsets)}
        starts_by_field = zip(_START_FIELDS, (self.starts, self.stream_starts), strict=True)
        return value | {name: offsets_json(self.topic, starts) for name, starts in starts_by_field if starts}

    @classmethod
    def parse(cls, value: OffsetJson) -> StreamOffset | None:
        """Return the offset in a JSON object; None for INITIAL_OFFSET."""
        if value == INITIAL_OFFSET:
            return None
        version = value.get("version")
        if type(version) is int and version > FORMAT:
            raise errors.UnsupportedVersionError("a newer distlog wrote this checkpoint: upgrade", version=version)
        if "version" not in value:
            if len(value) > 1 and all(isinstance(offsets, dict) for offsets in value.values()):
                raise errors.InvalidConfigError(
                    "the checkpoint is of Spark's Kafka source, and about several topics: start a query for each "
                    "topic, with startingOffsets from this checkpoint's offset",
                    offset=str(value)[:200],
                )
            topic, offsets = _topic_and_offsets(value, value)
            return cls(topic, "", offsets)
        topic_id = value.get("topicId")
        if version != FORMAT or not isinstance(topic_id, str) or not topic_id:
            raise _foreign_checkpoint_error(value)
        topic, offsets = _topic_and_offsets(value.get("offsets"), value)
        parts = (_topic_and_offsets(value[name], value)[1] if name in value else {} for name in _START_FIELDS)
        return cls(topic, topic_id, offsets, *parts)


def parse_offset(value: OffsetJson, name: str, snapshot: Snapshot) -> StreamOffset | None:
    """Return the offset in a JSON object; an offset of Spark's Kafka source gets the id of the current topic."""
    offset = StreamOffset.parse(value)
    if offset is None or offset.topic_id:
        return offset
    if offset.topic != name:
        text = "the checkpoint is of Spark's Kafka source, and about another topic: choose another checkpointLocation"
        raise errors.InvalidConfigError(text, topic=offset.topic, expected=name)
    return dataclasses.replace(offset, topic_id=snapshot.topic_id)


def _topic_and_offsets(by_topic: Any, value: OffsetJson) -> tuple[str, dict[int, int]]:
    """Return the topic and the offsets of `by_topic`, which is a part of `value`. An error shows `value`."""
    if not isinstance(by_topic, dict) or len(by_topic) != 1:
        raise _foreign_checkpoint_error(value)
    ((topic, offsets),) = by_topic.items()
    if not isinstance(offsets, dict) or not all(is_entry(*entry) and entry[1] >= 0 for entry in offsets.items()):
        raise _foreign_checkpoint_error(value)
    return topic, {int(number): offset for number, offset in offsets.items()}


def _foreign_checkpoint_error(value: OffsetJson) -> errors.InvalidConfigError:
    return errors.InvalidConfigError(
        "the checkpoint holds no offset of a distlog stream: choose another checkpointLocation",
        offset=str(value)[:200],
    )


#: Options of batch reads that a stream refuses, and why.
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
    """The limits of one micro-batch, or None. The batch waits up to `max_delay_s` for `min_offsets` offsets."""

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
                raise errors.InvalidConfigError(f"option {name} is for batch reads: {advice}")
        limits = Limits(
            max_offsets=options.integer("maxOffsetsPerTrigger", 1),
            max_bytes=options.integer("maxBytesPerTrigger", 1),
            min_offsets=options.integer("minOffsetsPerTrigger", 1),
            max_delay_s=_duration_ms(options.text("maxTriggerDelay") or DEFAULT_DELAY) / 1000,
        )
        if limits.min_offsets and limits.max_offsets and limits.min_offsets > limits.max_offsets:
            raise errors.InvalidConfigError(
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
        problem = "option maxTriggerDelay must be a duration like 500ms, 90s, 15m or 1h"
        raise errors.InvalidConfigError(problem, value=text)
    return int(match[1]) * unit


#: The end offset of a batch, by partition.
Ends = dict[int, int]


class Admission:
    """Decides when the batches of a stream begin and end, within `limits`. `clock` returns seconds."""

    def __init__(self, limits: Limits, clock: Callable[[], float]) -> None:
        self._limits, self._clock = limits, clock
        self._last_batch_s: float | None = None

    def should_wait(self, available: Ranges) -> bool:
        """Return whether to wait for more records; else start the delay of the next batch. The first never waits."""
        min_offsets, now = self._limits.min_offsets, self._clock()
        has_few = min_offsets is not None and sum(end - start for start, end in available.values()) < min_offsets
        if has_few and self._last_batch_s is not None and now - self._last_batch_s < self._limits.max_delay_s:
            return True
        self._last_batch_s = now
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


def ends_by_offsets(available: Ranges, max_offsets: int) -> Ends:
    """Split about `max_offsets` offsets between the partitions; each gets at least one, as in Kafka's source."""
    shares = _shares({number: end - start for number, (start, end) in available.items()}, max_offsets)
    return {number: min(end, start + shares.get(number, 0)) for number, (start, end) in available.items()}


def ends_by_bytes(reader: SegmentReader, snapshot: Snapshot, available: Ranges, max_bytes: int) -> Ends:
    """Split about `max_bytes` bytes of log between the partitions; each gets at least one batch of records."""
    tables = {number: snapshot.partitions[number].segments for number in available}
    sizes = {number: log_bytes(tables[number], *span) for number, span in available.items()}
    if sum(sizes.values()) <= max_bytes:
        return {number: end for number, (_, end) in available.items()}
    shares = _shares(sizes, max_bytes)
    return {
        number: _end_after(reader, tables[number], *span, shares[number]) if number in shares else span[1]
        for number, span in available.items()
    }


def _shares(sizes: Mapping[int, int], amount: int) -> dict[int, int]:
    """Split `amount` in proportion to the sizes; each size above 0 gets at least 1."""
    total = sum(sizes.values())
    shares = {number: max(1, amount * size // total) for number, size in sizes.items() if size > 0}
    surplus = max(amount - sum(shares.values()), 0)
    # the surplus goes to the shares with the largest fractions, but not to shares that were raised to 1
    rounded_down = [number for number in shares if amount * sizes[number] >= total]
    for number in sorted(rounded_down, key=lambda number: amount * sizes[number] % total, reverse=True)[:surplus]:
        shares[number] += 1
    return shares


def log_bytes(segments: SegmentTable, start: int, end: int) -> int:
    """Estimate the bytes of log from `start` to `end`, as if a segment's records had equal sizes."""
    if start >= end:
        return 0
    rows = slice(segments.find(start), int(np.searchsorted(segments.base_offsets, end)))
    base_offsets, next_offsets = segments.base_offsets[rows], segments.next_offsets[rows]
    fractions = (np.minimum(next_offsets, end) - np.maximum(base_offsets, start)) / (next_offsets - base_offsets)
    return max(1, int((segments.log_bytes[rows] * fractions).sum()))


def _end_after(reader: SegmentReader, segments: SegmentTable, start: int, end: int, max_bytes: int) -> int:
    """Return the offset after `max_bytes` of log from `start` on, and after at least one batch; at most `end`."""
    # positions are counted from the beginning of the segment of `start`, over all later segments
    row = segments.find(start)
    start_position = _position(reader, segments[row], start) if row < len(segments) else 0
    segment_ends = np.cumsum(segments.log_bytes[row:])
    full_segments = int(segment_ends.searchsorted(start_position + max_bytes, side="right"))  # read to their ends
    if row + full_segments >= len(segments):
        return end
    segment = segments[row + full_segments]  # the batch ends here, at the remaining bytes
    if segment.base_offset >= end:
        return end
    segment_start = int(segment_ends[full_segments - 1]) if full_segments else 0
    # `start` may be in a gap before its segment
    start = start if full_segments else max(start, segment.base_offset)
    return min(end, _batch_end_at(reader, segment, start_position + max_bytes - segment_start, start))


def _position(reader: SegmentReader, segment: SegmentInfo, offset: int) -> int:
    """Return a position at or before the batch of `offset`, by the offset index; 0 without an index."""
    index = reader.offset_index(segment) if offset > segment.base_offset else None
    try:
        return index.lookup(offset - segment.shift).position if index else 0
    except errors.CorruptIndexError:
        reader.forget_indexes(segment)
        return 0


def _batch_end_at(reader: SegmentReader, segment: SegmentInfo, position: int, start: int) -> int:
    """Return the end of the last indexed batch up to `position`, or of the first one that ends after `start`."""
    index = reader.offset_index(segment)
    if index is None:
        # end after the whole segment, or before it if the planned batch begins in an earlier segment
        return segment.next_offset if segment.base_offset <= start else segment.base_offset
    try:
        # an entry has the last offset of a batch in the file, to which `shift` is added; position 0 means no entry
        entry = index.position_floor(position)
        end = (entry.offset + segment.shift + 1) if entry.position > 0 else segment.base_offset
        if end <= start:
            later = index.ceiling(start - segment.shift)
            end = (later.offset + segment.shift + 1) if later else segment.next_offset
    except errors.CorruptIndexError:
        reader.forget_indexes(segment)
        return segment.next_offset
    return min(end, segment.next_offset)


class DataLoss:
    """Reports lost records: raises an error with `raises` (failOnDataLoss), else warns once of each error."""

    def __init__(self, raises: bool) -> None:
        self._raises = raises
        #: The last warning, by partition.
        self._warnings: dict[int | None, str] = {}

    def report(self, error: errors.DistlogError) -> None:
        if self._raises:
            raise error
        text, partition = str(error), error.details.get("partition")
        if self._warnings.get(partition) != text:
            self._warnings[partition] = text
            _log.warning("the stream continues, since failOnDataLoss is false: %s", text)

    def start_in_log(self, state: PartitionState, partition: int, offset: int) -> int:
        """Return `offset` if the log has it; else report the loss, and return the nearest offset in the log."""
        low, high = state.log_start_offset, state.log_end_offset
        if offset < low:
            text = f"records were deleted before the stream read them: {_CONTINUE_ADVICE}"
            self.report(out_of_range_error(text, state, partition, offset))
        elif offset > high:
            self.report(_lost_end_error(state, partition, offset))
        return min(max(offset, low), high)

    def end_in_log(self, state: PartitionState, partition: int, offset: int) -> int:
        """Return the end of a batch up to `offset`; if the log ends earlier, report the loss, and return its end."""
        if offset > state.log_end_offset:
            self.report(_lost_end_error(state, partition, offset))
        return min(offset, state.log_end_offset)

    def report_other_topic(self, name: str, snapshot: Snapshot, former_name: str) -> None:
        """Report that the stream's topic `former_name` was dropped, or that the snapshot is of another topic."""
        if snapshot.dropped:
            reason = "the stream's topic was dropped"
        elif name == former_name:
            reason = "the stream's topic was dropped and created again, so its offsets changed"
        else:
            reason = f"the checkpoint is of another topic, {former_name}"
        self.report(errors.TopicNotFoundError(f"{reason}: {_CONTINUE_ADVICE}", topic=name))

    def report_missing_partition(self, name: str, partition: int) -> None:
        text = f"a partition of the checkpoint is not selected: check the option assign; {_CONTINUE_ADVICE}"
        self.report(errors.TopicNotFoundError(text, topic=name, partition=partition))


def _lost_end_error(state: PartitionState, partition: int, offset: int) -> errors.OffsetOutOfRangeError:
    text = "the log ends before the stream's offset, since a power loss or a failed sync has cut off records"
    return out_of_range_error(f"{text}: {_CONTINUE_ADVICE}", state, partition, offset)


#: The time between two refreshes of a snapshot from remote storage.
REMOTE_REFRESH_S = 0.5
#: The time after which Spark polls an idle stream again (`spark.sql.streaming.pollingDelay`).
SPARK_POLL_S = 0.01
#: The time between two checks that the last commit exists: without a check, a deleted folder looks idle.
EXISTENCE_CHECK_S = 10.0
#: The time between two refreshes on a local disk, for each active segment: four times what the refresh of a segment
#: takes, so that an idle stream uses at most a fifth of a core.
REFRESH_S_PER_ACTIVE_SEGMENT = 0.0004


class WatchedTopic:
    """The newest snapshot of the topic in `storage`, also after it was dropped or created again."""

    #: Reads the topic of the last refresh.
    reader: SegmentReader

    def __init__(self, storage: Storage, clock: Callable[[], float]) -> None:
        self._storage, self._clock = storage, clock
        self._log = topic_log(storage)
        self._live: LiveSnapshot | None = None
        self._latest: Snapshot | None = None
        self._next_refresh_s = self._next_check_s = 0.0

    @property
    def latest(self) -> Snapshot:
        return self._latest or self.refresh()

    def refresh(self) -> Snapshot:
        """Return the newest snapshot, with the current ends of active segments; the topic may be dropped."""
        now = self._clock()
        if self._latest is None or now >= self._next_refresh_s:
            self._latest = self._newest(now)
            self._next_refresh_s = now + self._refresh_interval_s(self._latest)
        return self._latest

    def _refresh_interval_s(self, snapshot: Snapshot) -> float:
        if not self._storage.is_local_disk:
            return REMOTE_REFRESH_S
        active_segments = sum(state.active is not None for state in snapshot.partitions)
        interval_s = REFRESH_S_PER_ACTIVE_SEGMENT * active_segments - SPARK_POLL_S
        return min(max(interval_s, 0.0), REMOTE_REFRESH_S)

    def _newest(self, now: float) -> Snapshot:
        try:
            if self._live and self._exists(self._live.snapshot, now):
                return self._live.refresh()
        except (errors.TopicNotFoundError, errors.CorruptMetadataError, errors.SnapshotTooOldError):
            # the topic was dropped, and perhaps created again: load its log again, even if it is dropped
            pass
        self._live = None
        self._next_check_s = now + EXISTENCE_CHECK_S
        snapshot = self._log.load(include_dropped=True)
        handle = TopicHandle.of(self._storage, snapshot.name, self._log)
        self._live, self.reader = LiveSnapshot(handle, CurrentSnapshot(self._log, snapshot)), handle.reader
        return self._live.snapshot

    def _exists(self, snapshot: Snapshot, now: float) -> bool:
        """Return whether the commit of `snapshot` is still in the folder; checks it every EXISTENCE_CHECK_S."""
        if now < self._next_check_s:
            return True
        self._next_check_s = now + EXISTENCE_CHECK_S
        commit = CommitFiles(self._storage).read(snapshot.version)
        return commit is not None and commit.id == snapshot.commit_id


class StreamSplit(Split):
    """A split with the `prefix` of the names of the partitions' folders, since a stream's tasks read no commit."""

    def __init__(self, prefix: str, slices: list[SegmentSlice], isolation: Isolation) -> None:
        super().__init__(slices, isolation)
        self.prefix = prefix


def _topic_was_deleted(snapshot: Snapshot, offset: StreamOffset) -> bool:
    """Return whether the topic of `offset` was dropped, even if `snapshot` has a new topic with its name."""
    return snapshot.dropped or snapshot.topic_id != offset.topic_id
