"""Transactions in place, of older versions: what commits may make of them, and that they outlive checkpoints."""

from __future__ import annotations

from dataclasses import replace

import pytest
from histories import History

from distlog.core.commits import checkpoint
from distlog.core.commits.actions import (
    COMPLETE,
    KNOWN,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    PRODUCER_TRANSACTIONS,
    Drop,
    InPlaceTransaction,
)
from distlog.core.commits.snapshot import apply
from distlog.core.errors import CorruptMetadataError

FIRST = InPlaceTransaction("payments", 3, 1, 77, 3, ONGOING, (0,), 60_000)


@pytest.fixture
def history() -> History:
    history = History()
    history.create(partitions=3)
    history.commit(FIRST)
    return history


def refused(history: History, *actions: InPlaceTransaction) -> None:
    before = history.snapshot()
    for action in actions:
        commit = history.commit(action)
        with pytest.raises(CorruptMetadataError, match="payments"):
            apply(before, commit)
        history.commits.pop()


@pytest.mark.parametrize("decision", [PREPARE_COMMIT, PREPARE_ABORT])
def test_a_decision_is_made_once_and_stands_until_its_end_or_the_next_transaction(
    history: History, decision: str
) -> None:
    began_ms = history.snapshot().timestamp_ms
    history.commit(replace(FIRST, partitions=(0, 2)))
    grown = replace(FIRST, partitions=(0, 2), started_ms=began_ms)
    assert history.snapshot().producer_transactions == {"payments": grown}
    refused(history, FIRST.of(decision), grown.of(COMPLETE), replace(grown, number=2), replace(grown, generation=4))
    refused(history, replace(FIRST, number=0), replace(FIRST, partitions=(0, 2, 3)))
    history.commit(grown.of(decision))
    refused(history, *(grown.of(state) for state in (ONGOING, PREPARE_COMMIT, PREPARE_ABORT)))
    history.commit(replace(FIRST, number=2))
    refused(history, grown.of(COMPLETE))
    second = history.snapshot().producer_transactions["payments"]
    history.commit(second.of(decision))
    history.commit(second.of(COMPLETE))
    assert history.snapshot().producer_transactions == {}


def test_checkpoints_keep_transactions_and_a_drop_ends_them(history: History) -> None:
    history.commit(replace(FIRST, transactional_id="refunds"))
    snapshot = history.snapshot()
    assert len(snapshot.producer_transactions) == 2
    assert checkpoint.decode(checkpoint.encode(snapshot), "a file") == snapshot
    history.commit(Drop())
    assert history.snapshot().producer_transactions == {}


def test_the_feature_of_older_versions_is_known() -> None:
    assert PRODUCER_TRANSACTIONS in KNOWN
