"""A broker's log directory that grows and is imported repeatedly, and exports of a topic, on one machine's disk.

The broker is stopped during an import, and was killed before it: its last write may be incomplete.
"""

from __future__ import annotations

import base64
import gzip
import io
import json
import os
import struct
import uuid
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pyarrow as pa

import distlog
from distlog import OffsetOutOfRangeError, SnapshotTooOldError, StorageError, TopicExistsError
from distlog.core.format.record_encoder import encode
from distlog.core.kafka.dump import DumpedFile, dump
from distlog.core.kafka.dump_lines import DumpOptions, DumpOutput
from distlog.core.kafka.partition_folder import PARTITION_METADATA, file_name, write_topic_id
from distlog.core.paths import LEADER_EPOCHS
from distlog.core.times import NO_TIMESTAMP
from simulation.actors import PASSING, Actor, Memory, Stage
from simulation.gateways import timed
from simulation.oracle import Batch, Rows, rows_of
from simulation.record_log import Row
from simulation.world import BEGIN_MS, Process

#: The largest log of the broker, in bytes.
_SEGMENT_BYTES = 600


@dataclass
class Broker:
    """A broker's log directory `folder` and its batches; `stage` has the topic of the import."""

    folder: str
    stage: Stage
    #: The partition, the offsets, and the records of each batch.
    batches: list[tuple[int, int, int, Batch]] = field(default_factory=list)
    #: The processes that import; the broker is stopped for them.
    adopting: list[Process] = field(default_factory=list)
    _topic_id: bytes = b""
    #: For each partition: the base offset of its last segment, the size of its log, and the log end offset.
    _ends: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    #: The message format of the last batch of each partition.
    _magics: dict[int, int] = field(default_factory=dict)

    @property
    def directory(self) -> str:
        """The log directory; exports are next to it."""
        return os.path.join(self.folder, "broker")

    @property
    def partitions(self) -> list[str]:
        return [self._path(number) for number in sorted(self._ends)]

    def _path(self, partition: int) -> str:
        return os.path.join(self.directory, f"events-{partition}")

    @property
    def is_stopped(self) -> bool:
        return bool(self.adopting)

    @contextmanager
    def stopped_for(self, process: Process) -> Iterator[None]:
        self.adopting.append(process)
        try:
            yield
        finally:
            self.adopting.remove(process)

    def write(self, random: Random) -> None:
        """Append a batch to a partition, and perhaps a part of another one."""
        partition = random.randrange(self.stage.partitions)
        path, world = self._path(partition), self.stage.oracle.world
        if partition not in self._ends:
            os.makedirs(path)
            self._topic_id = self._topic_id or write_topic_id(uuid.UUID(int=random.getrandbits(128), version=4))
            with open(os.path.join(path, PARTITION_METADATA), "wb") as file:
                file.write(self._topic_id)
        base, size, end = self._ends.get(partition, (0, 0, 0))
        if size > _SEGMENT_BYTES:
            # an incomplete batch is cut at the next start
            os.truncate(os.path.join(path, file_name(base, ".log")), size)
            base, size = end, 0
        batch, table = self.stage.records(random, "broker")
        records = timed(table, int(BEGIN_MS + world.now * 1000))
        old = Random(f"format/{world.seed}/{partition}/{end}")
        magic = self._magics[partition] = self._next_magic(partition, table, old)
        data = bytes(encode(records, end).data)
        if magic < 2:
            data = old_messages(magic, records, end, is_compressed=old.random() < 0.5)
        torn = data[: random.randrange(len(data))] if random.random() < 0.3 else b""
        if magic < 2:
            # a message is shorter than a batch
            torn = torn[:20]
        name = os.path.join(path, file_name(base, ".log"))
        with open(name, "r+b" if size else "wb") as file:
            file.truncate(size)
            file.seek(size)
            file.write(data + torn)
        os.utime(name, (world.now, world.now))
        self.batches.append((partition, end, end + table.num_rows, batch))
        self._ends[partition] = base, size + len(data), end + table.num_rows

    def _next_magic(self, partition: int, table: pa.Table, random: Random) -> int:
        """Return the message format of the next batch: an updated broker never writes an older one again."""
        magic = self._magics.get(partition, random.choice((0, 1, 2, 2)))
        if "headers" in table.column_names or random.random() < 0.2:
            return 2
        return max(magic, int("timestamp" in table.column_names))


def old_messages(magic: int, records: pa.RecordBatch, offset: int, *, is_compressed: bool) -> bytes:
    """Return records as messages of format 0 or 1 from an offset on."""
    rows, first = records.to_pylist(), offset if magic == 0 or not is_compressed else 0
    messages = b"".join(
        _message(magic, first + number, row["timestamp"], row["key"], row["value"]) for number, row in enumerate(rows)
    )
    if not is_compressed:
        return messages
    newest_ms = max(row["timestamp"] for row in rows)
    return _message(magic, offset + len(rows) - 1, newest_ms, None, gzip.compress(messages, mtime=0), codec=1)


def _message(magic: int, offset: int, time_ms: int, key: bytes | None, value: bytes | None, codec: int = 0) -> bytes:
    checked = struct.pack(">bb", magic, codec) + (struct.pack(">q", time_ms) if magic else b"")
    for data in (key, value):
        checked += struct.pack(">i", -1 if data is None else len(data)) + (data or b"")
    return struct.pack(">qiI", offset, len(checked) + 4, zlib.crc32(checked)) + checked


