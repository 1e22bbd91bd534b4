"""Transactional producers as objects of one process, without a thread, and what readers of committed records see."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
from partition_logs import Process

from distlog.core.commits.format.actions import ProducerTransaction
from distlog.core.log.transaction_coordinator import TransactionCoordinator
from distlog.core.topics.appending.append_commit import AppendResult
from distlog.core.topics.producing.in_place_transactions import InPlaceTransactions
from distlog.core.topics.topic import Topic
from distlog.core.transactions.isolation import IsolationLevel

TIMEOUT_MS = 1000


class Sender:
    """A producer with the transactional id, whose records are appended at once, by the process that is given."""

    def __init__(self, process: Process, transactional_id: str = "payments") -> None:
        self.process = process
        self.destination = InPlaceTransactions(
            process.handle, process.snapshots, None, lambda: None, transactional_id, TIMEOUT_MS
        )

    def begin(self) -> Sender:
        self.destination.begin()
        return self

    def send(self, partition: int, *values: bytes) -> Sender:
        """Append the values; raises what failed."""
        rows = [{"value": value, "key": None, "partition": partition} for value in values]
        schema = pa.schema([("partition", pa.int32()), ("key", pa.binary()), ("value", pa.binary())])
        sent = self.destination.send(pa.RecordBatch.from_pylist(rows, schema))
        for failure in sent.failures:
            raise failure.error
        return self

    def commit(self) -> AppendResult:
        return self.destination.commit().result

    def abort(self, *, has_failed: bool = False) -> None:
        self.destination.abort(has_failed=has_failed)

    def close(self) -> None:
        self.destination.close()


def seen(topic: Topic, isolation: IsolationLevel = "read_committed") -> dict[int, list[bytes]]:
    """The values of each partition, in order."""
    table = topic.refresh().scan(columns=["partition", "value"], isolation=isolation).to_table()
    found: dict[int, list[bytes]] = {number: [] for number in range(topic.partitions)}
    for partition, value in zip(*(column.to_pylist() for column in table.columns), strict=True):
        found[partition].append(value)
    return found


def committed(folder: Path) -> dict[int, list[bytes]]:
    """What another process sees of the committed records now."""
    return seen(Process(folder).topic())


def end_all(process: Process, now_ms: int) -> Sequence[ProducerTransaction]:
    """Do what maintenance does at that time; returns the transactions that are left, and demands that none failed."""
    assert TransactionCoordinator(process.handle, process.snapshots).end_all(now_ms) == {}
    return list(process.head().producer_transactions.values())
