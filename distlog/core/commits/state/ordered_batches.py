"""The last batches of applications that number their batches and commit them in order."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

import pyarrow as pa

from distlog.core.commits.state.transaction_columns import Batch, TransactionInfo, info_at

#: A batch in order makes those forgotten whose numbers are lower by this much or more. A writer repeats only its
#: newest batch; the few before it are for people who look.
KEPT_NUMBERS = 10


class OrderedBatches:
    """By application, the batches that it committed in order with its last KEPT_NUMBERS numbers; immutable.

    They do not expire, and there are at most KEPT_NUMBERS of an application whose numbers grow.
    """

    __slots__ = ("_batches",)

    def __init__(self, batches: Mapping[str, Mapping[int, TransactionInfo]]) -> None:
        self._batches = batches

    @classmethod
    def of(cls, columns: pa.RecordBatch) -> OrderedBatches:
        """The batches in `columns`, in the order of their commits, without those that later ones make forgotten.

        A library that does not know of batches in order keeps all. Raises ValueError for a batch without a number.
        """
        newest, rows = dict[str, int](), list[tuple[int, Batch]]()
        names = zip(columns["app_id"].to_pylist(), columns["batch_id"].to_pylist(), strict=True)
        for row, (app_id, text) in reversed(list(enumerate(names))):
            number = json.loads(text)
            if type(number) is not int:
                raise ValueError("a batch in order has no number")
            if number > newest.get(app_id, number) - KEPT_NUMBERS:
                rows.append((row, (app_id, number)))
            newest[app_id] = max(number, newest.get(app_id, number))
        return _NONE.updated({batch: info_at(columns, row) for row, batch in reversed(rows)})

    def get(self, app_id: str, batch_id: int | str) -> TransactionInfo | None:
        """The batch's commit and offsets; None if it was not committed in order, or was forgotten."""
        return self._batches.get(app_id, {}).get(batch_id) if isinstance(batch_id, int) else None

    def newest(self, app_id: str) -> int | None:
        """The greatest number that the application committed in order, or None."""
        return max(self._batches.get(app_id, ()), default=None)

    def forgets(self, app_id: str, number: int) -> bool:
        """Whether a batch of this number would be forgotten if it was committed."""
        newest = self.newest(app_id)
        return newest is not None and number <= newest - KEPT_NUMBERS

    def updated(self, added: Mapping[Batch, TransactionInfo]) -> OrderedBatches:
        """These batches and the later ones `added`, each of which makes much lower numbers forgotten."""
        changed = dict[str, dict[int, TransactionInfo]]()
        for (app_id, number), info in added.items():
            if isinstance(number, int):
                before = changed.get(app_id) or self._batches.get(app_id, {})
                kept = {each: found for each, found in before.items() if number - KEPT_NUMBERS < each != number}
                changed[app_id] = {**kept, number: info}
        return OrderedBatches({**self._batches, **changed}) if changed else self

    def items(self) -> Iterator[tuple[Batch, TransactionInfo]]:
        """All batches, by version, application and number."""
        found = [
            ((app_id, number), info) for app_id, batches in self._batches.items() for number, info in batches.items()
        ]
        return iter(sorted(found, key=lambda item: (item[1].version, item[0])))

    def __len__(self) -> int:
        return sum(len(batches) for batches in self._batches.values())


_NONE = OrderedBatches({})
