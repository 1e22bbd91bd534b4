"""Merging segments with transactions: aborted records stay hidden, and open transactions stay open."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from addresses import Address
from committed_batches import Gateway
from hypothesis import given
from hypothesis import strategies as st
from partition_logs import Process, append, new_topic
from transacting import Sender, values_seen

import distlog
from distlog.core.maintain import merge_job
from distlog.core.maintain.merge import merge_groups, plan_merge
from distlog.core.segments.producer_states import last_stable_offset
from distlog.core.storage.storage import Storage
from distlog.core.topic import Topic


@pytest.fixture
def gateway(memory_url: Address) -> Iterator[Gateway]:
    distlog.create(f"{memory_url.url}/clicks", 2, config={"segment.ms": 1 << 50, "retention.ms": -1})
    new_gateway = Gateway(memory_url)
    yield new_gateway
    new_gateway.close()


def views(topic: Topic) -> tuple[object, ...]:
    """Return the views of readers: all values, the committed values, and the last stable offset."""
    snapshot = topic.refresh().snapshot
    stable = [last_stable_offset(topic.reader, state) for state in snapshot.partitions]
    return values_seen(topic, "read_uncommitted"), values_seen(topic), stable, topic.end_offsets()


def segments(topic: Topic) -> list[int]:
    return [len(state.segments) for state in topic.refresh().snapshot.partitions]


def test_commits_with_transactions_are_merged_and_read_as_before(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merge_job, "_streamed", lambda *_: pytest.fail("by itself"))
    gateway.send(1, b"gone", 0)
    gateway.end(1, 0, is_committed=True)
    topic = gateway.topic()
    topic.delete_records({0: 2})
    topic.retention()
    for producer in range(1, 7):
        for number in (0, 1):
            gateway.send(producer, b"%d" % producer, number)
            gateway.end(producer, number, is_committed=producer % 3 != 0)
    old_views = views(topic)
    assert topic.compact().ok
    assert segments(topic) == [1, 1]
    assert views(topic) == views(distlog.open(topic.url)) == old_views
    assert values_seen(topic)[1] == [b"1", b"2", b"4", b"5"]
    assert topic.verify().ok
    topic.alter_config({"file.delete.delay.ms": 0})
    topic.vacuum()
    assert views(topic) == old_views


def test_a_transaction_that_is_open_in_merged_segments_is_undecided_until_its_end(gateway: Gateway) -> None:
    topic = gateway.topic()
    gateway.send(1, b"decided")
    gateway.end(1, is_committed=True)
    gateway.send(2, b"open")
    topic.append([{"value": b"plain"}], partition=0)
    assert topic.compact().ok
    assert segments(topic)[0] == 1
    assert values_seen(topic)[0] == [b"decided"]
    gateway.end(2, is_committed=False)
    assert values_seen(topic)[0] == [b"decided", b"plain"]
    for producer in range(3, 8):
        gateway.send(producer, b"more")
        gateway.end(producer, is_committed=True)
    assert topic.compact().ok
    assert segments(topic)[0] == 1
    assert values_seen(topic)[0] == [b"decided", b"plain", *[b"more"] * 5]


def test_a_group_with_an_open_transaction_may_be_cut(gateway: Gateway) -> None:
    topic = gateway.topic()
    topic.alter_config({"index.interval.bytes": 0})
    for producer in range(1, 9):
        gateway.send(producer, b"%d" % producer)
        gateway.end(producer, is_committed=producer % 3 != 0)
    gateway.send(9, b"open")
    topic.append([{"value": b"plain"}], partition=0)
    topic = gateway.topic()
    old_views, groups = views(topic), plan_merge(topic.snapshot)
    topic.alter_config({"segment.index.bytes": 50})
    merge_groups(topic.handle, topic.snapshot, groups)
    topic = gateway.topic()
    assert segments(topic)[0] == 3
    assert views(topic) == views(distlog.open(topic.url)) == old_views
    assert topic.verify().ok


def test_segments_whose_transactions_cannot_be_read_stay_as_they_are(gateway: Gateway) -> None:
    topic = gateway.topic()
    for number in (0, 1):
        for producer in (1, 2, 3):
            gateway.send(producer, b"hidden", number)
            gateway.end(producer, number, is_committed=False)
    folder = Storage(topic.url).child("clicks-1")
    name = next(file.name for file in folder.list() if file.name.endswith(".txnindex"))
    folder.put(name, bytes(34))
    (failed,) = topic.compact().to_dict()["failed"]
    assert failed["partition"] == 1
    assert name in failed["reason"]
    assert segments(topic) == [1, 6]
    assert values_seen(topic, "read_uncommitted") == {0: [b"hidden"] * 3, 1: [b"hidden"] * 3}


STEPS = st.lists(st.sampled_from(["send", "other", "plain", "commit", "abort", "roll", "bulk", "merge"]), max_size=30)


@pytest.mark.long
@given(STEPS)
def test_readers_see_the_same_after_any_merge(tmp_path_factory: pytest.TempPathFactory, steps: list[str]) -> None:
    folder = new_topic(tmp_path_factory.mktemp("merged") / "events", 2, retention_ms=-1)
    process = Process(folder)
    senders = [Sender(process, "payments").begin(), Sender(process, "refunds").begin()]
    for number, step in enumerate([*steps, "merge"]):
        value, topic = b"%d" % number, process.topic()
        match step:
            case "send" | "other":
                for partition in (0, 1):
                    senders[step == "other"].send(partition, value)
            case "plain":
                append(process[number % 2], value)
            case "bulk":
                topic.append([{"value": value}] * 2, partition=number % 2)
            case "commit" | "abort":
                sender = senders[number % 2]
                sender.commit() if step == "commit" else sender.abort()
                sender.begin()
            case "roll":
                process[0].roll()
                process[1].roll()
            case "merge":
                old_views = views(topic)
                assert topic.compact().ok
                assert views(Process(folder).topic()) == old_views
                assert topic.refresh().verify().ok
    for sender in senders:
        sender.abort()
