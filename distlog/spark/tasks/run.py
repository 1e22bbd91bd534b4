"""Runs a function over a list as Spark tasks. Results must be small. Unlike `mapInArrow`, it needs no pandas."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TypeVar

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql.types import BinaryType

from distlog.core.maintenance.run import Item as SizedItem
from distlog.spark.source.splits import SplitSize
from distlog.spark.spark_session import cores
from distlog.spark.tasks.worker import freeze_imports

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class TaskRun:
    """A `Run` of Spark tasks. Each task takes adjacent items, and all tasks have about the same amount of work."""

    spark: SparkSession

    def __call__(self, work: Callable[[SizedItem], Result], items: Sequence[SizedItem], /) -> Iterable[Result]:
        """The results, once all are there. Raises Spark's exceptions with the text of distlog's."""
        target = SplitSize(cores(self.spark)).target_bytes(sum(item.log_bytes for item in items))
        return chain.from_iterable(run_tasks(self.spark, partial(_each, work), list(pack(items, target))))


def _each(work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    return list(map(work, items))


def pack(items: Iterable[SizedItem], target_bytes: int) -> Iterator[list[SizedItem]]:
    """The items, in order, in groups of about `target_bytes` of log. No item is cut, and no group is empty."""
    group: list[SizedItem] = []
    size = 0
    for item in items:
        if group and size + item.log_bytes > target_bytes:
            yield group
            group, size = [], 0
        group.append(item)
        size += item.log_bytes
    if group:
        yield group


def run_tasks(spark: SparkSession, work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """Run `work` on each item, a task each. Returns the results in the order of the items.

    Spark tries a failed task again, so `work` must do no harm when it runs twice. Items and results are pickled.
    """
    if not items:
        return []

    def run(item: bytes) -> bytes:
        result = pickle.dumps(work(pickle.loads(item)))
        freeze_imports()
        return result

    table = pa.table(
        {
            "number": pa.array(range(len(items)), pa.int32()),
            "item": pa.array([pickle.dumps(item) for item in items], pa.binary()),
        }
    )
    frame = spark.createDataFrame(table).repartitionById(len(items), "number")
    # nondeterministic, since Spark may call a deterministic function twice
    result = F.udf(run, BinaryType(), useArrow=False).asNondeterministic()(F.col("item")).alias("result")
    rows = frame.select("number", result).collect()
    return [pickle.loads(row["result"]) for row in sorted(rows, key=lambda row: int(row["number"]))]
