"""Transactions in commits: the topic's metadata has open and aborted transactions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from addresses import Address
from committed_batches import NOW, Gateway
from memory_files import after_write
from raw_batches import batch, record
from transacting import values_seen

import distlog
from distlog.core.commits.deduplication import NO_PRODUCERS
from distlog.core.commits.segment_table import UNDETERMINED_OFFSET
from distlog.core.errors import InvalidRecordError, OutOfOrderSequenceError
from distlog.core.segments.producer_states import last_stable_offset
from distlog.core.segments.segment_reader import TopicHandle
from distlog.core.storage.storage import Storage
from distlog.core.topic import Topic

HOUR_MS = 3_600_000


@pytest.fixture
def two(memory_url: Address) -> Iterator[tuple[Gateway, Gateway]]:
    distlog.create(f"{memory_url.url}/clicks", 2)
    gateways = Gateway(memory_url), Gateway(memory_url)
    yield gateways
    for gateway in gateways:
        gateway.close()


def stable(topic: Topic) -> list[int]:
    snapshot = topic.refresh().snapshot
    with_transactions = [
        segment for state in snapshot.partitions for segment in state.segments if segment.has_transactions
    ]
    assert UNDETERMINED_OFFSET not in [transaction.first_unstable_offset for transaction in with_transactions]
    return [last_stable_offset(topic.reader, state) for state in snapshot.partitions]


def test_the_metadata_has_a_transaction_while_it_is_open(two: tuple[Gateway, Gateway]) -> None:
    first, other = two
    topic = first.topic()
    first.send(7, b"a")
    topic.append([{"value": b"plain"}], partition=0)
    other.send(8, b"b")
    assert (stable(topic), values_seen(topic)[0]) == ([0, 0], [])
    other.end(7, is_committed=True)
    assert (stable(topic), values_seen(topic)[0]) == ([2, 0], [b"a", b"plain"])
    first.end(8, is_committed=False)
    assert (stable(topic), values_seen(topic)[0]) == ([5, 0], [b"a", b"plain"])
    assert values_seen(topic, "read_uncommitted")[0] == [b"a", b"plain", b"b"]


@pytest.mark.parametrize("is_committed", [True, False])
def test_an_end_marker_that_another_commit_overtakes_ends_what_it_should(
    two: tuple[Gateway, Gateway], monkeypatch: pytest.MonkeyPatch, is_committed: bool
) -> None:
    first, other = two
    first.send(7, b"a")
    overtaken = list[int]()
    after_write(monkeypatch, lambda path: "/_commits/" not in path, lambda: overtaken.append(other.send(8, b"b")))
    first.end(7, is_committed=is_committed)
    assert overtaken == [1]
    topic = first.topic()
    assert (stable(topic)[0], values_seen(topic)[0]) == (1, [b"a"] if is_committed else [])
    other.end(8, is_committed=True)
    assert values_seen(topic)[0] == ([b"a", b"b"] if is_committed else [b"b"])


def test_a_batch_of_an_unknown_transaction_is_refused(two: tuple[Gateway, Gateway]) -> None:
    from distlog.core.format.record_batch import TRANSACTIONAL

    data = batch([record(0, 0, b"k", b"v")], attributes=TRANSACTIONAL, producer=(7, 0, 0))
    with pytest.raises(InvalidRecordError, match="transactional id"):
        two[0].hosted.append_later({0: (data, None)})[0].result()


def test_a_refused_batch_does_not_stop_the_others(two: tuple[Gateway, Gateway]) -> None:
    def refuse(snapshot: object) -> None:
        raise InvalidRecordError("not open")

    with pytest.raises(InvalidRecordError, match="not open"):
        two[0].send(7, b"a", fence=refuse)
    assert two[0].topic().end_offsets() == {0: 0, 1: 0}
    two[0].send(7, b"b")
    assert two[0].topic().end_offsets() == {0: 1, 1: 0}


def test_deleted_records_of_an_open_transaction_block_no_reader(two: tuple[Gateway, Gateway]) -> None:
    first, other = two
    topic = first.topic()
    first.send(7, b"a")
    other.send(8, b"b")
    topic.delete_records({0: 1})
    assert stable(topic)[0] == 1
    topic.delete_records({0: 2})
    topic.retention()
    assert stable(topic)[0] == 2
    topic.append([{"value": b"plain"}], partition=0)
    # it knows of the transactions what it has read, another one nothing
    first.end(7, is_committed=False)
    other.end(8, is_committed=True)
    third = Gateway(first.address)
    third.end(8, is_committed=True)
    third.close()
    assert values_seen(topic)[0] == [b"plain"]


def test_a_gateway_that_begins_knows_what_has_been_open_for_long(two: tuple[Gateway, Gateway]) -> None:
    first, _ = two
    first.send(7, b"a")
    later = Gateway(first.address)
    later.now_ms = NOW + HOUR_MS
    later.send(8, b"b")
    assert stable(first.topic())[0] == 0
    later.end(8, is_committed=True)
    assert (stable(first.topic())[0], values_seen(first.topic())[0]) == (0, [])
    later.end(7, is_committed=False)
    assert values_seen(first.topic())[0] == [b"b"]
    later.close()


def test_a_job_that_wrote_for_long_hides_nothing_that_was_sent_before_its_commit(
    two: tuple[Gateway, Gateway],
) -> None:
    first, _ = two
    topic = first.topic()
    first.now_ms = topic.handle.clock()
    first.send(7, b"a")
    first.end(7, is_committed=True)
    an_hour_ago = TopicHandle.of(topic.storage, topic.name, topic.handle.log, lambda: first.now_ms - HOUR_MS)
    Topic(an_hour_ago, topic.refresh().snapshot).append([{"value": b"by a job"}], partition=0)
    # the client did not get the answer, and asks another gateway
    later = Gateway(first.address)
    later.now_ms = first.now_ms
    assert later.send(7, b"a") == 0
    later.close()


def test_a_gateway_that_has_read_but_the_end_marker_of_a_transaction_takes_the_producers_next_batch(
    two: tuple[Gateway, Gateway],
) -> None:
    first, _ = two
    first.send(7, b"a")
    first.now_ms = NOW + HOUR_MS // 5
    first.end(7, is_committed=True)
    later = Gateway(first.address)
    later.now_ms = NOW + HOUR_MS // 3
    later.send(7, b"b", sequence=1)
    later.end(7, is_committed=True)
    assert values_seen(later.topic())[0] == [b"a", b"b"]
    later.close()


def test_direct_appends_are_recognized_in_a_copy_on_an_object_store(memory_url: Address, tmp_path: Path) -> None:
    topic = distlog.create(str(tmp_path / "clicks"))
    with topic.producer() as producer:
        for number in range(3):
            producer.append(b"%d" % number)
            producer.flush()
    topic.append([{"value": b"by a job"}])
    (row,) = topic.producers().to_table().to_pylist()
    copy = Storage(f"{memory_url.url}/clicks")
    for file in sorted(path for path in (tmp_path / "clicks").rglob("*") if path.is_file()):
        copy.put(str(file.relative_to(tmp_path / "clicks")), file.read_bytes())
    assert distlog.open(copy.url).snapshot.partitions[0].producers == NO_PRODUCERS
    gateway = Gateway(memory_url)
    gateway.now_ms = topic.handle.clock()

    def sent(sequence: int) -> int:
        data = batch([record(0, 0, None, b"v")], producer=(row["producer_id"], 0, sequence))
        return gateway.hosted.append_later({0: (data, None)})[0].result().appended.first_offset

    assert [sent(1), sent(3), sent(0), sent(3)] == [1, 4, 0, 4]
    with pytest.raises(OutOfOrderSequenceError):
        sent(5)
    gateway.close()
    actual = distlog.open(copy.url).producers().to_table().to_pylist()
    assert [(producer["producer_id"], producer["last_sequence"]) for producer in actual] == [(row["producer_id"], 3)]


def test_duplicates_are_recognized_after_retention_and_merging(two: tuple[Gateway, Gateway]) -> None:
    topic = two[0].topic()

    def sent(gateway: Gateway, sequence: int) -> int:
        data = batch([record(0, 0, b"k", b"v")], producer=(7, 0, sequence))
        return gateway.hosted.append_later({0: (data, None)})[0].result().appended.first_offset

    assert [sent(two[0], number) for number in range(6)] == [*range(6)]
    topic.refresh().compact()
    topic.delete_records({0: 6})
    topic.retention()
    later = Gateway(two[0].address)
    assert [sent(later, number) for number in (3, 5, 6)] == [3, 5, 6]
    previous = topic.refresh().version
    topic.delete_records({0: 7})
    topic.restore(version=previous)
    assert [sent(later, number) for number in (6, 7)] == [6, 7]
    later.close()


def test_checkpoints_and_restores_keep_what_is_undecided(two: tuple[Gateway, Gateway]) -> None:
    first, other = two
    topic = first.topic()
    first.send(7, b"a")
    previous = topic.refresh().version
    for number in range(101):
        first.send(8, b"%d" % number)
    other.end(8, is_committed=False)
    assert (stable(distlog.open(topic.url))[0], values_seen(distlog.open(topic.url))[0]) == (0, [])
    topic.restore(version=previous)
    assert stable(topic)[0] == 0
    other.end(7, is_committed=True)
    assert values_seen(topic)[0] == [b"a"]
