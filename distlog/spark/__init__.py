"""distlog in Spark: the data source `distlog`, and functions for what a data source cannot do.

>>> from distlog.spark import append, read, session
>>> spark = session("example")
>>> append(spark.read.text("access.log"), "s3://bucket/logs/access").offsets
>>> read(spark, "s3://bucket/logs/access", columns=["offset", "value"], start_time="2015-05-17")
>>> spark.read.format("distlog").load("s3://bucket/logs/access")
"""

import distlog.spark.versions  # noqa: F401 - first, since it tells of a PySpark that is too old
from distlog.spark.frames import append, compact, lag, read, rebuild_indexes, register_tables, stream, verify
from distlog.spark.spark_session import register, session
from distlog.spark.tables import to_table
from distlog.spark.values import decode

__all__ = [
    "append",
    "compact",
    "decode",
    "lag",
    "read",
    "rebuild_indexes",
    "register",
    "register_tables",
    "session",
    "stream",
    "to_table",
    "verify",
]
