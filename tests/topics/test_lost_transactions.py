"""Transactions of producers with lost files are not committed, and the producer continues."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_producer import again
from test_transactional_producer import local as local
from transacting import values_seen

import distlog
from distlog.core.errors import CommitConflictError


def test_a_transaction_that_vacuum_did_not_wait_for_can_be_aborted(tmp_path: Path) -> None:
    """On object storage: its files are too old to be committed, and there is nothing to undo."""
    topic = distlog.create(f"memory://{tmp_path}/events", config={"file.delete.delay.ms": 0})
    producer = topic.producer("payments")
    producer.begin()
    producer.append(b"0")
    producer.flush()
    again(topic).append([{"value": b"other"}])
    again(topic).vacuum()
    with pytest.raises(CommitConflictError, match="so old that vacuum"):
        producer.commit()
    producer.abort()
    with producer.begin():
        producer.append(b"1")
    producer.close()
    assert values_seen(again(topic)) == {0: [b"other", b"1"]}
