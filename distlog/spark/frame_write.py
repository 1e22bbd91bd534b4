"""Appends a DataFrame to a topic that the driver has open, and returns the offsets of the rows."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from distlog.core.topics.appending.append_commit import AppendResult, BatchId, check_batch, replayed
from distlog.core.topics.topic import Topic
from distlog.spark.options import storage_texts
from distlog.spark.sink.commits import find_write
from distlog.spark.sink.routing import partition_column
from distlog.spark.sink.topic_facts import TopicFacts
from distlog.spark.sink.write_options import parse_batch_id
from distlog.spark.spark_session import make_ready


def append_to(
    topic: Topic,
    rows: DataFrame,
    *,
    shuffle: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    app_id: str | None = None,
    batch_id: BatchId | None = None,
    compression: str | None = None,
) -> AppendResult:
    """Append rows with the columns of a topic. The arguments and errors are those of `distlog.spark.append`.

    The topic's metadata is loaded again only for the commit.
    """
    check_batch(app_id, batch_id)
    batch_id = None if batch_id is None else parse_batch_id(str(batch_id))
    if shuffle:
        rows = rows.withColumn("partition", partition_column(rows, topic.partitions))
        rows = rows.repartitionById(topic.partitions, "partition")
    make_ready(rows.sparkSession)
    write_id, facts = uuid.uuid4().hex, TopicFacts.of(topic.snapshot, app_id, batch_id)
    options = {**storage_texts(storage_options), "writeId": write_id, "topicFacts": str(facts)}
    if app_id is not None:
        options |= {"txnAppId": app_id, "txnVersion": str(batch_id)}
    if compression is not None:
        options["compression"] = compression
    rows.write.format("distlog").mode("append").options(**options).save(topic.url)
    made = None if facts.is_done else find_write(topic.storage, write_id, topic.version, config=topic.config)
    return made or _first_result(rows.sparkSession, topic, app_id, batch_id)


def _first_result(spark: SparkSession, topic: Topic, app_id: str | None, batch_id: BatchId | None) -> AppendResult:
    """The result of the first write, if this one repeated it; an empty result if there were no rows."""
    if app_id is None:
        app_id, batch_id = _micro_batch(spark)
    before = replayed(topic.snapshot, app_id, batch_id)
    return before or replayed(topic.refresh().snapshot, app_id, batch_id) or AppendResult(None)


def _micro_batch(spark: SparkSession) -> tuple[str | None, int | None]:
    """The query and batch that a foreachBatch function runs for, or (None, None) outside of one."""
    try:
        context = spark.sparkContext
        query, batch = (
            context.getLocalProperty("sql.streaming.queryId"),
            context.getLocalProperty("streaming.sql.batchId"),
        )
    except Exception:  # Spark Connect has no context, and each kind of session raises another error
        return None, None
    return (query, int(batch)) if query and batch else (None, None)
