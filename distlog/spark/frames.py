"""Functions that append and read DataFrames: they do what `df.write` and `spark.read` do, with Python's types."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql.pandas.utils import require_minimum_pandas_version

from distlog.core.errors import InvalidConfigError
from distlog.core.reading import scan_plan
from distlog.core.reading.scan import names_of
from distlog.core.reading.slices.slices import OutOfRange, SegmentSlice, first_offsets
from distlog.core.storage.storage import Storage
from distlog.core.times import Time, to_ms
from distlog.core.topics.appending.append_commit import AppendResult, BatchId
from distlog.core.topics.appending.appendable import ACCEPTED, IGNORED
from distlog.core.topics.appending.retention_warning import warn_of_retention
from distlog.core.topics.open_topic import open as open_topic
from distlog.core.topics.topic import Topic
from distlog.core.transactions.isolation import Isolation, IsolationLevel
from distlog.core.whole_number import count_of
from distlog.spark.frame_write import append_to
from distlog.spark.options import storage_texts
from distlog.spark.source.kafka_rows import SPARK_NAMES, schema_of
from distlog.spark.source.map_in_arrow import read_splits
from distlog.spark.source.offsets import format_assign, format_offsets
from distlog.spark.source.splits import Split, SplitSize, split
from distlog.spark.spark_session import cores, make_ready

StorageSettings = Mapping[str, Any]


def append(
    df: DataFrame,
    url: str | Topic,
    key: str | Column | None = None,
    value: str | Column | None = None,
    timestamp: str | Column | None = None,
    headers: str | Column | None = None,
    *,
    shuffle: bool = False,
    storage_options: StorageSettings | None = None,
    app_id: str | None = None,
    batch_id: BatchId | None = None,
    compression: str | None = None,
) -> AppendResult:
    """Append the rows of a DataFrame to a topic in one commit. Returns the version and the offsets of the rows.

    A Topic in place of its URL moves on to the version of the commit, and has its storage options.

    A column that is not given is the frame's column of that name, if it has one; so is `partition`. Without
    `shuffle` each task writes a segment for every partition among its rows, in the order of the tasks. With
    `shuffle` there is one segment per partition, and the order between input tasks is lost. A repeated
    (app_id, batch_id) appends nothing and returns the first result; a batch_id of digits is a number. `compression`
    is the codec if the topic's compression.type is producer.

    Raises InvalidRecordError before any task runs. After that it raises Spark's own exceptions, with the text of
    distlog's.
    """
    topic, storage_options = _writable(url, storage_options)
    result = append_to(
        topic,
        _project(df, {"key": key, "value": value, "timestamp": timestamp, "headers": headers}),
        shuffle=shuffle,
        storage_options=storage_options,
        app_id=app_id,
        batch_id=batch_id,
        compression=compression,
    )
    warn_of_retention(result.expired, topic.snapshot)
    if isinstance(url, Topic) and result.version is not None:
        url.refresh()
    return result


def _writable(url: str | Topic, storage_options: StorageSettings | None) -> tuple[Topic, StorageSettings | None]:
    """The topic as it is now, and the options that tasks need to write to its storage."""
    if not isinstance(url, Topic):
        return open_topic(url, storage_options=storage_options), storage_options
    if storage_options is not None:
        raise InvalidConfigError("a Topic has its storage: give its url, or leave storage_options out")
    url.current.check_writable(url.storage)
    return url.refresh(), url.storage.options


def _project(df: DataFrame, given: Mapping[str, str | Column | None]) -> DataFrame:
    named = {name: source for name, source in given.items() if source is not None}
    if not named and set(df.columns) <= set(ACCEPTED):
        return df
    chosen: dict[str, str | Column] = {**{name: name for name in ACCEPTED if name in df.columns}, **named}
    columns = [(F.col(source) if isinstance(source, str) else source).alias(name) for name, source in chosen.items()]
    if not named:
        # keep unknown columns, so that the sink refuses them: nothing is left out silently
        columns += [F.col(name) for name in df.columns if name not in ACCEPTED + IGNORED]
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
    version: int | None = None,
    timestamp: Time | None = None,
    isolation: IsolationLevel = "read_uncommitted",
    out_of_range: OutOfRange = "fail",
    include_headers: bool = False,
    min_partitions: int | None = None,
    limit: int | None = None,
    storage_options: StorageSettings | None = None,
) -> DataFrame:
    """The records from `start` (in) to `end` (out) as a DataFrame with the columns of Spark's Kafka source.

    The arguments mean what they mean in `Topic.scan`. The version is the newest one now, or one given by number or
    time; a Topic in place of its URL is read as it sees itself, with the storage options that it has. `limit` gives
    the first records; tasks end where it is reached, and are not cut off as by `DataFrame.limit`.
    If pandas is installed, rows come by `mapInArrow`, which is faster than the data source.
    """
    schema = schema_of(None if columns is None else names_of(columns), include_headers)
    topic = _opened(url, version, timestamp, storage_options)
    times = scan_plan.times(start, end, start_time, end_time)
    asked = scan_plan.bounds(topic.live_snapshot, partitions, start, end)
    slices, visible = scan_plan.plan(topic.reader, topic.live_snapshot, asked, isolation, out_of_range, times)
    exact = True
    if limit is not None:
        slices, exact = first_offsets(slices, count_of("limit", limit))
    if _has_map_in_arrow():
        groups = split(slices, SplitSize(cores(spark), min_partitions))
        rows = read_splits(spark, topic.storage, topic.name, schema, [Split(group, visible) for group in groups])
    else:
        options = _source_options(topic, _spans(slices) or {0: (topic.end_offsets()[0],) * 2})
        options |= {
            name: str(to_ms(time))
            for name, time in (("startTime", start_time), ("endTime", end_time))
            if time is not None
        }
        if min_partitions is not None:
            options["minPartitions"] = str(min_partitions)
        options |= {"kafka.isolation.level": isolation, **storage_texts(topic.storage.options)}
        make_ready(spark)
        rows = spark.read.format("distlog").schema(schema).options(**options).load(topic.url)
    return rows if limit is None or exact else rows.limit(limit)


def _opened(
    url: str | Topic, version: int | None, timestamp: Time | None, storage_options: StorageSettings | None
) -> Topic:
    if not isinstance(url, Topic):
        return open_topic(url, version, timestamp, storage_options)
    if (version, timestamp, storage_options) != (None, None, None):
        raise InvalidConfigError("a Topic has its version and its storage: give its url, or leave these out")
    return url


def of_slices(
    spark: SparkSession,
    storage: Storage,
    topic: str,
    slices: Sequence[SegmentSlice],
    columns: Sequence[str],
    isolation: Isolation,
) -> DataFrame:
    """The records of slices that were planned already, with the columns of Spark's Kafka source for `columns`."""
    schema = schema_of([SPARK_NAMES.get(name, name) for name in columns], include_headers=True)
    groups = split(slices, SplitSize(cores(spark)))
    return read_splits(spark, storage, topic, schema, [Split(group, isolation) for group in groups])


def _has_map_in_arrow() -> bool:
    """Whether Spark allows `mapInArrow`: it insists on pandas, although it does not use it there."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # a pandas newer than Spark knows works too
        try:
            require_minimum_pandas_version()
        except ImportError:
            return False
    return True


def _spans(slices: Iterable[SegmentSlice]) -> dict[int, tuple[int, int]]:
    """The offsets (first, end) of the slices, by partition."""
    spans: dict[int, tuple[int, int]] = {}
    for piece in slices:
        start, end = piece.span
        spans[piece.segment.partition] = spans.get(piece.segment.partition, (start, end))[0], end
    return spans


def _source_options(topic: Topic, spans: Mapping[int, tuple[int, int]]) -> dict[str, str]:
    """The options that make the data source read these offsets, of the version that was asked for, if any."""
    starts, ends = ({number: span[side] for number, span in spans.items()} for side in (0, 1))
    # a version has no active segments, so a read of what is there now must not name one
    version = {"versionAsOf": str(topic.version)} if topic.current.pinned else {}
    return version | {
        "assign": format_assign(topic.name, spans),
        "startingOffsets": format_offsets(topic.name, starts),
        "endingOffsets": format_offsets(topic.name, ends),
        "failOnDataLoss": "false",
    }
