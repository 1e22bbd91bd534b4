"""The rows of a table that came and went between two states of it, exactly, so that one is made of the other."""

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

    It has the rows of `base` but those with the numbers `gone`, in their order, and `added`, whose numbers in it are
    `places`. Both ascend.
    """

    gone: Longs
    places: Longs
    added: pa.RecordBatch

    @classmethod
    def between(cls, base: pa.RecordBatch, rows: pa.RecordBatch, keys: tuple[str, str | None]) -> RowChanges:
        """The changes that make `rows` of `base`.

        Both are in the order of two columns of integers, which tell a row from others. Where there is no second one,
        rows that are alike in the first one are told apart by their order. Raises ValueError for other tables.
        """
        if base.schema != rows.schema:
            raise ValueError("the tables have other columns")
        its, mine = _keys(base, keys), _keys(rows, keys)
        place = np.searchsorted(its, mine)
        matched = np.flatnonzero(place < len(its))
        matched = matched[its[place[matched]] == mine[matched]]
        place = place[matched]
        same = np.ones(len(place), np.bool_)
        for name in base.schema.names:
            same &= _alike(_taken(base[name], place), _taken(rows[name], matched))
        matched, place = matched[same], place[same]
        if (np.diff(place) <= 0).any():
            raise ValueError("the rows are not in order")
        places = _others(matched, len(rows))
        return cls(_others(place, len(base)), places, rows.take(integers(places)))

    def applied(self, base: pa.RecordBatch) -> pa.RecordBatch:
        """The table that these changes make of `base`; raises ValueError if they do not fit."""
        if base.schema != self.added.schema or len(self.places) != len(self.added):
            raise ValueError("its changes are of other rows")
        if not len(self.gone) and not len(self.places):
            return base
        _check(self.gone, len(base))
        count = len(base) - len(self.gone) + len(self.added)
        _check(self.places, count)
        chosen = np.empty(count, np.int64)
        chosen[self.places] = np.arange(len(base), len(base) + len(self.added))
        chosen[_others(self.places, count)] = _others(self.gone, len(base))
        return join([base, self.added]).take(integers(chosen))


def _check(numbers: Longs, count: int) -> None:
    if (np.diff(numbers) <= 0).any() or not 0 <= numbers[:1].sum() <= numbers[-1:].sum() < max(count, 1):
        raise ValueError("its changes are of rows that are not there")


def _others(numbers: Longs, count: int) -> Longs:
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
    for place, column in enumerate((first, second)):
        words[:, place] = column.astype(np.int64).view(np.uint64) ^ _SIGN
    return words.view("S16").ravel()


def _taken(column: pa.Array, rows: Longs) -> pa.Array:
    if not len(rows) or rows[-1] - rows[0] == len(rows) - 1:
        return column.slice(int(rows[0]) if len(rows) else 0, len(rows))
    return column.take(integers(rows))


def _alike(left: pa.Array, right: pa.Array) -> Flags:
    if pa.types.is_struct(left.type):
        parts = [_alike(one, other) for one, other in zip(left.flatten(), right.flatten(), strict=True)]
        whole: Flags = np.logical_and.reduce(parts)
        return whole
    if pa.types.is_list(left.type):
        lengths, others = (numbers_of(one.value_lengths()) for one in (left, right))
        alike: Flags = lengths == others
        rows = np.flatnonzero(alike)
        items = _alike(*(_taken(one, rows).flatten() for one in (left, right)))
        wrong = np.append(0, np.cumsum(~items))
        ends = np.cumsum(lengths[rows])
        alike[rows] = wrong[ends] == wrong[ends - lengths[rows]]
        return alike
    return flags_of(pc.equal(left, right))
