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
from distlog.core.maintenance.run import Sized
from distlog.spark.source.splits import SplitSize
from distlog.spark.spark_session import cores
from distlog.spark.worker import settle

#: What a segment costs besides its bytes, in bytes. On an object store it takes one to three requests, one after the
#: other, of about 30 ms each: the time in which one stream gets about 3 MB. A local file costs less, but then a task
#: of the thousand files that make MIN_BYTES still takes longer than its start.
SEGMENT_BYTES = 4 << 20

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class SparkRun:
    """A `Run` of Spark tasks. Each task takes adjacent items, and all tasks have about the same amount of work."""

    spark: SparkSession

    def __call__(self, work: Callable[[SizedItem], Result], items: Sequence[SizedItem], /) -> Iterable[Result]:
        """The results, once all are there. Raises Spark's exceptions with the text of distlog's."""
        groups = list(pack(items, target_cost(items, cores(self.spark))))
        return chain.from_iterable(run_tasks(self.spark, partial(_each, work), groups))


def _each(work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    return list(map(work, items))


def cost(item: Sized) -> int:
    """The work on an item as a number of bytes: those of its log, and SEGMENT_BYTES for each of its `segments`.

    An item that has no `segments` is one itself.
    """
    return item.log_bytes + SEGMENT_BYTES * len(getattr(item, "segments", (item,)))


def target_cost(items: Iterable[Sized], cores: int) -> int:
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
        settle()
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
