"""The batches that a topic remembers."""

from __future__ import annotations

import pickle

from distlog.core.commits.deduplication import (
    KEPT_MS,
    NO_TRANSACTIONS,
    TAIL_LIMIT,
    Batch,
    TransactionInfo,
    TransactionTable,
)
from distlog.core.config import DAY_MS


def info(version: int, timestamp_ms: int | None = None) -> TransactionInfo:
    return TransactionInfo(version, version if timestamp_ms is None else timestamp_ms, {0: (version, version + 10)})


def filled(count: int) -> TransactionTable:
    table = NO_TRANSACTIONS
    for version in range(count):
        table = table.updated({("app", version): info(version)}, version)
    return table


def test_a_batch_is_found_with_its_offsets() -> None:
    table = filled(TAIL_LIMIT + 10)
    for version in (0, 100, TAIL_LIMIT + 9):
        assert table.get("app", version) == info(version)
    assert len(table) == TAIL_LIMIT + 10


def test_a_batch_of_another_application_or_kind_is_another_batch() -> None:
    for table in (filled(5), TransactionTable(filled(5).columns())):
        assert table.get("app", 3)
        assert table.get("app", "3") is None
        assert table.get("another", 3) is None
        assert table.get("app", 5) is None


def test_all_offsets_of_a_batch_come_back_from_columns() -> None:
    wide = TransactionInfo(1, 1, {0: (0, 10), 7: (3, 3)})
    table = NO_TRANSACTIONS.updated({("app", 'a "quoted" ü'): wide, ("app", "none"): TransactionInfo(1, 1, {})}, 1)
    stored = TransactionTable(table.columns())
    assert stored.get("app", 'a "quoted" ü') == wide
    assert stored.get("app", "none") == TransactionInfo(1, 1, {})


def daily(days: int, apps: int = 1) -> TransactionTable:
    """Return a batch a day, with `apps` applications in turn."""
    table = NO_TRANSACTIONS
    for day in range(days):
        table = table.updated({(f"app{day % apps}", day): info(day, day * DAY_MS)}, day * DAY_MS)
    return table


def test_a_commit_from_the_far_future_ages_batches_by_a_day() -> None:
    future = 400 * DAY_MS
    for table in (daily(40), TransactionTable(daily(40).columns())):
        poisoned = table.updated({("bad clock", 1): info(40, future)}, future)
        for number in range(41, 400):
            poisoned = poisoned.updated({("bad clock", number): info(number, future + number)}, future + number)
        assert [poisoned.get("app0", day) is not None for day in (10, 11, 39)] == [False, True, True]
        assert poisoned.get("bad clock", 1) is not None


def remembered(batches: dict[Batch, TransactionInfo], now_ms: int) -> dict[Batch, TransactionInfo]:
    """Return the batches of the last thirty days, with pauses capped at a day, and any application's newest batch."""
    ordered = sorted(batches.items(), key=lambda item: item[1].timestamp_ms)
    newest = {app: batch for (app, batch), _ in ordered}
    remembered_rows, age, after_ms = dict[Batch, TransactionInfo](), 0, now_ms
    for (app, batch), info in reversed(ordered):
        age += min(after_ms - info.timestamp_ms, DAY_MS)
        after_ms = info.timestamp_ms
        if age <= KEPT_MS or newest[app] == batch:
            remembered_rows[app, batch] = info
    return remembered_rows


def test_the_newest_number_of_an_application_is_from_its_last_commit() -> None:
    silent = daily(1, apps=1).updated({("app0", "text"): info(1, DAY_MS)}, DAY_MS)
    assert silent.newest("app0") == 0
    assert silent.newest("another") is None
    grown = filled(TAIL_LIMIT + 10)
    for table in (grown, TransactionTable(grown.columns()), pickle.loads(pickle.dumps(grown))):
        assert table.newest("app") == TAIL_LIMIT + 9
    forgotten = daily(2, apps=2)
    for day in range(2, 60):
        forgotten = forgotten.updated({("app1", day): info(day, day * DAY_MS)}, day * DAY_MS)
    assert forgotten.get("app1", 1) is None
    for table in (forgotten, pickle.loads(pickle.dumps(forgotten)), TransactionTable(forgotten.columns())):
        assert (table.newest("app0"), table.newest("app1")) == (0, 59)
