"""Transactions of producers that have lost something: they are not committed, and the producer goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_producer import again, failing
from test_transactional_producer import fill
from test_transactional_producer import local as local
from transacting import seen

import distlog
from distlog.core.errors import CommitConflictError, StorageError


@pytest.mark.parametrize("told_by", ["a flush", "a flush after a sync in the background", "the commit"])
def test_after_a_sync_that_lost_acknowledged_records_their_transaction_can_only_be_aborted(
    local: distlog.Topic, monkeypatch: pytest.MonkeyPatch, told_by: str
) -> None:
    """The loss is told once: a program that goes on after the flush must not commit the rest."""
    local.alter_config({"flush.messages": 2**63 - 1})
    producer = local.producer("payments")
    producer.begin()
    fill(producer, 0, 1)
    producer._settle()
    with monkeypatch.context() as patches:
        failing(patches, "fsync", ".log", spared=0, times=1, code=5)
        if "background" in told_by:
            producer._destination._sync_in_background()
        with pytest.raises(StorageError):
            producer.commit() if told_by == "the commit" else producer.flush()
    with pytest.raises(StorageError):
        producer.commit()
    producer.abort()
    with producer.begin():
        fill(producer, 2)
    producer.close()
    assert seen(again(local)) == {0: [b"2"], 1: []}


def test_a_transaction_that_vacuum_did_not_wait_for_can_be_aborted(tmp_path: Path) -> None:
    """On object storage: its files are too old to be committed, and there is nothing to take back."""
    topic = distlog.create(f"memory://{tmp_path}/events", config={"file.delete.delay.ms": 0})
    producer = topic.producer("payments")
    producer.begin()
    producer.append(b"0")
    producer.flush()
    again(topic).append([{"value": b"other"}])
    again(topic).vacuum()
    with pytest.raises(CommitConflictError, match="too old"):
        producer.commit()
    producer.abort()
    with producer.begin():
        producer.append(b"1")
    producer.close()
    assert seen(again(topic)) == {0: [b"other", b"1"]}
