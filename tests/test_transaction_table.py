"""The batches that a topic remembers."""

from __future__ import annotations

import pickle

from hypothesis import given
from hypothesis import strategies as st

from distlog.core.commits import transaction_table
from distlog.core.commits.transaction_table import EMPTY, KEPT_MS, Batch, TransactionInfo, TransactionTable


def info(version: int, timestamp_ms: int | None = None) -> TransactionInfo:
    return TransactionInfo(version, version if timestamp_ms is None else timestamp_ms, {0: (version, version + 10)})


def filled(count: int) -> TransactionTable:
    """A table of `count` batches, most of them in columns."""
    table = EMPTY
    for version in range(count):
        table = table.updated({("app", version): info(version)}, version)
    return table


def test_a_batch_is_found_with_what_it_got() -> None:
    table = filled(transaction_table.TAIL_LIMIT + 10)
    for version in (0, 100, transaction_table.TAIL_LIMIT + 9):
        assert table.get("app", version) == info(version)
    assert len(table) == transaction_table.TAIL_LIMIT + 10


def test_a_batch_of_another_application_or_kind_is_another_batch() -> None:
    for table in (filled(5), TransactionTable(filled(5).columns())):
        assert table.get("app", 3)
        assert table.get("app", "3") is None
        assert table.get("another", 3) is None
        assert table.get("app", 5) is None


def test_all_offsets_of_a_batch_come_back_from_columns() -> None:
    wide = TransactionInfo(1, 1, {0: (0, 10), 7: (3, 3)})
    table = EMPTY.updated({("app", 'a "quoted" ü'): wide, ("app", "none"): TransactionInfo(1, 1, {})}, 1)
    stored = TransactionTable(table.columns())
    assert stored.get("app", 'a "quoted" ü') == wide
    assert stored.get("app", "none") == TransactionInfo(1, 1, {})


def test_a_batch_is_forgotten_after_thirty_days_and_not_before() -> None:
    for table in (filled(5), TransactionTable(filled(5).columns())):
        later = table.updated({}, KEPT_MS + 2)
        assert [later.get("app", version) is not None for version in range(5)] == [False, False, True, True, True]
        assert len(later) == 3


def test_a_name_that_comes_back_after_thirty_days_is_the_newest() -> None:
    again = filled(3).updated({("app", 0): info(9, KEPT_MS + 2)}, KEPT_MS + 2)
    assert again.get("app", 0) == info(9, KEPT_MS + 2)
    assert again.columns()["timestamp_ms"].to_pylist() == [2, KEPT_MS + 2]


def test_tables_are_equal_whatever_is_in_columns() -> None:
    table = filled(5)
    assert table == TransactionTable(table.columns())
    assert table != filled(4)
    assert pickle.loads(pickle.dumps(table)) == table


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 3), st.integers(1, KEPT_MS // 2)), max_size=12))
def test_a_table_is_a_dict_that_forgets(steps: list[tuple[str, int, int]]) -> None:
    table, model, now_ms = EMPTY, dict[Batch, TransactionInfo](), 0
    for version, (app, batch, passed_ms) in enumerate(steps):
        now_ms += passed_ms
        if table.get(app, batch) is None:
            model[app, batch] = info(version, now_ms)
            table = table.updated({(app, batch): model[app, batch]}, now_ms)
        if version % 3 == 2:
            table = pickle.loads(pickle.dumps(TransactionTable(table.columns())))
        table = table.updated({}, now_ms)
        kept = {key: found for key, found in model.items() if found.timestamp_ms >= now_ms - KEPT_MS}
        assert len(table) == len(kept)
        assert all(table.get(*key) == found for key, found in kept.items())
