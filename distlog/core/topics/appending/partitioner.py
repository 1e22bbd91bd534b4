"""Chooses a record's partition: the one given, else murmur2 of its key, else sticky runs.

The rules are those of Kafka's default producer (`BuiltInPartitioner`): a key always goes to the same partition, by
`(murmur2(key) & 0x7fffffff) % partitions`; records without a key go to one partition for a run of bytes, then
to the next.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from distlog.core.arrow_arrays import flags_of, integers, numbers_of
from distlog.core.errors import InvalidRecordError
from distlog.core.kernels.routing import first_out_of_range
from distlog.core.topics.appending.routing import StickyState, assign_partitions, group_by_partition

Longs = npt.NDArray[np.int64]

#: Bytes of keys and values after which records without a key go to the next partition.
STICKY_BYTES = 131_072


class Partitioner:
    """Splits batches of records by partition; keeps the sticky state from batch to batch.

    `first` is the partition that records without a key start with.
    """

    def __init__(self, partitions: int, first: int) -> None:
        self._partitions = partitions
        self._sticky = StickyState(first % partitions, 0)

    def split(
        self, records: pa.RecordBatch, partition: int | None = None, first_row: int = 0
    ) -> Iterator[tuple[int, Longs]]:
        """Yield (partition, the numbers of its rows in their order, int64), by partition.

        Raises InvalidRecordError, which counts rows from `first_row`, for a partition that the topic does not have.
        """
        if partition is not None:
            yield self._checked(partition), np.arange(records.num_rows)
        elif self._partitions == 1 and "partition" not in records.schema.names:
            yield 0, np.arange(records.num_rows)
        elif records.num_rows:
            order, counts = group_by_partition(self._assign(records, first_row), self._partitions)
            ends = np.cumsum(counts)
            for number in np.flatnonzero(counts).tolist():
                yield number, order[ends[number] - counts[number] : ends[number]]

    def _assign(self, records: pa.RecordBatch, first_row: int) -> npt.NDArray[np.int32]:
        assigned, self._sticky = assign_partitions(
            records.column("key"), records.column("value"), self._partitions, self._sticky, STICKY_BYTES
        )
        if "partition" not in records.schema.names:
            return assigned
        given = records.column("partition")
        chosen = np.where(
            flags_of(given.is_valid()), numbers_of(given.fill_null(integers([0], given.type)[0])), assigned
        )
        chosen = chosen.astype(np.int32)
        bad = first_out_of_range(chosen, self._partitions)
        if bad >= 0:
            self._checked(int(chosen[bad]), first_row + bad)
        return chosen

    def _checked(self, partition: int, row: int | None = None) -> int:
        if isinstance(partition, bool) or not hasattr(partition, "__index__"):
            raise InvalidRecordError("a partition must be an integer", got=type(partition).__name__)
        if not 0 <= partition < self._partitions:
            raise InvalidRecordError(
                f"the topic has partitions 0 to {self._partitions - 1}", partition=partition, row=row
            )
        return operator.index(partition)
