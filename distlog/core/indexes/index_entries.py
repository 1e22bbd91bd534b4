"""The layout of index entries: where a field is, and which numbers it may hold."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class Column(NamedTuple):
    """The place of a field in the entries, in bytes: the last arguments of the search kernels."""

    stride: int
    start: int
    width: int


def in_order(what: str, values: npt.NDArray[np.int64], *, step: int, largest: int) -> npt.NDArray[np.int64]:
    """Return `values` if each is at least `step` above the one before it, else raise ValueError.

    Raises OverflowError for one that is not between 0 and `largest`.
    """
    if len(values) and not (values.min() >= 0 and values.max() <= largest):
        raise OverflowError(f"{what} must be between 0 and {largest}, not {values.min()} to {values.max()}")
    if (np.diff(values) < step).any():
        raise ValueError(f"{what} must {'increase' if step else 'not decrease'}")
    return values


def column(entry: np.dtype[np.void], field: str) -> Column:
    """The column of `field` in entries of type `entry`."""
    fields = entry.fields
    assert fields is not None
    dtype, start = fields[field][:2]
    return Column(entry.itemsize, start, dtype.itemsize)
