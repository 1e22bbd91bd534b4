"""Appends record by record: a buffer is sent by size, by time, on flush, on close, or at exit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any

from distlog.core.commits.state.snapshot import Snapshot
from distlog.core.errors import InvalidConfigError, InvalidRecordError
from distlog.core.segments.segment_writer import codec_of
from distlog.core.times import fastest
from distlog.core.topics.appending.append_commit import AppendResult
from distlog.core.topics.appending.appendable import check_row, room_of
from distlog.core.topics.appending.rows import ROW_OVERHEAD, Header, Row, batch_of_taken, row_of
from distlog.core.topics.writing.accumulator import Accumulator
from distlog.core.topics.writing.delivery import Delivery, OnDelivery, deliver, failed
from distlog.core.topics.writing.destination import Failure, WritableTopic
from distlog.core.topics.writing.unclosed_writers import unclosed_writers
from distlog.core.topics.writing.uncommitted_records import Counts, UncommittedRecords
from distlog.core.whole_number import whole_number

#: Bytes of records, at their largest size in a batch, that are committed without waiting longer. A writer holds up
#: to twice as many: Kafka's `buffer.memory`.
BUFFER_BYTES = 16 << 20

_unclosed = unclosed_writers()


class Writer:
    """Buffers records, and sends them when `buffer_bytes` are there, or after `linger_ms`.

    On a local disk a buffer is appended in place, each partition by itself; elsewhere it becomes one commit. One
    background thread sends, in order. `append` waits for it only if the writer holds two full buffers: 32 MiB of
    records, at their largest size in a batch. Small records take several times as much as Python objects.

    A record is durable when `flush` or `close` has returned, or, by default (`flush.messages`), when `on_delivery`
    was called with its Delivery, not before. In place it is visible sooner, and may be there after a crash although
    nobody was told. A `with` block closes the writer, and so sends what it took, however the block ends, as Kafka's
    producer does. A record that does not fit is refused by `append`, and the others stay. After an error of the
    storage, each call raises it. Its records and later ones are not committed then: the error says how many, of which
    partitions, and how many may be there all the same. Safe to share between threads.

    `on_delivery` is called in the background once per buffer and partition. It may append, but not flush or close;
    what it raises is logged. The next buffer waits for it, and so do `flush` and `close`.

    At exit, what an unclosed writer still holds is sent, with a ResourceWarning; an error is logged. The writer is
    kept alive until then. A process that is killed sends nothing more. In a forked child the writer is empty.
    """

    def __init__(
        self,
        topic: WritableTopic,
        *,
        linger_ms: int,
        buffer_bytes: int = BUFFER_BYTES,
        compression: str | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> None:
        self._current = topic.current
        codec_of(self._current.snapshot.config, compression)
        if whole_number("linger_ms", linger_ms) < 0 or buffer_bytes < 1:
            raise InvalidConfigError("linger_ms must not be negative, buffer_bytes must be positive")
        self._handle, self._compression, self._on_delivery = topic.handle, compression, on_delivery
        self._destination = topic.destination(compression)
        self._now, self._per_ms = fastest(self._handle.clock)
        self._closed = self._is_over = False
        self.result = AppendResult(None)
        self._accumulator = Accumulator(self._send, self._idle, linger_s=linger_ms / 1000, buffer_bytes=buffer_bytes)
        self.begin_empty()
        _unclosed.empty_in_children(self)

    def begin_empty(self) -> None:
        """Become empty, as after a fork: the parent has the records, their thread and their error."""
        self._accumulator.begin_empty()
        self._destination.begin_child()
        self._error: BaseException | None = None
        self._uncommitted: UncommittedRecords | None = None
        self._ruled_by: Snapshot | None = None

    def append(
        self,
        value: bytes | str | None,
        *,
        key: bytes | str | None = None,
        timestamp: int | None = None,
        headers: Iterable[Header] | None = None,
        partition: int | None = None,
    ) -> None:
        """Take one record; a missing timestamp (ms) is now. InvalidRecordError tells what does not fit.

        With a compressed topic, too, a record must fit `max.message.bytes` uncompressed. The commit asks the topic's
        rules again: a config that was changed meanwhile, or a record that grew too old, fails it.
        """
        accumulator, now = self._accumulator, self._now
        if self._current.snapshot is not self._ruled_by:
            self._learn_rules()
        # Only the usual case is checked here, since this is called for every record.
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
            accumulator.put((*row, 0))
        accumulator.bytes = held = accumulator.bytes + size
        if held >= accumulator.limit:
            self._advance()

    def _checked(self, value: Any, key: Any, timestamp: Any, headers: Any, partition: Any) -> Row:
        now_ms = self._handle.clock()
        row = row_of(value, key, now_ms if timestamp is None else timestamp, headers, partition)
        check_row(row, row.max_bytes, self._current.snapshot.config, now_ms, self._codec)
        if row.partition is not None and row.partition >= self._partitions:
            raise InvalidRecordError(f"the topic has partitions 0 to {self._partitions - 1}", partition=row.partition)
        return row

    def _learn_rules(self) -> None:
        """Keep the rules that a record must fit. A writer that failed or was closed raises its error instead."""
        self._check_open()
        snapshot = self._current.snapshot
        self._codec = codec_of(snapshot.config, self._compression)
        self._room, self._partitions = room_of(snapshot.config, self._codec), len(snapshot.partitions)
        self._takes_null_keys = "compact" not in snapshot.config.cleanup_policy
        self._ruled_by = snapshot

    def _advance(self) -> None:
        self._accumulator.advance(lambda: _unclosed.add(self))
        if self._closed:  # by another thread, which may not have seen this record
            self._settle()
            self._destination.close()
        self._raise_error()

    def flush(self) -> AppendResult:
        """Have the records taken on the device; returns the last buffer's result, also kept as `result`."""
        self._check_can_wait()
        self._check_open()
        self._settle()
        self._raise_error()
        self._destination.flush()
        self._accumulator.idle_if_empty()
        return self.result

    def close(self) -> None:
        """Flush, and take no more records. Raises what the last commit raises."""
        self._check_can_wait()
        if not self._is_over:
            # set last: after an interrupt the next close waits and raises, as the first should have
            self._closed, self._ruled_by = True, None
            self._settle()
            self._destination.close()
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

    def _settle(self) -> None:
        if not self._accumulator.is_sender:
            self._accumulator.drain()

    def _raise_error(self) -> None:
        if self._error is not None:
            # so that the error also counts records of other threads that came while it was being raised
            self._settle()
            _unclosed.discard(self)
            # with its first traceback: each raise adds to it, and so would keep the caller's objects alive
            raise self._error.with_traceback(self._trace)

    def _send(self, fields: list[Any]) -> None:
        """Send the records of a buffer, or count them as uncommitted after an error; tell the callback."""
        if self._uncommitted is None:
            told = self._sent(fields)
        else:
            told = failed(self._uncommitted.add_unsent(fields), self._error)
        if self._on_delivery is not None:
            deliver(told, self._on_delivery)

    def _sent(self, fields: list[Any]) -> list[Delivery]:
        try:
            sent = self._destination.send(batch_of_taken(fields, self._per_ms))
        except BaseException as error:
            uncommitted = UncommittedRecords(error, len(self._current.snapshot.partitions))
            return failed(uncommitted.add_sent(fields) + self._fail(error, uncommitted), error)
        self.result = sent.result
        return sent.deliveries + (self._told_of(sent.failures) if sent.failures else [])

    def _told_of(self, failures: Sequence[Failure]) -> list[Delivery]:
        error = failures[0].error
        uncommitted = UncommittedRecords(error, len(self._current.snapshot.partitions))
        for failure in failures:
            uncommitted.add(failure.partition, failure.record_count, in_doubt=failure.in_doubt)
        return [failure.delivery for failure in failures] + failed(self._fail(error, uncommitted), error)

    def _fail(self, error: BaseException, uncommitted: UncommittedRecords) -> Counts:
        """Keep the error. The records behind are not committed either, since they must not overtake others."""
        self._uncommitted, self._trace = uncommitted, error.__traceback__
        counts = uncommitted.add_unsent(self._accumulator.take())
        self._error, self._ruled_by = error, None
        return counts

    def _idle(self) -> None:
        if self._error is None and self._destination.is_flushed:
            _unclosed.discard(self)

    def commit_at_exit(self) -> tuple[int, BaseException | None]:
        """Commit the records it holds; returns their number, and the error that its caller has not seen."""
        count = len(self._accumulator)
        self._settle()
        error = self._error or self._flush_error()
        if error is not None:
            _unclosed.discard(self)
        return count, error

    def _flush_error(self) -> BaseException | None:
        try:
            self._destination.flush()
        except Exception as error:
            # whatever it is, it must not keep the other writers from their last commit
            return error
        return None

    @property
    def is_closed(self) -> bool:
        """Whether it takes no more records."""
        return self._closed

    def __repr__(self) -> str:
        return f"Writer({self._handle.storage.url!r})"

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
