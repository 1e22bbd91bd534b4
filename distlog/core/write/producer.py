"""A producer: a writer without duplicates, with transactions across partitions."""

from __future__ import annotations

import hashlib
import logging
import os
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from distlog.core.arrays import MAX_LONG
from distlog.core.commits.actions import PRODUCER_APP, SetTransaction
from distlog.core.commits.commit_log import CommitRace, CurrentSnapshot
from distlog.core.commits.segment_table import SegmentInfo
from distlog.core.commits.snapshot import Snapshot
from distlog.core.errors import (
    CommitConflictError,
    CommitStateUnknownError,
    DistlogError,
    InvalidConfigError,
    InvalidRecordError,
    ProducerFencedError,
    StorageError,
)
from distlog.core.format.record_batch import increment_sequence
from distlog.core.format.record_encoder import BatchFormat
from distlog.core.log.active_partition import wait_for_appends
from distlog.core.segments.segment_reader import TopicHandle
from distlog.core.storage.calls import Deadline
from distlog.core.write.append import Appender, AppendResult, commit_append, open_appender
from distlog.core.write.engine import DELIVERY_TIMEOUT_S, Appends, Engine, PartitionBatches
from distlog.core.write.writer import RecordSender, Writer, deliver, successful_deliveries


class Producer(Writer):
    """Append records without duplicates and, with a transactional id, in transactions. Made by `Topic.producer`.

    A producer is a Writer that numbers its batches, so the log drops a batch that is sent again. The records of a
    transaction become visible to all readers by one commit, in all partitions at once, or never.

    Examples:
        >>> with topic.producer("billing") as producer, producer.begin():
        ...     producer.append(b"{}", partition=0)
        ...     producer.append(b"{}", partition=1)
        >>> producer.result.offsets
        {0: (2, 3), 1: (1, 2)}
    """

    def reset_in_child(self) -> None:
        """Become empty, as a new producer."""
        self._is_transaction_open = False
        super().reset_in_child()

    def begin(self) -> ProducerTransaction:
        """Begin a transaction. A `with` block commits it, or aborts it if the block raises.

        Raises:
            InvalidConfigError: The producer has no transactional id.
            InvalidRecordError: A transaction is open.
            ProducerFencedError: A newer producer with its id has started.
        """
        sender = self._transaction_sender()
        if self._is_transaction_open:
            raise InvalidRecordError("a transaction is open: commit or abort it first")
        self.flush()
        sender.begin()
        self._is_transaction_open = True
        return ProducerTransaction(self)

    def commit(self) -> AppendResult:
        """Commit the transaction, and return the offsets of its records, by partition, which `result` keeps.

        After an error other than CommitStateUnknownError the transaction can only be aborted.

        Raises:
            ProducerFencedError: A newer producer with its id has started.
            CommitStateUnknownError: The commit may have happened; commit again.
            InvalidRecordError: No transaction is open.
        """
        sender = self._transaction_sender()
        self._check_transaction_open()
        self._check_can_wait()
        self._check_open()
        self._drain()
        self._raise_error()
        try:
            result = sender.commit()
        except CommitStateUnknownError:
            raise  # `commit` may be called again
        except BaseException as error:
            # `commit` must not be called again, since it would leave out the records that were lost
            self._fail(error)
            raise
        self._is_transaction_open, self.result = False, result
        if self._on_delivery is not None:
            deliver(successful_deliveries(result), self._on_delivery)
        return result

    def abort(self) -> None:
        """Abort the transaction; the producer may begin the next one.

        Raises:
            CommitConflictError: The transaction is committed, although `commit` raised.
            ProducerFencedError: A newer producer has started, and the outcome of `commit` is unknown.
            InvalidRecordError: No transaction is open.
        """
        sender = self._transaction_sender()
        self._check_transaction_open()
        self._check_can_wait()
        if self._error is None:
            self._fail(_AbortedError("the transaction was aborted"))  # buffered records are not sent
        self._drain()
        # until the abort has succeeded, `_error` makes `commit` raise, since a commit would lack the dropped records
        try:
            sender.abort()
        except CommittedError:
            self._is_transaction_open, self._error = False, None
            raise
        self._is_transaction_open, self._error = False, None

    def close(self) -> None:
        """Flush, and accept no more records. Aborts an open transaction."""
        try:
            if self._is_transaction_open and not self.is_closed:
                self.abort()
        finally:
            super().close()

    @property
    def in_transaction(self) -> bool:
        """True if a transaction is open."""
        return self._is_transaction_open

    def _check_transaction_open(self) -> None:
        if not self._is_transaction_open:
            raise InvalidRecordError("no transaction is open: call begin first")

    def _transaction_sender(self) -> TransactionSender:
        if not isinstance(self._sender, TransactionSender):
            raise InvalidConfigError("transactions need a transactional_id: give one to topic.producer")
        return self._sender

    def __enter__(self) -> Producer:
        return self


