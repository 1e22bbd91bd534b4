"""Numbers, flags and texts from Python and numpy to Arrow and back, without pandas.

Arrow's `pa.array`, `pa.scalar` and `to_numpy` import pandas where it is installed, which takes as long as all of
distlog. A command, and each of Spark's planners, is a process of its own that should start at once.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def numbers_of(column: pa.Array | pa.ChunkedArray) -> npt.NDArray[Any]:
    """The values of a column of integers without nulls; read-only, and a copy only if it has several chunks."""
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    values: npt.NDArray[Any] = np.from_dlpack(whole)
    values.flags.writeable = False
    return values


def flags_of(column: pa.Array) -> npt.NDArray[np.bool_]:
    """The values of a column of booleans without nulls."""
    return numbers_of(column.cast(pa.uint8())).view(np.bool_)


def integers(values: npt.ArrayLike, kind: pa.DataType | None = None) -> pa.Array:
    """A column of integers, int64 if no other `kind` is given; an array of that kind is not copied."""
    kind = kind or pa.int64()
    array = np.ascontiguousarray(values, f"i{kind.bit_width // 8}")
    return pa.Array.from_buffers(kind, array.size, [None, pa.py_buffer(array)])


def booleans(values: npt.ArrayLike) -> pa.Array:
    """A column of booleans."""
    array = np.ascontiguousarray(values, np.bool_)
    return pa.Array.from_buffers(pa.uint8(), array.size, [None, pa.py_buffer(array)]).cast(pa.bool_())


def texts(values: Sequence[str]) -> pa.Array:
    """A column of texts, none of them None."""
    data = [value.encode() for value in values]
    ends = np.fromiter(accumulate(map(len, data), initial=0), np.int32, len(data) + 1)
    return pa.Array.from_buffers(pa.string(), len(data), [None, pa.py_buffer(ends), pa.py_buffer(b"".join(data))])


def _settle() -> None:
    """Have Arrow import pandas now if it ever will: it does so behind a lock, with the first Python values it meets.

    A child that is forked while another thread imports would wait for that lock for ever.
    """
    pa.array([0])


os.register_at_fork(before=_settle)
