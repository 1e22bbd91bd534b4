"""Functions that append and read, as `df.write` and `spark.read` do, but with Python's types."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from distlog.core.arrays import count_of, table_of_rows, whole_number
from distlog.core.commits.snapshot import Snapshot
from distlog.core.display import Listing
from distlog.core.errors import (
    DistlogError,
    InvalidConfigError,
    InvalidRecordError,
    InvalidTopicError,
    TopicNotFoundError,
)
from distlog.core.opening import open as open_topic
from distlog.core.opening import topics
from distlog.core.read.keys import Keys, key_array
from distlog.core.read.lookup import EARLIEST, LATEST
from distlog.core.read.scan import Scan, names_of, offset_bounds, plan_slices, time_bounds
from distlog.core.segments.chunks import IsolationLevel, OutOfRange, first_offsets
from distlog.core.storage.storage import Storage
from distlog.core.times import Time, check_unit, to_ms
from distlog.core.topic import Topic
from distlog.core.write.append import AppendResult, BatchId, checked_batch_id
from distlog.core.write.rows import ACCEPTED_COLUMNS, IGNORED_COLUMNS
from distlog.spark.appends import OrderBy, append_frame, in_order, order_columns
from distlog.spark.batch_source import KNOWN_TOPICS, SPARK_NAMES, Split, SplitSize, divide, read_splits, schema_of
from distlog.spark.options import format_assign, offsets_json
from distlog.spark.sink import WriteOptions, parse_batch_id
from distlog.spark.spark_session import cores, format_with
from distlog.spark.stream_plan import BYTES_BEHIND, log_bytes

StorageSettings = Mapping[str, Any]


def append(
    df: DataFrame,
    url: str | Topic,
    key: str | Column | None = None,
    value: str | Column | None = None,
    timestamp: str | Column | None = None,
    headers: str | Column | None = None,
    *,
    order_by: OrderBy = (),
    shuffle: bool = False,
    storage_options: StorageSettings | None = None,
    app_id: str | None = None,
    batch_id: BatchId | None = None,
    compression: str | None = None,
    timestamp_unit: str = "ms",
) -> AppendResult:
    """Append the rows of a DataFrame to a topic in one commit.

    By default, the four columns are the frame's columns with these names, where it has them; its column `partition`
    is always used. Records keep the order of Spark's partitions and their rows. For a DataFrame of several files,
    this is not the order of the files. Errors in tasks are exceptions of Spark, with the text of distlog's. Times
    before 1990 cause a TimestampWarning.

    Args:
        df: The rows.
        url: The topic; a Topic moves to the version of the commit, and is used with its own storage options.
        key: The column of keys: its name or a Column.
        value: The column of values.
        timestamp: The column of times.
        headers: The column of headers.
        order_by: A column of `df` to sort by, or several, by names or Columns. Tasks sort in parallel; rows that are
            equal in the columns keep their order.
        shuffle: Write one segment per partition of the topic; the order between tasks is lost.
        storage_options: Options of the storage.
        app_id: The application's id; an append that repeats its `batch_id` appends nothing and returns the first
            result.
        batch_id: The batch of the application; a text of digits stands for a number.
        compression: The codec if the topic's `compression.type` is producer.
        timestamp_unit: The unit of numbers for times: s, ms, us or ns since 1970.

    Returns:
        The result, with the version and the offsets.

    Raises:
        InvalidRecordError: The frame cannot be appended.
        InvalidConfigError: An option is not valid.
        TopicNotFoundError: The topic does not exist.

    Examples:
        >>> df = spark.createDataFrame([("erin", "{}")], "key string, value string")
        >>> append(df, topic.url).record_count
        1
    """
    _check_frame(df)
    batch_id = parse_batch_id(checked_batch_id(app_id, batch_id))
    topic = _open_for_append(url, storage_options)
    options = WriteOptions(topic.storage, app_id, batch_id, compression, timestamp_unit=check_unit(timestamp_unit))
    order = order_columns(order_by)
    if shuffle and order:
        raise InvalidConfigError("give shuffle or order_by, not both: a shuffle by partition loses the order")
    rows = _project(in_order(df, order), {"key": key, "value": value, "timestamp": timestamp, "headers": headers})
    result = append_frame(topic, rows, options, shuffle=shuffle)
    if isinstance(url, Topic) and result.version is not None:
        # the rows are committed: an error of the refresh must not look like a failed append
        with suppress(DistlogError):
            url.refresh()
    return result


def _open_for_append(url: str | Topic, storage_options: StorageSettings | None) -> Topic:
    if not isinstance(url, Topic):
        return _open(url, None, None, storage_options)
    if storage_options is not None:
        raise InvalidConfigError("a Topic has its storage: give its url, or leave storage_options out")
    url.current.check_writable(url.storage)
    return url.refresh()


def _check_frame(df: object) -> None:
    if not isinstance(df, DataFrame):
        text = "append takes a DataFrame of Spark: spark.createDataFrame makes one, or give this to Topic.append"
        raise InvalidRecordError(text, type=type(df).__name__)


def _project(df: DataFrame, sources: Mapping[str, str | Column | None]) -> DataFrame:
    """Select the columns to append: the `sources`, and the frame's own columns for names without a source."""
    given_sources = {name: column for name, column in sources.items() if column is not None}
    for name, column in given_sources.items():
        if not isinstance(column, str | Column):
            raise InvalidRecordError(f"{name} must be the name of a column, or a Column", type=type(column).__name__)
    if not given_sources:
        return df.drop(*IGNORED_COLUMNS)  # unknown columns stay: `check_writable` refuses them
    by_name: dict[str, str | Column] = {name: name for name in ACCEPTED_COLUMNS if name in df.columns}
    by_name |= given_sources
    columns = [(F.col(column) if isinstance(column, str) else column).alias(name) for name, column in by_name.items()]
    return df.select(*columns)


