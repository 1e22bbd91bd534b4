"""Passes blobs between tasks: a few large rows in and a few large rows out, not one per record.

A row goes to a target, which is one task of the next stage. A row has a kind, and a task gets its rows ordered by
kind. The stages run in an Arrow table function: unlike `mapInArrow` it needs no pandas, and Spark Connect has it too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from distlog.core.maintenance.compaction.key_exchange import Blobs
from distlog.spark.worker import settle

_SPARK_SCHEMA = "target int, kind int, data binary"
_SCHEMA = pa.schema([("target", pa.int32()), ("kind", pa.int32()), ("data", pa.binary())])


class Stage(Protocol):
    """The work on the rows of one target, in one task. It may run twice, so a second run must do no harm."""

    def take(self, kind: int, data: memoryview) -> Iterable[pa.RecordBatch]:
        """Take a row in, and send rows on."""

    def finish(self) -> Iterable[pa.RecordBatch]:
        """Send the last rows on."""


def rows(targets: Iterable[int], kind: int, data: Sequence[bytes]) -> pa.RecordBatch:
    """Rows to send: one element of `data` to each of `targets`."""
    columns = [pa.array(targets, pa.int32()), pa.array([kind] * len(data), pa.int32()), pa.array(data, pa.binary())]
    return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)


def blob_rows(blobs: Blobs, targets: np.ndarray, kinds: np.ndarray) -> pa.RecordBatch:
    """A row for each blob; no blob is copied."""
    ends = np.append(0, blobs.ends * blobs.words.itemsize).astype(np.int32)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(blobs.words)]
    data = pa.Array.from_buffers(pa.binary(), len(blobs.ends), buffers)
    return pa.RecordBatch.from_arrays(
        [pa.array(targets, pa.int32()), pa.array(kinds, pa.int32()), data], schema=_SCHEMA
    )


def frame_of(spark: SparkSession, kind: int, data: Sequence[bytes]) -> DataFrame:
    """The rows of a first stage: item i of `data` goes to target i."""
    return spark.createDataFrame(pa.Table.from_batches([rows(range(len(data)), kind, data)]))


def run_stage(frame: DataFrame, targets: int, make: Callable[[], Stage]) -> DataFrame:
    """The rows that the stages send. `make` makes a stage for each target from 0 to `targets` - 1, each in a task."""

    class Distlog:
        def __init__(self) -> None:
            self._stages: dict[int, Stage] = {}

        def eval(self, batch: pa.RecordBatch) -> Iterator[pa.Table]:
            for target, kind, data in _unpacked(batch):
                # Spark may run the work of two tasks in one task
                stage = self._stages.get(target) or self._stages.setdefault(target, make())
                yield from map(_table, stage.take(kind, data))

        def terminate(self) -> Iterator[pa.Table]:
            for stage in self._stages.values():
                yield from map(_table, stage.finish())
            settle()

    shuffled = frame.repartitionById(targets, "target").sortWithinPartitions("kind")
    function: Any = F.arrow_udtf(Distlog, returnType=_SPARK_SCHEMA)
    sent: DataFrame = function(shuffled.asTable())
    return sent


def _unpacked(batch: pa.RecordBatch) -> Iterator[tuple[int, int, memoryview]]:
    targets, kinds = batch.column("target").to_pylist(), batch.column("kind").to_pylist()
    return zip(targets, kinds, (memoryview(each.as_buffer()) for each in batch.column("data")), strict=True)


def _table(batch: pa.RecordBatch) -> pa.Table:
    return pa.Table.from_batches([batch])
