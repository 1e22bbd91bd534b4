"""Counts the records that a writer could not commit, by partition, and adds the counts to its error."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa

from distlog.core.errors import CommitStateUnknownError, DistlogError
from distlog.core.topics.appending.partitioner import Partitioner
from distlog.core.topics.appending.rows import FIELDS, columns_of

_NAMED_PARTITIONS = 20

#: Records by partition; None counts records without a key, whose partition is not chosen yet.
Counts = Counter[int | None]


class UncommittedRecords:
    """Counts the records that an error left uncommitted, and adds the counts to the error.

    The records are lost, unless their own commit raised CommitStateUnknownError: then they are in doubt. distlog's
    errors get the counts as `details`, others as a note.
    """

    def __init__(self, error: BaseException, partitions: int) -> None:
        self._error, self._partitions = error, partitions
        self._counts: dict[str, Counts] = {}

    def add(self, partition: int, count: int, *, in_doubt: bool) -> None:
        """Add so many records of a partition."""
        self._add(Counter({partition: count}), in_doubt=in_doubt)

    def add_sent(self, fields: Sequence[Any]) -> Counts:
        """Add the records whose commit failed; returns them by partition."""
        return self._add(self._counted(fields), in_doubt=isinstance(self._error, CommitStateUnknownError))

    def add_unsent(self, fields: Sequence[Any]) -> Counts:
        """Add records that came later, whose commit was not tried; returns them by partition."""
        return self._add(self._counted(fields), in_doubt=False) if fields else Counter()

    def _counted(self, fields: Sequence[Any]) -> Counts:
        with suppress(MemoryError):
            return _counted(fields, self._partitions)
        return Counter({None: len(fields) // FIELDS})

    def _add(self, counts: Counts, *, in_doubt: bool) -> Counts:
        what = "records_in_doubt" if in_doubt else "records_not_committed"
        total = self._counts[what] = self._counts.get(what, Counter()) + counts
        is_second = what != next(iter(self._counts))
        of_partitions = "not_committed_of_partitions" if is_second else "of_partitions"
        facts = {what: sum(total.values()), of_partitions: _described(total)}
        if isinstance(self._error, DistlogError):
            self._error.details.update(facts)
        elif hasattr(self._error, "add_note"):
            self._error.add_note(" ".join(f"{name}={value}" for name, value in facts.items()))
        return counts


def _counted(fields: Sequence[Any], partitions: int) -> Counts:
    """How many records each partition would have got."""
    columns = columns_of(fields)
    chosen = columns.get("partition", [None] * len(columns["value"]))
    counts: Counts = Counter(partition for partition in chosen if partition is not None)
    keyed = zip(chosen, columns["key"], strict=True)
    counts.update(_of_keys([key for partition, key in keyed if partition is None and key is not None], partitions))
    left = len(chosen) - sum(counts.values())
    if left:
        counts[0 if partitions == 1 else None] += left
    return counts


def _of_keys(keys: list[bytes], partitions: int) -> dict[int, int]:
    column = pa.array(keys, pa.large_binary())
    batch = pa.record_batch({"key": column, "value": pa.nulls(len(keys), pa.binary())})
    return {partition: len(rows) for partition, rows in Partitioner(partitions, 0).split(batch)}


def _described(counts: Counts) -> str:
    known = sorted(partition for partition in counts if partition is not None)
    parts = [f"{partition}: {counts[partition]}" for partition in known[:_NAMED_PARTITIONS]]
    if more := known[_NAMED_PARTITIONS:]:
        parts.append(f"{len(more)} more: {sum(counts[partition] for partition in more)}")
    if counts[None]:
        parts.append(f"not chosen yet: {counts[None]}")
    return "{" + ", ".join(parts) + "}"
