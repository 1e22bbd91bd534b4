"""The transaction table while commits are folded: it must not depend on how many commits are folded at once."""

from __future__ import annotations

from distlog.core.commits.state.ordered_batches import KEPT_NUMBERS
from distlog.core.commits.state.transaction_columns import Batch, TransactionInfo
from distlog.core.commits.state.transaction_table import KEPT_MS, TransactionTable


class TransactionDraft:
    """A private, mutable copy of a TransactionTable."""

    def __init__(self, table: TransactionTable) -> None:
        self._table = table
        self._added: dict[Batch, TransactionInfo] = {}
        #: by application, up to which number a batch in order has made batches forgotten
        self._forgotten: dict[str, int] = {}
        #: by application, the numbers in `_table` that were not committed in order, if they are known
        self._unordered: dict[str, list[int]] = {}

    def record(self, app_id: str, batch_id: int | str, info: TransactionInfo, before_ms: int) -> None:
        """Record a batch, in a commit that follows one of the time `before_ms`.

        Raises ValueError if the batch was committed before, in the last thirty days.
        """
        before = self._added.pop((app_id, batch_id), None) or self._table.get(app_id, batch_id)
        is_known = before is not None and not self._is_forgotten(app_id, batch_id, before)
        if before and is_known and before.timestamp_ms >= info.timestamp_ms - KEPT_MS:
            raise ValueError(f"batch {batch_id!r} of {app_id!r} is in commit {before.version} already")
        if info.in_order and isinstance(batch_id, int):
            self._forget(app_id, batch_id - KEPT_NUMBERS, before_ms)
        else:
            self._unordered.pop(app_id, None)
        self._added[app_id, batch_id] = info

    def finish(self, now_ms: int) -> TransactionTable:
        """The table after the last commit, whose time is `now_ms`."""
        return self._table.updated(self._added, now_ms)

    def _is_forgotten(self, app_id: str, batch_id: int | str, info: TransactionInfo) -> bool:
        return info.in_order and isinstance(batch_id, int) and batch_id <= self._forgotten.get(app_id, -1)

    def _forget(self, app_id: str, up_to: int, before_ms: int) -> None:
        self._forgotten[app_id] = max(up_to, self._forgotten.get(app_id, -1))
        if app_id not in self._unordered:
            self._settle(before_ms)
            self._unordered[app_id] = self._table.unordered_numbers(app_id)
        if any(number <= up_to for number in self._unordered[app_id]):
            # first what is too old goes: without these batches, others look younger
            self._settle(before_ms)
            self._table = self._table.without(app_id, up_to)
            self._unordered[app_id] = [number for number in self._unordered[app_id] if number > up_to]

    def _settle(self, before_ms: int) -> None:
        """Bring the table to where it is when each commit is folded by itself."""
        last_ms = max((info.timestamp_ms for info in self._added.values()), default=before_ms)
        self._table = self._table.updated(self._added, max(before_ms, last_ms))
        self._added = {}
