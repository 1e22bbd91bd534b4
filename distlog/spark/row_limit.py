"""Limits the Arrow batches in which the rows of an append reach Python by rows.

With a limit of bytes, Spark adds up the bytes of a batch after each row, which takes longer than a small row itself.
Without it, a batch of large rows could exceed the memory of the JVM. So Spark leaves the contents of large rows out,
and a task that gets a large row reports it: then the append is repeated with the limit of bytes.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

#: A batch has at most BATCH_ROWS rows of ROW_BYTES, which is half of Spark's own limit.
BATCH_ROWS, ROW_BYTES = 4096, 8 << 10

_SETTINGS = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(BATCH_ROWS),
    "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
}
#: The leaves of plans that run no function in Python. Its batches would have no limit of bytes either, and the plan
#: of an RDD or of cached rows may hide one.
_LEAVES = {"DataSourceV2Relation", "DataSourceV2ScanRelation", "HiveTableRelation", "LocalRelation"} | {
    *("LogicalRelation", "OneRowRelation", "Range")
}


@dataclass(frozen=True, slots=True)
class RowLimit:
    """Rows in batches without a limit of bytes. `large` is the value of rows above ROW_BYTES, and random."""

    rows: DataFrame
    large: str

    @classmethod
    def of(cls, rows: DataFrame) -> RowLimit | None:
        """Return None for rows, or a Python function in their plan, whose batches need the limit of bytes."""
        # headers are arrays of any size, and Spark Connect shows no plan
        if "headers" in rows.columns or not hasattr(rows, "_jdf") or not _fits(rows):
            return None
        large = uuid.uuid4().hex
        size = sum((F.coalesce(F.octet_length(name), F.lit(0)) for name in _sized(rows)), F.lit(0))
        limited = {name: F.when(size <= ROW_BYTES, F.col(name)) for name in _sized(rows)}
        limited["value"] = limited["value"].otherwise(F.lit(large).cast(rows.schema["value"].dataType))
        return cls(_with_settings(rows.withColumns(limited)), large)


def has_large_row(batch: pa.RecordBatch, large: str) -> bool:
    """Return True if `large` is in place of a value."""
    values = batch.column("value")
    return bool(pc.index(values, pa.scalar(large).cast(values.type)).as_py() >= 0)


def _sized(rows: DataFrame) -> list[str]:
    return [name for name in ("key", "value") if name in rows.columns]


def _fits(rows: DataFrame) -> bool:
    """Return True if the plan of `rows` does the same in a session with _SETTINGS."""
    frame: Any = rows
    patterns = frame.sparkSession._jvm.org.apache.spark.sql.catalyst.trees.TreePattern
    plan = frame._jdf.queryExecution().optimizedPlan()
    if plan.containsPattern(patterns.PYTHON_UDF()) or plan.containsPattern(patterns.EVAL_PYTHON_UDTF()):
        return False
    # an Observation waits for the end of a query of its own session
    if "CollectMetrics" in plan.toString():
        return False
    leaves = plan.collectLeaves()
    return {leaves.apply(index).getClass().getSimpleName() for index in range(leaves.size())} <= _LEAVES


def _with_settings(rows: DataFrame) -> DataFrame:
    """Return the rows in a session of their own, so that no other query gets _SETTINGS."""
    frame: Any = rows
    session = frame.sparkSession._jsparkSession.cloneSession()
    for name, value in _SETTINGS.items():
        session.conf().set(name, value)
    datasets = frame.sparkSession._jvm.org.apache.spark.sql.classic.Dataset
    return DataFrame(datasets.ofRows(session, frame._jdf.queryExecution().analyzed()), rows.sparkSession)
