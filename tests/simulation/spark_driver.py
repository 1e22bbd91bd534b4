"""The driver's parts of Spark's sink and source: it commits and plans micro-batches, sometimes repeatedly."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

from distlog.core.commits.snapshot import Snapshot
from distlog.core.errors import (
    InvalidRecordError,
    OffsetOutOfRangeError,
    SnapshotTooOldError,
    TopicNotFoundError,
)
from distlog.core.segments.segment_reader import TopicHandle
from distlog.core.storage.storage import Storage
from distlog.spark import sink
from distlog.spark.batch_source import RECENT_MS, KnownTopics, schema_of
from distlog.spark.sink import DistlogWriter, MicroBatch, PlannedTopic, WriteOptions, WrittenSegments
from distlog.spark.stream_plan import DistlogStreamReader, StreamOptions
from simulation.oracle import Batch
from simulation.threads import current
from simulation.world import Process

if TYPE_CHECKING:
    import pyarrow as pa

    from simulation.actors import Memory, Stage


class _PerProcess(KnownTopics):
    def __init__(self) -> None:
        self._processes = defaultdict[Process, KnownTopics](KnownTopics)

    @property
    def _of_process(self) -> KnownTopics:
        fiber = current()
        assert fiber is not None
        return self._processes[fiber.process]

    def load(self, storage: Storage, *, recent_ms: int = 0) -> tuple[TopicHandle, Snapshot]:
        return self._of_process.load(storage, recent_ms=recent_ms)

    def load_planned(self, storage: Storage, topic_id: str, version: int) -> tuple[TopicHandle, Snapshot]:
        return self._of_process.load_planned(storage, topic_id, version)

    def keep(self, handle: TopicHandle, snapshot: Snapshot) -> None:
        self._of_process.keep(handle, snapshot)


def _random(*seed: Any) -> Random:
    fiber = current()
    assert fiber is not None
    return Random(fiber.process.random.random())


sink.KNOWN_TOPICS = _PerProcess()
sink.Random = _random  # type: ignore[assignment,misc]


def drive(stage: Stage, process: Process, memory: Memory, passing: tuple[type[Exception], ...]) -> None:
    """Write micro-batches; the next run of a query writes an uncommitted one again."""
    while stage.goes_on():
        if memory.pending is None:
            memory.pending = stage.records(process.random, memory.name)
            memory.number += 1
        batch, table = memory.pending
        try:
            result = _written(stage, process, memory, table)
        except passing as error:
            # the query ends and starts again
            if isinstance(error, TopicNotFoundError):
                stage.open()
            process.world.pause(process.random.uniform(0, 30))
            continue
        except InvalidRecordError as error:
            stage.oracle.says(f"micro-batch {memory.number} of {memory.name} is refused: {error}")
            return
        if memory.is_replaced and batch.acknowledged:
            # the run that replaced this one has committed it, and later ones, perhaps to a topic dropped since
            return
        batch.acknowledge(result)
        if memory.is_replaced:
            return
        if process.random.random() < 0.1:
            # the query's checkpoint lacks the batch
            continue
        memory.pending = None
        stage.pause(process.random)


def _written(stage: Stage, process: Process, memory: Memory, table: pa.Table) -> str:
    """Write and commit a micro-batch; returns the id of the topic."""
    storage, random = Storage(stage.url, {}), process.random
    _, snapshot = sink.KNOWN_TOPICS.load(storage, recent_ms=RECENT_MS)
    options = WriteOptions(storage, f"query-{memory.name}", memory.number)
    planned = PlannedTopic.of(snapshot, options.app_id, options.batch_id)
    batch = memory.pending[0] if memory.pending else Batch([], [])
    batch.tried.add(planned.topic_id)
    writer = DistlogWriter(options, planned)
    rows = table.to_batches()[0]
    micro_batch = MicroBatch(f"query-{memory.name}", memory.number)
    cut = random.randrange(rows.num_rows + 1)
    messages = []
    for part in (rows.slice(0, cut), rows.slice(cut)):
        if random.random() < 0.1:
            # an attempt that Spark gave up
            writer.write(iter([part]))
        message = writer.write(iter([part]))
        assert isinstance(message, WrittenSegments)
        messages.append(replace(message, micro_batch=micro_batch))
    writer.commit(messages)
    if random.random() < 0.2:
        writer.commit(messages)
    return planned.topic_id


# --- the source

#: A record of a micro-batch: its partition, offset and value.
Row = tuple[int, int, bytes | None]


def read(stage: Stage, process: Process, memory: Memory, passing: tuple[type[Exception], ...]) -> None:
    """Read micro-batches from the start on: no record is skipped, and a repeated batch has the same records."""
    most = str(process.random.choice((3, 20)))
    options = {"path": stage.url, "startingOffsets": "earliest", "maxOffsetsPerTrigger": most}

    def new_reader() -> DistlogStreamReader:
        schema = schema_of(["partition", "offset", "value"], False)
        return DistlogStreamReader(StreamOptions.parse(options), schema, lambda: process.world.now)

    reader, log = new_reader(), memory.log
    while stage.goes_on():
        start = json.loads(log[memory.number - 1]) if memory.number else reader.initialOffset()
        try:
            if memory.number == len(log):
                end = reader.latestOffset(start, reader.getDefaultReadLimit())
                if end == start:
                    stage.pause(process.random)
                    continue
                log.append(json.dumps(end))
            rows = list(_rows(stage, reader, start, json.loads(log[-1])))
        except (*passing, OffsetOutOfRangeError, SnapshotTooOldError):
            reader = new_reader()
            stage.pause(process.random)
            continue
        _check_rows(stage, memory, rows)
        if process.random.random() < 0.2:
            # the query starts again, and its checkpoint lacks the batch
            reader = new_reader()
            continue
        memory.number = len(log)
        stage.pause(process.random)


def _rows(stage: Stage, reader: DistlogStreamReader, start: Any, end: Any) -> Iterator[Row]:
    for partition in reader.partitions(start, end):
        for rows in reader.read(partition):
            stage.oracle.read(stage.oracle.topic_id, rows)
            yield from zip(*(rows[name].to_pylist() for name in ("partition", "offset", "value")), strict=True)


def _check_rows(stage: Stage, memory: Memory, rows: list[Row]) -> None:
    oracle = stage.oracle
    may_lack = oracle.is_compacted or oracle.has_markers or oracle.has_retention
    batch = len(memory.log)
    first_rows = memory.batches.setdefault(batch, rows)
    if sorted(first_rows) != sorted(rows) and not may_lack:
        oracle.says(f"micro-batch {batch} has other records when it is read again")
    for number, offset, _ in rows:
        if first_rows is rows:
            expected = memory.positions.get(number, 0)
            if offset < expected or (offset > expected and not may_lack):
                oracle.says(f"a stream got offset {offset} of partition {number}, not {expected}")
            memory.positions[number] = offset + 1
