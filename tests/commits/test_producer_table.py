"""The producer state of commits equals the state of their batches, through folds, checkpoints and reads."""

from __future__ import annotations

import json
import pickle
import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from histories import History, segment
from hypothesis import given
from hypothesis import strategies as st
from raw_batches import batch, record

from distlog.core.arrays import MAX_LONG
from distlog.core.commits import actions, checkpoint, deduplication
from distlog.core.commits.actions import Add, Commit, Drop, ProducerBatches
from distlog.core.commits.deduplication import (
    COMMIT_MARKER,
    DATA,
    EXPIRATION_MS,
    MAX_PRODUCER_PAUSE_MS,
    NO_PRODUCERS,
    ProducerBatch,
    ProducerTable,
    sufficient_batches,
)
from distlog.core.commits.snapshot import Snapshot, apply, fold
from distlog.core.config import DAY_MS
from distlog.core.errors import CorruptMetadataError
from distlog.core.format.record_batch import ABORT, COMMIT, CONTROL, TRANSACTIONAL, read_headers
from distlog.core.segments.producer_states import NONE, ProducerStates, batches_of, producer_batches


def snapshot_of_entries(producer: int = 7, offset: int = 0, count: int = 1, **changes: Any) -> ProducerBatch:
    """Return the entry of a batch at these offsets; sequence numbers equal offsets by default."""
    last = offset + count - 1
    return ProducerBatch(producer, 0, last, last, count - 1, 1_000, DATA, NONE)._replace(**changes)


def append(history: History, *batches: ProducerBatch, partition: int = 0, end: int | None = None) -> Commit:
    """Commit a segment at the end of the log, up to `end`, with the producer entries of its batches."""
    begin = history.snapshot().partitions[partition].log_end_offset
    end = max(row.last_offset for row in batches) + 1 if end is None else end
    added = Add(segment(partition, begin, end - begin))
    return history.commit(added, ProducerBatches({partition: batches}))


@pytest.fixture
def history() -> History:
    history = History()
    history.create(3)
    return history


def table(history: History, partition: int = 0) -> ProducerTable:
    return history.snapshot().partitions[partition].producers


# producer, epoch, kind, time that passed before its commit
STEPS = st.lists(
    st.tuples(
        st.integers(1, 5),
        st.integers(0, 1),
        st.sampled_from(["data", "data", "data", "open", "commit", "abort"]),
        st.integers(1, 3),
        st.sampled_from([0, 0, 0, 1, MAX_PRODUCER_PAUSE_MS // 2, MAX_PRODUCER_PAUSE_MS, 30 * DAY_MS]),
    ),
    max_size=60,
)


def raw(steps: list[tuple[int, int, str, int, int]]) -> bytes:
    data, offset = b"", 0
    for producer, epoch, kind, count, _ in steps:
        attributes, key, sequence = 0, None, offset
        if kind in ("commit", "abort"):
            key, count, sequence = struct.pack(">hh", 0, COMMIT if kind == "commit" else ABORT), 1, -1
            attributes = CONTROL | TRANSACTIONAL
        elif kind == "open":
            attributes = TRANSACTIONAL
        rows = [record(delta, 0, key, struct.pack(">hi", 0, epoch)) for delta in range(count)]
        data += batch(rows, base_offset=offset, attributes=attributes, producer=(producer, epoch, sequence))
        offset += count
    return data


@pytest.mark.long
@given(steps=STEPS, most=st.sampled_from([0, 2, 64]), data=st.data())
def test_a_fold_of_commits_has_the_producer_state_of_their_batches(
    steps: list[tuple[int, int, str, int, int]], most: int, data: st.DataObject
) -> None:
    history, states, passed_ms, log = History(), ProducerStates(), 0, raw(steps)
    history.create(1)
    rows = read_headers(log)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deduplication, "_MIN_CHANGES_TO_REBUILD", most)
        first = 0
        while first < len(rows):
            part = rows[first : first + data.draw(st.integers(1, 9))]
            pause_ms = steps[first][4] + 1
            history.now_ms += pause_ms - 1
            passed_ms += min(pause_ms, MAX_PRODUCER_PAUSE_MS)
            quiet = [
                producer
                for producer in range(1, 6)
                if (state := states.get(producer)) and passed_ms - state.heard_ms >= EXPIRATION_MS
            ]
            for producer in quiet:
                states.expire(MAX_LONG, [producer])
            states.observe(log, part, heard_ms=passed_ms)
            end = int(part["base_offset"][-1] + part["last_offset_delta"][-1]) + 1
            append(history, *sufficient_batches(producer_batches(log, part)), end=end)
            first += len(part)
            producers = table(history)
            for producer in range(1, 6):
                assert producers.get(producer, passed_ms) == states.get(producer)
            assert producers.open_transactions == dict(states.open_transactions)
        stepwise: Snapshot | None = None
        for commit in history.commits:
            stepwise = apply(stepwise, commit)
        split = data.draw(st.integers(1, len(history.commits)))
        assert fold(fold(None, history.commits[:split]), history.commits[split:]) == stepwise
        assert stepwise == history.snapshot()
        assert stepwise is not None
        assert checkpoint.decode(checkpoint.encode(stepwise), "a file") == stepwise
        assert pickle.loads(pickle.dumps(stepwise)) == stepwise


@given(steps=STEPS)
def test_a_commit_omits_redundant_producer_entries(
    steps: list[tuple[int, int, str, int, int]],
) -> None:
    log = raw(steps)
    every = list(producer_batches(log, read_headers(log)))
    sufficient = sufficient_batches(every)
    assert ProducerTable().updated(sufficient, 5) == ProducerTable().updated(every, 5)
    markers = sum(row.is_marker for row in every)
    assert len(sufficient) <= 5 * 5 + 2 * markers + 5


def test_a_partition_has_producers_of_its_own_and_a_drop_forgets_them(history: History) -> None:
    append(history, snapshot_of_entries(7, 0))
    append(history, snapshot_of_entries(8, 0), partition=2)
    assert [len(table(history, number)) for number in range(3)] == [1, 0, 1]
    history.commit(Drop())
    history.topic_id = "12345678-1234-1234-1234-123456789abc"
    history.create(1)
    assert table(history) == NO_PRODUCERS


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        (snapshot_of_entries(7, 9), "does not add"),
        (snapshot_of_entries(7, 20), "does not add"),
        (snapshot_of_entries(7, 12, offset_delta=5), "does not add"),
        (snapshot_of_entries(7, 19, 2), "does not add"),
    ],
)
def test_offsets_that_the_commit_does_not_add_are_refused(history: History, wrong: ProducerBatch, match: str) -> None:
    append(history, snapshot_of_entries(7, 0), end=10)
    old_snapshot = history.snapshot()
    commit = append(history, wrong, end=20)
    with pytest.raises(CorruptMetadataError, match=match):
        apply(old_snapshot, commit)