# A producer without a transactional id has a random producer id. With a transactional id, each start of the producer
# begins a generation, by a commit of the application `producer:<transactional id>`. The application's batch ids are
# generation * 2^32 + the number of the transaction in the generation; number 0 is the commit that begins the
# generation. So any commit of a higher generation fences the lower ones.
#
# The epoch in record batches counts the generations of a producer id. When a producer id has had all epochs, the next
# generation has another id, as in Kafka.

#: The number of epochs of one producer id: an int16 that is not negative.
_EPOCHS_PER_ID = 1 << 15
_TRANSACTION_BITS = 32
_MAX_ID_CHARACTERS = 249


@dataclass(frozen=True, slots=True)
class ProducerIdentity:
    """A producer's numbers in batches and commits. With a `transactional_id`, it is the Fence (check) of appends."""

    transactional_id: str | None
    generation: int
    producer_id: int
    epoch: int
    app_id: str

    def check(self, head: Snapshot, partitions: Collection[int] = ()) -> None:
        """Raise ProducerFencedError if `head` has a newer producer with this transactional id."""
        if self.transactional_id is not None:
            newest = _newest_generation(head, self.app_id)
            if newest is not None and newest > self.generation:
                text = "a newer producer with this transactional id has started: close this one"
                raise ProducerFencedError(text, transactional_id=self.transactional_id)


def begin_producer(
    handle: TopicHandle, current: CurrentSnapshot, transactional_id: str | None = None
) -> ProducerIdentity:
    """Start a producer. Fences earlier producers with its transactional id, so their open transaction is aborted."""
    if transactional_id is None:
        random_id = handle.new_id()
        return ProducerIdentity(None, 0, int(random_id[:16], 16) & MAX_LONG, 0, f"{PRODUCER_APP}{random_id}")
    if not isinstance(transactional_id, str) or not 0 < len(transactional_id) <= _MAX_ID_CHARACTERS:
        text = f"a transactional id must be text of 1 to {_MAX_ID_CHARACTERS} characters"
        raise InvalidConfigError(text, transactional_id=repr(transactional_id)[:300])
    app_id = f"{PRODUCER_APP}{transactional_id}"
    with CommitRace(handle.log, current.refresh(), "producer") as race:
        for head in race:
            newest = _newest_generation(head, app_id)
            generation = 0 if newest is None else newest + 1
            race.put([SetTransaction(app_id, generation << _TRANSACTION_BITS, {}, in_order=True)])
    head = race.snapshot
    current.advance(head)
    id_number, epoch = divmod(generation, _EPOCHS_PER_ID)
    digest = hashlib.sha256(f"{head.topic_id}/{id_number}/{transactional_id}".encode()).digest()
    producer_id = int.from_bytes(digest[:8], "big") & MAX_LONG
    return ProducerIdentity(transactional_id, generation, producer_id, epoch, app_id)


def _newest_generation(snapshot: Snapshot, app_id: str) -> int | None:
    newest_batch_id = snapshot.transactions.newest(app_id)
    return None if newest_batch_id is None else newest_batch_id >> _TRANSACTION_BITS


class CommittedError(CommitConflictError):
    """The transaction cannot be aborted: its commit succeeded, although `commit` raised an error."""


class ProducerSender(RecordSender):
    """Sends a producer's buffers, with sequence numbers in the batches. In a forked child it is another producer."""

    def __init__(
        self,
        handle: TopicHandle,
        current: CurrentSnapshot,
        engine: Engine,
        compression: str | None,
        transactional_id: str | None,
    ) -> None:
        super().__init__(handle, current, engine, compression)
        self._start(transactional_id)

    def _start(self, transactional_id: str | None = None) -> None:
        self._identity = begin_producer(self.handle, self.current, transactional_id)
        self._process = os.getpid()
        self._next_sequences = Counter[int]()  # the next sequence number, by partition

    @property
    def identity(self) -> ProducerIdentity:
        """The producer's identity. In a forked child: a new one, or InvalidRecordError with a transactional id."""
        if self._process != os.getpid():
            if self._identity.transactional_id is not None:
                raise InvalidRecordError("the producer was started before a fork: start another one in this process")
            self._start()
        return self._identity

    def _append(self, parts: Sequence[PartitionBatches]) -> Appends:
        appends = self.engine.append(parts, self.identity)
        failed_partitions = {failure.partition for failure in appends.failures}
        for part in parts:
            if part.partition not in failed_partitions:
                sequence = self._next_sequences[part.partition]
                self._next_sequences[part.partition] = int(increment_sequence(sequence, len(part.rows)))
        return appends

    def _form_of(self, partition: int, form: BatchFormat) -> BatchFormat:
        identity = self.identity
        sequence = self._next_sequences[partition]
        return replace(form, producer_id=identity.producer_id, producer_epoch=identity.epoch, base_sequence=sequence)


