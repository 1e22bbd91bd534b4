"""The transactions of Kafka's clients, over any topics of a root and the positions of groups: all or nothing.

After Kafka's TransactionCoordinator (KIP-98, KIP-360). What a transaction is, is the newest record of its id in
`__transaction_state`. A record is on the device before the step that it stands for:

    init        Empty, of the producer's next epoch; what the producer before it has open is aborted first
    partitions  Ongoing, with all partitions so far; then batches may be appended to these, and to no others
    batches     by any gateway, if that record says so at the moment of the append; on the device when acknowledged
    commit      PrepareCommit: this is the decision
    abort       PrepareAbort: the decision, too
    markers     in each partition the end marker
    complete    CompleteCommit, CompleteAbort: when all markers are on the device

Each partition of `__transaction_state` has one gateway that coordinates its ids: it leads it, and nobody else can
write there (distlog.core.topics.writing.leadership). When it goes, the next one reads what it left.

Why each step is safe, wherever a gateway is killed, or stopped and continued:

- A record is in a partition only if a durable state names that partition: so it is known where to end it.
- No record comes behind the marker. On a local disk, who appends a batch reads the state with the partition's lock
  held: either the decision is there, and the batch is refused, or it comes later, and then so does the marker, with
  this lock held. On an object store, who commits a batch reads the topic's newest commit, and then the state. If
  the decision is not there yet, then the commit of the marker comes later: either it comes behind the batch, or the
  batch meets it as a conflict, and reads the state again. So there a marker is written in each partition of the
  transaction, whether anything is open there or not.
- A marker ends no other transaction than its own: who writes it reads the state in the same way. A coordinator that
  was stopped finds another transaction there, and writes nothing.
- A decision is on the device before its first marker, and is never changed: it is finished by the next tick, or by
  the next coordinator, which has the states on the device before it reads them. Until then the id has no next
  transaction. Who leads no more cannot write a decision.
- The records of a transaction are on the device before they are acknowledged, so before a producer commits them.

Positions of groups are records of `__consumer_offsets`, one of its partitions as any other.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from kio.schema.errors import ErrorCode

from distlog.core.errors import DistlogError
from distlog.gateway.groups.offsets.positions import TopicPartition
from distlog.gateway.transactions.transaction_ends import TransactionEnds
from distlog.gateway.transactions.transaction_log import TransactionLog
from distlog.gateway.transactions.transaction_state import (
    LAST_EPOCH,
    NONE,
    ProducerId,
    Status,
    TransactionRefusedError,
    TransactionState,
    check_producer,
)

#: Kafka's `transactional.id.expiration.ms`: how long an id without transactions is remembered.
EXPIRATION_MS = 7 * 86_400_000

_log = logging.getLogger("distlog.gateway")


@dataclass(slots=True)
class Transaction:
    """An id's newest state, None before its first; for who holds the lock. `is_gone`: forgotten, or unloaded."""

    state: TransactionState | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)
    is_gone: bool = False


