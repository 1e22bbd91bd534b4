"""Chooses the partition of each record of a batch, and the order that brings a partition's records together.

Records with and without keys are treated as in Kafka's `BuiltInPartitioner`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from distlog.core.kernels import routing as kernels

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]

_BYTE = np.dtype(np.uint8)


class StickyState(NamedTuple):
    """The partition that records without a key go to now, and how many bytes of them it got in this run."""

    partition: int
    used_bytes: int


def assign_partitions(
    keys: pa.Array[Any], values: pa.Array[Any], partitions: int, sticky: StickyState, run_bytes: int
) -> tuple[Ints, StickyState]:
    """The partition of each record, int32: by its key, or by runs of about `run_bytes` where the key is null.

    `keys` and `values` are binary or large_binary, of equal length. Also returns the state to pass with the next
    records. Raises ValueError if the columns, or the buffers of one column, do not fit together.
    """
    if len(keys) != len(values):
        raise ValueError(f"{len(keys)} keys and {len(values)} values")
    key_offsets, key_data, valid = _buffers(keys)
    value_offsets, _, _ = _buffers(values)
    assigned = np.empty(len(keys), np.int32)
    partition, used_bytes = kernels.assign(
        key_offsets, key_data, valid, keys.offset, value_offsets, partitions, *sticky, run_bytes, assigned
    )
    if partition < 0:
        raise ValueError("the offsets of the key column do not fit its data")
    return assigned, StickyState(partition, used_bytes)


def group_by_partition(partitions: Ints, count: int) -> tuple[Longs, Longs]:
    """(the row numbers, grouped by partition and in order within each; the number of rows of each partition).

    Both int64. Raises ValueError unless every partition is between 0 and `count` - 1.
    """
    order = np.empty(len(partitions), np.int64)
    counts = np.zeros(count, np.int64)
    if kernels.group(partitions, order, counts) >= 0:
        raise ValueError(f"a partition is not between 0 and {count - 1}")
    return order, counts


def _buffers(array: pa.Array[Any]) -> tuple[Ints | Longs, Bytes, Bytes]:
    # (the offsets of this slice, the data, the validity bits of the whole array, or nothing if all are valid)
    valid, offsets, data = array.buffers()
    kind = np.dtype(np.int64 if pa.types.is_large_binary(array.type) else np.int32)
    wanted = _view(offsets, kind)[array.offset : array.offset + len(array) + 1]
    return wanted, _view(data), _view(valid if array.null_count else None)


def _view(buffer: pa.Buffer | None, kind: np.dtype[Any] = _BYTE) -> npt.NDArray[Any]:
    return np.frombuffer(memoryview(buffer) if buffer else b"", kind)
