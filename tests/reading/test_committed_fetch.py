"""A fetch of committed records: batches up to the last stable offset, and the list of aborted transactions."""

from __future__ import annotations

import struct
from pathlib import Path

import golden
import pytest
from adopted import adopt_golden
from forked_programs import run
from kafka.record import MemoryRecords
from partition_logs import Process
from transacting import Sender, values_seen

import distlog
from distlog import CorruptIndexError, OffsetOutOfRangeError, Topic
from distlog.core.format.record_batch import CONTROL, TRANSACTIONAL, read_headers
from distlog.core.read.fetch import FetchedBatches
from distlog.core.segments.producer_states import aborted_transactions

GOLDEN = {name: partition for name, partition in golden.partitions().items() if "txn" in name}
SIZES = (1, 2000, 1 << 30)


def consumed(fetched: FetchedBatches) -> list[tuple[int, bytes | None]]:
    """Return the offset and value of each record that Kafka's consumer returns for a response (`CompletedFetch`)."""
    data = bytes(fetched)
    waiting = sorted(fetched.aborted, key=lambda transaction: transaction.first_offset)
    records, hidden, values = MemoryRecords(data), set[int](), []
    for header in read_headers(data):
        batch = records.next_batch()
        last, producer = int(header["base_offset"] + header["last_offset_delta"]), int(header["producer_id"])
        while waiting and waiting[0].first_offset <= last:
            hidden.add(waiting.pop(0).producer_id)
        if header["attributes"] & CONTROL:
            (marker,) = list(batch) or [None]
            if marker is not None and struct.unpack(">hh", marker.key)[1] == 0:
                hidden.discard(producer)
        elif not (header["attributes"] & TRANSACTIONAL and producer in hidden):
            values += [(record.offset, record.value) for record in batch]
    return values


def consume(topic: Topic, max_bytes: int, start: int | None = None) -> list[tuple[int, bytes | None]]:
    """Return the records of a consumer with isolation read_committed, fetch by fetch."""
    offset, values = topic.start_offsets()[0] if start is None else start, []
    while fetched := topic.read(0, offset, max_bytes, isolation="read_committed"):
        values += [pair for pair in consumed(fetched) if pair[0] >= offset]
        offset = fetched.next_offset
    assert offset <= topic.end_offsets()[0]
    return values


@pytest.mark.long
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", GOLDEN)
def test_fetched_records_equal_the_records_of_kafkas_consumer(tmp_path: Path, name: str, size: int) -> None:
    topic = adopt_golden(str(tmp_path / "t"), GOLDEN[name])
    expected = [(row["offset"], row["value"]) for row in GOLDEN[name].records(committed=True)]
    assert consume(topic, size) == expected
    for start in range(topic.start_offsets()[0], topic.end_offsets()[0], 97):
        assert consume(topic, size, start) == [pair for pair in expected if pair[0] >= start]


def test_a_fetch_names_only_transactions_that_reach_into_it(tmp_path: Path) -> None:
    topic = adopt_golden(str(tmp_path / "t"), GOLDEN["first.txn-0"])
    aborted, offset = aborted_transactions(topic.reader, topic.snapshot.partitions[0], 0), 0
    assert len(aborted) > 1
    while fetched := topic.read(0, offset, 1, isolation="read_committed"):
        expected = [
            transaction
            for transaction in aborted
            if transaction.first_offset < fetched.next_offset and transaction.last_offset >= offset
        ]
        assert list(fetched.aborted) == expected
        offset = fetched.next_offset
    assert topic.read(0, 0, 1 << 30).aborted == ()


@pytest.fixture
def unfinished(tmp_path: Path) -> Topic:
    """Return a topic with a plain record at 0, an open transaction at 1, and plain records at 2 and 3."""
    topic = distlog.create(str(tmp_path / "t"))
    topic.append([{"value": b"plain"}])
    Sender(Process(tmp_path / "t")).begin().send(0, b"open")
    topic.refresh()
    with topic.writer() as writer:
        for value in (b"later", b"last"):
            writer.append(value)
            writer.flush()
    return topic.refresh()


def test_an_open_transaction_ends_the_fetch_before_later_records(unfinished: Topic) -> None:
    fetched = unfinished.read(0, 0, isolation="read_committed")
    assert ([value for _, value in consumed(fetched)], fetched.next_offset) == ([b"plain"], 1)
    for offset in range(1, 5):
        nothing = unfinished.read(0, offset, isolation="read_committed")
        assert (len(nothing), nothing.next_offset) == (0, offset)
    with pytest.raises(OffsetOutOfRangeError):
        unfinished.read(0, 5, isolation="read_committed")
    assert len(unfinished.read(0, 1)) > 0
    assert values_seen(unfinished, "read_uncommitted")[0] == [b"plain", b"open", b"later", b"last"]


def test_a_fetch_of_committed_records_needs_the_transaction_index(tmp_path: Path) -> None:
    topic = adopt_golden(str(tmp_path / "t"), GOLDEN["first.txn-0"])
    segment = next(info for info in topic.snapshot.partitions[0].segments if info.txn_index_bytes)
    name = topic.reader.name(segment, ".txnindex")
    topic.storage.put(name, bytes(segment.txn_index_bytes))
    with pytest.raises(CorruptIndexError):
        distlog.open(topic.url).read(0, segment.base_offset, isolation="read_committed")


def test_all_readers_return_the_same_committed_records(tmp_path: Path) -> None:
    topic = distlog.create(str(tmp_path / "t"))
    sender = Sender(Process(tmp_path / "t"))
    for number in range(6):
        sender.begin().send(0, b"%d" % number)
        sender.abort() if number % 2 else sender.commit()
    sender.begin().send(0, b"6")
    topic.refresh()
    assert [record.value for record in topic.records(0, isolation="read_committed")] == [b"0", b"2", b"4"]
    assert [record.value for record in topic.records(0, 1, 1, isolation="read_committed")] == [b"2"]
    assert len(list(topic.records(0))) == 7
    scan = topic.scan(isolation="read_committed")
    assert scan.head(2)["value"].to_pylist() == [b"0", b"2"]
    assert (scan.count(), topic.scan().count()) == (3, 7)
    for options, lines in (((), 7), (("--committed",), 3), (("--committed", "--limit", "2"), 2)):
        read = run("distlog", "read", topic.url, "--json", *options, module=True, check=True)
        assert len(read.stdout.splitlines()) == lines


def test_an_unknown_isolation_is_refused(unfinished: Topic) -> None:
    with pytest.raises(ValueError, match="isolation must be one of read_uncommitted, read_committed"):
        unfinished.read(0, 0, isolation="serializable")  # type: ignore[arg-type]
