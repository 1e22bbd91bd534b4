"""Runs work of distlog as Spark tasks."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import TypeVar

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql.types import BinaryType

from distlog.core.arrays import column_of, integers
from distlog.core.maintain.executor import Item as SizedItem
from distlog.core.maintain.executor import WorkItem
from distlog.spark.batch_source import SplitSize
from distlog.spark.options import freeze_objects
from distlog.spark.spark_session import cores
from distlog.spark.versions import by_id

#: The cost of a segment besides its bytes, in bytes. On an object store it takes one to three requests, one after the
#: other, of about 30 ms each: the time in which one stream gets about 3 MB. A local file costs less, but then a task
#: of the thousand files that make MIN_BYTES still takes longer than its start.
SEGMENT_BYTES = 4 << 20

Item = TypeVar("Item")
Result = TypeVar("Result")


def map_items(
    spark: SparkSession, work: Callable[[SizedItem], Result], items: Sequence[SizedItem]
) -> Iterable[Result]:
    """Return the result of `work` for each item. A task takes adjacent items, and all tasks have about equal work."""
    groups = list(pack(items, target_cost(items, cores(spark))))
    return chain.from_iterable(run_tasks(spark, partial(_map, work), groups))


def _map(work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    return list(map(work, items))


def cost(item: WorkItem) -> int:
    """The work on an item in bytes: its log's bytes, and SEGMENT_BYTES for each of its `segments`."""
    return item.log_bytes + SEGMENT_BYTES * len(getattr(item, "segments", (item,)))


def target_cost(items: Iterable[WorkItem], cores: int) -> int:
    """The cost of one task, chosen so that all cores have equal work."""
    return SplitSize(cores).target_bytes(sum(map(cost, items)))


def pack(items: Iterable[SizedItem], target: int) -> Iterator[list[SizedItem]]:
    """The items, in order, in groups that cost about `target`. No item is cut, and no group is empty."""
    group: list[SizedItem] = []
    total = 0
    for item in items:
        if group and total + cost(item) > target:
            yield group
            group, total = [], 0
        group.append(item)
        total += cost(item)
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
        freeze_objects()
        return result

    table = pa.table(
        {
            "number": integers(range(len(items)), pa.int32()),
            "item": column_of([pickle.dumps(item) for item in items], pa.binary()),
        }
    )
    frame = by_id(spark.createDataFrame(table), len(items), "number")
    # nondeterministic, since Spark may call a deterministic function twice
    result = F.udf(run, BinaryType(), useArrow=False).asNondeterministic()(F.col("item")).alias("result")
    rows = frame.select("number", result).collect()
    return [pickle.loads(row["result"]) for row in sorted(rows, key=lambda row: int(row["number"]))]
