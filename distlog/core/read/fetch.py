"""Kafka's fetch: the stored batches from an offset on; and open transactions (KIP-664)."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from distlog.core.arrays import Bytes, Longs, count_of, whole_number
from distlog.core.commits.segment_table import NO_OFFSET, SegmentInfo
from distlog.core.commits.snapshot import PartitionState
from distlog.core.errors import CorruptRecordError
from distlog.core.format.indexes import AbortedTransaction
from distlog.core.format.record_batch import read_headers
from distlog.core.format.record_encoder import header_offsets, write_base_offsets
from distlog.core.segments.chunks import Chunk, SegmentSlice, StoredBatches, bounded_start
from distlog.core.segments.producer_states import (
    ProducerStates,
    aborted_between,
    first_unstable_offset,
    transactional_segments,
)
from distlog.core.segments.segment_reader import CHUNK_BYTES, SegmentReader, whole_log


def fetch(
    reader: SegmentReader, state: PartitionState, partition: int, offset: int, max_bytes: int, *, check: bool = True
) -> FetchedBatches:
    """Return whole batches of one segment, from the first that ends at `offset` or later; none at the log end.

    The result has as many batches as fit into `max_bytes`, and at least one, as in Kafka (`LogSegment.read` with
    minOneMessage), but none if `max_bytes` is 0. With `check` every CRC is checked. Without it only headers are read,
    so the receiver must check, as Kafka consumers do. A LogAppendTime from the commit is put into the batches, which
    changes their CRCs, so these are always checked. The batches end before a damaged one. Raises CorruptRecordError
    if the first is damaged.
    """
    bounded_start(partition, whole_number("offset", offset), state, "fail")  # raises OffsetOutOfRangeError
    if count_of("max_bytes", max_bytes) == 0:
        return _no_batches(offset)
    for index in range(state.segments.find(offset), len(state.segments)):  # the first may have none from `offset` on
        segment = state.segments[index]
        part = SegmentSlice(segment, offset, state.log_end_offset, start_position=0, end_position=segment.log_bytes)
        if chunks := _read_chunks(reader, part, max_bytes, check or segment.append_time_ms >= 0):
            return _fetched_batches(reader, segment, chunks)
    return _no_batches(state.log_end_offset)


@dataclass(frozen=True, slots=True)
class FetchedBatches:
    """Whole record batches, back to back; `bytes(batches)` is the response of a Kafka broker.

    `base_offsets[i]` belongs in the first 8 bytes of the batch at `positions[i]` of `data`, outside the checksum. If
    `moved`, `data` has other offsets there. `next_offset` is where to fetch next. `path` is the local file that holds
    `data` at `file_position`. It is None for other storage, and for LogAppendTime, whose times are in the commit, not
    in the file. `aborted` has the aborted transactions whose data a reader of committed records must drop.
    """

    data: memoryview
    positions: Longs
    base_offsets: Longs
    next_offset: int
    moved: bool
    path: str | None
    file_position: int
    aborted: tuple[AbortedTransaction, ...] = ()

    def __len__(self) -> int:
        return len(self.data)

    def __bytes__(self) -> bytes:
        if not self.moved:
            return bytes(self.data)
        data: Bytes = np.frombuffer(self.data, np.uint8).copy()
        write_base_offsets(data, self.positions, self.base_offsets)
        return data.tobytes()

    def send_to(self, receiver: socket.socket) -> int:
        """Send the batches to a connected socket, from the page cache (sendfile) if the file is local.

        Args:
            receiver: A socket that blocks; its timeout applies to each wait.

        Returns:
            The number of bytes sent.

        Raises:
            OSError: The connection breaks, or times out (TimeoutError).
            ValueError: The socket does not block: use `sending`.

        Examples:
            >>> import socket
            >>> sender, receiver = socket.socketpair()
            >>> batches = topic.read(partition=0, offset=0)
            >>> batches.send_to(sender) == len(batches)
            True
        """
        if receiver.gettimeout() == 0:
            raise ValueError("the socket is non-blocking: call sending().send(socket) when it is ready")
        if type(receiver) is not socket.socket:
            receiver.sendall(bytes(self))  # a socket that encrypts must get the bytes
            return len(self)
        with self.sending() as sending:
            while not sending.send(receiver):
                ready, timeout = select.poll(), receiver.gettimeout()
                ready.register(receiver, select.POLLOUT)
                if not ready.poll(None if timeout is None else 1000 * timeout):
                    raise TimeoutError("the receiver accepted no bytes before the socket's timeout")
        return sending.sent

    def sending(self) -> Sending:
        """Return the batches as an object that sends them to a socket part by part."""
        if self.path is not None:
            return Sending(self.parts(), self.data, self.path, self.file_position)
        return Sending([SentPart(b"", 0, len(self))], memoryview(bytes(self)), None, 0)

    def parts(self) -> Iterator[SentPart]:
        """Iterate over the prefixes and slices of `data` that make up `bytes(self)`."""
        if not self.moved:
            yield SentPart(b"", 0, len(self.data))
            return
        ends = [*self.positions[1:].tolist(), len(self.data)]
        for start, end, base in zip(self.positions.tolist(), ends, self.base_offsets.tolist(), strict=True):
            yield SentPart(base.to_bytes(8, "big"), start + 8, end)


class SentPart(NamedTuple):
    """The bytes to send: `prefix` (the offset of a moved batch), then bytes [start, end) of the fetched data."""

    prefix: bytes
    start: int
    end: int


class Sending:
    """The parts of a fetch on their way to a socket; the local file `path` holds `data` from `file_position` on."""

    def __init__(self, parts: Iterable[SentPart], data: memoryview, path: str | None, file_position: int) -> None:
        self._parts, self._data = iter(parts), data
        self._file = -1 if path is None else os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._file_position = file_position
        self._prefix = memoryview(b"")
        self._start = self._end = self.sent = 0

    def __enter__(self) -> Sending:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def send(self, receiver: socket.socket) -> bool:
        """Send what a socket takes now.

        Args:
            receiver: A socket without encryption.

        Returns:
            Whether all is sent.
        """
        try:
            while self._has_more():
                self.sent += self._send_prefix(receiver) if self._prefix else self._send_slice(receiver)
        except BlockingIOError:
            return False
        return True

    def _has_more(self) -> bool:
        while not self._prefix and self._start == self._end:
            part = next(self._parts, None)
            if part is None:
                return False
            self._prefix, self._start, self._end = memoryview(part.prefix), part.start, part.end
        return True

    def _send_prefix(self, receiver: socket.socket) -> int:
        # MSG_MORE: the bytes of `data` follow at once, in one packet with the prefix
        count = receiver.send(self._prefix, socket.MSG_MORE if self._start < self._end else 0)
        self._prefix = self._prefix[count:]
        return count

    def _send_slice(self, receiver: socket.socket) -> int:
        if self._file < 0:
            count = receiver.send(self._data[self._start : self._end])
        else:
            position, size = self._file_position + self._start, self._end - self._start
            count = os.sendfile(receiver.fileno(), self._file, position, size)
            if count == 0:
                raise OSError("the log was cut during the fetch: fetch again")
        self._start += count
        return count


def fetch_committed(
    reader: SegmentReader,
    state: PartitionState,
    partition: int,
    offset: int,
    max_bytes: int,
    stable_offset: int,
    *,
    check: bool = True,
) -> FetchedBatches:
    """Same as `fetch`, up to the last stable offset, and with the aborted transactions among the batches."""
    bounded_start(partition, whole_number("offset", offset), state, "fail")
    if offset >= stable_offset:
        return _no_batches(offset)
    stable = replace(state, log_end_offset=stable_offset)
    fetched = fetch(reader, stable, partition, offset, max_bytes, check=check)
    if not fetched:
        return fetched
    return replace(fetched, aborted=tuple(aborted_between(reader, state, offset, fetched.next_offset)))


def fetch_stored(
    reader: SegmentReader, state: PartitionState, offset: int, end_offset: int, max_bytes: int
) -> StoredBatches | None:
    """Return the batches [offset, end_offset), unchecked, in their local file; None if `fetch` must read them."""
    row = state.segments.find(offset)
    if row == len(state.segments):
        return None
    segment = state.segments[row]
    part = SegmentSlice(segment, offset, end_offset, start_position=0, end_position=segment.log_bytes)
    return reader.stored(part, max_bytes)


def _no_batches(next_offset: int) -> FetchedBatches:
    none = np.zeros(0, np.int64)
    return FetchedBatches(memoryview(b""), none, none, next_offset, moved=False, path=None, file_position=0)


def _read_chunks(reader: SegmentReader, part: SegmentSlice, max_bytes: int, check: bool) -> list[Chunk]:
    chunks: list[Chunk] = []
    remaining_bytes = max_bytes
    for chunk in reader.chunks(part, CHUNK_BYTES, most_bytes=max_bytes):
        ends = chunk.batches["position"] + chunk.batches["size"]
        fitting = int(np.searchsorted(ends, remaining_bytes, side="right"))
        count = fitting if chunks else max(fitting, 1)  # at least one batch in all
        if count:
            batches = chunk.rows(0, count)
            try:
                chunks.append((batches.checked() if check else batches).timed())  # with the commit's LogAppendTime
            except CorruptRecordError:
                if not chunks:
                    raise
                break
            count = len(chunks[-1].batches)  # fewer if `checked` ended the chunk before a damaged batch
            remaining_bytes -= len(chunks[-1].data)
        if count < len(ends) or remaining_bytes <= 0:
            break
    return chunks


def _fetched_batches(reader: SegmentReader, segment: SegmentInfo, chunks: Sequence[Chunk]) -> FetchedBatches:
    starts = np.cumsum([0] + [len(chunk.data) for chunk in chunks])
    batches = np.concatenate([chunk.batches for chunk in chunks])
    positions = [chunk.batches["position"] + start for chunk, start in zip(chunks, starts[:-1], strict=True)]
    last_offsets = batches["base_offset"] + batches["last_offset_delta"] + segment.shift
    base_offsets = header_offsets(batches, batches["base_offset"] + segment.shift)  # last offsets in formats 0 and 1
    # with LogAppendTime some bytes may differ from the file
    is_stored = reader.storage.is_local and segment.append_time_ms < 0
    return FetchedBatches(
        data=chunks[0].data if len(chunks) == 1 else memoryview(b"".join([chunk.data for chunk in chunks])),
        positions=np.concatenate(positions),
        base_offsets=base_offsets,
        next_offset=int(last_offsets[-1]) + 1,
        moved=segment.shift != 0,
        path=reader.storage.local_path(reader.name(segment)) if is_stored else None,
        file_position=chunks[0].ranges[0].file_position,
    )


MAX_TIMEOUT_MS = 900_000  # Kafka's default of `transaction.max.timeout.ms`: a coordinator aborts longer transactions
#: The ms after its timeout in which a coordinator aborts a transaction (Kafka's LATE_TRANSACTION_BUFFER_MS).
_LATE_BUFFER_MS = 300_000


class OpenTransaction(NamedTuple):
    """An open transaction. `coordinator_epoch` is from the producer's last end marker; -1 if there is none."""

    partition: int
    start_offset: int
    producer_id: int
    producer_epoch: int
    last_timestamp: int
    coordinator_epoch: int

    def is_late(self, now_ms: int, max_timeout_ms: int = MAX_TIMEOUT_MS) -> bool:
        return 0 < self.last_timestamp < now_ms - max_timeout_ms - _LATE_BUFFER_MS