def read(
    spark: SparkSession,
    url: str | Topic,
    columns: str | Iterable[str] | None = None,
    start: int | Mapping[int, int] | None = None,
    end: int | Mapping[int, int] | None = None,
    start_time: Time | None = None,
    end_time: Time | None = None,
    *,
    partitions: int | Iterable[int] | None = None,
    keys: Keys | None = None,
    version: int | None = None,
    timestamp: Time | None = None,
    isolation: IsolationLevel = "read_uncommitted",
    out_of_range: OutOfRange = "fail",
    include_headers: bool = False,
    min_partitions: int | None = None,
    limit: int | None = None,
    storage_options: StorageSettings | None = None,
) -> DataFrame:
    """Read records as a DataFrame with the columns of Spark's Kafka source.

    It is faster than the data source because it uses `mapInArrow`, which needs pandas.

    Args:
        spark: The session.
        url: The topic; a Topic is read at its version, with its storage options.
        columns: Columns to read, by Spark's names; default all but headers.
        start: As in `Topic.scan`.
        end: As in `Topic.scan`.
        start_time: As in `Topic.scan`.
        end_time: As in `Topic.scan`.
        partitions: As in `Topic.scan`.
        keys: As in `Topic.scan`.
        version: The version to read; default the newest.
        timestamp: Read the version at this time.
        isolation: As in `Topic.scan`.
        out_of_range: As in `Topic.scan`.
        include_headers: Also read the column headers.
        min_partitions: The approximate minimum of Spark's partitions.
        limit: The most records to read. Tasks stop there, unlike with `DataFrame.limit`.
        storage_options: Options of the storage.

    Returns:
        The DataFrame.

    Raises:
        DistlogError: As `open` and `Topic.scan` raise.

    Examples:
        >>> read(spark, topic.url, columns=["partition", "offset"]).count()
        3
    """
    _check_session(spark)
    schema = schema_of(None if columns is None else names_of(columns), include_headers)
    topic = _open(url, version, timestamp, storage_options)
    snapshot, times = topic.live_snapshot, time_bounds(start, end, start_time, end_time)
    bounds = offset_bounds(snapshot, partitions, start, end)
    key_values = None if keys is None else key_array(keys)
    slices, plan_isolation = plan_slices(
        topic.reader, snapshot, bounds, isolation, out_of_range, times, keys=key_values
    )
    min_partitions = None if min_partitions is None else whole_number("min_partitions", min_partitions)
    has_more_rows = False
    if limit is not None:
        slices, is_exact = first_offsets(slices, count_of("limit", limit))
        has_more_rows = not is_exact
    splits = [Split(group, plan_isolation) for group in divide(slices, SplitSize(cores(spark), min_partitions))]
    rows = read_splits(spark, topic.storage, topic.handle.name, schema, splits)
    return rows.limit(limit) if limit is not None and has_more_rows else rows


