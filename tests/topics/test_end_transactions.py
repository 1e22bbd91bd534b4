"""Open transactions of Kafka producers: `distlog transactions` lists them, and aborts hanging ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from left_transactions import TIME_MS, in_transaction, left_log_dir, plain, state, states_log
from typer.testing import CliRunner

import distlog
from distlog import Topic
from distlog.cli.app import app
from distlog.core.errors import CommitConflictError
from distlog.core.kafka.transactions import TransactionState, TransactionStatus
from distlog.core.read.fetch import MAX_TIMEOUT_MS, has_late_transaction, open_transactions
from distlog.core.times import now_ms

CLICKS = ("clicks", 0)
LOG = plain(0, b"a") + in_transaction(1, b"b") + in_transaction(2, b"c", producer=8) + plain(3, b"d")


def values(topic: Topic) -> list[bytes]:
    all_values: list[bytes] = (
        topic.refresh().scan(isolation="read_committed", columns=["value"]).to_table()["value"].to_pylist()
    )
    return all_values


Adopted = Callable[..., Topic]


@pytest.fixture(params=["local", "memory"])
def adopted(request: pytest.FixtureRequest, tmp_path: Path) -> Adopted:
    """Adopts LOG with these states in the same directory."""
    root = str(tmp_path / "root") if request.param == "local" else f"memory://{tmp_path.name}/root"

    def adopt(*states: TransactionState, log: bytes = LOG) -> Topic:
        log_dir = left_log_dir(tmp_path, {"clicks-0": log}, {0: states_log(states)} if states else {})
        return distlog.adopt(log_dir, root).topics["clicks"]

    return adopt


def test_open_transactions_are_listed_with_their_producers_and_begins(adopted: Adopted) -> None:
    topic = adopted()
    rows = topic.open_transactions().to_table().to_pylist()
    names = ("partition", "start_offset", "producer_id", "producer_epoch", "last_timestamp", "state", "hanging")
    assert [tuple(row[name] for name in names) for row in rows] == [
        (0, 1, 7, 3, TIME_MS, None, True),
        (0, 2, 8, 3, TIME_MS, None, True),
    ]
    assert "2 open transactions, of which 2 hang" in str(topic.open_transactions())


def test_an_abort_shows_later_records_to_committed_readers(adopted: Adopted) -> None:
    topic = adopted()
    assert values(topic) == [b"a"]
    topic.abort_transaction(0, 1)
    assert values(topic) == [b"a"]
    topic.abort_transaction(0, 2)
    assert values(topic) == [b"a", b"d"]
    assert topic.open_transactions().transactions == ()
    assert topic.append([{"value": b"e"}]).offsets == {0: (6, 7)}
    assert values(distlog.open(topic.url)) == [b"a", b"d", b"e"]
    assert topic.verify().ok


def test_a_transaction_that_began_before_the_log_start_is_listed_and_aborted(adopted: Adopted) -> None:
    topic = adopted()
    topic.delete_records({0: 2})
    listed = topic.open_transactions().transactions
    assert [transaction.transaction.start_offset for transaction in listed] == [1, 2]
    topic.abort_transaction(0, 1)
    topic.abort_transaction(0, 2)
    assert values(topic) == [b"d"]


def test_an_offset_without_a_transaction_fails_with_the_right_ones(adopted: Adopted) -> None:
    topic = adopted()
    with pytest.raises(CommitConflictError, match="open_offsets=1,2"):
        topic.abort_transaction(0, 3)
    topic.abort_transaction(0, 1)
    with pytest.raises(CommitConflictError, match="open_offsets=2"):
        topic.abort_transaction(0, 1)


def test_a_transaction_that_its_coordinator_will_end_is_not_aborted(adopted: Adopted) -> None:
    young = now_ms()
    topic = adopted(state("billing", TransactionStatus.ONGOING, CLICKS, time_ms=young))
    listed = {
        transaction.transaction.start_offset: transaction for transaction in topic.open_transactions().transactions
    }
    assert (listed[1].transactional_id, listed[1].state, listed[1].is_hanging) == ("billing", "Ongoing", False)
    with pytest.raises(CommitConflictError, match=r"which will end it.*billing"):
        topic.abort_transaction(0, 1)
    assert [
        transaction.transaction.start_offset for transaction in topic.open_transactions().hanging.transactions
    ] == [2]


def test_a_transaction_without_its_coordinator_hangs(adopted: Adopted) -> None:
    topic = adopted(
        state("old", TransactionStatus.ONGOING, CLICKS), state("over", TransactionStatus.COMPLETE_ABORT, producer=8)
    )
    listed = topic.open_transactions().hanging.transactions
    assert [(transaction.transactional_id, transaction.state) for transaction in listed] == [
        ("old", "Ongoing"),
        ("over", "CompleteAbort"),
    ]
    for transaction in listed:
        topic.abort_transaction(0, transaction.transaction.start_offset)
    assert values(topic) == [b"a", b"d"]


def test_a_transaction_is_late_five_minutes_after_the_longest_timeout(adopted: Adopted) -> None:
    """testHasLateTransaction, testHasLateTransactionInitializedAfterReload: the state of an adopted log."""
    topic = adopted()
    first = open_transactions(topic.reader, 0, topic.snapshot.partitions[0])[0]
    limit = TIME_MS + MAX_TIMEOUT_MS + 300_000
    assert [first.is_late(now) for now in (TIME_MS, limit, limit + 1)] == [False, False, True]
    assert not first._replace(last_timestamp=-1).is_late(limit + 1)


def test_a_metric_names_a_partition_with_a_late_transaction(adopted: Adopted) -> None:
    topic = adopted()
    limit = TIME_MS + MAX_TIMEOUT_MS + 300_000

    def is_late(now_ms: int) -> bool:
        state = topic.refresh().live_snapshot.partitions[0]
        return has_late_transaction(topic.reader, state, 0, now_ms)

    assert [is_late(now) for now in (TIME_MS, limit, limit + 1)] == [False, False, True]
    # later records hide nothing, as direct appends and as a commit
    with topic.writer() as writer:
        writer.append(b"x")
    topic.append([{"value": b"y"}])
    assert is_late(limit + 1)
    topic.abort_transaction(0, 1)
    assert is_late(limit + 1)
    topic.abort_transaction(0, 2)
    assert not is_late(limit + 1)


def test_the_command_lists_and_aborts(adopted: Adopted, tmp_path: Path) -> None:
    topic = adopted()
    if not topic.storage.is_local:
        pytest.skip("memory is this process's own")
    run = CliRunner()
    listed = run.invoke(app, ["transactions", topic.url, "--hanging", "--json"])
    assert [row["start_offset"] for row in json.loads(listed.stdout)["transactions"]] == [1, 2]
    result = run.invoke(app, ["transactions", topic.url, "--abort", "0:1", "--abort", "0:2"])
    assert (result.exit_code, result.stdout.split("\n")[:2]) == (0, ["aborted 7 at 0:1", "aborted 8 at 0:2"])
    producers = run.invoke(app, ["transactions", topic.url, "--producers", "--json"])
    rows = json.loads(producers.stdout)["producers"]
    assert [(row["producer_id"], row["transaction_first_offset"]) for row in rows] == [(7, -1), (8, -1)]
    assert values(topic) == [b"a", b"d"]
    assert run.invoke(app, ["transactions", topic.url, "--abort", "5"]).exit_code == 2