def has_late_transaction(reader: SegmentReader, state: PartitionState, partition: int, now_ms: int) -> bool:
    """Return whether the oldest open transaction is older than any coordinator allows, by its segment's time."""
    first = state.first_unstable_offset
    # below the first dirty offset, all transactions have ended, though compaction may have dropped their markers
    if not max(state.first_dirty_offset, 0) <= first < state.log_end_offset:
        return False
    start = max(first, state.log_start_offset)
    segment = state.segments[state.segments.find(start)]
    began_ms = segment.max_timestamp  # the transaction began at this time, or before
    if segment.is_active:  # its largest time grows with each append: use the time of the transaction's first batch
        batches = read_headers(bytes(fetch(reader, state, partition, start, 1, check=False)))
        began_ms = int(batches["max_timestamp"][0])
    return 0 < began_ms < now_ms - MAX_TIMEOUT_MS - _LATE_BUFFER_MS


def open_transactions(reader: SegmentReader, partition: int, state: PartitionState) -> list[OpenTransaction]:
    """Return a partition's open transactions, by start offset. Reads segments from the oldest transaction on."""
    first_unstable = first_unstable_offset(reader, state)
    if first_unstable == NO_OFFSET:
        return []
    producers = ProducerStates(is_complete=False)
    for segment in transactional_segments(state.segments, first_unstable):
        for chunk in whole_log(reader, segment):
            producers.observe(chunk.data, chunk.batches, segment.shift)
    transactions = []
    for producer, first in producers.open_transactions.items():
        producer_state = producers.get(producer)
        # an earlier transaction may only seem open, since compaction dropped its end marker
        if producer_state is not None and first >= first_unstable:
            numbers = producer_state.epoch, producer_state.last_timestamp, producer_state.coordinator_epoch
            transactions.append(OpenTransaction(partition, first, producer, *numbers))
    return sorted(transactions, key=lambda transaction: transaction.start_offset)
