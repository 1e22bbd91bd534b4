"""A function over a list as Spark tasks, with results that are small; it needs no pandas, unlike `mapInArrow`."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import TypeVar

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql.types import BinaryType

from distlog.spark.tasks.worker import freeze_imports

Item = TypeVar("Item")
Result = TypeVar("Result")


def run_tasks(spark: SparkSession, work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """`work` of each item, a task each, in the order of the items; a task that fails is tried again by Spark.

    So `work` must do no harm when it runs twice. Items and results are pickled on their way.
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
    # Spark may ask a function twice that is called deterministic
    result = F.udf(run, BinaryType(), useArrow=False).asNondeterministic()(F.col("item")).alias("result")
    rows = frame.select("number", result).collect()
    return [pickle.loads(row["result"]) for row in sorted(rows, key=lambda row: int(row["number"]))]
