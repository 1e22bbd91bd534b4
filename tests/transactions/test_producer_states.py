"""The producer states of a log: the rules of Kafka's ProducerStateManager, batch by batch."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from golden import DATA
from hypothesis import given
from hypothesis import strategies as st
from raw_batches import batch, record

from distlog.core.arrays import MAX_INT
from distlog.core.commits.deduplication import EXPIRATION_MS, KnownBatch
from distlog.core.errors import CorruptIndexError, InvalidRecordError, OutOfOrderSequenceError, ProducerFencedError
from distlog.core.format.record_batch import ABORT, COMMIT, CONTROL, TRANSACTIONAL, batch_fields, read_headers
from distlog.core.segments.producer_states import (
    ENTRY,
    ProducerStates,
    read_producer_snapshot,
    write_producer_snapshot,
)

NOW = 1_700_000_000_000
PID = 7


class Log:
    """A log of one partition that keeps only headers."""

    def __init__(self, states: ProducerStates | None = None, end: int = 0) -> None:
        self.states, self.end = states or ProducerStates(), end

    def append(self, sequence: int, count: int = 1, *, epoch: int = 0, open: bool = False, time: int = NOW) -> Any:
        """Append a batch; return its offsets, or the offsets of its duplicate."""
        rows = [record(delta, 0, None, b"v") for delta in range(count)]
        data = batch(
            rows,
            attributes=TRANSACTIONAL if open else 0,
            producer=(PID, epoch, sequence),
            base_timestamp=time,
            max_timestamp=time,
        )
        duplicate = self.states.check(batch_fields(read_headers(data)))
        if duplicate:
            return duplicate.first_offset, duplicate.last_offset
        return self.append_unchecked(data, count)

    def mark(self, kind: int = COMMIT, *, epoch: int = 0, coordinator: int = 0, time: int = NOW) -> Any:
        rows = [record(0, 0, struct.pack(">hh", 0, kind), struct.pack(">hi", 0, coordinator))]
        attributes = CONTROL | TRANSACTIONAL
        data = batch(rows, attributes=attributes, producer=(PID, epoch, -1), base_timestamp=time, max_timestamp=time)
        return self.append_unchecked(data, 1)

    def append_unchecked(self, data: bytes, count: int) -> tuple[int, int]:
        """Append without a check, as in recovery."""
        first, self.end = self.end, self.end + count
        self.states.observe(data, read_headers(data), first)
        return first, self.end - 1

    def reopened(self, now: int = NOW) -> Log:
        states = ProducerStates.of_snapshot(read_producer_snapshot(self.states.snapshot()))
        states.expire(now)
        return Log(states, self.end)


def refused(log: Log, error: type[Exception], *arguments: Any, **options: Any) -> None:
    old_snapshot = log.states.snapshot()
    with pytest.raises(error):
        log.append(*arguments, **options)
    assert log.states.snapshot() == old_snapshot


def test_sequence_numbers_follow_each_other_and_a_new_epoch_begins_at_0() -> None:
    log = Log()
    assert [log.append(0), log.append(1)] == [(0, 0), (1, 1)]
    refused(log, OutOfOrderSequenceError, 5)
    refused(log, OutOfOrderSequenceError, 3, epoch=1)
    assert log.append(0, epoch=1) == (2, 2)
    refused(log, ProducerFencedError, 2)
    refused(log, ProducerFencedError, 0)


def test_a_duplicate_batch_gets_its_offsets() -> None:
    log = Log()
    for sequence in range(0, 12, 2):
        log.append(sequence, 2)
    for sequence in (2, 4, 6, 8, 10):
        assert log.append(sequence, 2) == (sequence, sequence + 1)
    # the sixth last batch is forgotten, and others overlap present ones
    for sequence, count in ((0, 2), (10, 1), (11, 1), (9, 2), (10, 3)):
        refused(log, OutOfOrderSequenceError, sequence, count)
    assert log.append(12) == (12, 12)


def test_batches_appended_together_are_duplicates_together() -> None:
    log, data = Log(), b""
    for number in range(7):
        data += batch([record(0, 0, None, b"v")], base_offset=number, producer=(PID, 0, number))
    rows = read_headers(data)
    assert log.states.check(batch_fields(rows)) is None
    log.append_unchecked(data, 7)
    assert log.states.check(batch_fields(rows)) == KnownBatch(6, 6, 0, 1000)
    missing = read_headers(data)
    missing["base_sequence"][1:] += 7
    with pytest.raises(OutOfOrderSequenceError):
        log.states.check(batch_fields(missing))


@pytest.mark.parametrize("sequence", [0, 17, MAX_INT])
def test_an_unknown_producer_may_start_at_any_sequence(sequence: int) -> None:
    log = Log()
    log.append(sequence, epoch=3)
    refused(log, OutOfOrderSequenceError, (sequence + 2) & MAX_INT, epoch=3)
    log.append((sequence + 1) & MAX_INT, epoch=3)


def test_after_the_largest_number_comes_0() -> None:
    log = Log()
    log.append(MAX_INT - 10, 20)
    assert log.states.get(PID).last_sequence == 8  # type: ignore[union-attr]
    assert log.append(MAX_INT - 10, 20) == (0, 19)
    assert log.append(9) == (20, 20)
    other = Log()
    other.append(MAX_INT)
    refused(other, OutOfOrderSequenceError, 1)
    other.append(0)


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=20), st.integers(0, MAX_INT), st.randoms(use_true_random=False)
)
def test_repeated_batches_are_never_duplicated(counts: list[int], first: int, chance: Any) -> None:
    log, sequence, offsets = Log(), first, []
    for count in counts:
        offsets.append((sequence, count, log.append(sequence, count)))
        sequence = (sequence + count) & MAX_INT
        for again, size, expected in offsets[-5:]:
            if chance.random() < 0.5:
                assert log.append(again, size) == expected
        if chance.random() < 0.3:
            log = log.reopened()
            offsets = offsets[-1:]
    assert log.end == sum(counts)


def test_an_end_marker_of_a_higher_epoch_restarts_the_numbers() -> None:
    log = Log()
    log.append(0, open=True)
    log.mark(ABORT, epoch=1)
    state = log.states.get(PID)
    assert state
    assert (state.epoch, state.last_sequence, state.transaction_first_offset) == (1, -1, -1)
    refused(log, ProducerFencedError, 1)
    refused(log, OutOfOrderSequenceError, 2, epoch=1)
    refused(log, OutOfOrderSequenceError, 2, epoch=2)
    log.append(0, epoch=1)


def test_an_end_marker_of_the_same_epoch_leaves_the_numbers() -> None:
    log = Log()
    log.append(0, 2, open=True)
    log.mark(COMMIT)
    log.append(2, open=True)


def test_a_marker_of_the_same_or_the_next_epoch_ends_a_transaction_and_an_older_one_does_not() -> None:
    log = Log()
    log.append(0, epoch=3, open=True)
    assert [log.states.has_open(PID, epoch) for epoch in (2, 3, 4)] == [False, True, True]
    assert not log.states.has_open(PID + 1, 3)
    log.mark(ABORT, epoch=4)
    assert not log.states.has_open(PID, 4)


def test_appends_of_a_coordinator_have_no_sequence_numbers() -> None:
    log = Log()
    assert [log.append(-1, open=True) for _ in range(3)] == [(0, 0), (1, 1), (2, 2)]
    refused(log, InvalidRecordError, -1)
    log.mark(COMMIT)
    assert log.append(-1, epoch=1, open=True) == (4, 4)
    refused(log, ProducerFencedError, -1, epoch=0, open=True)


def test_a_marker_alone_makes_a_producer_known() -> None:
    log = Log()
    log.mark(ABORT, epoch=5)
    refused(log, ProducerFencedError, 0, epoch=4)
    refused(log, OutOfOrderSequenceError, 17, epoch=5)
    log.append(0, epoch=5)


def test_an_empty_control_batch_changes_nothing() -> None:
    log = Log()
    log.append(0, open=True)
    log.append_unchecked(batch([], attributes=CONTROL | TRANSACTIONAL, producer=(PID, 0, -1), last_delta=0), 1)
    assert log.states.get(PID).transaction_first_offset == 0  # type: ignore[union-attr]


def test_records_outside_of_the_open_transaction_are_refused() -> None:
    log = Log()
    log.append(0, 3, open=True)
    refused(log, InvalidRecordError, 3)
    assert log.append(3, open=True) == (3, 3)
    log.mark(COMMIT)
    log.append(4)


def test_a_silent_producer_without_an_open_transaction_expires() -> None:
    log = Log()
    log.append(0)
    log.states.expire(NOW + EXPIRATION_MS - 1)
    refused(log, OutOfOrderSequenceError, 2)
    log.states.expire(NOW + EXPIRATION_MS)
    assert len(log.states) == 0
    log.append(5, open=True)
    log.states.expire(NOW + 10 * EXPIRATION_MS)
    refused(log, OutOfOrderSequenceError, 7, open=True)
    log.mark(COMMIT)
    log.states.expire(NOW + 10 * EXPIRATION_MS)
    assert len(log.states) == 0


def test_a_snapshot_keeps_the_last_batch_of_each_live_producer() -> None:
    log = Log()
    log.append(0, open=True)
    log.append(1, 2, open=True)
    again = log.reopened(NOW + 10 * EXPIRATION_MS)
    assert again.states.snapshot() == log.states.snapshot()
    assert again.append(1, 2, open=True) == (1, 2)
    refused(again, OutOfOrderSequenceError, 0, open=True)
    log.mark(COMMIT, coordinator=4)
    assert log.reopened().states.get(PID).coordinator_epoch == 4  # type: ignore[union-attr]
    assert len(log.reopened(NOW + EXPIRATION_MS).states) == 0


def test_a_snapshot_of_a_producer_that_only_has_a_marker_keeps_its_time() -> None:
    log = Log()
    log.mark(ABORT, epoch=1, time=NOW + 5)
    (entry,) = read_producer_snapshot(log.reopened().states.snapshot()).tolist()
    assert entry == (PID, 1, -1, -1, 0, NOW + 5, 0, -1)


def test_a_lower_coordinator_epoch_in_the_log_is_accepted() -> None:
    log = Log()
    log.mark(COMMIT, coordinator=2)
    log.mark(COMMIT, coordinator=1)
    assert log.states.get(PID).coordinator_epoch == 1  # type: ignore[union-attr]


def stored_by_brokers() -> list[Path]:
    return [path for path in sorted(DATA.glob("**/*.snapshot")) if not path.parts[-3].startswith("cleaned")]


@pytest.mark.parametrize("file", stored_by_brokers(), ids=lambda path: f"{path.parts[-2]}-{path.stem}")
def test_the_states_of_a_brokers_log_equal_its_snapshots(file: Path) -> None:
    states = ProducerStates()
    for log in sorted(file.parent.glob("*.log")):
        data = log.read_bytes()
        rows = read_headers(data)
        states.observe(data, rows[rows["base_offset"] < int(file.stem)])
    stored = read_producer_snapshot(file.read_bytes())
    assert read_producer_snapshot(states.snapshot()).tolist() == sorted(stored.tolist())


def test_an_emptied_batch_keeps_its_producer() -> None:
    data = bytearray(batch([record(0, 0, None, b"v"), record(1, 0, None, b"w")], producer=(PID, 2, 7)))
    rows = read_headers(bytes(data))
    rows["record_count"] = 0
    states = ProducerStates()
    states.observe(bytes(data), rows, 10)
    assert states.get(PID).batches[-1][:3] == (8, 11, 1)  # type: ignore[union-attr]


def test_batches_without_sequence_numbers_are_never_duplicates() -> None:
    log = Log()
    assert [log.append(-1), log.append(0)] == [(0, 0), (1, 1)]
    refused(log, OutOfOrderSequenceError, -1)
    (entry,) = read_producer_snapshot(log.states.snapshot()).tolist()
    assert entry[:5] == (PID, 0, 0, 1, 0)


def test_a_batch_of_a_transaction_that_compaction_emptied_opens_none() -> None:
    """Its marker may be deleted, and no record is left to decide; the last sequence number stays known."""
    log = Log()
    emptied = batch([], count=0, last_delta=2, attributes=TRANSACTIONAL, producer=(PID, 0, 0))
    assert log.append_unchecked(emptied, 3) == (0, 2)
    assert dict(log.states.open_transactions) == {}
    assert not log.states.has_open(PID, 0)
    state = log.states.get(PID)
    assert state is not None
    assert (state.last_sequence, state.transaction_first_offset) == (2, -1)


BATCHES = st.tuples(st.integers(1, 3), st.integers(0, 2), st.booleans(), st.booleans())


@given(batches=st.lists(BATCHES, max_size=40), cut=st.integers(0, 40))
def test_states_do_not_depend_on_the_number_of_batches_at_once(
    batches: list[tuple[int, int, bool, bool]], cut: int
) -> None:
    data = b""
    for offset, (producer, epoch, is_open, is_marker) in enumerate(batches):
        value = struct.pack(">hi", 0, 3)
        rows = [record(0, 0, struct.pack(">hh", 0, COMMIT) if is_marker else None, value)]
        attributes = CONTROL | TRANSACTIONAL if is_marker else TRANSACTIONAL * is_open
        sequence = -1 if is_marker else offset
        data += batch(rows, base_offset=offset, attributes=attributes, producer=(producer, epoch, sequence))
    rows = read_headers(data)
    at_once, singly, in_parts = ProducerStates(), ProducerStates(), ProducerStates()
    at_once.observe(data, rows)
    for number in range(len(rows)):
        singly.observe(data, rows[number : number + 1])
    assert at_once.snapshot() == singly.snapshot()
    for producer in {row[0] for row in batches}:
        assert at_once.get(producer) == singly.get(producer)
    # a walk over all batches that starts with a snapshot of the first ones
    in_parts.observe(data, rows[:cut])
    stored = read_producer_snapshot(in_parts.snapshot())
    again = ProducerStates.of_snapshot(stored, cut)
    again.observe(data, rows)
    assert again.snapshot() == at_once.snapshot()


VECTOR = bytes.fromhex(
    "00018681074800000001000000000000000700020000000100000000000000010000000100000000000007d000000009ffffffffffffffff"
)
EMPTY = bytes.fromhex("000148674bc700000000")


def test_the_vector_of_an_ended_transaction_is_read_and_written() -> None:
    (entry,) = read_producer_snapshot(VECTOR)
    assert entry.tolist() == (7, 2, 1, 1, 1, 2000, 9, -1)
    assert write_producer_snapshot(np.array([entry], ENTRY)) == VECTOR


def test_a_snapshot_without_producers_has_ten_bytes() -> None:
    assert len(read_producer_snapshot(EMPTY)) == 0
    assert write_producer_snapshot(np.empty(0, ENTRY)) == EMPTY


def test_the_snapshots_of_a_broker_are_read_and_written_back() -> None:
    files = sorted(DATA.glob("kafka-*/*/*/*.snapshot"))
    assert len(files) > 20
    for file in files:
        data = file.read_bytes()
        assert write_producer_snapshot(read_producer_snapshot(data)) == data
    last = DATA / "kafka-4.1" / "first" / "txn-0" / "00000000000000000713.snapshot"
    entries = read_producer_snapshot(last.read_bytes())
    assert len(entries) == 3
    assert (entries["transaction_first_offset"] >= 0).sum() == 1


@pytest.mark.parametrize("file", ["", "x-0/00000000000000000003.snapshot"])
def test_every_flipped_byte_and_every_truncation_is_refused(file: str) -> None:
    damaged = [VECTOR[:size] for size in range(len(VECTOR))]
    damaged += [
        VECTOR[:number] + bytes([VECTOR[number] ^ 0x10]) + VECTOR[number + 1 :] for number in range(len(VECTOR))
    ]
    damaged.append(VECTOR + b"\0")
    for data in damaged:
        with pytest.raises(CorruptIndexError) as caught:
            read_producer_snapshot(data, file=file)
        assert caught.value.details["file"] == (file or None)
