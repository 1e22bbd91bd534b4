"""The transactions of Kafka clients, over the topics of a root folder and the offsets of groups.

After Kafka's TransactionCoordinator (KIP-98, KIP-360). The state of a transaction is the newest record of its id in
`__transaction_state`. A state is durable before the coordinator acts on it. `docs/design/gateway.md` explains why
this is safe when a gateway is killed or paused.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import Any

from distlog.core import paths
from distlog.core.arrays import MAX_LONG
from distlog.core.commits.snapshot import Snapshot
from distlog.core.errors import DistlogError, LockHeldError, ProducerFencedError, TopicNotFoundError
from distlog.core.kafka.transactions import (
    LAST_EPOCH,
    NONE,
    ProducerId,
    TopicPartition,
    TransactionState,
    TransactionStatus,
    marker,
)
from distlog.core.storage.calls import in_parallel
from distlog.gateway.event_log import FAILURES
from distlog.gateway.groups.coordinator import GroupServices
from distlog.gateway.groups.registry import CoordinatedEntries
from distlog.gateway.protocol.error_codes import CoordinatorError
from distlog.gateway.protocol.messages import ErrorCode
from distlog.gateway.server.delayed_operations import DelayedFetches
from distlog.gateway.topics.metadata_cache import MetadataCache
from distlog.gateway.topics.partition import OWN_WAIT_S, Fence, Partition
from distlog.gateway.transactions.transaction_log import TransactionLog, check_open, check_producer


class TransactionCoordinator(CoordinatedEntries["CoordinatedTransaction"]):
    """The transactions by id, thread-safe. After a DistlogError, the outcome is unknown: repeat the call."""

    def __init__(
        self,
        log: TransactionLog,
        ends: TransactionEnds,
        clock: Callable[[], int],
        new_id: Callable[[], int],
        check: Callable[[str], None] = lambda id_: None,
    ) -> None:
        super().__init__(check, lambda id_: CoordinatedTransaction())
        self._state_log, self._ends, self._clock, self._new_id = log, ends, clock, new_id

    def load(self, states: Iterable[TransactionState]) -> None:
        """Load stored states. `run_timers` finishes decided transactions, which may lack end markers."""
        now_ms = self._clock()
        # a start in the future would delay the timeout of an open transaction
        transactions = {
            state.transactional_id: CoordinatedTransaction(state.without_future_start(now_ms)) for state in states
        }
        with self._lock:
            self._entries.update(transactions)

    def states(self, ids: Collection[str] | None = None) -> list[TransactionState]:
        for id_ in ids or ():
            self.check(id_)
        transactions = [self.get(id_) for id_ in (self.names() if ids is None else ids)]
        return [transaction.state for transaction in transactions if transaction is not None and transaction.state]

    def begin_producer(self, id_: str, timeout_ms: int, expected: ProducerId | None = None) -> ProducerId:
        """Return the next producer id and epoch, after fencing the former producer and aborting its transaction.

        `expected` is the caller's current producer id and epoch, if any. The caller gets the next epoch, even after
        its transaction has timed out, but is refused if another producer has started.
        """
        with self.lock_entry(id_, create=True) as transaction:
            state, now_ms = transaction.state, self._clock()
            if state is None:
                producer = ProducerId(self._new_id(), 0)
                new_state = TransactionState(
                    transactional_id=id_, producer=producer, timeout_ms=timeout_ms, updated_ms=now_ms
                )
            else:
                if expected is not None and expected == ProducerId(state.producer.id, state.last_epoch):
                    # the caller has the previous epoch: a response was lost, or the transaction has timed out
                    return self._finish_if_decided(transaction).producer
                if expected not in (None, state.producer):
                    raise CoordinatorError(ErrorCode.producer_fenced)
                if state.status is TransactionStatus.ONGOING:
                    # the end markers have the next epoch (`fences`), and the new producer the epoch after it
                    self._decide(transaction, state.decided(now_ms, is_committed=False, fences=True))
                state = self._finish_if_decided(transaction)
                # if the response is lost, the caller repeats this call with its old epoch, and is recognized above
                last_epoch = expected.epoch if expected is not None else NONE
                new_state = state.restarted(self._next_producer(state.producer), timeout_ms, now_ms, last_epoch)
            self._state_log.write(new_state)
            transaction.state = new_state
            return new_state.producer

    def add_partitions(self, id_: str, producer: ProducerId, partitions: Collection[TopicPartition]) -> None:
        with self._locked_by(id_, producer) as transaction:
            state = self._finish_if_decided(transaction)
            if state.status is TransactionStatus.ONGOING and state.partitions.issuperset(partitions):
                return
            new_state = state.with_partitions(frozenset(partitions), self._clock())
            self._state_log.write(new_state)
            transaction.state = new_state

    def end(self, id_: str, producer: ProducerId, *, is_committed: bool) -> None:
        """Commit or abort the producer's transaction; a repeated call is harmless."""
        status = TransactionStatus.COMPLETE_COMMIT if is_committed else TransactionStatus.COMPLETE_ABORT
        with self._locked_by(id_, producer) as transaction:
            state = transaction.state
            if state is not None and state.status is TransactionStatus.ONGOING:
                self._decide(transaction, state.decided(self._clock(), is_committed=is_committed))
            elif self._finish_if_decided(transaction).status is not status:
                raise CoordinatorError(ErrorCode.invalid_txn_state)

    def run_timers(self) -> None:
        """Abort transactions that timed out, finish decided ones, forget unused ids. Logs errors."""
        now_ms, lock_wait_failed = self._clock(), threading.Event()

        def run(id_: str) -> None:
            # after a failed wait for a partition's lock, don't wait for others, since the same process may hold them
            timeout_s = 0 if lock_wait_failed.is_set() else OWN_WAIT_S
            try:
                # raises CoordinatorError if another thread has forgotten the id
                with suppress(CoordinatorError), self.lock_entry(id_) as transaction:
                    self._run_timer(id_, transaction, timeout_s)
            except DistlogError as error:
                FAILURES.note(f"ending the transaction of {id_!r} (retried)", error)
                if isinstance(error, LockHeldError):
                    lock_wait_failed.set()

        # run in parallel: all producers of a job may have died together, and each abort may take commits
        with self._lock:
            ids = [id_ for id_, transaction in self._entries.items() if _has_work(transaction.state, now_ms)]
        in_parallel(run, ids)

    def _run_timer(self, id_: str, transaction: CoordinatedTransaction, timeout_s: float) -> None:
        state, now_ms = transaction.state, self._clock()
        if state is None:
            self.remove(id_, transaction)  # the first state of the id could not be stored
        elif state.has_timed_out(now_ms):
            _log.info("the transaction of %r is aborted: it was open for %d ms", id_, now_ms - state.started_ms)
            self._decide(transaction, state.timed_out(now_ms))
        elif state.is_decided:
            self._write_end(transaction, state, timeout_s)
        elif _has_expired(state, now_ms):
            self._state_log.forget(id_)
            self.remove(id_, transaction)

    def _next_producer(self, producer: ProducerId) -> ProducerId:
        has_next_epoch = producer.epoch < LAST_EPOCH
        return ProducerId(producer.id, producer.epoch + 1) if has_next_epoch else ProducerId(self._new_id(), 0)

    def _decide(self, transaction: CoordinatedTransaction, decision: TransactionState) -> None:
        """Store a decision, which is final, and write its markers. `run_timers` repeats markers that fail."""
        self._state_log.write(decision)
        transaction.state = decision
        try:
            self._write_end(transaction, decision)
        except DistlogError as error:
            message = "the transaction of %r is decided, but not visible yet: %s"
            _log.warning(message, decision.transactional_id, error)

    def _write_end(
        self, transaction: CoordinatedTransaction, decision: TransactionState, timeout_s: float = OWN_WAIT_S
    ) -> None:
        self._ends.end(decision, timeout_s)
        final_state = decision.completed(self._clock())
        # if this state is lost, the next coordinator writes the markers again, which changes nothing
        self._state_log.write(final_state, is_durable=False)
        transaction.state = final_state

    def _finish_if_decided(self, transaction: CoordinatedTransaction) -> TransactionState:
        """Finish a decided transaction, and return the state. Raises CoordinatorError if the client must retry."""
        state = transaction.state
        if state is not None and state.is_decided:
            with suppress(DistlogError):  # an error leaves the state decided
                self._write_end(transaction, state)
        if transaction.state is None or transaction.state.is_decided:
            raise CoordinatorError(ErrorCode.concurrent_transactions)
        return transaction.state

    @contextmanager
    def _locked_by(self, id_: str, producer: ProducerId) -> Iterator[CoordinatedTransaction]:
        """Lock the transaction, and check that this is its current producer."""
        with self.lock_entry(id_, missing_code=ErrorCode.invalid_producer_id_mapping) as transaction:
            check_producer(transaction.state, producer)
            yield transaction