class TransactionSender(ProducerSender):
    """Sends a producer's buffers. In a transaction it writes them as segments, which one commit adds at the end."""

    _appender: Appender | None = None
    _read_version = _transaction_count = 0
    #: The transaction's segments; None before the first attempt to commit it.
    _segments: Sequence[SegmentInfo] | None = None

    def begin(self) -> None:
        self.identity.check(self.current.refresh())
        self._read_version, self._segments = self.current.snapshot.version, None
        # the number of the transaction's commit, counted here, since an interrupt may end `commit` after its commit
        self._transaction_count += 1
        self._appender = open_appender(self.handle, self.current, self.compression)

    def send(self, records: pa.RecordBatch) -> Appends:
        if self._appender is None:
            return super().send(records)
        self._appender.append(records)
        return Appends(AppendResult(None))

    def commit(self) -> AppendResult:
        """Commit all records that were sent. May be called again after CommitStateUnknownError."""
        if self._segments is None:
            self._segments = self._open_appender().close()
        if self._segments:
            result = self._commit_once(self._segments)
        else:
            self.identity.check(self.current.refresh())
            result = AppendResult(None)
        self._appender = None
        return result

    def abort(self) -> None:
        """Drop all records that were sent. Raises CommittedError if a commit has succeeded."""
        # if there are segments, `commit` was tried. If it succeeded, an empty commit with its number is a replay; if
        # not, the empty commit takes the number, so that the commit of the segments can no longer succeed
        if self._segments and self._commit_once([]).replayed:
            self._appender = None
            raise CommittedError("the transaction is committed, so it cannot be aborted: send no record again")
        self._open_appender().abort()
        self._appender = None

    def reset_in_child(self) -> None:
        self._appender = None
        super().reset_in_child()

    def _open_appender(self) -> Appender:
        assert self._appender is not None
        return self._appender

    def _commit_once(self, segments: Sequence[SegmentInfo]) -> AppendResult:
        """Commit the segments with the transaction's number, unless a commit has this number already."""
        identity, deadline = self.identity, Deadline(DELIVERY_TIMEOUT_S)
        while True:
            try:
                result, snapshot = commit_append(
                    self.handle,
                    self.current.snapshot,
                    segments,
                    # without segments there are no files that vacuum could have deleted
                    read_version=self._read_version if segments else None,
                    app_id=identity.app_id,
                    batch_id=(identity.generation << _TRANSACTION_BITS) + self._transaction_count,
                    in_order=True,
                    checked_config=self._open_appender().config,
                )
                break
            except (StorageError, CommitStateUnknownError):
                if not deadline.pause():
                    raise
        self.current.advance(snapshot)
        if result.replayed and result.version is None:
            # a later batch id of this producer's application is committed, and the result of this one is unknown
            identity.check(snapshot)
            raise ProducerFencedError("the topic no longer has the transaction's outcome: create a new producer")
        return result


def producer_sender(
    handle: TopicHandle,
    current: CurrentSnapshot,
    engine: Engine,
    compression: str | None,
    transactional_id: str | None,
) -> RecordSender:
    """Start a producer, and return its sender. Fences earlier producers with its transactional id."""
    if transactional_id is None:
        return ProducerSender(handle, current, engine, compression, None)
    sender = TransactionSender(handle, current, engine, compression, transactional_id)
    if handle.storage.is_local_disk:
        # wait, so that no append of an earlier producer with this id comes after this start
        wait_for_appends(handle, current.snapshot)
    return sender


_log = logging.getLogger("distlog")


class _AbortedError(CommitConflictError):
    """The error of records that an abort kept from being sent."""


class ProducerTransaction:
    """Commits a producer's transaction at the end of a `with` block, or aborts it if the block raises."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer

    def __enter__(self) -> Producer:
        return self._producer

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if not self._producer.in_transaction:
            return
        if kind is not None:
            self._abort()
            return
        try:
            self._producer.commit()
        except CommitStateUnknownError:
            raise
        except BaseException:
            self._abort()
            raise

    def _abort(self) -> None:
        try:
            self._producer.abort()
        except DistlogError as failure:
            # logged only, since the block's or the commit's error is raised
            _log.warning("cannot abort the transaction: %s", failure)