def test_the_first_entries_may_describe_the_whole_log(history: History) -> None:
    history.commit(Add(segment(0, 0, 10)))
    append(history, snapshot_of_entries(7, 3), snapshot_of_entries(8, 12), end=15)
    assert [producer for producer, _ in table(history).items()] == [7, 8]


@pytest.mark.parametrize("flag", ["has_producers", "has_transactions"])
def test_undescribed_batches_of_producers_reset_the_state(history: History, flag: str) -> None:
    append(history, snapshot_of_entries(7, 0))
    history.commit(Add(segment(0, 1, 5)))
    assert len(table(history)) == 1
    history.commit(Add(segment(0, 6, 5, **{flag: True})))
    assert table(history) == NO_PRODUCERS


def test_batches_of_a_producer_that_are_not_in_their_order_are_refused(history: History) -> None:
    old_snapshot = history.snapshot()
    commit = append(history, snapshot_of_entries(7, 5), snapshot_of_entries(7, 5), end=10)
    with pytest.raises(CorruptMetadataError, match="order"):
        apply(old_snapshot, commit)


def body() -> dict[str, Any]:
    """Return the JSON of the producer entries of two batches."""
    action = ProducerBatches(
        {
            0: (snapshot_of_entries(7, 0, 3), snapshot_of_entries(8, 3)),
            2: (snapshot_of_entries(8, 5, kind=COMMIT_MARKER),),
        }
    )
    (fields,) = json.loads(json.dumps(actions.write_actions([action])))
    assert actions.read_actions([fields]) == (action,)
    columns: dict[str, Any] = fields["producers"]
    return columns


