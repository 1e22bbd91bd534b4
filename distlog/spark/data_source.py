"""The Spark data source `distlog`, for `format("distlog")` of `spark.read`, `df.write` and `spark.readStream`."""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from distlog.core.commits.state.snapshot import Snapshot
from distlog.core.errors import InvalidConfigError
from distlog.core.log.tails import with_tails
from distlog.core.tiered.tiered_snapshot import load
from distlog.core.tiered.tiered_storage import TieredStorage
from distlog.core.topic_handle import TopicHandle, topic_log
from distlog.spark.sink.batch_sink import DistlogWriter
from distlog.spark.sink.write_options import WriteOptions
from distlog.spark.source.batch_source import DistlogReader
from distlog.spark.source.filters import FilteringReader
from distlog.spark.source.kafka_rows import check_schema, schema_of
from distlog.spark.source.read_options import ReadOptions
from distlog.spark.streaming.stream_options import StreamOptions
from distlog.spark.streaming.stream_sink import DistlogStreamWriter
from distlog.spark.streaming.stream_source import DistlogStreamReader
from distlog.spark.worker import settle


class DistlogDataSource(DataSource):
    """A topic as a table with the columns of Spark's Kafka source.

    The options are in `source.read_options`, `streaming.stream_options` and `sink.write_options`. A DataFrame of a
    batch read is one snapshot, taken at `load()`.
    """

    _loaded: tuple[ReadOptions, Snapshot] | None = None

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        settle()

    @classmethod
    def name(cls) -> str:
        """The name that `format()` takes."""
        return "distlog"

    def schema(self) -> StructType:
        """The columns of a read. Spark calls this at `load()`, so the snapshot is taken here."""
        options = ReadOptions.parse(self.options)
        schema = schema_of(options.columns, options.include_headers)
        self._loaded = options, _load(options)
        return schema

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader that plans the read and reads `schema`. The schema is checked: it may come from the user."""
        settle()
        check_schema(schema)
        # this object is sent to the tasks later, and the snapshot is too large to send
        loaded, self._loaded = self._loaded, None
        options = loaded[0] if loaded else ReadOptions.parse(self.options)
        snapshot = loaded[1] if loaded else _load(options)
        kind = FilteringReader if options.push_filters else DistlogReader
        return kind(options, snapshot, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """The reader of a stream of `schema`, which is checked. Spark asks for two: one plans, and one reads."""
        settle()
        check_schema(schema)
        # as in `reader`; a stream loads its own, since a query may start long after `load()`
        self._loaded = None
        return DistlogStreamReader(StreamOptions.parse(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """The writer that appends rows of `schema`, all of them in one commit."""
        settle()
        if overwrite:
            raise InvalidConfigError("a log is only appended to: use mode('append'), or drop the topic first")
        return DistlogWriter.open(WriteOptions.parse(self.options), schema)

    def streamWriter(  # noqa: N802 - Spark's name
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamArrowWriter:
        """The writer that appends the rows of one micro-batch, all of them in one commit."""
        settle()
        if overwrite:
            raise InvalidConfigError("a log is only appended to: use outputMode('append')")
        return DistlogStreamWriter.open(WriteOptions.parse(self.options, is_stream=True), schema)


def _load(options: ReadOptions) -> Snapshot:
    if isinstance(options.storage, TieredStorage):
        return load(options.storage)
    log = topic_log(options.storage)
    snapshot = log.load(version=options.version, timestamp_ms=options.timestamp_ms)
    if options.version is not None or options.timestamp_ms is not None:
        return snapshot
    return with_tails(TopicHandle.of(options.storage, snapshot.name, log), snapshot)
