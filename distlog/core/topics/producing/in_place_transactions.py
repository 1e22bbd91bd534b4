"""The buffers of a transactional producer, in place: see `log.transaction_coordinator` for the protocol."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace

import pyarrow as pa

from distlog.core.commits.current_snapshot import CurrentSnapshot
from distlog.core.commits.format.actions import ONGOING, ProducerTransaction, SetTransaction
from distlog.core.commits.state.ongoing_transactions import check_ongoing
from distlog.core.commits.state.snapshot import Snapshot
from distlog.core.errors import CommitStateUnknownError, DistlogError, ProducerFencedError
from distlog.core.log.transaction_coordinator import CommittedError, TransactionCoordinator
from distlog.core.topic_handle import TopicHandle
from distlog.core.topics.appending.append_commit import AppendResult
from distlog.core.topics.producing.idempotent_destination import IdempotentDestination
from distlog.core.topics.writing.destination import Sent
from distlog.core.topics.writing.partition_buffer import Encoding, PartitionBuffer

_log = logging.getLogger("distlog")


class InPlaceTransactions(IdempotentDestination):
    """Appends buffers in place, in transactions or, outside of these, by themselves.

    To make one means to end all earlier producers with the id, and what they left open.
    """

    def __init__(
        self,
        handle: TopicHandle,
        current: CurrentSnapshot,
        compression: str | None,
        moved_on: Callable[[], None],
        transactional_id: str,
        timeout_ms: int,
    ) -> None:
        self._id, self._timeout_ms, self._number = transactional_id, timeout_ms, 0
        self._coordinator = TransactionCoordinator(handle, current)
        self._finished: ProducerTransaction | None = None
        super().__init__(handle, current, compression, moved_on, transactional_id)
        self._end_before()

    def begin_child(self) -> None:
        """Become usable in a forked child: the transaction is the parent's."""
        super().begin_child()
        self._transaction: ProducerTransaction | None = None
        self._offsets: dict[int, tuple[int, int]] = {}
        self._is_in_doubt = False

    def begin(self) -> None:
        """Begin a transaction, when all that was sent before is flushed; its first records make it known."""
        with self._lock:
            self._end_before()
            identity = self._producer.identity
            self._number, self._offsets, self._is_in_doubt = self._number + 1, {}, False
            self._transaction = ProducerTransaction(
                self._id,
                identity.generation,
                self._number,
                identity.producer_id,
                identity.epoch,
                ONGOING,
                (),
                self._timeout_ms,
            )

    def commit(self) -> Sent:
        """Decide that the transaction is committed, and show it; it stays open if its records are not on the device.

        When the decision has been made, this returns, whatever happens then: others finish it.
        """
        with self._lock:
            transaction = self._open_transaction()
            self.flush()
            if transaction.partitions:
                result = AppendResult(self._decide_commit(transaction), self._offsets)
            else:
                self._producer.identity.check(self._current.refresh())
                result = AppendResult(None)
            self._transaction = None
            self._finish()
            return Sent(result, [])

    def abort(self, *, has_failed: bool) -> None:
        """Decide that the transaction is aborted; after a failure, as a new producer, whose numbers begin at 0."""
        with self._lock:
            transaction = self._open_transaction()
            try:
                if has_failed or transaction.partitions:
                    self._coordinator.decide_abort(transaction, self._record(transaction))
            except CommittedError:
                self._transaction = None
                self._finish()
                raise
            if has_failed:
                self._producer.begin_again()
                self._sequences.clear()
            self._transaction = None
            # what is lost of it is not missed
            self._unflushed.clear()
            self._lost = None
            self._finish()

    def send(self, records: pa.RecordBatch) -> Sent:
        """Append the records, each partition's in their order."""
        sent = super().send(records)
        for partition, (first, end) in sent.result.offsets.items():
            self._offsets[partition] = self._offsets.get(partition, (first, end))[0], end
        return sent

    def close(self) -> None:
        """Flush, and close the files; the last transaction is noted as finished."""
        finished, self._finished = self._finished, None
        try:
            super().close()
        finally:
            if finished is not None:
                with suppress(DistlogError):
                    self._coordinator.complete(finished)

    def _open_transaction(self) -> ProducerTransaction:
        assert self._transaction is not None
        return self._transaction

    def _encoding_of(self, partition: int, encoding: Encoding) -> Encoding:
        numbered = super()._encoding_of(partition, encoding)
        return numbered._replace(form=replace(numbered.form, transactional=self._transaction is not None))

    def _append(self, parts: Sequence[PartitionBuffer], encoding: Encoding, workers: int) -> None:
        if self._transaction is None:
            self._end_before()
        else:
            self._transaction = self._with_partitions(self._transaction, [part.partition for part in parts])
        super()._append(parts, encoding, workers)

    def _with_partitions(self, transaction: ProducerTransaction, partitions: Sequence[int]) -> ProducerTransaction:
        """The transaction, when the commit log knows that it has these partitions."""
        known = transaction.partitions
        if set(partitions) <= set(known):
            return transaction
        grown = replace(transaction, partitions=tuple(sorted({*known, *partitions})))
        if known:
            self._coordinator.add_partitions(grown, self._producer.identity.check)
        else:
            finished = self._finished.place if self._finished else None
            self._coordinator.begin(grown, finished, self._producer.identity.check)
        return grown

    def _check_fence(self, snapshot: Snapshot) -> None:
        super()._check_fence(snapshot)
        if self._transaction is not None:
            check_ongoing(snapshot, self._transaction)

    def _record(self, transaction: ProducerTransaction) -> SetTransaction:
        """What is noted of a commit; with the offsets of the first record and behind the last one, by partition."""
        identity = self._producer.identity
        number = identity.first_number + transaction.number
        return SetTransaction(identity.app_id, number, dict(self._offsets), in_order=True)

    def _decide_commit(self, transaction: ProducerTransaction) -> int:
        try:
            return self._coordinator.decide_commit(
                transaction, self._record(transaction), self._producer.identity.check
            )
        except CommitStateUnknownError:
            self._is_in_doubt = True
            raise
        except ProducerFencedError:
            if self._is_in_doubt:
                raise CommitStateUnknownError(
                    "a newer producer has begun, so nobody knows whether the transaction was committed: look for it",
                    transactional_id=self._id,
                ) from None
            raise

    def _finish(self) -> None:
        """Have the decision in all partitions; what fails now is done again by the next `begin`, or by others."""
        try:
            self._end_before()
        except ProducerFencedError:
            pass  # the one that stands is the newer producer's
        except DistlogError as error:
            _log.warning("the transaction of %r is decided, but readers do not see it yet: %s", self._id, error)
        self._moved_on()

    def _end_before(self) -> None:
        """Finish the transaction before, if it is not finished yet."""
        standing = self._current.snapshot.producer_transactions.get(self._id)
        if standing is None or (self._finished is not None and standing.place == self._finished.place):
            return
        if standing.state == ONGOING:
            self._producer.identity.check(self._current.snapshot)
            self._coordinator.decide_abort(standing)
        self._finished = self._coordinator.finish(self._id, lambda number: nullcontext(self._log(number)))
