"""The buffers of a producer: what fails is sent again, and is there once.

In place, the batches carry the producer's id, epoch and sequence numbers, which the log checks. In commits, each
buffer has a number of the producer's application, so that the commit log knows it again.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import pyarrow as pa

from distlog.core.batches.record_batch import increment_sequence
from distlog.core.commits.current_snapshot import CurrentSnapshot
from distlog.core.commits.state.snapshot import Snapshot
from distlog.core.errors import CommitStateUnknownError, InvalidRecordError, ProducerFencedError, StorageError
from distlog.core.log.append_barrier import wait_for_appends
from distlog.core.storage.retry import Deadline
from distlog.core.topic_handle import TopicHandle
from distlog.core.topics.appending.append_commit import AppendResult
from distlog.core.topics.appending.transaction import Transaction
from distlog.core.topics.producing.producer_identity import ProducerIdentity, begin_producer
from distlog.core.topics.writing.commit_destination import CommitDestination
from distlog.core.topics.writing.in_place_destination import InPlaceDestination
from distlog.core.topics.writing.partition_buffer import Encoding, PartitionBuffer

#: How long a buffer is tried (Kafka's delivery.timeout.ms).
DELIVERY_TIMEOUT_S = 120.0


class _Producer:
    """The producer of a destination; a forked child is another one."""

    def __init__(self, handle: TopicHandle, current: CurrentSnapshot, transactional_id: str | None) -> None:
        self._handle, self._current = handle, current
        self._identity, self._process = begin_producer(handle, current, transactional_id), os.getpid()

    @property
    def identity(self) -> ProducerIdentity:
        """Who it is; raises InvalidRecordError in a forked child if only the parent can be it."""
        if self._process != os.getpid():
            if self._identity.transactional_id is not None:
                raise InvalidRecordError("the producer was begun before a fork, by the parent; begin another here")
            self._identity, self._process = begin_producer(self._handle, self._current), os.getpid()
        return self._identity

    def begin_again(self) -> None:
        """Become the next producer with the transactional id, whose numbers begin anew, unless another has begun."""
        before = self.identity
        self._identity = begin_producer(self._handle, self._current, before.transactional_id, before=before)


class IdempotentDestination(InPlaceDestination):
    """Appends each buffer in place, once.

    After an error of the disk, and after a failed sync, it appends again what is not there, for up to `timeout_s`.
    """

    def __init__(
        self,
        handle: TopicHandle,
        current: CurrentSnapshot,
        compression: str | None,
        moved_on: Callable[[], None],
        transactional_id: str | None,
        timeout_s: float = DELIVERY_TIMEOUT_S,
    ) -> None:
        self._producer, self._timeout_s = _Producer(handle, current, transactional_id), timeout_s
        # by producer id and partition
        self._sequences = dict[tuple[int, int], int]()
        super().__init__(handle, current, compression, moved_on)
        if transactional_id is not None:
            # those of earlier producers with this id
            wait_for_appends(handle, current.snapshot)

    def _fence_of(self, partition: int) -> Callable[[Snapshot], None]:
        return self._check_fence

    def _check_fence(self, snapshot: Snapshot) -> None:
        self._producer.identity.check(snapshot)

    def _encoding_of(self, partition: int, encoding: Encoding) -> Encoding:
        identity = self._producer.identity
        form = replace(
            encoding.form,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            base_sequence=self._sequences.get((identity.producer_id, partition), 0),
        )
        return encoding._replace(form=form)

    def _append(self, parts: Sequence[PartitionBuffer], encoding: Encoding, workers: int) -> None:
        super()._append(parts, encoding, workers)
        deadline = Deadline(self._timeout_s)
        while (again := [part for part in parts if part.may_succeed_later]) and deadline.pause():
            for part in again:
                part.begin_again()
            super()._append(again, encoding, workers)
        for part in parts:
            if part.is_done:
                place = self._producer.identity.producer_id, part.partition
                self._sequences[place] = int(increment_sequence(self._sequences.get(place, 0), part.record_count))


class IdempotentCommits(CommitDestination):
    """Commits each buffer once, as a batch of the producer's application.

    After an error of the storage, and if nobody knows whether a commit landed, it commits again for up to
    `timeout_s`.
    """

    def __init__(
        self,
        handle: TopicHandle,
        current: CurrentSnapshot,
        compression: str | None,
        transactional_id: str | None,
        timeout_s: float = DELIVERY_TIMEOUT_S,
    ) -> None:
        super().__init__(handle, current, compression)
        self._producer, self._timeout_s = _Producer(handle, current, transactional_id), timeout_s
        # by application id
        self._sent = Counter[str]()

    def _commit(self, records: pa.RecordBatch) -> AppendResult:
        """Raises as `Topic.append` does, and ProducerFencedError."""
        identity, deadline = self._producer.identity, Deadline(self._timeout_s)
        number = identity.first_number + 1 + self._sent[identity.app_id]
        while True:
            try:
                result = self._commit_once(records, identity.app_id, number)
                break
            except (StorageError, CommitStateUnknownError):
                if not deadline.pause():
                    raise
        if result.replayed and result.version is None:
            # others have committed since: not this producer
            identity.check(self._current.snapshot)
            raise ProducerFencedError("a batch of this producer is not known any more: begin a new producer")
        self._sent[identity.app_id] += 1
        return result

    def _commit_once(self, records: pa.RecordBatch, app_id: str, number: int) -> AppendResult:
        with Transaction(
            self._handle, self._current, app_id, number, self._compression, in_order=True
        ) as transaction:
            transaction.append(records)
        return transaction.result
