"""The streaming source, as Spark sees it: the driver plans micro-batches, tasks read their splits."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from distlog.core.errors import InvalidConfigError
from distlog.spark.batch_source import SplitReader
from distlog.spark.stream_plan import INITIAL, StreamOptions, StreamPlan, StreamSplit
from distlog.spark.versions import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)


class DistlogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One stream: Spark keeps one object in the driver, which plans, and sends another to the tasks, which read."""

    def __init__(
        self, options: StreamOptions, schema: StructType, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._storage, self._schema = options.read.storage, schema
        self._limits = options.limits
        self._plan: StreamPlan | None = StreamPlan(options, clock)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_plan": None}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        # a constant: `latestOffset` resolves the options, and keeps the start in its result
        return dict(INITIAL)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return one of the limits, which Spark passes to `latestOffset`; there all limits apply."""
        limits = self._limits
        if limits.max_offsets is not None:
            return ReadMaxRows(limits.max_offsets)
        if limits.max_bytes is not None:
            return ReadMaxBytes(limits.max_bytes)
        return ReadAllAvailable() if limits.min_offsets is None else ReadMinRows(limits.min_offsets)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self._planner.freeze()

    def latestOffset(self, start: Mapping[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the end of the batch from `start` on; `start` without new records."""
        return dict(self._planner.next_end(start, limited=not isinstance(limit, ReadAllAvailable)))

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the newest offsets, for the lag in Spark's progress; sends no request."""
        return dict(self._planner.head())

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[InputPartition]:
        return list(self._planner.splits(start, end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Spark makes a partition for an empty batch
        if not isinstance(partition, StreamSplit):
            return iter(())
        return SplitReader(self._storage, partition.prefix, self._schema).read(partition)

    @property
    def _planner(self) -> StreamPlan:
        if self._plan is None:
            raise RuntimeError("a stream is planned in the driver only")
        return self._plan


class RefusedStreamReader(DistlogStreamReader):
    """A stream that cannot be: raises `error` when it is planned."""

    def __init__(self, error: InvalidConfigError) -> None:
        self._error = error

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        raise self._error

    @property
    def _planner(self) -> StreamPlan:
        raise self._error


class WholeStreamReader(DistlogStreamReader):
    """A stream for a Spark before 4.2, which asks where the topic ends and does not pass the start of a batch."""

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Report an impossible start here, since `latestOffset` may begin anywhere."""
        self._planner.check_start()
        return super().initialOffset()

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # noqa: N802 - Spark's name
        """Return the end of the log, where the next batch ends."""
        return dict(self._planner.whole_end())

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[InputPartition]:
        self._planner.check_same_topic(start, end)
        return super().partitions(start, end)