def stream(
    spark: SparkSession,
    url: str | Topic,
    columns: str | Iterable[str] | None = None,
    start: int | Mapping[int, int] = LATEST,
    start_time: Time | None = None,
    *,
    partitions: int | Iterable[int] | None = None,
    isolation: IsolationLevel = "read_uncommitted",
    fail_on_data_loss: bool = True,
    include_headers: bool = False,
    max_offsets: int | None = None,
    max_bytes: int | None = None,
    min_partitions: int | None = None,
    storage_options: StorageSettings | None = None,
) -> DataFrame:
    """Read the records of a topic as a streaming DataFrame with the columns of Spark's Kafka source.

    `format("distlog")` has further options.

    Args:
        spark: The session.
        url: The topic.
        columns: As in `read`.
        start: The start of the first query of a checkpoint: an offset, an offset for each partition, LATEST or
            EARLIEST; a partition that is left out begins at its log start.
        start_time: Instead of `start`: begin at the first record at or after this time, or at the end if none is.
        partitions: As in `read`.
        isolation: As in `read`.
        fail_on_data_loss: Fail where records were deleted before they were read; else continue after them.
        include_headers: As in `read`.
        max_offsets: The approximate maximum of offsets in a micro-batch.
        max_bytes: The approximate maximum of log bytes in a micro-batch.
        min_partitions: As in `read`.
        storage_options: Options of the storage.

    Returns:
        The streaming DataFrame.

    Raises:
        TopicNotFoundError: The topic does not exist.
        ReadOnlyTopicError: A Topic at a version: a stream reads the newest.

    Examples:
        >>> stream(spark, topic.url, start=distlog.EARLIEST).isStreaming
        True
    """
    _check_session(spark)
    schema = schema_of(None if columns is None else names_of(columns), include_headers)
    topic = _open(url, None, None, storage_options)
    topic.current.check_writable(topic.storage)
    bounds = offset_bounds(topic.snapshot, partitions, start, None)
    starts = {number: EARLIEST if first is None else first for number, (first, _) in bounds.items()}
    options = {
        "assign": None if partitions is None else format_assign(topic.name, starts),
        "startingOffsets": json.dumps(offsets_json(topic.name, starts)),
        "startingTimestamp": None if start_time is None else to_ms(start_time, round_up=True),
        "startingOffsetsByTimestampStrategy": "latest",
        "kafka.isolation.level": isolation,
        "failOnDataLoss": str(fail_on_data_loss).lower(),
        "maxOffsetsPerTrigger": max_offsets,
        "maxBytesPerTrigger": max_bytes,
        "minPartitions": min_partitions,
    }
    texts = {name: str(value) for name, value in options.items() if value is not None}
    source = format_with(spark, topic.storage.options)
    return spark.readStream.format(source).schema(schema).options(**texts).load(topic.url)


