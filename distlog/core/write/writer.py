"""Appends records one by one: they are buffered, and a buffer is sent by size, by time, by a flush, or at exit."""

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

from distlog.core.commits.commit_log import CurrentSnapshot
from distlog.core.commits.snapshot import Snapshot
from distlog.core.errors import CommitStateUnknownError, DistlogError, InvalidConfigError, InvalidRecordError
from distlog.core.format.record_encoder import BatchFormat, RecordInput, batch_format, codec_of
from distlog.core.integers import whole_number
from distlog.core.segments.segment_reader import TopicHandle
from distlog.core.times import check_unit, fastest
from distlog.core.write.append import AppendResult, is_early, warn_of_early
from distlog.core.write.engine import Appends, CommitEngine, DirectEngine, Engine, Fence, PartitionBatches
from distlog.core.write.rows import (
    FIELDS,
    ROW_OVERHEAD,
    Header,
    Partitioner,
    Row,
    batch_of_fields,
    check_row,
    check_row_partition,
    columns_of,
    normalize,
    room_of,
    row_of,
)

#: Bytes of records, at their largest size in a batch, that are committed without waiting longer. A writer holds up
#: to twice as many: Kafka's `buffer.memory`.
BUFFER_BYTES = 16 << 20


class Writer:
    """Append records one by one, and send them in buffers from a background thread. Made by `Topic.writer`.

    A buffer is sent after `linger_ms`, or when its records may fill 16 MiB of batches; a small record takes several
    times as much memory as a Python object. On a local disk each partition of a buffer is appended directly;
    elsewhere a buffer is one commit. While one full buffer is sent and the next is full, `append` waits. Threads may
    share a writer.

    A record is durable when `flush` or `close` has returned and, by default (`flush.messages`), when `on_delivery`
    gets its Delivery. Direct appends are visible earlier, and may survive a crash without an acknowledgement.

    `append` raises for a record that the topic refuses, and the writer stays usable. After an error of the storage,
    every call raises that error, and later records are not committed. The error has the number of records that were
    not committed, the number in doubt, and their partitions.

    `on_delivery` runs in the background, once per buffer and partition, and its errors are logged. It may call
    `append`; `flush` and `close` raise in it, since they wait for it. The next buffer waits, too.

    A `with` block closes the writer, and so sends its records, however the block ends, as Kafka's producer does. At
    exit an unclosed writer sends its records and warns (ResourceWarning). In a forked child the writer is empty.

    Examples:
        >>> with topic.writer() as writer:
        ...     for number in range(3):
        ...         writer.append(str(number), partition=1)
        >>> topic.refresh().end_offsets()
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
        codec_of(self._current.snapshot.config, sender.compression)
        if whole_number("linger_ms", linger_ms) < 0 or buffer_bytes < 1:
            raise InvalidConfigError("linger_ms must not be negative, buffer_bytes must be positive")
        self._handle, self._sender, self._on_delivery = sender.handle, sender, on_delivery
        self._now, self._per_ms = fastest(self._handle.clock)
        self._closed = self._is_over = False
        self.result = AppendResult(None)
        self._accumulator = Accumulator(self._send, self._idle, linger_s=linger_ms / 1000, buffer_bytes=buffer_bytes)
        self.begin_empty()
        _unclosed.all.add(self)

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} belongs to one process: pickle its topic, and open another there")

    def begin_empty(self) -> None:
        """Become empty, as after a fork: the records, their thread and their error are the parent's."""
        self._accumulator.begin_empty()
        self._sender.begin_child()
        self._error: BaseException | None = None
        self._ruled_by: Snapshot | None = None

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

        A record must fit `max.message.bytes` uncompressed, in a compressed topic too. The commit checks the topic's
        rules again: after a change of the config, or with a record that has become too old, it fails.

        Args:
            value: Bytes or text; None is a tombstone (a delete marker of compaction).
            key: Bytes or text.
            timestamp: A number of the writer's unit since 1970; default now.
            headers: Pairs of text and bytes, or a dict.
            partition: The partition; default murmur2 of the key, without a key sticky runs.

        Raises:
            InvalidRecordError: The record does not fit the topic's rules, or the writer is closed.
            DistlogError: An earlier buffer failed, with the numbers of its records.

        Examples:
            >>> with topic.writer() as writer:
            ...     writer.append("{}", key="dora", headers={"source": b"app"})
        """
        accumulator, now = self._accumulator, self._now
        if self._current.snapshot is not self._ruled_by:
            self._load_rules()
        # the usual case, since this is called for every record
        if (
            type(value) is bytes
            and (self._takes_null_keys if key is None else type(key) is bytes)
            and timestamp is None
            and headers is None
            and (partition is None or (type(partition) is int and 0 <= partition < self._partitions))
            and (size := len(value) + (ROW_OVERHEAD if key is None else ROW_OVERHEAD + len(key))) <= self._room
        ):
            accumulator.put((partition, None, key, value, None, now()))
        else:
            row = self._checked(value, key, timestamp, headers, partition)
            size = row.max_bytes
            accumulator.put((*row, now()))
        accumulator.bytes = total = accumulator.bytes + size
        if total >= accumulator.limit:
            self._advance()

    def _checked(self, value: Any, key: Any, timestamp: Any, headers: Any, partition: Any) -> Row:
        now_ms = self._handle.clock()
        row = row_of(value, key, timestamp, headers, partition, self._unit)
        if row.timestamp is not None and is_early(row.timestamp):
            # before the record is buffered: a warning may be an error
            warn_of_early(self._handle.storage.name, self._current.snapshot.topic_id, row.timestamp)
        check_row(row, row.max_bytes, self._current.snapshot.config, now_ms, self._codec)
        if row.partition is not None:
            check_row_partition(row.partition, self._partitions)
        return row

    def _load_rules(self) -> None:
        """Load the rules that a record must fit; raises the error of a writer that failed or was closed."""
        self._check_open()
        snapshot = self._current.snapshot
        self._codec = codec_of(snapshot.config, self._sender.compression)
        self._room, self._partitions = room_of(snapshot.config, self._codec), len(snapshot.partitions)
        self._takes_null_keys = "compact" not in snapshot.config.cleanup_policy
        self._ruled_by = snapshot

    def _advance(self) -> None:
        self._accumulator.advance(lambda: _unclosed.add(self))
        if self._closed:  # by another thread, which may not have seen this record
            self._drain()
            self._sender.engine.close()
        self._raise_error()

    def flush(self) -> AppendResult:
        """Make the records durable, and return the last buffer's result, also in `result`.

        Raises:
            InvalidRecordError: The writer is closed.
            DistlogError: A buffer failed.
        """
        self._check_can_wait()
        self._check_open()
        self._drain()
        self._raise_error()
        self._sender.engine.flush()
        self._accumulator.idle_if_empty()
        return self.result

    def close(self) -> None:
        """Flush, and take no more records; raises the last commit's error."""
        self._check_can_wait()
        if not self._is_over:
            # `_is_over` is set last: after an interrupt the next close waits and raises as this one would
            self._closed, self._ruled_by = True, None
            self._drain()
            self._sender.engine.close()
            self._accumulator.idle_if_empty()
            self._is_over = True
            self._raise_error()

    def _check_can_wait(self) -> None:
        if self._accumulator.is_sender:
            raise InvalidRecordError("on_delivery must not flush or close its writer, which waits for it")

    def _check_open(self) -> None:
        self._raise_error()
        if self._closed:
            raise InvalidRecordError("the writer is closed; open another")

    def _drain(self) -> None:
        if not self._accumulator.is_sender:
            self._accumulator.drain()

    def _raise_error(self) -> None:
        if self._error is not None:
            # so that the error also counts the concurrent records of other threads
            self._drain()
            _unclosed.discard(self)
            # with its first traceback: each raise adds frames, which would keep the caller's objects alive
            raise self._error.with_traceback(self._trace)

    def _send(self, fields: list[Any]) -> None:
        deliveries = self._sent(fields) if self._error is None else self._uncommitted(fields, self._error)
        if self._on_delivery is not None:
            deliver(deliveries, self._on_delivery)

    def _sent(self, fields: list[Any]) -> list[Delivery]:
        try:
            outcome = self._sender.send(batch_of_fields(fields, self._per_ms, self._handle.clock()))
        except BaseException as error:
            self._fail(error)
            in_doubt = isinstance(error, CommitStateUnknownError)
            return self._uncommitted(fields, error, in_doubt=in_doubt) + self._fail_buffer(error)
        self.result, deliveries = outcome.result, successes(outcome.result)
        if not outcome.failures:
            return deliveries
        first = outcome.failures[0].error
        self._fail(first)
        for partition, count, cause, in_doubt in outcome.failures:
            self._add_missing(first, Counter({partition: count}), in_doubt=in_doubt)
            deliveries += errors({partition: count}, cause)
        return deliveries + self._fail_buffer(first)

    def _fail(self, error: BaseException) -> None:
        self._missing: Counter[str] = Counter()
        self._missing_by_partition: Counts = Counter()
        self._trace, self._error, self._ruled_by = error.__traceback__, error, None

    def _add_missing(self, error: BaseException, counts: Counts, *, in_doubt: bool) -> None:
        self._missing["records_in_doubt" if in_doubt else "records_not_committed"] += sum(counts.values())
        self._missing_by_partition += counts
        details = {**self._missing, "of_partitions": dict(self._missing_by_partition)}
        if isinstance(error, DistlogError):
            error.details.update(details)
        elif hasattr(error, "add_note"):
            error.add_note(" ".join(f"{name}={value}" for name, value in details.items()))

    def _fail_buffer(self, error: BaseException) -> list[Delivery]:
        """Fail the buffered records, since they must not overtake failed ones."""
        fields = self._accumulator.empty()
        return self._uncommitted(fields, error) if fields else []

    def _uncommitted(self, fields: list[Any], error: BaseException, *, in_doubt: bool = False) -> list[Delivery]:
        try:
            counts = _counted(fields, len(self._current.snapshot.partitions))
        except MemoryError:
            counts = Counter({None: len(fields) // FIELDS})
        self._add_missing(error, counts, in_doubt=in_doubt)
        return errors(counts, error)

    def _idle(self) -> None:
        if self._error is None and self._sender.engine.is_flushed:
            _unclosed.discard(self)

    def commit_at_exit(self) -> BaseException | None:
        """Commit the buffered records; returns an error that no call has raised."""
        self._drain()
        error = self._error
        if error is None:
            try:
                self._sender.engine.flush()
                return None
            except Exception as failure:
                # the other writers still have to commit
                error = failure
        _unclosed.discard(self)
        return error

    @property
    def is_closed(self) -> bool:
        """True after `close`: the writer takes no more records."""
        return self._closed

    def __repr__(self) -> str:
        return f"Writer({self._handle.storage.url!r})"

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


#: Records by partition; None counts records without a key and a partition.
Counts = Counter[int | None]


def _counted(fields: Sequence[Any], partitions: int) -> Counts:
    columns = columns_of(fields)
    row_partitions = columns.get("partition", [None] * len(columns["value"]))
    counts: Counts = Counter(partition for partition in row_partitions if partition is not None)
    keyed = zip(row_partitions, columns["key"], strict=True)
    keys = [key for partition, key in keyed if partition is None and key is not None]
    column = pa.array(keys, pa.large_binary())
    batch = pa.record_batch({"key": column, "value": pa.nulls(len(keys), pa.binary())})
    counts.update({number: len(rows) for number, rows in Partitioner(partitions, 0).split(batch)})
    without_key = len(row_partitions) - sum(counts.values())
    if without_key:
        counts[0 if partitions == 1 else None] += without_key
    return counts


class Accumulator:
    """A buffer that one thread sends, in order: when it is full, when it has lingered, or when it is drained.

    `send` gets all fields of a buffer's records and raises nothing; `idle` is called when no record is left. There
    are at most two buffers of about `buffer_bytes`: one fills while the other is sent. The thread lives while there
    are records. No other thread removes them, since a thread that appends or waits may be interrupted anywhere. If no
    thread can be started, the caller sends.

    A lock for each record would add half to its cost. So the writer calls `put` with the FIELDS of a record, in one
    step of the interpreter, adds to `bytes`, and calls `advance` if `bytes` has reached `limit`, which is 0 while the
    buffer is empty. A race for `bytes` can only make one buffer a little larger or smaller.
    """

    def __init__(
        self, send: Callable[[list[Any]], None], idle: Callable[[], None], *, linger_s: float, buffer_bytes: int
    ) -> None:
        self._send, self._idle, self._linger_s, self._buffer_bytes = send, idle, linger_s, buffer_bytes
        self.fields: list[Any] = []
        self.put: Callable[[tuple[Any, ...]], None] = self.fields.extend
        self.begin_empty()

    def begin_empty(self) -> None:
        # the same list, since an append that the fork interrupted refers to it
        self.fields.clear()
        self.bytes = self.limit = 0
        # unlike its condition, it is acquired and released in one step, so an interrupt cannot leave it locked
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._sending: list[Any] | None = None
        self._buffers_handed = self._drained_to = 0
        self._deadline = 0.0
        self._thread: threading.Thread | None = None

    @property
    def is_sender(self) -> bool:
        return self._thread is threading.current_thread()

    def advance(self, begin: Callable[[], None]) -> None:
        """Schedule the buffer, and wait while two are full; calls `begin` if it was empty."""
        with self._lock:
            if self.fields and self.limit == 0:
                begin()
                self._deadline = time.monotonic() + self._linger_s
                if self._has_thread():  # else the next record must call `advance`, too
                    self.limit = self._buffer_bytes
        self._wait_while(self._is_full)

    def drain(self) -> None:
        """Send all records so far, and wait for it; not in the sending thread."""
        with self._lock:
            last = self._buffers_handed + bool(self.fields)
            self._drained_to = max(self._drained_to, last)
        self._wait_while(lambda: self._sent < last)

    def idle_if_empty(self) -> None:
        with self._lock:
            if not self.fields and self._sending is None:
                self._idle()

    def empty(self) -> list[Any]:
        with self._lock:
            # the limit first: a later record then calls `advance`
            self.limit = self.bytes = 0
            count = len(self.fields)
            fields = self.fields[:count]
            del self.fields[:count]
            return fields

    @property
    def _sent(self) -> int:
        return self._buffers_handed - (self._sending is not None)

    def _is_full(self) -> bool:
        return bool(self.fields) and self.bytes >= self._buffer_bytes

    def _wait_while(self, is_waited: Callable[[], bool]) -> None:
        """Wait while `is_waited`; without a sending thread, send the records here."""
        while self._lacks_thread(is_waited):
            with self._lock:
                if self._thread is not None:
                    continue
                self._thread = threading.current_thread()
            self._run(lingers=False)

    def _lacks_thread(self, is_waited: Callable[[], bool]) -> bool:
        with self._lock:
            # once, or waiting threads would wake each other forever
            self._changed.notify_all()
            while self.fields or self._sending is not None:
                if not self._has_thread():
                    return True
                if self.is_sender or not is_waited():
                    return False
                # with a timeout, or Ctrl-C could not end it where a library restarts waits, as polars does
                self._changed.wait(threading.TIMEOUT_MAX)
        return False

    def _has_thread(self) -> bool:
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="distlog-writer", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # there can be no more threads, or the interpreter is ending
                return False
            self._thread = thread
        return True

    def _run(self, *, lingers: bool = True) -> None:
        try:
            while (sending := self._next(lingers)) is not None:
                try:
                    self._send(sending)
                finally:
                    del sending
                    with self._lock:
                        if self.is_sender:
                            self._sending = None
                            if not self.fields:
                                self._idle()
                            self._changed.notify_all()
        finally:
            with self._lock:
                if self.is_sender:  # only after an interrupt: the next thread sends the rest
                    self._thread = None

    def _next(self, lingers: bool) -> list[Any] | None:
        """Wait until a buffer is due, and return it; None without records, or in a child of the sending thread."""
        with self._lock:
            while self.is_sender and self._sending is None:
                if not self.fields:
                    self._thread = None
                    return None
                may_linger = lingers and self._drained_to <= self._buffers_handed
                wait_s = self._deadline - time.monotonic() if may_linger else 0
                if wait_s > 0 and not self._is_full():
                    self._changed.wait(min(wait_s, threading.TIMEOUT_MAX))
                else:
                    self._sending = self.empty()
                    self._buffers_handed += 1
                    self._changed.notify_all()
            return self._sending if self.is_sender else None


_log = logging.getLogger("distlog")


class UnclosedWriters:
    """The writers of this process with records to commit or an error to raise; this keeps them alive."""

    def __init__(self) -> None:
        #: The writers to empty in forked children.
        self.all: weakref.WeakSet[Writer] = weakref.WeakSet()
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

    def warn(self) -> None:
        self.commit()
        for writer in self._committed:
            if not writer.is_closed:
                text = f"{writer!r} was not closed before exit; close it, or use a with block"
                warnings.warn(text, ResourceWarning, source=writer, stacklevel=2)

    def forget_parents(self) -> None:
        for writer in self.all:
            writer.begin_empty()
        self._writers.clear()
        self._committed.clear()


_unclosed = UnclosedWriters()
os.register_at_fork(after_in_child=_unclosed.forget_parents)
# Twice: before threads end, which clients of object stores need, and after them. A child of multiprocessing runs only
# the first call, for which Python has no public name.
getattr(threading, "_register_atexit", lambda call: None)(_unclosed.commit)
atexit.register(_unclosed.warn)


class RecordSender:
    """Sends buffers of records of one topic to `engine`, by partition; `fence` may refuse a buffer."""

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
        self._partitioner: tuple[int, Partitioner] | None = None

    def send(self, records: pa.RecordBatch) -> Appends:
        """Append the records, each partition's in their order; an error that is raised applies to all records."""
        return self._append(self._route(records))

    def _append(self, parts: Sequence[PartitionBatches]) -> Appends:
        return self.engine.append(parts, self._fence)

    def _form_of(self, partition: int, form: BatchFormat) -> BatchFormat:
        """The form of the next batches of this partition, which is `form` without a producer."""
        return form

    def _route(self, records: pa.RecordBatch) -> list[PartitionBatches]:
        handle, snapshot = self.handle, self.current.recent()
        config, count, now_ms = snapshot.config, len(snapshot.partitions), self.handle.clock()
        form = batch_format(config, codec_of(config, self.compression), handle.clock, handle.random)
        records = normalize(records, config, now_ms)
        source = RecordInput.from_arrow(records)
        if self._partitioner is None or self._partitioner[0] != count:
            self._partitioner = count, Partitioner(count, handle.random.randrange(count))
        parts = list[PartitionBatches]()
        for partition, rows in self._partitioner[1].split(records):
            size = records.nbytes * len(rows) // records.num_rows
            parts.append(
                PartitionBatches(partition, source, rows, size, config, self._form_of(partition, form), now_ms)
            )
        return parts

    def begin_child(self) -> None:
        self.engine.begin_child()


def engine_of(
    handle: TopicHandle, current: CurrentSnapshot, on_append: Callable[[], None], lock_timeout_s: float | None = None
) -> Engine:
    """The engine for a topic: direct on a local disk, else commits."""
    if handle.storage.is_local_disk:
        return DirectEngine(handle, current, on_append, lock_timeout_s)
    return CommitEngine(handle, current)


@dataclass(frozen=True, slots=True)
class Delivery:
    """The records of one partition in one buffer, with offsets from `first_offset` to before `end_offset`.

    With an `error` there are no offsets, and records without a key have no partition.
    """

    partition: int | None
    first_offset: int | None
    end_offset: int | None
    record_count: int
    error: BaseException | None


OnDelivery = Callable[[Delivery], object]
"""Called in the background with the Delivery of each partition of a buffer."""


def successes(result: AppendResult) -> list[Delivery]:
    return [Delivery(number, first, end, end - first, None) for number, (first, end) in result.offsets.items()]


def errors(counts: Mapping[int | None, int], error: BaseException | None) -> list[Delivery]:
    return [Delivery(number, None, None, count, error) for number, count in counts.items()]


def deliver(deliveries: Iterable[Delivery], on_delivery: OnDelivery) -> None:
    """Call `on_delivery` for each delivery; its errors are logged."""
    for delivery in deliveries:
        try:
            on_delivery(delivery)
        except BaseException:  # noqa: PERF203 - it must not end the sending thread, or stop the next call
            _log.exception("on_delivery failed for %r", delivery)