class _AlreadyFinishedError(Exception):
    """Another gateway has finished the transaction."""


class TransactionEnds:
    """Writes the end markers of decided transactions into their partitions. `end` may be repeated."""

    def __init__(
        self, metadata: MetadataCache, fetches: DelayedFetches, log: TransactionLog, clock: Callable[[], int]
    ) -> None:
        self._metadata, self._fetches, self._state_log, self._clock = metadata, fetches, log, clock

    def end(self, decision: TransactionState, timeout_s: float = OWN_WAIT_S) -> None:
        """Write durable end markers; a partition of a dropped topic needs none. Raises DistlogError."""
        by_topic = defaultdict[str, list[int]](list)
        for topic, number in sorted(decision.partitions):
            by_topic[topic].append(number)
        for partitions in in_parallel(lambda topic: self._end(decision, topic, by_topic[topic], timeout_s), by_topic):
            for partition in partitions:
                self._fetches.on_append(partition)

    def _end(
        self, decision: TransactionState, topic: str, numbers: Sequence[int], timeout_s: float
    ) -> list[Partition]:
        """Write the markers of one topic. Returns the partitions that may have a new marker."""
        try:
            hosted = self._metadata.fresh_topic(topic)
            if numbers[-1] >= len(hosted.snapshot.partitions):
                # the snapshot may be older than partitions that another process has added
                hosted.refresh()
        except TopicNotFoundError:
            return []
        # a new topic of the same name may have fewer partitions
        existing = [number for number in numbers if number < len(hosted.snapshot.partitions)]
        producer, is_committed = decision.producer, decision.status is TransactionStatus.PREPARE_COMMIT
        markers = {
            number: marker(producer.id, producer.epoch, self._clock(), is_committed=is_committed)
            for number in existing
        }
        fence = partial(self._check_current, decision)
        results = hosted.end_transaction(markers, fence, timeout_s=timeout_s) if markers else {}
        # wait for all markers: after an error, none may be in flight
        wait(results.values())
        if any(isinstance(result.exception(), TopicNotFoundError) for result in results.values()):
            # the topic was dropped. Try again, since a new topic of this name may have records of the transaction
            self._metadata.forget(hosted)
            return self._end(decision, topic, numbers, timeout_s)
        return [hosted.partition(number) for number in existing if _has_marker(results[number])]

    def _check_current(self, decision: TransactionState, snapshot: Snapshot) -> None:
        """Raise _AlreadyFinishedError unless the id's newest state is still this decision."""
        newest = self._state_log.newest(decision.transactional_id)
        # transactions of one producer epoch differ in their start
        identity = attrgetter("producer", "status", "started_ms")
        if newest is None or identity(newest) != identity(decision):
            raise _AlreadyFinishedError


