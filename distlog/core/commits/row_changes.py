"""The exact changes of a table's rows between two states, so that one state can be computed from the other."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from distlog.core.arrays import flags_of, integers, join, numbers_of

Longs = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

#: The sign of an int64: without it, its bytes have the order of the numbers.
_SIGN = np.uint64(1 << 63)


@dataclass(frozen=True, slots=True)
class RowChanges:
    """A table as the changes of another one, `base`.

    It has the rows of `base` without the numbers `removed_rows`, in their order, and `added`, whose numbers in it are
    `added_rows`. Both ascend.
    """

    removed_rows: Longs
    added_rows: Longs
    added: pa.RecordBatch

    @classmethod
    def between(cls, base: pa.RecordBatch, rows: pa.RecordBatch, keys: tuple[str, str | None]) -> RowChanges:
        """The changes that make `rows` of `base`.

        Both are in the order of two columns of integers, which identify a row. Without a second column, rows with the
        same number are identified by their order. Raises ValueError for other tables.
        """
        if base.schema != rows.schema:
            raise ValueError("the tables have other columns")
        its, mine = _keys(base, keys), _keys(rows, keys)
        base_rows = np.searchsorted(its, mine)
        matched = np.flatnonzero(base_rows < len(its))
        matched = matched[its[base_rows[matched]] == mine[matched]]
        base_rows = base_rows[matched]
        same = np.ones(len(base_rows), np.bool_)
        for name in base.schema.names:
            same &= _alike(_rows_at(base[name], base_rows), _rows_at(rows[name], matched))
        matched, base_rows = matched[same], base_rows[same]
        if (np.diff(base_rows) <= 0).any():
            raise ValueError("the rows are not in order")
        added_rows = _complement(matched, len(rows))
        return cls(_complement(base_rows, len(base)), added_rows, rows.take(integers(added_rows)))

    def applied(self, base: pa.RecordBatch) -> pa.RecordBatch:
        """The table that these changes make of `base`; raises ValueError if they do not fit."""
        if base.schema != self.added.schema or len(self.added_rows) != len(self.added):
            raise ValueError("its changes are of other rows")
        if not len(self.removed_rows) and not len(self.added_rows):
            return base
        _check(self.removed_rows, len(base))
        count = len(base) - len(self.removed_rows) + len(self.added)
        _check(self.added_rows, count)
        sources = np.empty(count, np.int64)
        sources[self.added_rows] = np.arange(len(base), len(base) + len(self.added))
        sources[_complement(self.added_rows, count)] = _complement(self.removed_rows, len(base))
        return join([base, self.added]).take(integers(sources))


def _check(numbers: Longs, count: int) -> None:
    if (np.diff(numbers) <= 0).any() or not 0 <= numbers[:1].sum() <= numbers[-1:].sum() < max(count, 1):
        raise ValueError("its changes are of rows that are not there")


def _complement(numbers: Longs, count: int) -> Longs:
    """The numbers below `count` that are not among `numbers`, ascending."""
    flags = np.ones(count, np.bool_)
    flags[numbers] = False
    return np.flatnonzero(flags)


def _keys(rows: pa.RecordBatch, names: tuple[str, str | None]) -> npt.NDArray[np.bytes_]:
    """The keys of the rows as bytes that sort like them."""
    first = numbers_of(rows[names[0]]).astype(np.int64)
    if names[1] is None:
        begins = np.flatnonzero(np.append(True, first[1:] != first[:-1])) if len(first) else np.empty(0, np.int64)
        second = np.arange(len(first)) - np.repeat(begins, np.diff(np.append(begins, len(first))))
    else:
        second = numbers_of(rows[names[1]])
    words = np.empty((len(first), 2), ">u8")
    for column_number, column in enumerate((first, second)):
        words[:, column_number] = column.astype(np.int64).view(np.uint64) ^ _SIGN
    return words.view("S16").ravel()


def _rows_at(column: pa.Array, rows: Longs) -> pa.Array:
    if not len(rows) or rows[-1] - rows[0] == len(rows) - 1:
        return column.slice(int(rows[0]) if len(rows) else 0, len(rows))
    return column.take(integers(rows))


def _alike(first: pa.Array, second: pa.Array) -> Flags:
    if pa.types.is_struct(first.type):
        parts = [_alike(mine, its) for mine, its in zip(first.flatten(), second.flatten(), strict=True)]
        is_alike: Flags = np.logical_and.reduce(parts)
        return is_alike
    if pa.types.is_list(first.type):
        lengths, right_lengths = (numbers_of(column.value_lengths()) for column in (first, second))
        alike: Flags = lengths == right_lengths
        rows = np.flatnonzero(alike)
        items = _alike(*(_rows_at(column, rows).flatten() for column in (first, second)))
        wrong = np.append(0, np.cumsum(~items))
        ends = np.cumsum(lengths[rows])
        alike[rows] = wrong[ends] == wrong[ends - lengths[rows]]
        return alike
    return flags_of(pc.equal(first, second))
