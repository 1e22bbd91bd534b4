"""Transactional producers as objects of one process, without a thread, and what readers of committed records see."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import cast

import pyarrow as pa
from partition_logs import Process

from distlog.core.format.record_encoder import encode
from distlog.core.kafka.transactions import marker
from distlog.core.segments.chunks import IsolationLevel
from distlog.core.topic import Topic
from distlog.core.write.append import AppendResult
from distlog.core.write.engine import segment_runs
from distlog.core.write.producer import TransactionSender, producer_sender
from distlog.core.write.writer import engine_of


class Sender:
    """A transactional producer of a Kafka client: its records are in the log at once, and wait for end markers."""

    epoch = 0

    def __init__(self, process: Process, transactional_id: str = "payments") -> None:
        self.process, self.transactional_id = process, transactional_id
        self.producer_id = zlib.crc32(transactional_id.encode())
        self._sequences: dict[int, int] = {}
        self.partitions: set[int] = set()
        self._is_open = False

    def begin(self) -> Sender:
        self._is_open = True
        return self

    def send(self, partition: int, *values: bytes, key: bytes | None = None) -> Sender:
        if self._is_open:
            self.partitions.add(partition)
        now_ms, count = self.process.handle.clock(), len(values)
        records = {"timestamp": pa.array([now_ms] * count, pa.int64()), "key": pa.array([key] * count, pa.binary())}
        encoded = encode(
            pa.record_batch({**records, "value": pa.array(values, pa.binary())}),
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=self._sequences.get(partition, 0),
            transactional=self._is_open,
        )
        config = self.process.snapshots.refresh().config
        log = self.process[partition]
        for _ in log.append_runs(segment_runs(encoded, config, now_ms, in_transaction=self._is_open), lambda _: None):
            pass
        self._sequences[partition] = self._sequences.get(partition, 0) + count
        return self

    def commit(self) -> None:
        self._end(is_committed=True)

    def abort(self) -> None:
        self._end(is_committed=False)

    def _end(self, *, is_committed: bool) -> None:
        for partition in sorted(self.partitions):
            run = marker(self.producer_id, self.epoch, self.process.handle.clock(), is_committed=is_committed)
            log = self.process[partition]
            log.flush(log.end_transaction(run, lambda _: None))
        self._is_open, self.partitions = False, set()


class Producing:
    """A producer with the transactional id; what it sends is written at once."""

    def __init__(self, process: Process, transactional_id: str = "payments") -> None:
        engine = engine_of(process.handle, process.snapshots)
        sender = producer_sender(process.handle, process.snapshots, engine, None, transactional_id)
        self.sender = cast(TransactionSender, sender)

    def begin(self) -> Producing:
        self.sender.begin()
        return self

    def send(self, partition: int, *values: bytes) -> Producing:
        rows = [{"value": value, "key": None, "partition": partition} for value in values]
        schema = pa.schema([("partition", pa.int32()), ("key", pa.binary()), ("value", pa.binary())])
        for failure in self.sender.send(pa.RecordBatch.from_pylist(rows, schema)).failures:
            raise failure.error
        return self

    def commit(self) -> AppendResult:
        return self.sender.commit()

    def abort(self) -> None:
        self.sender.abort()


def values_seen(topic: Topic, isolation: IsolationLevel = "read_committed") -> dict[int, list[bytes]]:
    table = topic.refresh().scan(columns=["partition", "value"], isolation=isolation).to_table()
    values_by_partition: dict[int, list[bytes]] = {number: [] for number in range(topic.partitions)}
    for partition, value in zip(*(column.to_pylist() for column in table.columns), strict=True):
        values_by_partition[partition].append(value)
    return values_by_partition


def committed(folder: Path) -> dict[int, list[bytes]]:
    return values_seen(Process(folder).topic())