def _has_marker(result: Future[Any]) -> bool:
    """False if another gateway has ended the transaction. Raises any other error of the append."""
    try:
        result.result()
    except (ProducerFencedError, _AlreadyFinishedError):
        return False
    return True


EXPIRATION_MS = 7 * 86_400_000  # how long an unused id is remembered: Kafka's `transactional.id.expiration.ms`
_log = logging.getLogger("distlog.gateway")


@dataclass(slots=True)
class CoordinatedTransaction:
    state: TransactionState | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)
    is_gone: bool = False


def _has_work(state: TransactionState | None, now_ms: int) -> bool:
    """Whether `run_timers` must lock the id. Most ids of a root are unused."""
    return state is None or state.is_decided or state.has_timed_out(now_ms) or _has_expired(state, now_ms)


def _has_expired(state: TransactionState, now_ms: int) -> bool:
    return state.is_over and state.updated_ms + EXPIRATION_MS <= now_ms


_PAUSE_S = 1.0  # the pause between the runs of the timers


class TransactionServices:
    """The transactions whose partition of `__transaction_state` this gateway leads; `fence` is also for other ids."""

    def __init__(
        self, metadata: MetadataCache, fetches: DelayedFetches, groups: GroupServices, clock: Callable[[], int]
    ) -> None:
        self._state_log = TransactionLog(metadata, clock, lambda: groups.partitions)
        self.partition_of = self._state_log.partition_of
        self.compact = self._state_log.compact
        # the lease of the groups also covers the partitions of `__transaction_state`
        self.coordination = groups.share(self._state_log, self._state_log.read_partition_count)
        ends = TransactionEnds(metadata, fetches, self._state_log, clock)
        self.coordinator = TransactionCoordinator(self._state_log, ends, clock, new_producer_id, self._check)
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="transactions", daemon=True)

    @property
    def is_loading(self) -> bool:
        return self.coordination.is_loading

    def start(self) -> None:
        self.run_timers()
        self._thread.start()

    def fence(self, transactional_id: str, producer: ProducerId, partition: TopicPartition) -> Fence:
        """A fence that refuses appends unless the producer's transaction is open, and has the partition."""
        return lambda snapshot: check_open(self._state_log.newest(transactional_id), producer, partition)

    def check_is_hanging(self, producer_id: int, partition: TopicPartition) -> None:
        """Raise CoordinatorError unless the transaction hangs: no coordinator will end it (KIP-664)."""
        for state in self._state_log.of_producer(producer_id):
            if partition in state.partitions and not state.is_over:
                raise CoordinatorError(ErrorCode.invalid_txn_state)

    def run_timers(self) -> None:
        """Load partitions that the lease gained, unload lost ones, and run the timers. Raises nothing."""
        try:
            self.coordination.step(self.coordinator)
            self.coordinator.run_timers()
        except CoordinatorError:
            return  # the lease was changed concurrently
        except Exception as error:
            FAILURES.note("coordinating transactions", error)

    def stop(self) -> None:
        self._is_stopping = True
        self.coordination.changed.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._is_stopping:
            self.coordination.changed.wait(_PAUSE_S)
            self.coordination.changed.clear()
            if not self._is_stopping:
                self.run_timers()

    def _check(self, transactional_id: str) -> None:
        if self._is_stopping:
            raise CoordinatorError(ErrorCode.not_coordinator)
        self.coordination.check(transactional_id)


def new_producer_id() -> int:
    """A random id of 63 bits, so that gateways and writers of distlog need no common counter."""
    return int(paths.new_id()[:16], 16) & MAX_LONG
