"""A producer: a writer that doubles nothing, and that can append to many partitions all or nothing."""

from __future__ import annotations

import logging
from types import TracebackType
from typing import cast

from distlog.core.errors import (
    CommitConflictError,
    CommitStateUnknownError,
    DistlogError,
    InvalidConfigError,
    InvalidRecordError,
    TopicNotFoundError,
)
from distlog.core.log.partition.appended import LostRecordsError
from distlog.core.log.transaction_coordinator import CommittedError
from distlog.core.topics.appending.append_commit import AppendResult
from distlog.core.topics.writing.delivery import deliver
from distlog.core.topics.writing.destination import TransactionalDestination
from distlog.core.topics.writing.uncommitted_records import UncommittedRecords
from distlog.core.topics.writing.writer import Writer
from distlog.core.whole_number import whole_number

#: Kafka's transaction.max.timeout.ms.
_LONGEST_TIMEOUT_MS = 900_000

_log = logging.getLogger("distlog")


def checked_timeout(timeout_ms: int) -> int:
    """The timeout of transactions; raises InvalidConfigError."""
    if not 0 < whole_number("transaction_timeout_ms", timeout_ms) <= _LONGEST_TIMEOUT_MS:
        raise InvalidConfigError(f"transaction_timeout_ms must be 1 to {_LONGEST_TIMEOUT_MS}", value=timeout_ms)
    return timeout_ms


class _AbortedError(CommitConflictError):
    """Told of the records that an abort kept from being sent."""


class Producer(Writer):
    """A Writer whose records are there once. With a transactional id, it has transactions.

    What is appended between `begin` and `commit` becomes visible to readers of committed records in each partition as
    a whole, or never. Readers of all records see in place what is appended as it comes, and what is aborted, too.
    """

    def begin_empty(self) -> None:
        """Become empty, as after a fork."""
        self._is_open = False
        super().begin_empty()

    def begin(self) -> ProducerTransaction:
        """Begin a transaction. It may be used in a `with` block: commits it, or aborts it if the block raises.

        Raises InvalidConfigError without a transactional id, InvalidRecordError if one is open.
        """
        destination = self._transactions()
        if self._is_open:
            raise InvalidRecordError("a transaction is open: commit or abort it first")
        self.flush()
        destination.begin()
        self._is_open = True
        return ProducerTransaction(self)

    def flush(self) -> AppendResult:
        """Have the records taken on the device; after a loss, a transaction that is open can only be aborted."""
        try:
            return super().flush()
        except (LostRecordsError, TopicNotFoundError) as error:
            # told once: after it, a commit would leave away what is lost
            if self._is_open and self._error is None:
                self._fail_all(error)
            raise

    def commit(self) -> AppendResult:
        """Commit the transaction; returns the offsets of its records, by partition, also kept as `result`.

        In place, other records may lie between the first and the last of its offsets. Raises
        TransactionAbortedError and ProducerFencedError when it was aborted by others; CommitStateUnknownError, after
        which it may be called again. After other errors the transaction can only be aborted.
        """
        destination = self._transactions()
        self._check_is_open()
        self._check_can_wait()
        self._check_open()
        self._settle()
        self._raise_error()
        try:
            sent = destination.commit()
        except CommitStateUnknownError:
            raise
        except BaseException as error:
            # a second try could leave away what is lost
            self._fail_all(error)
            raise
        self._is_open, self.result = False, sent.result
        if self._on_delivery is not None:
            deliver(sent.deliveries, self._on_delivery)
        return self.result

    def abort(self) -> None:
        """Abort the transaction: nobody sees its records but readers of all records.

        After an error the producer goes on as a new one, with all its records forgotten. Raises ProducerFencedError
        if another producer has taken over, CommitConflictError if it is committed, although nobody was told.
        """
        destination = self._transactions()
        self._check_is_open()
        self._check_can_wait()
        if self._error is None:
            # what was not sent is not sent any more
            self._fail_all(_AbortedError("the transaction was aborted"))
        self._settle()
        # until it has ended, it must not be committed: it lacks records
        try:
            destination.abort(has_failed=not isinstance(self._error, _AbortedError))
        except CommittedError:
            self._is_open, self._error, self._uncommitted = False, None, None
            raise
        self._is_open, self._error, self._uncommitted = False, None, None

    def close(self) -> None:
        """Flush, and take no more records; a transaction that is open is aborted."""
        try:
            if self._is_open and not self.is_closed:
                self.abort()
        finally:
            super().close()

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open."""
        return self._is_open

    def _check_is_open(self) -> None:
        if not self._is_open:
            raise InvalidRecordError("no transaction is open: begin one")

    def _fail_all(self, error: BaseException) -> None:
        """Have `error` raised by all but `abort`, and told of all records that are not sent yet."""
        self._uncommitted = UncommittedRecords(error, len(self._current.snapshot.partitions))
        self._trace, self._error, self._ruled_by = error.__traceback__, error, None

    def _transactions(self) -> TransactionalDestination:
        if not hasattr(self._destination, "begin"):
            raise InvalidConfigError("transactions need a transactional_id: give one to topic.producer")
        return cast(TransactionalDestination, self._destination)

    def __enter__(self) -> Producer:
        return self


class ProducerTransaction:
    """A transaction as a `with` block; made by `Producer.begin`. Its producer takes the records."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer

    def __enter__(self) -> Producer:
        return self._producer

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
            # the error that led here is raised; this transaction ends by its timeout at the latest
            _log.warning("cannot abort the transaction: %s", failure)