class TransactionCoordinator:
    """The transactions by their ids, for many threads; `clock` tells the ms since 1970.

    `check` raises TransactionRefusedError for an id that is not, or not yet, this gateway's to answer for. Methods
    raise that, and DistlogError when the storage fails: then nobody knows what was kept, and the same call may be
    repeated.
    """

    def __init__(
        self,
        log: TransactionLog,
        ends: TransactionEnds,
        clock: Callable[[], int],
        new_id: Callable[[], int],
        check: Callable[[str], None] = lambda id_: None,
    ) -> None:
        self._log, self._ends, self._clock, self._new_id, self._check = log, ends, clock, new_id, check
        self._lock, self._transactions = threading.Lock(), dict[str, Transaction]()

    def load(self, states: Iterable[TransactionState]) -> None:
        """Learn what is stored, before `check` lets anybody ask for it; what is decided is finished by `tick`."""
        found = {state.transactional_id: Transaction(state) for state in states}
        with self._lock:
            self._transactions.update(found)

    def unload(self, is_of: Callable[[str], bool]) -> None:
        """Forget these ids, which `check` refuses by now; no call is under way for them when this returns."""
        with self._lock:
            gone = {id_: each for id_, each in self._transactions.items() if is_of(id_)}
        for id_, transaction in gone.items():
            with transaction.lock:
                transaction.is_gone = True
            with self._lock:
                self._transactions.pop(id_, None)

    def states(self, ids: Collection[str] | None = None) -> list[TransactionState]:
        """The states of these ids, or all, by id; without those that are not known."""
        for id_ in ids or ():
            self._check(id_)
        with self._lock:
            wanted = sorted(self._transactions) if ids is None else ids
            found = [self._transactions[id_].state for id_ in wanted if id_ in self._transactions]
        return [state for state in found if state is not None]

    def begin_producer(self, id_: str, timeout_ms: int, expected: ProducerId | None = None) -> ProducerId:
        """The next producer of an id: the one before is fenced, and its transaction aborted.

        `expected` is who asks, if it was a producer of the id already: then it goes on, unless another one has begun.
        """
        with self._opened(id_) as transaction:
            state, now_ms = transaction.state, self._clock()
            if state is None:
                new = ProducerId(self._new_id(), 0)
                begun = TransactionState(transactional_id=id_, producer=new, timeout_ms=timeout_ms, updated_ms=now_ms)
            else:
                if expected is not None and expected == ProducerId(state.producer.id, state.last_epoch):
                    # it asks again: the first answer was lost
                    return state.producer
                if expected not in (None, state.producer):
                    raise TransactionRefusedError(ErrorCode.producer_fenced)
                if state.status is Status.ONGOING:
                    self._decide(transaction, state.decided(now_ms, is_committed=False, fences=True))
                state = self._finished(transaction)
                last_epoch = expected.epoch if expected is not None else NONE
                begun = state.begun_again(self._next(state.producer), timeout_ms, now_ms, last_epoch)
            self._log.write(begun)
            transaction.state = begun
            return begun.producer

    def add_partitions(self, id_: str, producer: ProducerId, partitions: Collection[TopicPartition]) -> None:
        """Have the partitions in the producer's transaction; its first ones begin it."""
        with self._held(id_, producer) as transaction:
            state = self._finished(transaction)
            if state.status is Status.ONGOING and state.partitions.issuperset(partitions):
                return
            grown = state.with_partitions(frozenset(partitions), self._clock())
            self._log.write(grown)
            transaction.state = grown

    def end(self, id_: str, producer: ProducerId, *, is_committed: bool) -> None:
        """Commit or abort the producer's transaction; to repeat it is harmless."""
        status = Status.COMPLETE_COMMIT if is_committed else Status.COMPLETE_ABORT
        with self._held(id_, producer) as transaction:
            state = transaction.state
            if state is not None and state.status is Status.ONGOING:
                self._decide(transaction, state.decided(self._clock(), is_committed=is_committed))
                # it is decided, so it ends that way, whatever happens to its markers now
            elif self._finished(transaction).status is not status:
                raise TransactionRefusedError(ErrorCode.invalid_txn_state)

    def tick(self) -> None:
        """Abort what is open for too long, finish what is decided, forget ids that nobody uses. Logs errors."""
        for id_ in list(self._transactions):
            try:  # one that is gone meanwhile has nothing to do
                with suppress(TransactionRefusedError), self._opened(id_, make=False) as transaction:
                    self._tick(id_, transaction)
            except DistlogError as error:  # noqa: PERF203 - each is ended for itself
                _log.warning("the transaction of %r was not ended, and is tried again: %s", id_, error)

    def _tick(self, id_: str, transaction: Transaction) -> None:
        state, now_ms = transaction.state, self._clock()
        if state is None:
            return
        if state.has_timed_out(now_ms):
            _log.info("the transaction of %r is aborted: it was open for %d ms", id_, now_ms - state.started_ms)
            self._decide(transaction, state.decided(now_ms, is_committed=False, fences=True))
        elif state.is_decided:
            self._finish(transaction, state)
        elif state.is_over and state.updated_ms + EXPIRATION_MS <= now_ms:
            self._log.forget(id_)
            transaction.is_gone = True
            with self._lock:
                del self._transactions[id_]

    def _next(self, producer: ProducerId) -> ProducerId:
        is_last = producer.epoch >= LAST_EPOCH
        return ProducerId(self._new_id(), 0) if is_last else ProducerId(producer.id, producer.epoch + 1)

    def _decide(self, transaction: Transaction, decided: TransactionState) -> None:
        self._log.write(decided)
        transaction.state = decided
        try:
            self._finish(transaction, decided)
        except DistlogError as error:
            _log.warning("the transaction of %r is decided, but not seen yet: %s", decided.transactional_id, error)

    def _finish(self, transaction: Transaction, decided: TransactionState) -> None:
        self._ends.end(decided)
        completed = decided.completed(self._clock())
        self._log.write(completed, is_durable=False)
        transaction.state = completed

    def _finished(self, transaction: Transaction) -> TransactionState:
        """The state when its decision, if there is one, is in all partitions; else the client asks again."""
        state = transaction.state
        if state is not None and state.is_decided:
            with suppress(DistlogError):
                self._finish(transaction, state)
        if transaction.state is None or transaction.state.is_decided:
            raise TransactionRefusedError(ErrorCode.concurrent_transactions)
        return transaction.state

    @contextmanager
    def _held(self, id_: str, producer: ProducerId) -> Iterator[Transaction]:
        """The transaction of this very producer, behind its lock."""
        with self._opened(id_, make=False) as transaction:
            check_producer(transaction.state, producer)
            yield transaction

    @contextmanager
    def _opened(self, id_: str, *, make: bool = True) -> Iterator[Transaction]:
        while True:
            self._check(id_)
            with self._lock:
                transaction = self._transactions.get(id_) or (Transaction() if make else None)
                if transaction is None:
                    raise TransactionRefusedError(ErrorCode.invalid_producer_id_mapping)
                self._transactions.setdefault(id_, transaction)
            with transaction.lock:
                if not transaction.is_gone:
                    # it may have been made behind the back of `unload`
                    self._check(id_)
                    yield transaction
                    return
