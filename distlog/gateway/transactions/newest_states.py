"""The newest states of transactions as the log has them now: whichever gateway asks, whoever wrote them.

Any gateway takes batches of a transaction, and has no word with its coordinator. So it reads the state that the
coordinator has written, at the moment of the append. See `transaction_coordinator` why that is enough.
"""

from __future__ import annotations

import logging
import threading

import pyarrow as pa

from distlog.core.batches.record_batch import CONTROL
from distlog.core.batches.record_decoder import decode
from distlog.core.errors import CorruptRecordError
from distlog.core.maintenance.compaction.cleanable import first_dirty_offset
from distlog.core.reading.fetch import FetchedBatches
from distlog.core.reading.whole_log import whole_logs
from distlog.core.transactions.isolation import READ_UNCOMMITTED
from distlog.gateway.topics.hosted_topic import HostedTopic
from distlog.gateway.topics.partition_tail import READ_BYTES, PartitionTail
from distlog.gateway.transactions.state_format import decode_key, decode_state
from distlog.gateway.transactions.transaction_state import TransactionState

_log = logging.getLogger("distlog.gateway")
_COLUMNS = ("offset", "key", "value")


class NewestStates:
    """The states in one partition of `__transaction_state`, by id; for many threads."""

    def __init__(self, hosted: HostedTopic, number: int) -> None:
        self._partition, self._lock = hosted.partition(number), threading.Lock()
        self._tail = PartitionTail(self._read)
        self._states = dict[str, TransactionState]()

    def get(self, transactional_id: str) -> TransactionState | None:
        """The state of an id, behind all that was written before this call. Raises DistlogError."""
        with self._lock:
            self._partition.fresh.refresh()
            self._catch_up()
            return self._states.get(transactional_id)

    def all(self) -> list[TransactionState]:
        """All of them, behind all that was written before the topic was last refreshed. Raises DistlogError."""
        with self._lock:
            self._catch_up()
            return list(self._states.values())

    def wrote(self, state: TransactionState, offset: int) -> None:
        """Take a state that this process has put at `offset`, so that it need not be read."""
        with self._lock:
            if offset == self._tail.offset:
                self._states[state.transactional_id] = state
                self._tail.offset = offset + 1

    def _catch_up(self) -> None:
        state = self._partition.fresh.snapshot.partitions[self._partition.number]
        if first_dirty_offset(state) > self._tail.offset:
            # what is not read yet was cleaned, and may have said that an id is forgotten
            self._states.clear()
            self._tail.offset = state.log_start_offset
        if not self._partition.fresh.is_local:
            self._read_segments()
        for found in self._tail.batches():
            rows = found.rows[found.rows["attributes"] & CONTROL == 0]
            self._take(decode(found.data, rows, columns=_COLUMNS))

    def _read_segments(self) -> None:
        """Read the segments that are new, if they are several, at once; each was a commit, so most are small."""
        fresh = self._partition.fresh
        state = fresh.snapshot.partitions[self._partition.number]
        first = state.segments.find(self._tail.offset)
        behind = [state.segments[number] for number in range(first, len(state.segments))]
        if len(behind) < 2:
            return
        for chunk in whole_logs(fresh.topic.reader, behind):
            for records in chunk.records(_COLUMNS, READ_UNCOMMITTED):
                self._take(records)
        self._tail.offset = state.log_end_offset

    def _read(self, offset: int) -> FetchedBatches | None:
        return self._partition.fetch(offset, READ_BYTES, committed=False).batches

    def _take(self, records: pa.RecordBatch) -> None:
        for row in records.to_pylist():
            try:
                take_state(self._states, row["key"], row["value"])
            except CorruptRecordError as error:  # noqa: PERF203 - one must not hide all others
                _log.error("%s (partition=%s offset=%s)", error, self._partition.number, row["offset"])


def take_state(newest: dict[str, TransactionState], key: bytes | None, value: bytes | None) -> None:
    """Take the next record of the log. Raises CorruptRecordError."""
    transactional_id = decode_key(key or b"")
    if transactional_id is None:
        return
    if value is None:
        newest.pop(transactional_id, None)
    else:
        newest[transactional_id] = decode_state(transactional_id, value)
