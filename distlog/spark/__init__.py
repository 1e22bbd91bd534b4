"""distlog in Spark: the data source `distlog`, and functions for what a data source cannot do.

>>> from distlog.spark import append, read, session
>>> spark = session("example")
>>> append(spark.read.text("access.log"), "s3://bucket/logs/access").offsets
>>> read(spark, "s3://bucket/logs/access", columns=["offset", "value"], start_time="2015-05-17")
>>> spark.read.format("distlog").load("s3://bucket/logs/access")
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from distlog.core import extra, optional

optional("pyspark", "distlog.spark", extra("spark"))
import_module("distlog.spark.versions")  # first, since it refuses a PySpark that is too old

if TYPE_CHECKING:
    from distlog.spark.executor import SparkExecutor
    from distlog.spark.frames import append, frame, lag, read, register_tables, stream
    from distlog.spark.spark_session import register, session
    from distlog.spark.tables import to_table
    from distlog.spark.values import decode

__all__ = [
    "SparkExecutor",
    "append",
    "decode",
    "frame",
    "lag",
    "read",
    "register",
    "register_tables",
    "session",
    "stream",
    "to_table",
]

#: The public names by module. A module is imported at the first use of a name: Spark's Python processes, which need
#: only the data source, start a tenth of a second sooner.
_MODULES = {
    "executor": ("SparkExecutor",),
    "frames": ("append", "frame", "lag", "read", "register_tables", "stream"),
    "spark_session": ("register", "session"),
    "tables": ("to_table",),
    "values": ("decode",),
}
_MODULE_OF = {name: f"{__name__}.{module}" for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