@dataclass(frozen=True)
class OnImported:
    """Lets an actor act on the imported topic, once it exists."""

    actor: Actor

    def __call__(self, stage: Stage, process: Process, memory: Memory) -> None:
        adopted = stage.kafka.stage
        while stage.goes_on():
            if adopted.oracle.head >= 0:
                self.actor(adopted, process, memory)
            stage.pause(process.random)


def grows(stage: Stage, process: Process, memory: Memory) -> None:
    """Write to the broker's log directory, unless it is stopped."""
    while stage.goes_on():
        if not stage.kafka.is_stopped:
            for _ in range(process.random.randrange(1, 4)):
                stage.kafka.write(process.random)
        stage.pause(process.random)


def adopts(stage: Stage, process: Process, memory: Memory) -> None:
    """Import the broker's log directory again and again."""
    while stage.goes_on():
        stage.pause(process.random)
        with suppress(PASSING):
            adopt(stage, process)


def adopt(stage: Stage, process: Process) -> None:
    """Import all records of the broker; raises as `distlog.adopt`."""
    broker = stage.kafka
    oracle, batches = broker.stage.oracle, list(broker.batches)
    if not batches:
        return
    with broker.stopped_for(process):
        try:
            url, config = broker.stage.url, broker.stage.config
            if Random(f"directory/{oracle.world.seed}/{len(batches)}").random() < 0.5:
                topic = distlog.adopt(broker.partitions, url, config=config).topic
            else:
                topic = distlog.adopt(broker.directory, url.rpartition("/")[0], config=config).topic
        except TopicExistsError as error:
            oracle.says(f"new records of a broker are not imported: {error}")
            raise
    for partition, first, end, batch in batches:
        batch.acknowledge(topic.snapshot.topic_id, {partition: (first, end)})


def exports(stage: Stage, process: Process, memory: Memory) -> None:
    """Export the topic into the same log directory repeatedly, and sometimes import it from there."""
    while stage.goes_on():
        with suppress(*PASSING, SnapshotTooOldError, OffsetOutOfRangeError):
            export(stage, memory, is_adopted=process.random.random() < 0.3)
        stage.pause(process.random)


def export(stage: Stage, memory: Memory, *, is_adopted: bool) -> None:
    """Export the topic, and perhaps compare it with an import of the export."""
    topic = stage.open()
    folder = os.path.join(stage.kafka.folder, f"{memory.name} of {topic.snapshot.topic_id}")
    try:
        topic.export(folder)
    except StorageError as error:
        if "a broker has written" in str(error) or "that no export wrote" in str(error):
            stage.oracle.says(f"an export takes its own files for a broker's: {error}")
        raise
    if not is_adopted:
        return
    memory.number += 1
    folders = [os.path.join(folder, f"clicks-{number}") for number in range(topic.partitions)]
    copy = distlog.adopt(folders, f"{stage.url}-of-{memory.name}-{memory.number}").topic
    expected, copied = rows_of(topic), rows_of(copy)
    if copied != expected:
        other = sorted({*copied.items()} ^ {*expected.items()})[:3]
        stage.oracle.says(f"version {topic.version} was exported and imported with other records: {other}")
    for number, path in enumerate(folders):
        for text in _wrong_dump(path, topic.start_offsets()[number], rows_of_partition(expected, number)):
            stage.oracle.says(f"version {topic.version} was exported, and the dump of {path} has {text}")


def rows_of_partition(rows: Rows, partition: int) -> dict[int, Row]:
    return {offset: row for (number, offset), row in rows.items() if number == partition}


def _wrong_dump(folder: str, start: int, rows: Mapping[int, Row]) -> Iterator[str]:
    """Yield what is wrong with a dump of the files of a partition, whose log starts at `start`."""
    names = sorted(name for name in os.listdir(folder) if name.endswith(_DUMPED))
    lines = io.BytesIO()
    output = DumpOutput(lines, lines, as_json=True)
    files = [DumpedFile.from_address(os.path.join(folder, name)) for name in names]
    dump(files, DumpOptions(print_data_log=True), output)
    entries = [json.loads(line) for line in lines.getvalue().splitlines()]
    problems = [entry for entry in entries if entry["type"] in _PROBLEMS and not _is_of_empty_batch(entry)]
    if problems or output.failures:
        yield f"{problems} and {output.failures} failures"
    dumped = {
        entry["offset"]: tuple(_dumped_bytes(entry.get(name)) for name in ("key", "payload"))
        for entry in entries
        if entry["type"] == "record" and "endTxnMarker" not in entry and entry["offset"] >= start
    }
    if dumped != {offset: (row.key, row.value) for offset, row in rows.items()}:
        yield f"the records {dumped}, not {rows}"


def _dumped_bytes(value: str | Mapping[str, str] | None) -> bytes | None:
    """Return the bytes of a dumped key or value, which is in base64 unless it is text."""
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    return base64.b64decode(value["base64"])


def _is_of_empty_batch(entry: Mapping[str, Any]) -> bool:
    """True for a batch from which compaction removed all records; Kafka's DumpLogSegments reports it the same."""
    return entry["type"] == "timestampMismatch" and entry["logTimestamp"] == NO_TIMESTAMP


#: The endings of the files to dump, and the problems that a dump may report.
_DUMPED = (".log", ".index", ".timeindex", ".txnindex", ".snapshot", LEADER_EPOCHS)
_PROBLEMS = {
    *("indexMismatch", "indexedPositionNotFound", "timestampMismatch", "outOfOrderTimestamp", "offsetNotFound"),
    *("invalidBytes", "unknownFile"),
}
