"""The records that a reader of transactions gets, compared with Kafka's consumer and with a plain model."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import golden
import numpy as np
import pyarrow as pa
import pytest
from adopted import adopt, adopt_golden, commit, describe, offsets, put, rows
from hypothesis import given
from hypothesis import strategies as st
from logs import changed

import distlog
from distlog import CorruptIndexError, SnapshotTooOldError, Topic
from distlog.core.format.indexes import AbortedTransaction
from distlog.core.format.record_batch import BATCH, TRANSACTIONAL
from distlog.core.format.record_encoder import encode
from distlog.core.segments.chunks import READ_UNCOMMITTED, Isolation

GOLDEN = {name: partition for name, partition in golden.partitions().items() if "txn" in name}
COMMIT, ABORT = 1, 0


@pytest.mark.parametrize("name", GOLDEN)
def test_both_levels_equal_kafkas_consumer(memory_url: Any, name: str) -> None:
    topic = adopt_golden(memory_url.url, GOLDEN[name])
    committed = GOLDEN[name].records(committed=True)
    assert rows(topic.scan().to_table()) == GOLDEN[name].records()
    scan = topic.scan(isolation="read_committed")
    assert rows(scan.to_table()) == committed
    assert scan.count() == len(committed)
    start, end = topic.start_offsets()[0], topic.end_offsets()[0]
    for low in range(start, end, 37):
        part = topic.scan(start=low, end=low + 50, isolation="read_committed")
        expected = [row for row in committed if low <= row["offset"] < low + 50]
        assert rows(part.to_table()) == expected
        assert part.count() == len(expected)


def test_aborted_records_are_hidden_with_a_clamped_start(memory_url: Any) -> None:
    topic = adopt_golden(memory_url.url, GOLDEN["first.txn-0"])
    end_offset = topic.end_offsets()[0] + 1
    scan = topic.scan(start=end_offset, isolation="read_committed", out_of_range="earliest")
    assert rows(scan.to_table()) == GOLDEN["first.txn-0"].records(committed=True)


def test_the_broker_aborted_something() -> None:
    assert len(GOLDEN) == 4
    hidden = {name: len(golden.records()) - len(golden.records(committed=True)) for name, golden in GOLDEN.items()}
    assert min(hidden["first.txn-0"], hidden["first.compact-txn-0"]) > 50


def batch(base_offset: int, count: int, producer: int = -1, marker: int | None = None) -> bytes:
    """Return a batch of `count` records, transactional with a `producer`; a `marker` ends its transaction."""
    keys = [struct.pack(">hh", 0, marker)] if marker is not None else [b"k"] * count
    records = pa.record_batch({"timestamp": [1] * count, "key": keys, "value": [bytes(6)] * count})
    transaction = {"producer_id": producer, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
    fields = transaction if producer >= 0 else {}
    return bytes(encode(records, base_offset=base_offset, control=marker is not None, **fields).data)


def aborted_entry(producer: int, first: int, last: int) -> bytes:
    return struct.pack(">hqqqq", 0, producer, first, last, last + 1)


def committed(topic: Topic) -> list[int]:
    return offsets(topic.scan(isolation="read_committed").to_table())


def log_of(url: str, *batches: bytes, aborted: bytes = b"", end: int) -> Topic:
    return adopt(url, [(0, {".log": b"".join(batches), ".txnindex": aborted})], end)


def test_an_open_transaction_ends_the_stable_log(memory_url: Any) -> None:
    batches = [batch(0, 3), batch(3, 2, 1), batch(5, 2), batch(7, 2, 2), batch(9, 1, 2, COMMIT)]
    topic = log_of(memory_url.url, *batches, end=10)
    assert committed(topic) == [0, 1, 2]
    assert offsets(topic.scan().to_table()) == list(range(9))
    assert topic.scan(start=7, isolation="read_committed").to_table().num_rows == 0


def test_a_log_whose_transactions_are_decided_is_stable_to_its_end(memory_url: Any) -> None:
    topic = log_of(
        memory_url.url,
        batch(0, 2, 1),
        batch(2, 2, 2),
        batch(4, 1, 1, COMMIT),
        batch(5, 1),
        batch(6, 1, 2, ABORT),
        batch(7, 2, 2),
        batch(9, 1, 2, COMMIT),
        aborted=aborted_entry(2, 2, 6),
        end=10,
    )
    assert committed(topic) == [0, 1, 5, 7, 8]


def test_an_aborted_transaction_may_span_segments(tmp_path: Path) -> None:
    segments = [
        (0, {".log": batch(0, 2, 1) + batch(2, 3)}),
        (5, {".log": batch(5, 2, 1) + batch(7, 1, 1, ABORT) + batch(8, 2), ".txnindex": aborted_entry(1, 0, 7)}),
    ]
    topic = adopt(str(tmp_path / "t"), segments, 10)
    assert committed(topic) == [2, 3, 4, 8, 9]
    assert offsets(topic.scan(end=5, isolation="read_committed").to_table()) == [2, 3, 4]


def test_a_moved_segment_moves_its_transactions(tmp_path: Path) -> None:
    files = {
        ".log": batch(0, 2, 1) + batch(2, 2, 2) + batch(4, 1, 1, ABORT) + batch(5, 1, 2, COMMIT),
        ".txnindex": aborted_entry(1, 0, 4),
    }
    topic = distlog.create(str(tmp_path / "t"))
    topic.append([{"value": b"v"}] * 100)
    segment = describe(files, 0, 6, stem="v00000000000000000000-" + 32 * "a").moved_to(100)
    put(topic, segment, files)
    commit(topic, [segment])
    assert committed(topic) == [*range(100), 102, 103]


def test_a_damaged_or_missing_transaction_index_fails(tmp_path: Path) -> None:
    name = "first.txn-0"
    topic = adopt_golden(str(tmp_path / "t"), GOLDEN[name])
    segment = topic.snapshot.partitions[0].segments[0]
    file = Path(topic.storage.local_path(topic.reader.name(segment, ".txnindex")))
    data = file.read_bytes()
    for wrong in (data[:-1], data[:-34], data + data[:34], b"", changed(data, 18, 0x80)):
        file.write_bytes(wrong)
        with pytest.raises(CorruptIndexError):
            topic.scan(isolation="read_committed")
    file.unlink()
    with pytest.raises(SnapshotTooOldError, match=r"txnindex partition=0"):
        topic.scan(isolation="read_committed")
    assert topic.scan().to_table().num_rows == len(GOLDEN[name].records())


def test_an_unknown_level_is_refused(memory_url: Any) -> None:
    topic = distlog.create(memory_url.url)
    with pytest.raises(ValueError, match="isolation must be one of read_uncommitted, read_committed, not commited"):
        topic.scan(isolation="commited")  # type: ignore[arg-type]


spans = st.tuples(st.integers(0, 3), st.integers(0, 40), st.integers(0, 20))


@given(
    st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.integers(0, 1)), max_size=20),
    st.lists(spans, max_size=8),
    st.integers(0, 5),
)
def test_only_records_of_aborted_transactions_are_hidden(
    batches: list[tuple[int, bool, int]], aborted: list[tuple[int, int, int]], shift: int
) -> None:
    headers = np.zeros(len(batches), BATCH)
    for number, (producer, transactional, _) in enumerate(batches):
        headers[number]["base_offset"], headers[number]["producer_id"] = 3 * number, producer
        headers[number]["attributes"] = TRANSACTIONAL if transactional else 0
    partition = np.array([partition_id for _, _, partition_id in batches], np.int64)
    hiding = Isolation.of(
        {1: [AbortedTransaction(producer_id, first, first + size, 0) for producer_id, first, size in aborted]}
    )
    expected = [
        not (
            transactional
            and where == 1
            and any(
                producer_id == producer and first <= 3 * number + shift <= first + size
                for producer_id, first, size in aborted
            )
        )
        for number, (producer, transactional, where) in enumerate(batches)
    ]
    assert hiding.visible(headers, np.full(len(batches), shift), partition).tolist() == expected
    assert READ_UNCOMMITTED.visible(headers, shift, 1).all()
