"""Batch ids that are not in order are bounded: a new one above the bound is refused, and none is forgotten early."""

from __future__ import annotations

import uuid

import pytest
from conftest import Address

import distlog
from distlog import StorageFullError
from distlog.core.commits.actions import SetTransaction
from distlog.core.commits.snapshot import Snapshot
from distlog.core.commits.transaction_table import TAIL_LIMIT
from distlog.core.topics.topic import Topic

RECORD = [{"value": "v"}]


@pytest.fixture
def full(memory_url: Address) -> Topic:
    """A topic whose batch ids take more than it allows."""
    topic = distlog.create(f"{memory_url.url}/clicks", 1, config={"batch.ids.bytes": 2000})
    topic.append(RECORD, app_id="job", batch_id="the first")

    def many(_: Snapshot) -> list[SetTransaction]:
        return [SetTransaction("job", uuid.uuid4().hex, {}) for _ in range(TAIL_LIMIT + 1)]

    topic.log.commit(topic.refresh().snapshot, "append", many)
    return topic


def test_a_new_batch_id_above_the_bound_is_refused_before_anything_is_written(full: Topic) -> None:
    before, version = full.end_offsets(), full.refresh().version
    puts = full.storage.counters.puts
    with pytest.raises(StorageFullError, match=r"batch\.ids\.bytes"):
        full.append(RECORD, app_id="job", batch_id="another")
    assert (full.storage.counters.puts, full.refresh().version, full.end_offsets()) == (puts, version, before)


def test_a_replay_is_recognised_above_the_bound(full: Topic) -> None:
    again = full.append(RECORD, app_id="job", batch_id="the first")
    assert (again.replayed, again.offsets) == (True, {0: (0, 1)})


def test_appends_without_an_id_and_batches_in_order_go_on_above_the_bound(full: Topic) -> None:
    full.append(RECORD)
    _, snapshot = full.log.commit(
        full.refresh().snapshot, "append", lambda _: [SetTransaction("stream", 7, {}, in_order=True)]
    )
    assert snapshot.transaction("stream", 7)


def test_a_raised_bound_lets_new_ones_in(full: Topic) -> None:
    full.alter_config({"batch.ids.bytes": 1 << 20})
    assert not full.append(RECORD, app_id="job", batch_id="another").replayed


def test_the_bound_is_reached_while_an_append_waits_for_its_commit(memory_url: Address) -> None:
    writer = distlog.create(f"{memory_url.url}/clicks", 1, config={"batch.ids.bytes": 0})
    begun = writer.transaction("job", "late")
    begun.append(RECORD)

    def many(_: Snapshot) -> list[SetTransaction]:
        return [SetTransaction("job", uuid.uuid4().hex, {}) for _ in range(TAIL_LIMIT + 1)]

    other = distlog.open(writer.url)
    other.log.commit(other.snapshot, "append", many)
    with pytest.raises(StorageFullError, match="nothing was appended"):
        begun.commit()
    assert writer.refresh().end_offsets() == {0: 0}
