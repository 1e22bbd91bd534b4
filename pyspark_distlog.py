"""What makes Spark find the format `distlog` without `register`: it looks for `DefaultSource` in modules named so.

One such module that fails to be imported hides those of all other packages. So this one can be imported even
where `distlog.spark` cannot. It says why when the format is asked for.
"""

from typing import Any

from pyspark.sql.datasource import DataSource

try:
    from distlog.spark.data_source import DistlogDataSource as DefaultSource
except Exception as error:
    _reason = error

    class DefaultSource(DataSource):  # type: ignore[no-redef]
        """The format of that name, which raises what its import raised."""

        def __init__(self, options: dict[str, Any]) -> None:
            text = f"the format distlog cannot be imported: {type(_reason).__name__}: {_reason}"
            raise ImportError(text) from _reason

        @classmethod
        def name(cls) -> str:
            """What `spark.read.format` is given."""
            return "distlog"
