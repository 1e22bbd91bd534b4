"""Transactions that a killed broker left open: decided ones end, and the others are reported."""

from __future__ import annotations

from pathlib import Path

import pytest
from left_transactions import TIME_MS, end_marker, in_transaction, left_log_dir, plain, state, states_log
from log_dirs import copy_of

import distlog
from distlog import Topic
from distlog.core.format.record_batch import ABORT, COMMIT, read_headers
from distlog.core.kafka.transactions import TransactionStatus
from distlog.core.segments.producer_states import read_producer_snapshot

CLICKS = ("clicks", 0)
#: A record outside the transaction follows its two.
LOG = plain(0, b"a") + in_transaction(1, b"b") + in_transaction(2, b"c", sequence=1) + plain(3, b"d")


def values(topic: Topic, *, committed: bool = True) -> list[bytes]:
    isolation = "read_committed" if committed else "read_uncommitted"
    read_values: list[bytes] = topic.scan(isolation=isolation, columns=["value"]).to_table()["value"].to_pylist()  # type: ignore[arg-type]
    return read_values


@pytest.fixture(params=["in place", "copied", "memory"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> str | None:
    if request.param == "in place":
        return None
    return str(tmp_path / "copies") if request.param == "copied" else f"memory://{tmp_path.name}/copies"


@pytest.mark.parametrize("status", [TransactionStatus.PREPARE_COMMIT, TransactionStatus.PREPARE_ABORT])
def test_a_decided_transaction_without_its_marker_is_ended(
    status: TransactionStatus, target: str | None, tmp_path: Path
) -> None:
    is_committed = status is TransactionStatus.PREPARE_COMMIT
    states = states_log([state("billing", TransactionStatus.ONGOING, CLICKS), state("billing", status, CLICKS)])
    log_dir = left_log_dir(tmp_path, {"clicks-0": LOG}, {11: states})
    report = distlog.adopt(log_dir, target, topics=["clicks"])
    assert values(report.topic) == [b"a", b"b", b"c", b"d"] if is_committed else [b"a", b"d"]
    assert values(report.topic, committed=False) == [b"a", b"b", b"c", b"d"]
    assert report.topic.end_offsets() == {0: 5}
    word = "committed" if is_committed else "aborted"
    transaction = f"{word} transaction of producer 7 ('billing', {status.kafka_name})"
    expected = f"clicks: partition 0: wrote the end marker of the {transaction}, open from offset 1 on"
    assert [note for note in report.notes if "marker" in note] == [expected]
    assert report.topic.snapshot.partitions[0].first_unstable_offset == -1
    again = distlog.adopt(log_dir, target, topics=["clicks"])
    assert again.topic.end_offsets() == {0: 5}


def test_a_single_adopted_partition_uses_the_states_of_its_directory(tmp_path: Path) -> None:
    states = states_log([state("billing", TransactionStatus.PREPARE_COMMIT, CLICKS)])
    log_dir = left_log_dir(tmp_path, {"clicks-0": LOG}, {0: states})
    topic = distlog.adopt(log_dir / "clicks-0", str(tmp_path / "topic")).topic
    assert values(topic) == [b"a", b"b", b"c", b"d"]
    assert topic.append([{"value": b"e"}]).offsets == {0: (5, 6)}
    assert values(topic) == [b"a", b"b", b"c", b"d", b"e"]


def test_the_newest_state_in_all_directories_applies(tmp_path: Path) -> None:
    old = states_log([state("billing", TransactionStatus.ONGOING, CLICKS)])
    new = states_log([state("billing", TransactionStatus.PREPARE_COMMIT, CLICKS, time_ms=TIME_MS + 1)])
    log_dirs = [
        left_log_dir(tmp_path / "a", {"clicks-0": LOG}, {}),
        left_log_dir(tmp_path / "b", {}, {0: new}),
        left_log_dir(tmp_path / "c", {}, {0: old}),
    ]
    topic = distlog.adopt(log_dirs, str(tmp_path / "topics"), topics=["clicks"]).topic
    assert values(topic) == [b"a", b"b", b"c", b"d"]


def test_the_marker_is_the_one_that_the_broker_would_have_written(tmp_path: Path) -> None:
    states = states_log([state("billing", TransactionStatus.PREPARE_ABORT, CLICKS, epoch=4)])
    log_dir = left_log_dir(tmp_path, {"clicks-0": LOG}, {0: states})
    topic = distlog.adopt(log_dir, topics=["clicks"]).topic
    (log,) = log_dir.glob(f"clicks/clicks-0/{4:020d}.log")
    (row,) = read_headers(log.read_bytes())
    assert (row["base_offset"], row["producer_id"], row["producer_epoch"], row["leader_epoch"]) == (4, 7, 4, 4)
    (snapshot,) = log_dir.glob("clicks/clicks-0/*.snapshot")
    assert snapshot.name == f"{5:020d}.snapshot"
    (entry,) = read_producer_snapshot(snapshot.read_bytes())
    assert (entry["producer_epoch"], entry["coordinator_epoch"], entry["transaction_first_offset"]) == (4, 0, -1)
    assert distlog.open(topic.url).scan().to_table().num_rows == 4


UNDECIDED = {
    "nobody knows it": ([], "transaction of producer 7"),
    "ongoing": (
        [state("billing", TransactionStatus.ONGOING, CLICKS)],
        "transaction of producer 7 ('billing', Ongoing)",
    ),
    "forgotten": (
        [state("billing", TransactionStatus.PREPARE_COMMIT, CLICKS), "billing"],
        "transaction of producer 7",
    ),
    "of another partition": (
        [state("billing", TransactionStatus.PREPARE_COMMIT, ("clicks", 1))],
        "transaction of producer 7",
    ),
    "of an older epoch": (
        [state("billing", TransactionStatus.PREPARE_COMMIT, CLICKS, epoch=2)],
        "transaction of producer 7",
    ),
    "complete by another record": (
        [
            state("billing", TransactionStatus.PREPARE_COMMIT, CLICKS),
            state("billing", TransactionStatus.COMPLETE_COMMIT, CLICKS),
        ],
        "transaction of producer 7",
    ),
}


@pytest.mark.parametrize("case", UNDECIDED)
def test_undecided_transactions_stay_open_and_are_reported(case: str, tmp_path: Path) -> None:
    states, named = UNDECIDED[case]
    log_dir = left_log_dir(tmp_path, {"clicks-0": LOG}, {0: states_log(states)} if states else {})
    report = distlog.adopt(log_dir, topics=["clicks"])
    text = "is open, and committed readers stop there; `distlog transactions URL --abort 0:1` ends it"
    assert [note for note in report.notes if "open" in note] == [f"clicks: partition 0: the {named} {text}"]
    assert values(report.topic) == [b"a"]


def test_each_transaction_ends_by_its_own_state(tmp_path: Path) -> None:
    log = LOG + in_transaction(4, b"x", producer=8) + in_transaction(5, b"y", producer=9) + plain(6, b"e")
    states = {
        0: states_log([state("one", TransactionStatus.PREPARE_ABORT, CLICKS, producer=7)]),
        3: states_log([state("two", TransactionStatus.PREPARE_COMMIT, CLICKS, producer=8)]),
    }
    report = distlog.adopt(left_log_dir(tmp_path, {"clicks-0": log}, states), topics=["clicks"])
    assert values(report.topic) == [b"a", b"d", b"x"]
    assert report.topic.snapshot.partitions[0].first_unstable_offset == 5


def test_damaged_states_are_reported_and_hide_no_others(tmp_path: Path) -> None:
    good = states_log([state("billing", TransactionStatus.PREPARE_COMMIT, CLICKS)])
    states = {0: good, 1: good[:-1], 2: b"\0" * 61}
    log_dir = left_log_dir(tmp_path, {"clicks-0": LOG}, states)
    report = distlog.adopt(log_dir, topics=["clicks"])
    assert values(report.topic) == [b"a", b"b", b"c", b"d"]
    notes = [note for note in report.notes if "not known" in note]
    assert [f"__transaction_state-{number}: " in note for number, note in zip((1, 2), notes, strict=True)] == [
        True
    ] * 2


def test_a_log_whose_transactions_have_ended_gets_no_marker(tmp_path: Path) -> None:
    for number, kind in enumerate((COMMIT, ABORT)):
        log = LOG + end_marker(4, kind)
        states = {0: states_log([state("billing", TransactionStatus.PREPARE_COMMIT, CLICKS)])}
        folder = tmp_path / str(number)
        report = distlog.adopt(left_log_dir(folder, {"clicks-0": log}, states), topics=["clicks"])
        assert report.topic.end_offsets() == {0: 5}
        assert not [note for note in report.notes if "transaction of" in note]


def test_the_transaction_that_the_golden_broker_left_open_is_noted(tmp_path: Path) -> None:
    report = distlog.adopt(copy_of("first", tmp_path), topics=["txn"])
    (note,) = [note for note in report.notes if "is open" in note]
    first = report.topic.snapshot.partitions[0].first_unstable_offset
    assert f"--abort 0:{first}`" in note