def register_tables(spark: SparkSession, root: str, *, storage_options: StorageSettings | None = None) -> list[str]:
    """Make each topic in a folder a temporary view of its name.

    A view has the columns of Spark's Kafka source, and shows its topic at this version; call this again to include
    later appends. It replaces views of the same names, and hides tables with these names.

    Args:
        spark: The session.
        root: The folder of topics.
        storage_options: Options of the storage.

    Returns:
        The names of the views, quoted for SQL.

    Raises:
        TopicNotFoundError: The folder has no topics.
        InvalidTopicError: Names differ only in case, and `spark.sql.caseSensitive` is false; no view is made.

    Examples:
        >>> register_tables(spark, ".")
        ['`clicks`']
        >>> spark.sql("SELECT key FROM `clicks`").count()
        3
    """
    _check_session(spark)
    root_topics = topics(root, storage_options)
    if not root_topics:
        raise TopicNotFoundError("the folder has no topics: check the address", root=root)
    if spark.conf.get("spark.sql.caseSensitive") != "true":
        names_by_lower_case: dict[str, str] = {}
        for topic in root_topics:
            earlier_name = names_by_lower_case.setdefault(topic.name.lower(), topic.name)
            if earlier_name != topic.name:
                text = "Spark cannot distinguish two topics' names: set spark.sql.caseSensitive to true"
                raise InvalidTopicError(text, first=earlier_name, second=topic.name)
    topics_by_view = {f"`{topic.name}`": topic for topic in root_topics}
    for name, topic in topics_by_view.items():
        read(spark, topic).createOrReplaceTempView(name)
    return list(topics_by_view)


def _open(
    url: str | Topic, version: int | None, timestamp: Time | None, storage_options: StorageSettings | None
) -> Topic:
    """Open the topic; its newest version is loaded from the last one that this process used."""
    if not isinstance(url, Topic):
        if version is None and timestamp is None:
            return Topic(*KNOWN_TOPICS.load(Storage(url, storage_options)))
        return open_topic(url, version, timestamp, storage_options)
    if (version, timestamp, storage_options) != (None, None, None):
        raise InvalidConfigError("a Topic has its version and its storage: give its url, or leave these out")
    return url


def _check_session(spark: object) -> None:
    if not hasattr(type(spark), "readStream"):  # a session of Spark Connect has another class
        raise InvalidConfigError("the first argument must be a SparkSession", got=type(spark).__name__)


def frame(spark: SparkSession, scan: Scan) -> DataFrame:
    """Return the records of a scan as a DataFrame with the columns of Spark's Kafka source.

    Tasks read the records whenever the DataFrame is used, so all executors must reach the topic's storage. Needs
    pandas.

    Args:
        spark: The session.
        scan: A scan of a topic.

    Returns:
        The DataFrame.

    Examples:
        >>> frame(spark, topic.scan(partitions=0)).count()
        2
    """
    _check_session(spark)
    schema = schema_of([SPARK_NAMES.get(name, name) for name in scan.columns], include_headers=True)
    splits = [Split(group, scan.isolation) for group in divide(scan.slices, SplitSize(cores(spark)))]
    return read_splits(spark, scan.reader.storage, scan.reader.topic, schema, splits)


_LONGS = ("position", "end_offset", "lag", "lag_bytes")
_LAG = pa.schema([("topic", pa.string()), ("partition", pa.int32()), *((name, pa.int64()) for name in _LONGS)])
#: Offsets by topic and partition.
_Offsets = Mapping[str, Mapping[str, int]]


