"""The job that makes a table of a topic; `distlog.jobs.to_table` is its command line."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any, get_args

from pyspark.sql import SparkSession

from distlog.console.output import Summary
from distlog.core.display import counted
from distlog.core.errors import InvalidConfigError
from distlog.core.topics.open_topic import open as open_topic
from distlog.core.topics.topic import Topic
from distlog.core.values.registry import SchemaRegistry, split_subject
from distlog.spark.lake import LakeFormat
from distlog.spark.tables import to_table
from distlog.spark.values import ValueFormat

#: What values may be.
FORMATS = ("binary", *get_args(ValueFormat))
#: What tables may be.
OUTPUTS = ("parquet", *get_args(LakeFormat))
#: The registry of a job whose command line has none: the address of most has a password.
REGISTRY_VARIABLE = "DISTLOG_SCHEMA_REGISTRY"


def write_table(spark: SparkSession, chosen: argparse.Namespace) -> Summary:
    """Add to the table what the arguments name."""
    storage = dict(chosen.storage)
    topic = open_topic(chosen.topic, storage_options=storage)
    context, _ = split_subject(chosen.subject or "")
    registry = _registry(chosen.registry or os.environ.get(REGISTRY_VARIABLE), context, storage)
    report = to_table(
        spark,
        topic,
        chosen.table,
        output=chosen.output,
        format=chosen.format,
        schema=_schema(chosen, topic, registry),
        registry=registry,
        message=chosen.message,
        framed=chosen.framed,
        flatten=not chosen.nested,
        on_error=chosen.on_error,
        changes=chosen.changes,
        checkpoint=chosen.checkpoint,
        max_offsets=chosen.max_offsets,
        max_bytes=chosen.max_bytes,
    )
    rows, batches = counted(report.rows, "row"), counted(report.batches, "batch", "batches")
    told = f"added {rows} of {chosen.topic} to {chosen.table} in {batches} and {report.seconds:.1f} s"
    return Summary(told, {"topic": chosen.topic, **report.to_dict()})


def _registry(given: str | None, context: str, storage: dict[str, Any]) -> SchemaRegistry | None:
    """A registry that runs, by its http address, or the topic of one; ids are those of the `context`."""
    if given is None:
        return None
    is_server = given.startswith(("http://", "https://"))
    return SchemaRegistry(given if is_server else open_topic(given, storage_options=storage), context)


def _schema(chosen: argparse.Namespace, topic: Topic, registry: SchemaRegistry | None) -> Any:
    """The schema that the arguments give, or the newest of the registry's subject."""
    if chosen.format == "binary":
        return None
    if chosen.schema is not None:
        return chosen.schema
    if chosen.schema_file is not None:
        return Path(chosen.schema_file).read_text(encoding="utf-8")
    if registry is None or chosen.format == "json":
        raise InvalidConfigError(f"--format {chosen.format} needs --schema or --schema-file")
    return registry.latest(chosen.subject or f"{topic.name}-value")
