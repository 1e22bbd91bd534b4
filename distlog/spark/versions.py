"""Features that some supported versions of PySpark lack, and their stand-ins."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from inspect import signature
from typing import Any

import pyspark
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from distlog.core import extra, optional
from distlog.core.errors import InvalidConfigError

#: The oldest version that has data sources in Python.
OLDEST = (4, 0)

if tuple(int(part) for part in pyspark.__version__.split(".")[:2]) < OLDEST:
    raise ImportError(
        f"distlog.spark needs PySpark {'.'.join(map(str, OLDEST))} or newer, and this is {pyspark.__version__}, "
        "which has no data sources in Python"
    )

try:
    from pyspark.sql.datasource import Filter as Filter

    HAS_FILTERS = True
except ImportError:
    HAS_FILTERS = False

try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter as DataSourceStreamArrowWriter

    HAS_STREAM_SINK = True
except ImportError:
    from pyspark.sql.datasource import DataSourceStreamWriter

    DataSourceStreamArrowWriter = DataSourceStreamWriter  # type: ignore[misc,assignment]
    HAS_STREAM_SINK = False

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable as ReadAllAvailable
    from pyspark.sql.streaming.datasource import ReadLimit as ReadLimit
    from pyspark.sql.streaming.datasource import ReadMaxBytes as ReadMaxBytes
    from pyspark.sql.streaming.datasource import ReadMaxRows as ReadMaxRows
    from pyspark.sql.streaming.datasource import ReadMinRows as ReadMinRows
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow as SupportsTriggerAvailableNow

    HAS_ADMISSION = True
except ImportError:
    HAS_ADMISSION = False

    @dataclass(frozen=True)
    class ReadLimit:  # type: ignore[no-redef]
        """Stands in for a limit of a micro-batch."""

        amount: int = 0

    ReadAllAvailable = ReadMaxBytes = ReadMaxRows = ReadMinRows = ReadLimit  # type: ignore[misc,assignment]

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Stands in for a trait of sources: this Spark itself ends the query at the end of the topic."""


#: Whether functions take Arrow's arrays and tables without pandas.
HAS_ARROW_FUNCTIONS = hasattr(F, "arrow_udf") and hasattr(F, "arrow_udtf")

#: The argument of `to_arrow_schema` for times in UTC, by the version of PySpark.
_UTC: Any = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {"timestamp_utc": True}


def arrow_schema(schema: StructType) -> Any:
    """Return the schema that Spark expects of batches with these columns; times are in UTC."""
    return to_arrow_schema(schema, **_UTC)


def repartition_by(frame: DataFrame, count: int, column: str) -> DataFrame:
    """Repartition the frame into `count` partitions by the numbers in `column`; a few may share a partition."""
    if hasattr(frame, "repartitionById"):
        # `repartitionById` takes an int. A larger number becomes null here, and its task refuses the row's partition
        return frame.repartitionById(count, F.col(column).try_cast("int"))
    return frame.repartitionByRange(count, column)


def check_pyspark(has_feature: bool, feature: str, since: str, instead: str = "") -> None:
    if not has_feature:
        text = f"{feature} needs PySpark {since} or newer, and this is {pyspark.__version__}{instead}"
        raise InvalidConfigError(text)


def map_in_arrow(frame: DataFrame, function: Any, schema: StructType | str) -> DataFrame:
    """Call `frame.mapInArrow`, which requires pandas although it does not use it, and warns of a newer pandas."""
    optional("pandas", "a read or an append of a DataFrame", extra("spark"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return frame.mapInArrow(function, schema)
