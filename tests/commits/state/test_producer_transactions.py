"""The state of a producer's transaction: what commits may make of it, and that it outlives checkpoints."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from histories import History

from distlog.core.commits.checkpoints import checkpoint_format
from distlog.core.commits.commit_rules import features
from distlog.core.commits.format.actions import (
    COMPLETE,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    Drop,
    ProducerTransaction,
)
from distlog.core.commits.format.features import PRODUCER_TRANSACTIONS
from distlog.core.commits.state.fold import apply
from distlog.core.errors import CorruptMetadataError

FIRST = ProducerTransaction("payments", 3, 1, 77, 3, ONGOING, (0,), 60_000)


@pytest.fixture
def history() -> History:
    history = History()
    history.create(partitions=3)
    return history


def standing(history: History) -> dict[str, Any]:
    return dict(history.snapshot().producer_transactions)


def refused(history: History, action: ProducerTransaction) -> None:
    before = history.snapshot()
    commit = history.commit(action)
    with pytest.raises(CorruptMetadataError, match="payments"):
        apply(before, commit)
    history.commits.pop()


def test_a_transaction_begins_at_the_time_of_its_commit_and_keeps_it(history: History) -> None:
    began = history.commit(FIRST).timestamp_ms
    history.commit(replace(FIRST, partitions=(0, 2)))
    assert standing(history) == {"payments": replace(FIRST, partitions=(0, 2), started_ms=began)}
    for state in (PREPARE_COMMIT, COMPLETE):
        history.commit(standing(history)["payments"].of(state))
    assert standing(history) == {}


@pytest.mark.parametrize("decision", [PREPARE_COMMIT, PREPARE_ABORT])
def test_a_decision_is_made_once_and_may_give_way_to_the_next_transaction(history: History, decision: str) -> None:
    history.commit(FIRST)
    history.commit(FIRST.of(decision))
    for state in (ONGOING, PREPARE_COMMIT, PREPARE_ABORT):
        refused(history, FIRST.of(state))
    history.commit(replace(FIRST, number=2))
    refused(history, FIRST.of(COMPLETE))
    assert standing(history)["payments"].place == (3, 2)


def test_no_transaction_begins_before_the_one_ahead_is_decided(history: History) -> None:
    history.commit(FIRST)
    refused(history, replace(FIRST, number=2))
    refused(history, replace(FIRST, generation=4))
    refused(history, FIRST.of(COMPLETE))
    refused(history, replace(FIRST, number=2, state=PREPARE_COMMIT))
    assert standing(history)["payments"].state == ONGOING


def test_an_older_transaction_cannot_come_back(history: History) -> None:
    history.commit(FIRST)
    for older in (replace(FIRST, number=0), replace(FIRST, generation=2, number=9)):
        refused(history, older)


def test_partitions_are_only_added_and_must_exist(history: History) -> None:
    history.commit(FIRST)
    refused(history, replace(FIRST, partitions=(1,)))
    refused(history, replace(FIRST, partitions=(0, 3)))
    refused(history, replace(FIRST, partitions=(0, 1), state=PREPARE_COMMIT))


def test_a_drop_ends_all(history: History) -> None:
    history.commit(FIRST)
    history.commit(Drop())
    assert standing(history) == {}


def test_checkpoints_keep_transactions(history: History) -> None:
    history.commit(FIRST)
    history.commit(replace(FIRST, transactional_id="refunds"))
    snapshot = history.snapshot()
    assert checkpoint_format.decode(checkpoint_format.encode(snapshot), "a file") == snapshot


def test_older_libraries_are_told() -> None:
    assert PRODUCER_TRANSACTIONS in features([FIRST]).reader
