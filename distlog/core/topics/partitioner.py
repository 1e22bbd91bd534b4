"""Which partition a record goes to: the one given, else murmur2 of its key, else sticky runs.

The rules are those of Kafka's default producer (`BuiltInPartitioner`): a key decides for ever, by
`(murmur2(key) & 0x7fffffff) % partitions`; records without a key go to one partition for a run of bytes, then
to the next.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from distlog.core.errors import InvalidRecordError
from distlog.core.kernels import routing

#: Bytes of keys and values after which records without a key go on to the next partition.
STICKY_BYTES = 131_072


class Partitioner:
    """Splits batches of records by partition; keeps the sticky state from batch to batch.

    `first` is the partition that records without a key start with.
    """

    def __init__(self, partitions: int, first: int) -> None:
        self._partitions = partitions
        self._sticky = routing.StickyState(first % partitions, 0)

    def split(
        self, records: pa.RecordBatch, partition: int | None = None, first_row: int = 0
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield (partition, its records in their order, without the partition column), by partition.

        Raises InvalidRecordError, which counts rows from `first_row`, for a partition that the topic does not have.
        """
        if partition is not None:
            yield self._checked(partition), _without_partition(records)
        elif self._partitions == 1 and "partition" not in records.schema.names:
            yield 0, records
        elif records.num_rows:
            yield from self._grouped(records, first_row)

    def _grouped(self, records: pa.RecordBatch, first_row: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        order, counts = routing.group_by_partition(self._assign(records, first_row), self._partitions)
        grouped = _without_partition(records)
        if np.count_nonzero(counts) > 1:
            grouped = grouped.take(pa.array(order))
        start = 0
        for index in np.flatnonzero(counts):
            yield int(index), grouped.slice(start, int(counts[index]))
            start += int(counts[index])

    def _assign(self, records: pa.RecordBatch, first_row: int) -> npt.NDArray[np.int32]:
        assigned, self._sticky = routing.assign_partitions(
            records.column("key"), records.column("value"), self._partitions, self._sticky, STICKY_BYTES
        )
        if "partition" not in records.schema.names:
            return assigned
        given = records.column("partition")
        chosen = np.where(given.is_valid().to_numpy(zero_copy_only=False), given.fill_null(0).to_numpy(), assigned)
        chosen = chosen.astype(np.int32)
        bad = routing.first_out_of_range(chosen, self._partitions)
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


def _without_partition(records: pa.RecordBatch) -> pa.RecordBatch:
    names = [name for name in records.schema.names if name != "partition"]
    return records.select(names)
