"""A streaming source and a sink in Python that do nothing: what Spark itself takes for a query between a source and a
sink.

The source returns the same ready Arrow batches again and again, and the sink drops its rows. So no source and sink
in Python can be faster than this query.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

#: The rows of one Arrow batch, which then has about the size of one of distlog's.
BATCH_ROWS = 60_000


class EmptySource(DataSource):
    """The format `empty`; options: `rows` in all, `maxRowsPerTrigger`, and `tasks` of each micro-batch."""

    @classmethod
    def name(cls) -> str:
        return "empty"

    def schema(self) -> str:
        return "key binary, value binary, timestamp timestamp"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return _Reader(*(int(self.options[name]) for name in ("rows", "maxRowsPerTrigger", "tasks")))

    def streamWriter(  # noqa: N802 - Spark's name
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamArrowWriter:
        return _Writer()


class _Share(InputPartition):
    def __init__(self, rows: int) -> None:
        super().__init__(rows)


class _Reader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, rows: int, step: int, tasks: int) -> None:
        self._rows, self._step, self._tasks = rows, step, tasks

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return {"rows": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        return ReadMaxRows(self._step)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        pass

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        step = self._rows if isinstance(limit, ReadAllAvailable) else self._step
        return {"rows": min(start["rows"] + step, self._rows)}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [_Share((end["rows"] - start["rows"]) // self._tasks) for _ in range(self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # not in the process that plans: what distlog imports isn't part of the ceiling
        from benchmarks.topics import table

        rows = partition.value
        batch = table(min(rows, BATCH_ROWS), 100)
        times = batch["timestamp"].cast(pa.timestamp("us", "UTC"))
        (batch,) = batch.set_column(2, "timestamp", times).combine_chunks().to_batches()
        for start in range(0, rows, BATCH_ROWS):
            yield batch.slice(0, min(BATCH_ROWS, rows - start))


class _Writer(DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's
        pass

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's
        pass
