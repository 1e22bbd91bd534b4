"""The Spark data source `distlog`, for `format("distlog")` of `spark.read`, `df.write`, and streams in and out."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from distlog.core.commits.commit_json import Origin
from distlog.core.commits.snapshot import Snapshot
from distlog.core.errors import CommitConflictError, InvalidConfigError
from distlog.core.log.live_snapshot import with_tails
from distlog.core.segments.segment_writer import codec_of
from distlog.core.storage.object_client import StorageOptions
from distlog.core.tiered.tiered_storage import TieredStorage
from distlog.core.tiered.tiered_topic import load
from distlog.core.topic_handle import TopicHandle, topic_log
from distlog.core.topics.append_commit import AppendResult
from distlog.spark.batch_source import (
    DistlogReader,
    FilteringReader,
    SplitReader,
    check_schema,
    check_writable,
    schema_of,
)
from distlog.spark.options import check_hidden, settle, storage_texts, works_for
from distlog.spark.read_options import ReadOptions
from distlog.spark.sink import (
    KNOWN_TOPICS,
    RECENT_MS,
    DistlogWriter,
    MicroBatch,
    TopicFacts,
    WriteOptions,
    WriteTransaction,
    all_written,
    commit_segments,
    write_rows,
)
from distlog.spark.stream_plan import INITIAL, StreamOptions, StreamPlan, StreamSplit
from distlog.spark.versions import (
    HAS_ADMISSION,
    HAS_FILTERS,
    HAS_STREAM_SINK,
    DataSourceStreamArrowWriter,
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
    check_part,
)

# ---
# The streaming source, as Spark sees it: the driver plans micro-batches, tasks read their splits.


class DistlogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One stream. Spark keeps one object in the driver, which plans, and sends another to the tasks, which read.

    `commit` does nothing: the checkpoint alone says how far the stream is. `clock` gives seconds.
    """

    def __init__(
        self, options: StreamOptions, schema: StructType, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._storage, self._schema = options.read.storage, schema
        self._limits = options.limits
        self._plan: StreamPlan | None = StreamPlan(options, clock)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_plan": None}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """A constant: `latestOffset` finds out what the options mean, and keeps it in its result."""
        return dict(INITIAL)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """One of the limits, which Spark gives back to `latestOffset`; there all of them count."""
        limits = self._limits
        if limits.max_offsets is not None:
            return ReadMaxRows(limits.max_offsets)
        if limits.max_bytes is not None:
            return ReadMaxBytes(limits.max_bytes)
        return ReadAllAvailable() if limits.min_offsets is None else ReadMinRows(limits.min_offsets)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Let the query end where the topic ends now."""
        self._planner.freeze()

    def latestOffset(self, start: Mapping[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """The end of the batch from `start` on; `start` itself if there is nothing new.

        Raises OffsetOutOfRangeError and TopicNotFoundError when records are lost that the stream should read.
        """
        return dict(self._planner.next_end(start, limited=not isinstance(limit, ReadAllAvailable)))

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """The offsets up to which the stream could read, for the lag in Spark's progress; sends no request."""
        return dict(self._planner.head())

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[InputPartition]:
        """The splits of one batch, from metadata and indexes alone; raises as `latestOffset`."""
        return list(self._planner.splits(start, end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one split, or no rows for the partition that Spark makes of an empty batch."""
        if not isinstance(partition, StreamSplit):
            return iter(())
        return SplitReader(self._storage, partition.topic, self._schema).read(partition)

    @property
    def _planner(self) -> StreamPlan:
        if self._plan is None:
            raise RuntimeError("a stream is planned in the driver only")
        return self._plan


class WholeStreamReader(DistlogStreamReader):
    """A stream for a Spark before 4.2, which asks where the topic ends and does not tell where a batch begins."""

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """As for any version, but a start that cannot be is told here, since `latestOffset` may begin anywhere."""
        self._planner.check_start()
        return super().initialOffset()

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # noqa: N802 - Spark's name
        """The end of the next batch: with all that is there. Raises TopicNotFoundError for a dropped topic."""
        return dict(self._planner.whole_end())

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[InputPartition]:
        """The splits of one batch; raises what `latestOffset` could not find."""
        self._planner.check_same_topic(start, end)
        return super().partitions(start, end)


# ---
# The sink of Structured Streaming: each micro-batch is one commit, and each is committed once.
#
# The commit names the query and the number of the micro-batch. So a batch that Spark runs again, since the driver
# died before Spark noted that it was done, finds its first commit. Its files are then named by no commit, and vacuum
# deletes them.


#: The module of Spark that makes a sink to commit with, in a process of its own.
COMMITTER = "pyspark.sql.worker.python_streaming_sink_runner"

_log = logging.getLogger(__name__)


class DistlogStreamWriter(DataSourceStreamArrowWriter):
    """One micro-batch, as Spark sees it.

    Spark makes one in the planner and copies it to every task. It makes another in the process that commits, so what
    that one must know is in the messages of the tasks.
    """

    def __init__(self, options: WriteOptions, topic: TopicFacts | None) -> None:
        self._options, self._topic = options, topic

    @classmethod
    def open(cls, options: WriteOptions, schema: StructType) -> DistlogStreamWriter:
        """Load the topic, and check the write before any task runs; for a commit neither is needed.

        Raises TopicNotFoundError, InvalidRecordError, InvalidConfigError.
        """
        if works_for(COMMITTER):
            return cls(options, None)
        _, snapshot = KNOWN_TOPICS.load(options.storage, recent_ms=RECENT_MS)
        options.check_topic(snapshot.name)
        check_writable(schema, snapshot.config)
        codec_of(snapshot.config, options.compression)
        return cls(options, TopicFacts.of(snapshot, None, None))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task. They become visible with the commit."""
        options = self._options
        if self._topic is None:
            raise RuntimeError("who commits a micro-batch has not planned it")
        return write_rows(options.storage, self._topic, options.compression, iterator, options.timestamp_unit)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's
        """Commit the segments of all tasks, in the order of the tasks, unless this batch or a later one was before.

        A batch without rows is no commit. Raises CommitConflictError (nothing was appended) or
        CommitStateUnknownError (the rows may have been appended). After both the query can be started again.
        """
        settle()
        written = all_written(messages)
        segments = [segment for message in written for segment in message.segments]
        planned = next((message.topic for message in written if message.segments), None)
        if planned is None:
            return
        batch = next((message.micro_batch for message in written if message.micro_batch), None)
        handle, snapshot = KNOWN_TOPICS.load_planned(self._options.storage, planned)
        app_id = self._options.app_id or _query_of(batch)
        result = commit_segments(
            handle,
            snapshot,
            planned,
            segments,
            WriteTransaction(app_id, batchId, in_order=True),
            Origin(run_id=batch.run_id if batch else None),
            merges=self._options.merges(is_micro_batch=True),
        )
        if result.replayed:
            _tell_skipped(handle, app_id, batchId, sum(segment.record_count for segment in segments), result)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's
        """Do nothing: vacuum deletes the files. The outcome of the commit may be unknown."""


def _query_of(batch: MicroBatch | None) -> str:
    if batch is None:
        raise CommitConflictError(
            "nothing was committed: Spark did not tell the id of the query; give the option txnAppId"
        )
    return batch.query_id


def _tell_skipped(handle: TopicHandle, app_id: str, batch_id: int, records: int, earlier: AppendResult) -> None:
    """Log quietly that a batch came again; warn if rows are left out that the topic may not have."""
    if earlier.version is None:
        _log.warning(
            "batch %d of %s was skipped, since %s has a later one: if the query has a new checkpoint, give it a "
            "txnAppId that was never used",
            batch_id,
            app_id,
            handle.name,
        )
    elif records != earlier.record_count:
        _log.warning(
            "batch %d of %s was skipped: it has %d records now, and had %d in version %d of %s; if the checkpoint is "
            "an older copy, or lost its newest files, records are left out: begin with a new checkpoint",
            batch_id,
            app_id,
            records,
            earlier.record_count,
            earlier.version,
            handle.name,
        )
    else:
        _log.info("batch %d of %s is in version %d of %s already", batch_id, app_id, earlier.version, handle.name)


# ---
# The Spark data source `distlog`, for `format("distlog")` of `spark.read`, `df.write` and `spark.readStream`.


#: Options that Spark adds when it asks for the columns of a new table of its catalog, and else never.
OF_CATALOG = {"owner", "provider"}


class DistlogDataSource(DataSource):
    """A topic as a table with the columns of Spark's Kafka source.

    The options are in `read_options`, `stream_plan` and `sink`. A DataFrame of a batch read is one snapshot, taken
    at `load()`.
    """

    #: Storage options of all reads and writes. Spark shows the options of its users, but not a class.
    registered: ClassVar[Mapping[str, Any]] = {}

    _loaded: tuple[ReadOptions, Snapshot] | None = None

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        settle()
        check_hidden(options)

    @property
    def _given(self) -> dict[str, str]:
        return {**storage_texts(self.registered), **self.options}

    @classmethod
    def name(cls) -> str:
        """The name that `format()` takes."""
        return "distlog"

    def schema(self) -> StructType:
        """The columns of a read. Spark calls this at `load()`, so the snapshot is taken here.

        Raises InvalidConfigError where Spark would make a table of its catalog: it would lose the options.
        """
        if self.options.keys() >= OF_CATALOG:
            raise InvalidConfigError(
                "tables of Spark's catalog lose the options of a format, so none could be read: make a view, by "
                "distlog.spark.register_tables(spark, root), or by CREATE TEMPORARY VIEW clicks USING distlog "
                "OPTIONS (path '...')"
            )
        options = ReadOptions.parse(self._given)
        schema = schema_of(options.columns, options.include_headers)
        self._loaded = options, _load(options)
        return schema

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader that plans the read and reads `schema`. The schema is checked: it may come from the user."""
        settle()
        # this object is sent to the tasks later, and the snapshot is too large to send
        loaded, self._loaded = self._loaded, None
        # before the schema: a table of the catalog has one of any types, and no option that names a topic
        options = loaded[0] if loaded else ReadOptions.parse(self._given)
        check_schema(schema)
        snapshot = loaded[1] if loaded else _load(options)
        check_part(HAS_FILTERS or not options.push_filters, "the option pushFilters", "4.1")
        kind = FilteringReader if options.push_filters else DistlogReader
        return kind(options, snapshot, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """The reader of a stream of `schema`, which is checked. Spark asks for two: one plans, and one reads."""
        settle()
        check_schema(schema)
        # as in `reader`; a stream loads its own, since a query may start long after `load()`
        self._loaded = None
        options = StreamOptions.parse(self._given)
        if HAS_ADMISSION:
            return DistlogStreamReader(options, schema)
        check_part(not options.limits.are_set, "a limit of micro-batches", "4.2", ": leave the option out")
        return WholeStreamReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """The writer that appends rows of `schema`, all of them in one commit."""
        settle()
        if overwrite:
            raise InvalidConfigError("a topic is append only: use mode('append'), or drop the topic first")
        return DistlogWriter.open(WriteOptions.parse(self._given), schema)

    def streamWriter(  # noqa: N802 - Spark's name
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamArrowWriter:
        """The writer that appends the rows of one micro-batch, all of them in one commit."""
        settle()
        if overwrite:
            raise InvalidConfigError("a topic is append only: use outputMode('append')")
        check_part(HAS_STREAM_SINK, "the sink of streams", "4.1", ": use distlog.spark.append in foreachBatch")
        return DistlogStreamWriter.open(WriteOptions.parse(self._given, is_stream=True), schema)


def with_storage_options(storage_options: Mapping[str, Any], name: str) -> type[DistlogDataSource]:
    """The format under a name, with storage options in its class, which Spark pickles and shows nowhere."""
    format_name = name

    class Registered(DistlogDataSource):
        registered = StorageOptions(storage_options)

        @classmethod
        def name(cls) -> str:
            return format_name

    return Registered


def _load(options: ReadOptions) -> Snapshot:
    if isinstance(options.storage, TieredStorage):
        return load(options.storage)
    log = topic_log(options.storage)
    snapshot = log.load(version=options.version, timestamp_ms=options.timestamp_ms)
    if options.version is not None or options.timestamp_ms is not None:
        return snapshot
    return with_tails(TopicHandle.of(options.storage, snapshot.name, log), snapshot)
