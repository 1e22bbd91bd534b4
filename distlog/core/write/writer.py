"""Appends records one by one, in buffers: a buffer is sent when it is full or old, at a flush, or at exit."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import pyarrow as pa

from distlog.core.arrays import whole_number
from distlog.core.commits.commit_log import CurrentSnapshot
from distlog.core.commits.snapshot import Snapshot
from distlog.core.errors import CommitStateUnknownError, DistlogError, InvalidConfigError, InvalidRecordError
from distlog.core.format.record_encoder import BatchFormat, RecordInput, batch_format, codec_of
from distlog.core.segments.segment_reader import TopicHandle
from distlog.core.times import check_unit, fastest
from distlog.core.write.append import AppendResult, is_early, warn_of_early
from distlog.core.write.engine import Appends, CommitEngine, DirectEngine, Engine, Fence, PartitionBatches
from distlog.core.write.rows import (
    FIELDS_PER_RECORD,
    ROW_OVERHEAD,
    Header,
    Partitioner,
    Row,
    batch_of_fields,
    check_row,
    check_row_partition,
    columns_of,
    max_record_bytes,
    normalize,
    row_of,
)

#: A buffer is full when the largest sizes that its records could have in uncompressed batches add up to this. A
#: writer has up to two buffers, together as large as Kafka's `buffer.memory` by default.
BUFFER_BYTES = 16 << 20


class Writer:
    """Append records one by one, and send them in buffers from a background thread. Made by `Topic.writer`.

    A buffer is sent after `linger_ms`, or when its records could need 16 MiB in uncompressed batches. In the buffer,
    small records take several times as much memory. On a local disk each partition of a buffer is appended directly;
    elsewhere a buffer is one commit. While one full buffer is sent and the next is full, `append` waits. Threads may
    share a writer.

    A record is durable when `flush` or `close` has returned; by default (`flush.messages=1`), already when
    `on_delivery` gets its Delivery. Before that, a directly appended record may be visible, and survive a crash.

    `append` raises for a record that the topic refuses, and the writer stays usable. After an error of the storage,
    every call raises that error, and later records are not committed. The error has the number of records that were
    not committed, the number of records whose commit is in doubt, and the partitions of both.

    `on_delivery` runs in the background, once per buffer and partition, and its errors are logged. It may call
    `append`, but not `flush` or `close`, which would wait for it. The next buffer waits until it returns.

    A `with` block closes the writer, which sends its records, even if the block raises, as Kafka's producer does. At
    exit an unclosed writer sends its records and warns (ResourceWarning). In a forked child the writer is empty.

    Examples:
        >>> with topic.writer() as writer:
        ...     for number in range(3):
        ...         writer.append(str(number), partition=1)
        >>> topic.refresh().end_offsets()  # it was {0: 2, 1: 1}
        {0: 2, 1: 4}
    """

    def __init__(
        self,
        sender: RecordSender,
        *,
        linger_ms: int,
        buffer_bytes: int = BUFFER_BYTES,
        on_delivery: OnDelivery | None = None,
        timestamp_unit: str = "ms",
    ) -> None:
        self._current, self._unit = sender.current, check_unit(timestamp_unit)
        codec_of(self._current.snapshot.config, sender.compression)  # raises an error for an unknown codec
        if whole_number("linger_ms", linger_ms) < 0 or buffer_bytes < 1:
            text = "linger_ms must be at least 0, and buffer_bytes at least 1"
            raise InvalidConfigError(text, linger_ms=linger_ms, buffer_bytes=buffer_bytes)
        self._handle, self._sender, self._on_delivery = sender.handle, sender, on_delivery
        self._now, self._units_per_ms = fastest(self._handle.clock)  # the clock, or a faster equal one
        self._closed = self._is_close_done = False
        self.result = AppendResult(None)
        linger_s = linger_ms / 1000
        self._accumulator = Accumulator(self._send, self._on_empty, linger_s=linger_s, buffer_bytes=buffer_bytes)
        self.reset_in_child()  # defines the attributes that a fork resets
        _unclosed.all.add(self)

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} belongs to one process: pickle its topic, and open another there")

    def reset_in_child(self) -> None:
        """Become empty, as a new writer: the records, their thread and their error are the parent's."""
        self._accumulator.reset()
        self._sender.reset_in_child()
        self._error: BaseException | None = None
        self._rules_snapshot: Snapshot | None = None

    def append(
        self,
        value: bytes | str | None,
        *,
        key: bytes | str | None = None,
        timestamp: int | None = None,
        headers: Iterable[Header] | Mapping[str, bytes | None] | None = None,
        partition: int | None = None,
    ) -> None:
        """Append one record.

        A record must fit `max.message.bytes` uncompressed, in a compressed topic too. When records are sent, the
        topic's rules are checked again: the send fails if the config has changed, or a record has become too old.

        Args:
            value: Bytes or text; None is a tombstone (a delete marker of compaction).
            key: Bytes or text.
            timestamp: A number of the writer's unit since 1970; default now.
            headers: Pairs of text and bytes, or a dict.
            partition: The partition; default by murmur2 of the key, or in sticky runs without a key.

        Raises:
            InvalidRecordError: The record does not fit the topic's rules, or the writer is closed.
            DistlogError: An earlier buffer failed, with the numbers of its records.

        Examples:
            >>> with topic.writer() as writer:
            ...     writer.append("{}", key="dora", headers={"source": b"app"})
        """
        accumulator, now = self._accumulator, self._now
        if self._current.snapshot is not self._rules_snapshot:
            self._load_rules()  # raises after an error or `close`, which set `_rules_snapshot` to None
        # a fast path for the usual case, since this is called for every record
        if (
            type(value) is bytes
            and (self._allows_null_keys if key is None else type(key) is bytes)
            and timestamp is None
            and headers is None
            and (partition is None or (type(partition) is int and 0 <= partition < self._partitions))
            and (size := len(value) + (ROW_OVERHEAD if key is None else ROW_OVERHEAD + len(key))) <= self._max_bytes
        ):
            accumulator.put((partition, None, key, value, None, now()))  # the fields of a Row, and the append time
        else:
            row = self._checked_row(value, key, timestamp, headers, partition)
            size = row.max_bytes
            accumulator.put((*row, now()))
        accumulator.bytes = total = accumulator.bytes + size  # without a lock, as Accumulator explains
        if total >= accumulator.schedule_from_bytes:  # for the first record of a buffer, and when the buffer is full
            self._schedule()

    def _checked_row(self, value: Any, key: Any, timestamp: Any, headers: Any, partition: Any) -> Row:
        now_ms = self._handle.clock()
        row = row_of(value, key, timestamp, headers, partition, self._unit)
        if row.timestamp is not None and is_early(row.timestamp):
            # warn before the record is buffered, since a warning may be an error
            warn_of_early(self._handle.storage.name, self._current.snapshot.topic_id, row.timestamp)
        check_row(row, row.max_bytes, self._current.snapshot.config, now_ms, self._codec)
        if row.partition is not None:
            check_row_partition(row.partition, self._partitions)
        return row

    def _load_rules(self) -> None:
        """Load the rules for records. Raises an error after `_fail` or `close`, which discard the rules."""
        self._check_open()
        snapshot = self._current.snapshot
        self._codec = codec_of(snapshot.config, self._sender.compression)
        self._max_bytes, self._partitions = max_record_bytes(snapshot.config, self._codec), len(snapshot.partitions)
        self._allows_null_keys = "compact" not in snapshot.config.cleanup_policy
        self._rules_snapshot = snapshot

    def _schedule(self) -> None:
        self._accumulator.schedule(lambda: _unclosed.add(self))  # keeps the writer alive until its records are sent
        if self._closed:
            # another thread closed the writer, perhaps before this record: send it, and close the files again
            self._drain()
            self._sender.engine.close()
        self._raise_error()

    def flush(self) -> AppendResult:
        """Make the records durable, and return the last buffer's result, which `result` keeps.

        Raises:
            InvalidRecordError: The writer is closed.
            DistlogError: A buffer failed.
        """
        self._check_can_wait()
        self._check_open()
        self._drain()
        self._raise_error()
        self._sender.engine.flush()
        self._accumulator.report_if_empty()  # after the flush, an empty writer need not be kept alive
        return self.result

    def close(self) -> None:
        """Flush, and accept no more records. Raises the error of a failed buffer."""
        self._check_can_wait()
        if not self._is_close_done:
            # `_is_close_done` is set last: after an interrupt, the next call of `close` flushes
            self._closed, self._rules_snapshot = True, None
            self._drain()
            self._sender.engine.close()
            self._accumulator.report_if_empty()
            self._is_close_done = True
            self._raise_error()

    def _check_can_wait(self) -> None:
        if self._accumulator.is_sender:
            raise InvalidRecordError("on_delivery must not flush or close its writer: flush after it has returned")

    def _check_open(self) -> None:
        self._raise_error()
        if self._closed:
            raise InvalidRecordError("the writer is closed: create another one")

    def _drain(self) -> None:
        if not self._accumulator.is_sender:
            self._accumulator.drain()

    def _raise_error(self) -> None:
        if self._error is not None:
            # after an error, a drain fails the records that other threads appended: the error counts them too
            self._drain()
            _unclosed.discard(self)
            # raise with the first traceback, since each raise adds frames, which would keep objects alive
            raise self._error.with_traceback(self._traceback)

    def _send(self, fields: list[Any]) -> None:
        """Send a buffer: the fields of all its records, FIELDS_PER_RECORD each."""
        deliveries = self._send_records(fields) if self._error is None else self._fail_records(fields, self._error)
        if self._on_delivery is not None:
            deliver(deliveries, self._on_delivery)

    def _send_records(self, fields: list[Any]) -> list[Delivery]:
        try:
            outcome = self._sender.send(batch_of_fields(fields, self._units_per_ms, self._handle.clock()))
        except BaseException as error:
            self._fail(error)
            in_doubt = isinstance(error, CommitStateUnknownError)
            return self._fail_records(fields, error, in_doubt=in_doubt) + self._fail_buffered_records(error)
        self.result, deliveries = outcome.result, successful_deliveries(outcome.result)
        if not outcome.failures:
            return deliveries
        first_error = outcome.failures[0].error
        self._fail(first_error)
        for partition, count, partition_error, in_doubt in outcome.failures:
            self._count_in_error(first_error, Counter({partition: count}), in_doubt=in_doubt)
            deliveries += failed_deliveries({partition: count}, partition_error)
        return deliveries + self._fail_buffered_records(first_error)

    def _fail(self, error: BaseException) -> None:
        self._failed_counts: Counter[str] = Counter()
        self._failed_by_partition: Counts = Counter()
        self._traceback, self._error, self._rules_snapshot = error.__traceback__, error, None

    def _count_in_error(self, error: BaseException, counts: Counts, *, in_doubt: bool) -> None:
        self._failed_counts["records_in_doubt" if in_doubt else "records_not_committed"] += sum(counts.values())
        self._failed_by_partition += counts
        details = {**self._failed_counts, "of_partitions": dict(self._failed_by_partition)}
        if isinstance(error, DistlogError):
            error.details.update(details)
        elif hasattr(error, "add_note"):
            error.add_note(" ".join(f"{name}={value}" for name, value in details.items()))

    def _fail_buffered_records(self, error: BaseException) -> list[Delivery]:
        """Fail the buffered records, which must not be appended without the failed records before them."""
        fields = self._accumulator.remove_all()
        return self._fail_records(fields, error) if fields else []

    def _fail_records(self, fields: list[Any], error: BaseException, *, in_doubt: bool = False) -> list[Delivery]:
        try:
            counts = _counts_by_partition(fields, len(self._current.snapshot.partitions))
        except MemoryError:  # the count copies keys, and a lack of memory may be why the send failed
            counts = Counter({None: len(fields) // FIELDS_PER_RECORD})
        self._count_in_error(error, counts, in_doubt=in_doubt)
        return failed_deliveries(counts, error)

    def _on_empty(self) -> None:
        if self._error is None and self._sender.engine.is_flushed:
            _unclosed.discard(self)

    def commit_at_exit(self) -> BaseException | None:
        """Commit the buffered records, and return the error, if any, since no call can raise it."""
        self._drain()
        error = self._error
        if error is None:
            try:
                self._sender.engine.flush()
                return None
            except Exception as failure:
                error = failure  # not raised, since the other writers of the process must commit too
        _unclosed.discard(self)
        return error

    @property
    def is_closed(self) -> bool:
        """True after `close`: the writer accepts no more records."""
        return self._closed

    def __repr__(self) -> str:
        return f"Writer({self._handle.storage.url!r})"

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


Counts = Counter[int | None]  # the number of records by partition; None stands for records without a key or partition


def _counts_by_partition(fields: Sequence[Any], partitions: int) -> Counts:
    columns = columns_of(fields)
    row_partitions = columns.get("partition", [None] * len(columns["value"]))
    counts: Counts = Counter(partition for partition in row_partitions if partition is not None)
    partitions_and_keys = zip(row_partitions, columns["key"], strict=True)
    keys = [key for partition, key in partitions_and_keys if partition is None and key is not None]
    column = pa.array(keys, pa.large_binary())
    batch = pa.record_batch({"key": column, "value": pa.nulls(len(keys), pa.binary())})
    partitioner = Partitioner(partitions, 0)  # 0 has no effect, since all these records have a key
    counts.update({partition: len(rows) for partition, rows in partitioner.split(batch)})
    without_key = len(row_partitions) - sum(counts.values())  # their partition is unknown, unless it is the only one
    if without_key:
        counts[0 if partitions == 1 else None] += without_key
    return counts


_IDLE_S = 0.1  # the sending thread ends after this time without records


class Accumulator:
    """Collects records in buffers, which one thread sends in order: when full, after `linger_s`, or at a drain.

    There are at most two buffers of about `buffer_bytes`: one fills while the other is sent. `send` gets a buffer as
    one flat list, FIELDS_PER_RECORD values a record, and raises nothing. `on_empty` is called when no record is left.

    The sending thread lives while there are records, and a little longer. Only this thread removes records, since an
    interrupt of a caller could lose removed records. If no thread can be started, the caller sends.

    A lock for each record would make an append half as expensive again, so the writer does without. It adds a record
    by `put`, in one step of the interpreter, and then the record's size to `bytes`. If `bytes` has reached
    `schedule_from_bytes`, it calls `schedule`: this is 0 for a new buffer, and `buffer_bytes` once it is scheduled.
    Threads that add to `bytes` at the same time can only make one buffer a little larger or smaller.
    """

    def __init__(
        self, send: Callable[[list[Any]], None], on_empty: Callable[[], None], *, linger_s: float, buffer_bytes: int
    ) -> None:
        self._send, self._on_empty, self._linger_s, self._buffer_bytes = send, on_empty, linger_s, buffer_bytes
        self.fields: list[Any] = []
        self.put: Callable[[tuple[Any, ...]], None] = self.fields.extend
        self.reset()

    def reset(self) -> None:
        self.fields.clear()  # not a new list: `put` adds to this one, even if a fork interrupted an append
        self.bytes = self.schedule_from_bytes = 0
        # enter `_lock`, not `_changed`, whose `__enter__` is Python code: an interrupt there could leave it locked
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._buffer_in_flight: list[Any] | None = None
        # numbers of buffers, from 1 on: the last one whose sending has started, and the last one that must not linger
        self._last_started = self._last_to_drain = 0
        self._linger_end_s = 0.0
        self._thread: threading.Thread | None = None

    @property
    def is_sender(self) -> bool:
        return self._thread is threading.current_thread()

    def schedule(self, on_begin: Callable[[], None]) -> None:
        """Schedule the buffer, and wait while both buffers are full. Calls `on_begin` if the buffer was empty."""
        with self._lock:
            if self.fields and self.schedule_from_bytes == 0:
                on_begin()
                self._linger_end_s = time.monotonic() + self._linger_s
                if self._ensure_thread():  # without a thread, the next record must call `schedule`, too
                    self.schedule_from_bytes = self._buffer_bytes
        self._wait_while(self._is_full)

    def drain(self) -> None:
        """Send all records so far, and wait until they are sent. Not for the sending thread."""
        with self._lock:
            last_buffer = self._last_started + bool(self.fields)
            self._last_to_drain = max(self._last_to_drain, last_buffer)
        self._wait_while(lambda: self._last_sent < last_buffer)

    def report_if_empty(self) -> None:
        with self._lock:
            if not self.fields and self._buffer_in_flight is None:
                self._on_empty()

    def remove_all(self) -> list[Any]:
        with self._lock:
            self.schedule_from_bytes = self.bytes = 0  # in this order, so that a concurrent record calls `schedule`
            count = len(self.fields)  # records of a later `put`, which takes no lock, stay
            fields = self.fields[:count]
            del self.fields[:count]
            return fields

    @property
    def _last_sent(self) -> int:
        return self._last_started - (self._buffer_in_flight is not None)

    def _is_full(self) -> bool:
        return bool(self.fields) and self.bytes >= self._buffer_bytes

    def _wait_while(self, must_wait: Callable[[], bool]) -> None:
        """Wait while `must_wait`. If the sending thread cannot be started, send the records in this thread."""
        while self._wait_lacks_thread(must_wait):
            with self._lock:
                if self._thread is not None:
                    continue  # another thread sends: wait for it
                self._thread = threading.current_thread()  # until `_run` returns, this is the sending thread
            self._run(lingers=False)

    def _wait_lacks_thread(self, must_wait: Callable[[], bool]) -> bool:
        """Wait for the sending thread while `must_wait`. Returns True if the thread cannot be started."""
        with self._lock:
            # wake the sending thread, which may linger; not in the loop, where waiting threads would wake each other
            self._changed.notify_all()
            while self.fields or self._buffer_in_flight is not None:
                if not self._ensure_thread():
                    return True
                if self.is_sender or not must_wait():
                    return False
                # a timeout lets Ctrl-C end the wait even if a library (as Polars does) has set SA_RESTART for it
                self._changed.wait(threading.TIMEOUT_MAX)
        return False

    def _ensure_thread(self) -> bool:
        """Start the sending thread if there is none. Returns False if that is not possible."""
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="distlog-writer", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no more threads are possible, or the interpreter is shutting down
                return False
            self._thread = thread
        return True

    def _run(self, *, lingers: bool = True) -> None:
        try:
            while (buffer := self._next_buffer(lingers)) is not None:
                try:
                    self._send(buffer)
                finally:
                    del buffer  # free the records before the wait for the next buffer
                    with self._lock:
                        if self.is_sender:  # not in a child that `_send` forked
                            self._buffer_in_flight = None
                            if not self.fields:
                                self._on_empty()
                            self._changed.notify_all()
        finally:
            with self._lock:
                if self.is_sender:  # after an interrupt, else `_next_buffer` has reset it: let another thread send
                    self._thread = None

    def _next_buffer(self, lingers: bool) -> list[Any] | None:
        """Wait until a buffer is due, and return it; None if no record comes, or in a forked child."""
        with self._lock:
            while self.is_sender and self._buffer_in_flight is None:
                if not self.fields:
                    # stay a little longer: to start a thread for each record would take a tenth of an append
                    if lingers and self._changed.wait(_IDLE_S):
                        continue
                    self._thread = None  # no thread sends until the next record
                    return None
                may_linger = lingers and self._last_to_drain <= self._last_started  # else a `drain` waits for it
                wait_s = self._linger_end_s - time.monotonic() if may_linger else 0
                if wait_s > 0 and not self._is_full():
                    self._changed.wait(min(wait_s, threading.TIMEOUT_MAX))
                else:
                    self._buffer_in_flight = self.remove_all()
                    self._last_started += 1
                    self._changed.notify_all()
            return self._buffer_in_flight if self.is_sender else None


_log = logging.getLogger("distlog")


class UnclosedWriters:
    """Keeps alive the writers of this process that have records to commit or an error to raise."""

    def __init__(self) -> None:
        self.all: weakref.WeakSet[Writer] = weakref.WeakSet()  # all writers, which a forked child resets
        self._writers: set[Writer] = set()
        self._committed: set[Writer] = set()

    def add(self, writer: Writer) -> None:
        self._writers.add(writer)

    def discard(self, writer: Writer) -> None:
        self._writers.discard(writer)

    def commit(self) -> None:
        """Commit the records of all writers; errors are logged, since no caller is left to raise them to."""
        for writer in list(self._writers):
            self._committed.add(writer)
            if (error := writer.commit_at_exit()) is not None:
                _log.error("%r was not closed, and its last commit failed: %s", writer, error, exc_info=error)

    def commit_and_warn(self) -> None:
        self.commit()
        for writer in self._committed:
            if not writer.is_closed:
                text = f"{writer!r} was not closed before exit; close it, or use a with block"
                warnings.warn(text, ResourceWarning, source=writer, stacklevel=2)

    def reset_in_child(self) -> None:
        for writer in self.all:
            writer.reset_in_child()
        self._writers.clear()
        self._committed.clear()


_unclosed = UnclosedWriters()
os.register_at_fork(after_in_child=_unclosed.reset_in_child)
# At exit, commit before Python's threads end, since clients of object stores need threads, and again after that. A
# child of multiprocessing calls only the first function, which has no public way to be registered.
getattr(threading, "_register_atexit", lambda call: None)(_unclosed.commit)
atexit.register(_unclosed.commit_and_warn)


class RecordSender:
    """Splits buffers by partition, and appends them with `engine`; `fence` raises if a newer leader exists."""

    def __init__(
        self,
        handle: TopicHandle,
        current: CurrentSnapshot,
        engine: Engine,
        compression: str | None = None,
        *,
        fence: Fence | None = None,
    ) -> None:
        self.handle, self.current, self.engine, self.compression = handle, current, engine, compression
        self._fence = fence
        # the partitioner, and the number of partitions that it was made for; 0 until the first records
        self._partitioner, self._partitioned_count = Partitioner(1, 0), 0

    def send(self, records: pa.RecordBatch) -> Appends:
        """Append the records, in order within each partition. An error that is raised applies to all records."""
        return self._append(self._route(records))

    def _append(self, parts: Sequence[PartitionBatches]) -> Appends:
        return self.engine.append(parts, self._fence)

    def _form_of(self, partition: int, form: BatchFormat) -> BatchFormat:
        """Return the format of the partition's next batches; a ProducerSender adds its id, epoch and sequence."""
        return form

    def _route(self, records: pa.RecordBatch) -> list[PartitionBatches]:
        handle, snapshot = self.handle, self.current.for_append()
        config, count, now_ms = snapshot.config, len(snapshot.partitions), self.handle.clock()
        form = batch_format(config, codec_of(config, self.compression), handle.clock, handle.random)
        records = normalize(records, config, now_ms)
        source = RecordInput.from_arrow(records)
        if self._partitioned_count != count:
            self._partitioner, self._partitioned_count = Partitioner(count, handle.random.randrange(count)), count
        parts = list[PartitionBatches]()
        for partition, rows in self._partitioner.split(records):
            share_bytes, part_form = records.nbytes * len(rows) // records.num_rows, self._form_of(partition, form)
            parts.append(PartitionBatches(partition, source, rows, share_bytes, config, part_form, now_ms))
        return parts

    def reset_in_child(self) -> None:
        self.engine.reset_in_child()


def engine_of(handle: TopicHandle, current: CurrentSnapshot, lock_timeout_s: float | None = None) -> Engine:
    if handle.storage.is_local_disk:
        return DirectEngine(handle, current, lock_timeout_s)
    return CommitEngine(handle, current)


@dataclass(frozen=True, slots=True)
class Delivery:
    """The records of one partition in one buffer, with offsets from `first_offset` up to but not `end_offset`.

    With an `error` the records have no offsets, and those without a key have no partition.
    """

    partition: int | None
    first_offset: int | None
    end_offset: int | None
    record_count: int
    error: BaseException | None


OnDelivery = Callable[[Delivery], object]
"""Called in the background with the Delivery of each partition of a buffer."""


def successful_deliveries(result: AppendResult) -> list[Delivery]:
    return [Delivery(number, first, end, end - first, None) for number, (first, end) in result.offsets.items()]


def failed_deliveries(counts: Mapping[int | None, int], error: BaseException | None) -> list[Delivery]:
    return [Delivery(number, None, None, count, error) for number, count in counts.items()]


def deliver(deliveries: Iterable[Delivery], on_delivery: OnDelivery) -> None:
    """Call `on_delivery` for each delivery; its errors are logged."""
    for delivery in deliveries:
        try:
            on_delivery(delivery)
        except BaseException:  # noqa: PERF203 - an error must not end the sending thread
            _log.exception("on_delivery failed for %r", delivery)