HOSTILE: dict[str, tuple[str, Any]] = {
    "no list": ("partition", 0),
    "nothing": ("partition", []),
    "a partition that no topic has": ("partition", [0, 0, 100_000]),
    "a negative partition": ("partition", [0, -1, 2]),
    "too few values": ("last_offset", [2, 1]),
    "too many values": ("last_offset", [2, 1, 2, 3]),
    "a text": ("producer_id", "7"),
    "a truth": ("producer_id", True),
    "a fraction": ("last_sequence", [1.5, 2, 3]),
    "no value": ("last_sequence", None),
    "a negative id": ("producer_id", -1),
    "an id that is too large": ("producer_id", MAX_LONG + 1),
    "an epoch that is too large": ("producer_epoch", 2**15),
    "a sequence below none": ("last_sequence", -2),
    "a sequence that is too large": ("last_sequence", 2**31),
    "offsets that are too large": ("last_offset", [MAX_LONG, 1, 1]),
    "offsets that become negative": ("last_offset", [2, -3, 0]),
    "a negative delta": ("offset_delta", -1),
    "an unknown kind": ("kind", 4),
    "times that are too large": ("timestamp", [MAX_LONG, 1, 0]),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_invalid_columns_are_refused(name: str) -> None:
    column, value = HOSTILE[name]
    with pytest.raises(ValueError, match=r"must|a commit has|column"):
        actions.read_actions([{"producers": {**body(), column: value}}])


@pytest.mark.parametrize("name", ["producer_id", "producer_epoch", "last_sequence", "last_offset", "offset_delta"])
def test_a_missing_column_is_refused(name: str) -> None:
    columns = body()
    del columns[name]
    with pytest.raises(ValueError, match=name):
        actions.read_actions([{"producers": columns}])


def test_a_commit_describes_a_bounded_number_of_batches() -> None:
    columns = {
        **body(),
        **dict.fromkeys(("producer_id", "last_sequence", "last_offset", "offset_delta", "timestamp"), 0),
    }
    del columns["kind"]
    for count in (actions.MAX_PRODUCER_BATCHES, actions.MAX_PRODUCER_BATCHES + 1):
        item = {"producers": {**columns, "partition": [0] * count}}
        if count <= actions.MAX_PRODUCER_BATCHES:
            actions.read_actions([item])
        else:
            with pytest.raises(ValueError, match="a commit has"):
                actions.read_actions([item])


def test_a_commit_describes_producers_once() -> None:
    with pytest.raises(ValueError, match="once"):
        actions.read_actions([{"producers": body()}, {"producers": body()}])


WRONG_ROWS: dict[str, tuple[str, Any]] = {
    "a missing partition": ("partition", 3),
    "a negative id": ("producer_id", -5),
    "the same producer twice": ("producer_id", 8),
    "an epoch that is too large": ("epoch", 2**15),
    "an open transaction past the log's end": ("transaction_first_offset", 50),
    "a time that has not passed": ("heard_ms", 10**15),
    "six batches": (
        "batches",
        [{"last_sequence": n, "last_offset": n, "offset_delta": 0, "timestamp": 0} for n in range(6)],
    ),
    "a batch past the log's end": (
        "batches",
        [{"last_sequence": 0, "last_offset": 50, "offset_delta": 0, "timestamp": 0}],
    ),
    "a batch that begins below 0": (
        "batches",
        [{"last_sequence": 0, "last_offset": 5, "offset_delta": 6, "timestamp": 0}],
    ),
    "batches in no order": (
        "batches",
        [{"last_sequence": n, "last_offset": 5 - n, "offset_delta": 0, "timestamp": 0} for n in range(2)],
    ),
}


@pytest.mark.parametrize("name", WRONG_ROWS)
def test_impossible_rows_of_a_checkpoint_are_refused(history: History, name: str) -> None:
    append(history, snapshot_of_entries(7, 0), snapshot_of_entries(8, 1), end=10)
    state, batches = checkpoint.unpack(checkpoint.encode(history.snapshot()))
    rows, (column, value) = batches["producers"].to_pylist(), WRONG_ROWS[name]
    rows[0][column] = value
    changed = pa.RecordBatch.from_pylist(rows, batches["producers"].schema)
    with pytest.raises(CorruptMetadataError):
        checkpoint.decode(checkpoint.pack(state, {**batches, "producers": changed}), "a file")


def test_a_checkpoint_with_fewer_rows_than_it_says_is_refused(history: History) -> None:
    append(history, snapshot_of_entries(7, 0), snapshot_of_entries(8, 1))
    state, batches = checkpoint.unpack(checkpoint.encode(history.snapshot()))
    fewer = {**batches, "producers": batches["producers"].slice(1)}
    with pytest.raises(CorruptMetadataError, match="numbers of rows differ"):
        checkpoint.decode(checkpoint.pack(state, fewer), "a file")


@given(steps=STEPS)
def test_an_entry_of_a_brokers_snapshot_becomes_equivalent_batches(
    steps: list[tuple[int, int, str, int, int]],
) -> None:
    log, states = raw(steps), ProducerStates()
    states.observe(log, read_headers(log))
    entries = states.entries()
    updated = ProducerTable().updated([row for entry in entries for row in batches_of(entry)], 0)
    assert np.array_equal(ProducerStates(dict(updated.items())).entries(), entries)
