"""Computes the partition of each row as a Spark column, by Kafka's rule, for a shuffle before a write."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql.pandas.functions import arrow_udf

from distlog.core.topics.appending.partitioner import STICKY_BYTES
from distlog.core.topics.appending.routing import StickyState, assign_partitions


def partition_column(rows: DataFrame, partitions: int) -> Column:
    """The row's `partition` if given, else the partition of its `key`, else a sticky one for a run of rows."""
    key = F.col("key") if "key" in rows.columns else F.lit(None)
    routed: Column = _router(partitions)(key.cast("binary"), F.col("value").cast("binary"))
    return F.coalesce(F.col("partition"), routed) if "partition" in rows.columns else routed


def _router(partitions: int) -> Callable[[Column, Column], Column]:
    sticky = StickyState(0, 0)

    def route(keys: pa.Array, values: pa.Array) -> pa.Array:
        nonlocal sticky
        assigned, sticky = assign_partitions(keys, values, partitions, sticky, STICKY_BYTES)
        return pa.array(assigned)

    return arrow_udf(route, "int")  # type: ignore[call-overload,no-any-return]
