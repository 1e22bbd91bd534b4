"""Whether a producer's transaction is still ongoing at a version, and what ends it: for the plans of commits."""

from __future__ import annotations

from distlog.core.commits.format.actions import ONGOING, PREPARE_ABORT, Action, ProducerTransaction
from distlog.core.commits.state.snapshot import Snapshot
from distlog.core.errors import TransactionAbortedError


def check_ongoing(snapshot: Snapshot, transaction: ProducerTransaction) -> None:
    """Raise TransactionAbortedError if a transaction that has begun is decided, or over."""
    standing = snapshot.producer_transactions.get(transaction.transactional_id)
    if standing is None or standing.place != transaction.place or standing.state != ONGOING:
        raise TransactionAbortedError(
            "the transaction was aborted, since it was open for longer than its timeout: abort it, and begin another",
            transactional_id=transaction.transactional_id,
            timeout_ms=transaction.timeout_ms,
        )


def abort_ongoing(snapshot: Snapshot, transactional_id: str) -> list[Action]:
    """The actions that abort the id's transaction, if it is ongoing: for the commit that begins a newer producer."""
    standing = snapshot.producer_transactions.get(transactional_id)
    return [standing.of(PREPARE_ABORT)] if standing is not None and standing.state == ONGOING else []