def lag(
    query: StreamingQuery | StreamingQueryProgress,
    topic: str | Topic | None = None,
    *,
    storage_options: StorageSettings | None = None,
) -> Listing:
    """List the lag of a streaming query, a row for each partition that it reads with the format distlog or kafka.

    `position` is the end of the last finished batch, `lag` is the number of offsets from `position` to `end_offset`,
    and `lag_bytes` is the estimated size of their log. There are no rows before the first batch is finished.

    Args:
        query: The query, or a progress of a StreamingQueryListener.
        topic: The topic to list, up to its current end; this takes one request, and moves a Topic to its newest
            version. Default: all, up to the ends when the last batch was planned, for kafka without `lag_bytes`.
        storage_options: Options of the storage.

    Returns:
        The rows: topic, partition, position, end_offset, lag, lag_bytes.

    Raises:
        InvalidConfigError: The query does not read `topic`.
        TopicNotFoundError: The query reads a topic of this name that was dropped.

    Examples:
        >>> rows = stream(spark, topic.url, start=distlog.EARLIEST)
        >>> sink = rows.writeStream.format("noop").trigger(availableNow=True)
        >>> query = sink.option("checkpointLocation", f"{topic.url}-query").start()
        >>> query.awaitTermination()
        >>> lag(query)["lag"].to_pylist()
        [0, 0]
    """
    progress = query if isinstance(query, StreamingQueryProgress) else query.lastProgress
    # read the JSON of the progress: before Spark 4.2, a source's `endOffset` is the text of a dict, which is not JSON
    sources = [] if progress is None else json.loads(progress.json)["sources"]
    # by index of the source: the end offset of its last batch
    ends = {n: source["endOffset"] for n, source in enumerate(sources) if _source_offsets(source.get("endOffset"))}
    if topic is None:
        rows = [row for index, end in ends.items() for row in _reported_lag(end, sources[index].get("latestOffset"))]
    else:
        newest = _open(topic, None, None, storage_options)
        snapshot = (newest if isinstance(topic, str) else newest.refresh()).live_snapshot
        rows = list(_current_lag(newest.name, snapshot, list(ends.values())))
    return Listing(table_of_rows(rows, _LAG), "partitions")


def _source_offsets(value: Any) -> _Offsets:
    """Return the offsets in JSON of this source or of Spark's Kafka source; empty for another source."""
    offsets = value.get("offsets", value) if isinstance(value, dict) else {}
    are_offsets = isinstance(offsets, dict) and all(
        isinstance(partition_offsets, dict) and all(number.isdecimal() for number in partition_offsets)
        for partition_offsets in offsets.values()
    )
    return offsets if are_offsets else {}


def _reported_lag(end: Any, newest: Any) -> Iterator[dict[str, object]]:
    """Yield the rows of a source, by the end offsets of the batch and of the topics."""
    log_ends = _source_offsets(newest)
    byte_lags = (newest.get(BYTES_BEHIND) or {}) if log_ends else {}  # Spark's Kafka source reports no bytes
    for topic, offsets in _source_offsets(end).items():
        for number, position in offsets.items():
            log_end = log_ends.get(topic, {}).get(number)
            offset_lag = None if log_end is None else max(0, log_end - position)
            byte_lag = 0 if offset_lag == 0 else byte_lags.get(topic, {}).get(number)
            yield _lag_row(topic, number, position, log_end, offset_lag, byte_lag)


def _current_lag(name: str, snapshot: Snapshot, ends: Sequence[Any]) -> Iterator[dict[str, object]]:
    """Yield the rows of one topic, by the end offsets of the sources' last batch and of the topic's log."""
    topic_ends = [value for value in ends if name in _source_offsets(value)]
    if ends and not topic_ends:
        read_topics = sorted({read_topic for value in ends for read_topic in _source_offsets(value)})
        raise InvalidConfigError("the query does not read this topic", topic=name, reads=", ".join(read_topics))
    for value in topic_ends:
        if value.get("topicId", snapshot.topic_id) != snapshot.topic_id:
            raise TopicNotFoundError("the query reads a topic of this name that was dropped", topic=name)
        for number, position in _source_offsets(value)[name].items():
            state = snapshot.partitions[int(number)]
            start, end = max(position, state.log_start_offset), state.log_end_offset
            yield _lag_row(name, number, position, end, max(0, end - start), log_bytes(state.segments, start, end))


def _lag_row(topic: str, partition: str, *values: int | None) -> dict[str, object]:
    return dict(zip(_LAG.names, (topic, int(partition), *values), strict=True))
