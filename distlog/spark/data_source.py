"""The Spark data source `distlog`, for `format("distlog")` of `spark.read`, `df.write`, and streams in and out.

Spark plans, streams and commits in separate Python processes. A module that only one process needs is imported
where it is used, so that a stream starts sooner.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, DataSourceWriter
from pyspark.sql.types import StructType

from distlog.core.errors import InvalidConfigError
from distlog.spark.options import check_hidden, exclude_from_gc, storage_texts
from distlog.spark.versions import (
    HAS_ADMISSION,
    HAS_FILTERS,
    HAS_STREAM_SINK,
    DataSourceStreamArrowWriter,
    check_pyspark,
)

if TYPE_CHECKING:
    from distlog.core.commits.snapshot import Snapshot
    from distlog.spark.options import ReadOptions

#: The options that Spark adds when it reads the columns for a new table in its catalog.
CATALOG_OPTIONS = {"owner", "provider"}


class DistlogDataSource(DataSource):
    """A topic as a table with the columns of Spark's Kafka source. A batch read has the snapshot of `load()`."""

    #: Storage options of all reads and writes in this format. Spark shows the options of a read, but not these.
    registered_options: ClassVar[Mapping[str, Any]] = {}

    _options_and_snapshot: tuple[ReadOptions, Snapshot] | None = None

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        check_hidden(options)

    @property
    def _all_options(self) -> dict[str, str]:
        return {**storage_texts(self.registered_options), **self.options}

    @classmethod
    def name(cls) -> str:
        return "distlog"

    def schema(self) -> StructType:
        """Return the columns of a read. Spark calls this at `load()`, so it loads the snapshot."""
        if self.options.keys() >= CATALOG_OPTIONS:
            raise InvalidConfigError(
                "a table in Spark's catalog cannot be of the format distlog, since Spark does not keep its options, "
                "such as the path: make a view instead, by distlog.spark.register_tables(spark, root), or by "
                "CREATE TEMPORARY VIEW clicks USING distlog OPTIONS (path '...')"
            )
        from distlog.spark.batch_source import load_snapshot, schema_of
        from distlog.spark.options import ReadOptions

        exclude_from_gc()
        options = ReadOptions.parse(self._all_options)
        schema = schema_of(options.columns, options.include_headers)
        self._options_and_snapshot = options, load_snapshot(options)
        return schema

    def reader(self, schema: StructType) -> DataSourceReader:
        from distlog.spark.batch_source import DistlogReader, FilteringReader, check_schema, load_snapshot
        from distlog.spark.options import ReadOptions

        exclude_from_gc()
        options, snapshot = self._options_and_snapshot or (None, None)
        # Spark sends this object to the tasks later, and the snapshot is large
        self._options_and_snapshot = None
        # parse first: for a table of the catalog, the error must be about the missing path, not about a column's type
        options = options or ReadOptions.parse(self._all_options)
        check_schema(schema)
        snapshot = snapshot or load_snapshot(options)
        check_pyspark(HAS_FILTERS or not options.push_filters, "the option pushFilters", "4.1")
        return (FilteringReader if options.push_filters else DistlogReader)(options, snapshot, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return the reader of a stream. Spark requests two: one plans, and one reads."""
        from distlog.spark.batch_source import check_schema
        from distlog.spark.stream_plan import (
            DistlogStreamReader,
            RefusedStreamReader,
            StreamOptions,
            UnlimitedStreamReader,
        )

        exclude_from_gc()
        # the stream loads its own snapshot, since a query may start long after `load()`
        self._options_and_snapshot = None
        try:
            check_schema(schema)
            options = StreamOptions.parse(self._all_options)
        except InvalidConfigError as error:
            if not HAS_ADMISSION:
                raise
            # raised when Spark plans the stream, since Spark would hide the reason of an error that is raised here
            return RefusedStreamReader(error)
        if HAS_ADMISSION:
            return DistlogStreamReader(options, schema)
        check_pyspark(not options.limits.are_set, "a limit of micro-batches", "4.2", ": leave the option out")
        return UnlimitedStreamReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from distlog.spark.sink import DistlogWriter, WriteOptions

        exclude_from_gc()
        if overwrite:
            raise InvalidConfigError("a topic is append only: use mode('append'), or drop the topic first")
        return DistlogWriter.open(WriteOptions.parse(self._all_options), schema)

    def streamWriter(  # noqa: N802 - Spark's name
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamArrowWriter:
        from distlog.spark.sink import DistlogStreamWriter, WriteOptions

        exclude_from_gc()
        if overwrite:
            raise InvalidConfigError("a topic is append only: use outputMode('append')")
        check_pyspark(HAS_STREAM_SINK, "the sink of streams", "4.1", ": use distlog.spark.append in foreachBatch")
        return DistlogStreamWriter.open(WriteOptions.parse(self._all_options, is_stream=True), schema)


def with_storage_options(storage_options: Mapping[str, Any], name: str) -> type[DistlogDataSource]:
    """Return the format under a name, with storage options in its class, which Spark never shows."""
    from distlog.core.storage.object_client import StorageOptions

    format_name = name

    class Registered(DistlogDataSource):
        registered_options = StorageOptions(storage_options)

        @classmethod
        def name(cls) -> str:
            return format_name

    return Registered
