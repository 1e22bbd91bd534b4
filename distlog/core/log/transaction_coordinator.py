"""Transactions of producers, in place over many partitions: the commit log of the topic is their coordinator.

As in Kafka (KIP-98), the records of a transaction go into the partitions as they come. Readers of committed records
stop before the first record that is undecided, and pass over what was aborted. What is the topic's in Kafka's
`__transaction_state` is one action of commits here, `ProducerTransaction`; so there is nothing to elect or to fail.

    begin     commit ONGOING with the partitions of the first records; each new partition by another such commit
    append    in each partition, with its lock held: read the commit log; if it says ONGOING, append
    commit    sync all records in all partitions; commit PREPARE_COMMIT: this is the decision
    abort     commit PREPARE_ABORT: the decision, too
    finish    in each partition, with its lock held: read the commit log; if it says the decision of this very
              transaction, and the transaction is open in this log, append the end marker; then sync
    complete  commit COMPLETE, or the next ONGOING of the same producer, which stands for it

Who decides is who puts that commit first: the producer, a newer producer with its transactional id, in the commit
that begins it, or whoever finds that the timeout has passed. A producer that lost learns it from the commit log.

Why each step is safe, whoever is killed behind it, and whatever runs beside it:

- A record of a transaction is in a partition only if a durable commit names the transaction and the partition. So
  each open transaction can be found and ended without a look at any log.
- No record comes behind the marker. Who appends holds the lock, and then reads the commit log: either the decision is
  there, and nothing is appended, or it comes later, and then the marker is appended later too, with this lock held.
- A marker ends no other transaction than its own. Who is late finds, with the lock held, another transaction or none
  in the commit log, and stops. The next one's records come only behind its own commit.
- A marker is there once: with the lock held, the log itself says whether the transaction is open. A marker that a
  crash or a failed sync cut off is missing there, so it is appended again.
- PREPARE_COMMIT comes when all records are on the device. The decision is on the device before its first
  marker, since `finish` syncs it. COMPLETE comes when all markers are on the device. So after a power
  loss no partition has another outcome than the others.
- A decision that nobody finished stays in the state of the topic. The next producer with this id, retention,
  compaction and the LogManager finish it; until then readers of committed records stop before it.
- The decision carries the transaction's number in its producer's application (`producer_identity`): so whoever did
  not get the answer to its commit finds later that it landed.

Partitions get their markers one after the other, as in Kafka: a reader of several may see a transaction in one of
them a moment before it sees it in the next.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial

from distlog.core import paths
from distlog.core.commits.current_snapshot import CurrentSnapshot
from distlog.core.commits.format.actions import (
    COMPLETE,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    Action,
    ProducerTransaction,
    SetTransaction,
)
from distlog.core.commits.state.ongoing_transactions import check_ongoing
from distlog.core.commits.state.snapshot import Snapshot
from distlog.core.errors import CommitConflictError, DistlogError
from distlog.core.log.end_marker import end_marker
from distlog.core.log.partition.partition_log import PartitionLog
from distlog.core.storage.parallel import in_parallel
from distlog.core.topic_handle import TopicHandle

#: How many partitions' files are open at once while a transaction is finished.
_OPEN_LOGS = 64

#: Opens a partition's log for the length of a `with` block.
Logs = Callable[[int], AbstractContextManager[PartitionLog]]
#: Raises an error by what a snapshot says.
Fence = Callable[[Snapshot], None]

_log = logging.getLogger("distlog")


class CommittedError(CommitConflictError):
    """The transaction cannot be aborted: its commit landed, and nobody was told."""


class _GoneError(Exception):
    """The transaction is complete: another process has finished it."""


class TransactionCoordinator:
    """Begins, decides and finishes transactions of one topic; `current` moves on with each commit.

    All methods raise the errors of `CommitLog.commit`.
    """

    def __init__(self, handle: TopicHandle, current: CurrentSnapshot) -> None:
        self._handle, self._current = handle, current

    def begin(self, transaction: ProducerTransaction, finished: tuple[int, int] | None, fence: Fence) -> None:
        """Begin the transaction with its first partitions.

        `finished` is the place of the one before it, if that has all its markers, on the device. `fence` refuses a
        producer that was ended.
        """

        def plan(snapshot: Snapshot) -> list[Action]:
            fence(snapshot)
            standing = snapshot.producer_transactions.get(transaction.transactional_id)
            if standing is not None and standing.place != finished:
                raise CommitConflictError(
                    "the transaction before it is not finished: call abort, then begin another",
                    transactional_id=transaction.transactional_id,
                )
            return [transaction]

        self._commit("begin", plan)

    def add_partitions(self, transaction: ProducerTransaction, fence: Fence) -> None:
        """Give the transaction more partitions. Raises the errors of `fence` and `check_ongoing`."""

        def plan(snapshot: Snapshot) -> list[Action]:
            fence(snapshot)
            check_ongoing(snapshot, transaction)
            return [transaction]

        self._commit("begin", plan)

    def decide_commit(self, transaction: ProducerTransaction, record: SetTransaction, fence: Fence) -> int:
        """Decide that the transaction is committed, and note that in `record`; returns the version of the decision.

        To repeat it is harmless. Raises the errors of `fence` and `check_ongoing`.
        """

        def plan(snapshot: Snapshot) -> list[Action] | None:
            if snapshot.transaction(record.app_id, record.batch_id) is not None:
                return None
            fence(snapshot)
            check_ongoing(snapshot, transaction)
            return [transaction.of(PREPARE_COMMIT), record]

        snapshot = self._commit("commit", plan)
        noted = snapshot.transaction(record.app_id, record.batch_id)
        return noted.version if noted is not None else snapshot.version

    def decide_abort(self, transaction: ProducerTransaction, record: SetTransaction | None = None) -> None:
        """Decide that the transaction is aborted, unless it is aborted already, or over.

        Raises CommittedError if the `record` of its commit is there.
        """
        name = transaction.transactional_id

        def plan(snapshot: Snapshot) -> list[Action] | None:
            if record is not None and snapshot.transaction(record.app_id, record.batch_id) is not None:
                raise CommittedError("the transaction is committed", transactional_id=name)
            standing = snapshot.producer_transactions.get(name)
            is_it = standing is not None and standing.place == transaction.place
            return [standing.of(PREPARE_ABORT)] if standing and is_it and standing.state == ONGOING else None

        self._commit("abort", plan)

    def finish(self, transactional_id: str, logs: Logs | None = None) -> ProducerTransaction | None:
        """Append what markers are missing of the id's transaction, if it is decided, and sync them.

        Returns it when all its markers are on the device. Raises the errors of `PartitionLog.append`.
        """
        decided = self._current.snapshot.producer_transactions.get(transactional_id)
        if decided is None or not decided.is_decided:
            return None
        # of another process's decision nobody knows yet that it outlives a power loss
        self._handle.storage.sync(paths.COMMITS_DIR)
        fence = partial(_check_standing, decided)
        try:
            for first in range(0, len(decided.partitions), _OPEN_LOGS):
                self._finish(decided, decided.partitions[first : first + _OPEN_LOGS], fence, logs or self._opened)
        except _GoneError:
            return None
        return decided

    def complete(self, finished: ProducerTransaction) -> None:
        """Note that `finish` has finished the transaction."""

        def plan(snapshot: Snapshot) -> list[Action] | None:
            standing = snapshot.producer_transactions.get(finished.transactional_id)
            is_it = standing is not None and standing.place == finished.place
            return [finished.of(COMPLETE)] if is_it else None

        self._commit("complete", plan)

    def end_all(self, now_ms: int) -> Mapping[str, DistlogError]:
        """Abort the transactions whose timeout has passed at `now_ms`, and finish all that are decided.

        Returns the errors by transactional id: one that fails keeps no other from its end.
        """
        errors = dict[str, DistlogError]()
        for name, standing in self._current.refresh().producer_transactions.items():
            try:
                self._end(standing, now_ms)
            except DistlogError as error:  # noqa: PERF203 - each transaction is ended for itself
                _log.warning("cannot end the transaction of %r: %s", name, error)
                errors[name] = error
        return errors

    def _end(self, standing: ProducerTransaction, now_ms: int) -> None:
        if standing.state == ONGOING and now_ms - standing.started_ms >= standing.timeout_ms:
            self.decide_abort(standing)
        finished = self.finish(standing.transactional_id)
        if finished is not None:
            self.complete(finished)

    def _finish(self, decided: ProducerTransaction, partitions: Sequence[int], fence: Fence, logs: Logs) -> None:
        with ExitStack() as stack:
            opened = [stack.enter_context(logs(partition)) for partition in partitions]
            # one that is there already may not be on the device: then all is flushed
            ended = [log.end_transaction(end_marker(decided, self._handle.clock()), fence) for log in opened]
            in_parallel(lambda pair: pair[0].flush(pair[1]), list(zip(opened, ended, strict=True)))

    @contextmanager
    def _opened(self, partition: int) -> Iterator[PartitionLog]:
        log, is_flushed = PartitionLog(self._handle, partition, self._current), False
        try:
            yield log
            is_flushed = True
        finally:
            log.close(flushed=is_flushed)

    def _commit(self, operation: str, plan: Callable[[Snapshot], list[Action] | None]) -> Snapshot:
        _, after = self._handle.log.commit(self._current.refresh(), operation, plan)
        self._current.advance(after)
        return after


def end_transactions(handle: TopicHandle, current: CurrentSnapshot) -> int:
    """Do what `TransactionCoordinator.end_all` does now; returns how many transactions it found.

    Raises one of its errors, when all were tried.
    """
    found = len(current.refresh().producer_transactions)
    errors = TransactionCoordinator(handle, current).end_all(handle.trusted_ms()) if found else {}
    for error in errors.values():
        raise error
    return found - len(current.snapshot.producer_transactions)


def _check_standing(decided: ProducerTransaction, snapshot: Snapshot) -> None:
    standing = snapshot.producer_transactions.get(decided.transactional_id)
    if standing is None or standing.place != decided.place:
        raise _GoneError
