"""Makes Spark find the format `distlog` without `register`.

Spark looks for `DefaultSource` in modules whose names begin with `pyspark_`. One such module that cannot be imported
hides the modules of all other packages. So this module can be imported even if `distlog.spark` cannot. It raises the
reason when the format is used.
"""

from typing import Any

from pyspark.sql.datasource import DataSource

try:
    from distlog.spark.data_source import DistlogDataSource as DefaultSource
except Exception as error:
    _reason = error

    class DefaultSource(DataSource):  # type: ignore[no-redef]
        """Stands in for the format `distlog`, and raises the error of its import."""

        def __init__(self, options: dict[str, Any]) -> None:
            text = f"the format distlog cannot be imported: {type(_reason).__name__}: {_reason}"
            raise ImportError(text) from _reason

        @classmethod
        def name(cls) -> str:
            """The name that `spark.read.format` takes."""
            return "distlog"
