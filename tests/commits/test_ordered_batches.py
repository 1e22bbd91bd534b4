"""Applications that commit their batches in order: the batches that a topic remembers."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest
from histories import History
from hypothesis import example, given
from hypothesis import strategies as st

from distlog.core.commits import checkpoint
from distlog.core.commits.actions import SetTransaction
from distlog.core.commits.deduplication import (
    BATCH_SCHEMA,
    KEPT_MS,
    KEPT_ORDERED_BATCHES,
    NO_TRANSACTIONS,
    Batch,
    TransactionInfo,
    TransactionTable,
)
from distlog.core.commits.snapshot import fold
from distlog.core.config import DAY_MS
from tests.commits.test_transaction_table import remembered


def info(version: int, timestamp_ms: int, *, in_order: bool = True) -> TransactionInfo:
    return TransactionInfo(version, timestamp_ms, {0: (version, version + 10)}, in_order=in_order)


def in_order(numbers: range, app: str = "app", table: TransactionTable = NO_TRANSACTIONS) -> TransactionTable:
    for number in numbers:
        table = table.updated({(app, number): info(number, number)}, number)
    return table


def numbers(table: TransactionTable, app: str = "app") -> list[str]:
    columns = table.columns()
    return columns.filter(pa.compute.equal(columns["app_id"], app))["batch_id"].to_pylist()


def test_only_the_last_batches_of_an_application_that_commits_in_order_are_kept() -> None:
    grown = in_order(range(1000))
    for table in (grown, TransactionTable(grown.columns()), pickle.loads(pickle.dumps(grown))):
        assert numbers(table) == [str(number) for number in range(1000 - KEPT_ORDERED_BATCHES, 1000)]
        assert (len(table), table.newest("app")) == (KEPT_ORDERED_BATCHES, 999)
        assert table.get("app", 999) == info(999, 999)
        assert table.get("app", 999 - KEPT_ORDERED_BATCHES) is None
        assert table.has("app", 999 - KEPT_ORDERED_BATCHES)
        assert not table.has("another", 3)


def test_batches_from_before_an_application_committed_in_order_are_forgotten() -> None:
    table = NO_TRANSACTIONS
    for number in range(300):
        table = table.recorded(("app", number), info(number, number, in_order=False), number - 1)
    table = table.recorded(("app", "a word"), info(300, 300, in_order=False), 299)
    table = table.recorded(("other", 3), info(301, 301, in_order=False), 300)
    table = table.recorded(("app", 305), info(302, 302), 301)
    assert numbers(table) == [*(str(number) for number in range(296, 300)), '"a word"', "305"]
    assert numbers(table, "other") == ["3"]


def test_a_repeated_batch_in_order_is_refused() -> None:
    for table in (in_order(range(20)), NO_TRANSACTIONS.recorded(("app", 19), info(1, 1), 0)):
        with pytest.raises(ValueError, match="batch 19 of 'app' is in commit"):
            table.recorded(("app", 19), info(21, 21), 20)


def test_the_state_does_not_depend_on_grouping_or_checkpoints() -> None:
    history = History()
    history.create()
    for number in range(50):
        history.commit(
            SetTransaction("stream", number, {}, in_order=True), SetTransaction("b", number, {}, number > 25)
        )
    history.commit(SetTransaction("stream", "a word", {}, in_order=True))
    folded = fold(None, history.commits)
    stepwise = None
    for commit in history.commits:
        stepwise = fold(stepwise, [commit])
    assert folded == stepwise
    assert numbers(folded.transactions, "stream") == [*(str(number) for number in range(40, 50)), '"a word"']
    assert checkpoint.decode(checkpoint.encode(folded), "a file") == folded


@pytest.mark.parametrize("change", [{"batch_id": '"a word"'}, {"batch_id": "true"}, {"batch_id": "7,"}])
def test_a_batch_in_order_without_a_number_is_refused(change: dict[str, str]) -> None:
    row = in_order(range(1)).columns().to_pylist()[0]
    with pytest.raises(ValueError, match=r"no number|Extra data"):
        TransactionTable(pa.RecordBatch.from_pylist([{**row, **change}], schema=BATCH_SCHEMA))


STEPS = st.tuples(
    st.sampled_from("ab"),
    st.integers(0, 25) | st.just("word"),
    st.booleans(),
    st.sampled_from([1, DAY_MS, 9 * DAY_MS]),
)


@given(st.lists(STEPS, max_size=60), st.integers(1, 7))
@example([("b", 1, False, 9 * DAY_MS), *(("a", n, False, DAY_MS) for n in range(12)), ("a", 20, True, 1)], 20)
def test_a_table_remembers_the_batches_of_the_rule(steps: list[tuple[str, int | str, bool, int]], group: int) -> None:
    """Compare with a plain implementation, for any grouping of commits, and after the table was stored and loaded."""
    plain, ordered, now_ms = dict[Batch, TransactionInfo](), dict[Batch, TransactionInfo](), 0
    table = NO_TRANSACTIONS
    for version, (app, batch, orderly, passed_ms) in enumerate(steps):
        before_ms, now_ms = now_ms, now_ms + passed_ms
        latest = info(version, now_ms, in_order=orderly and isinstance(batch, int))
        is_known = ordered.get((app, batch)) or plain.get((app, batch))
        if is_known:
            if is_known.timestamp_ms >= now_ms - KEPT_MS:
                with pytest.raises(ValueError, match="already"):
                    table.recorded((app, batch), latest, before_ms)
            continue
        table = table.recorded((app, batch), latest, before_ms)
        if latest.in_order:
            for batches in (plain, ordered):
                for name, number in list(batches):
                    if name == app and isinstance(number, int) and number <= int(batch) - KEPT_ORDERED_BATCHES:
                        del batches[name, number]
        into = ordered if latest.in_order else plain
        into[app, batch] = latest
        plain = remembered(plain, now_ms)
        if version % group == 0:
            assert len(table) == len(plain) + len(ordered)
            for names, info_of in (({*ordered}, ordered), ({*plain} - {*ordered}, plain)):
                assert {name: table.get(*name) for name in names} == {name: info_of[name] for name in names}
            assert table == TransactionTable(table.columns())
            table = pickle.loads(pickle.dumps(TransactionTable(table.columns()) if version % 2 else table))


Step = tuple[str, int, bool, int]


def folded(steps: list[Step], *, at_once: bool) -> TransactionTable:
    """Return the table after batches (app, number, in order, day), each in a commit; stored after each, or not."""
    table, before_ms = NO_TRANSACTIONS, 0
    for version, (app, number, orderly, day) in enumerate(steps):
        now_ms = day * DAY_MS + version
        table = table.recorded((app, number), info(version, now_ms, in_order=orderly), before_ms)
        before_ms = now_ms
        if not at_once:
            table = TransactionTable(table.updated({}, now_ms).columns())
    return table


@pytest.mark.parametrize("first_steps", [[], [("a", 5, True, 1)]])
def test_expired_batches_stay_forgotten_after_batches_between_expire(first_steps: list[Step]) -> None:
    """The batches of `a` let time pass for the batches of `b`, so that the first one of `b` expires."""
    days: list[Step] = [("a", day, False, day) for day in range(10, 45)]
    steps: list[Step] = [("b", 0, False, 0), ("b", 1, False, 1), *first_steps, *days, ("a", 100, True, 45)]
    stepwise = folded(steps, at_once=False)
    assert numbers(stepwise, "b") == ["1"]
    assert numbers(stepwise, "a") == ["100"]
    assert folded(steps, at_once=True) == stepwise


def test_expired_batches_stay_forgotten_after_an_application_left_order() -> None:
    first_steps: list[Step] = [("a", 30 + day, False, day) for day in range(1, 20)]
    other_steps: list[Step] = [("c", day, False, day) for day in range(21, 34)]
    begin: list[Step] = [("b", 0, False, 0), ("b", 1, False, 0)]
    steps: list[Step] = [*begin, *first_steps, ("a", 29, True, 20), *other_steps, ("a", 70, True, 33)]
    stepwise = folded(steps, at_once=False)
    assert (numbers(stepwise, "b"), numbers(stepwise, "a")) == (["1"], ["70"])
    assert folded(steps, at_once=True) == stepwise
