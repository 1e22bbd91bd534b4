"""Copy new records into a Parquet, Delta or Iceberg table, exactly once."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any, get_args

from pyspark.sql import SparkSession

from distlog.console import arguments
from distlog.console.arguments import REGISTRY_VARIABLE, registry_at
from distlog.console.output import Summary
from distlog.core.display import counted
from distlog.core.errors import InvalidConfigError
from distlog.core.opening import open as open_topic
from distlog.core.schemas.decoding import ValueFormat
from distlog.core.schemas.registry import SchemaRegistry, split_subject
from distlog.core.topic import Topic
from distlog.jobs.job import argument, job_parser, run_job
from distlog.spark.tables import LakeFormat, to_table

FORMATS = ("binary", *get_args(ValueFormat))
OUTPUTS = ("parquet", *get_args(LakeFormat))


def write_table(spark: SparkSession, options: argparse.Namespace) -> Summary:
    storage = dict(options.storage)
    topic = open_topic(options.topic, storage_options=storage)
    context, _ = split_subject(options.subject or "")  # `:.staging:clicks-value` has the context .staging
    registry = registry_at(options.registry, context, storage)
    report = to_table(
        spark,
        topic,
        options.table,
        output=options.output,
        format=options.format,
        schema=_schema(options, topic, registry),
        registry=registry,
        message=options.message,
        framed=options.framed,
        flatten=not options.nested,
        on_error=options.on_error,
        changes=options.changes,
        checkpoint=options.checkpoint,
        max_offsets=options.max_offsets,
        max_bytes=options.max_bytes,
    )
    rows, batches = counted(report.rows, "row"), counted(report.batches, "batch", "batches")
    text = f"added {rows} of {options.topic} to {options.table} in {batches} and {report.seconds:.1f} s"
    return Summary(text, {"topic": options.topic, **report.to_dict()})


def _schema(options: argparse.Namespace, topic: Topic, registry: SchemaRegistry | None) -> Any:
    """Return the schema of the arguments, or the newest schema of the registry's subject."""
    if options.format == "binary":
        return None
    if options.schema is not None:
        return options.schema
    if options.schema_file is not None:
        return Path(options.schema_file).read_text(encoding="utf-8")
    if registry is None or options.format == "json":
        raise InvalidConfigError(f"--format {options.format} needs --schema or --schema-file")
    return registry.latest(options.subject or f"{topic.name}-value")


parser = job_parser("to_table.py", __doc__)
parser.add_argument(
    "--table", required=True, help="write to this folder of Spark's file systems, or name in a catalog"
)
parser.add_argument(
    "--output", choices=OUTPUTS, default="parquet", help="set the format of the table (default: parquet)"
)
parser.add_argument(
    "--checkpoint", metavar="PATH", help="store the state of a parquet table here (default: in its folder)"
)
parser.add_argument("--format", choices=FORMATS, default="binary", help="decode values (default: keep bytes)")
schema = parser.add_mutually_exclusive_group()
schema.add_argument("--schema", metavar="TEXT", help="set the fields, for JSON as in 'user string, time timestamp'")
schema.add_argument(
    "--schema-file", metavar="FILE", help="read the fields from a local file: .avsc, .proto, or as --schema"
)
schema.add_argument("--subject", help="use this subject of the registry (default: the topic's name and -value)")
parser.add_argument(
    "--registry",
    metavar="URL",
    help=f"use this schema registry, or its topic, as logs/_schemas (default: ${REGISTRY_VARIABLE})",
)
parser.add_argument(
    "--message", metavar="NAME", help="decode this Protobuf message, by its full name (default: the first)"
)
parser.add_argument("--framed", action="store_true", help="skip the schema id of a registry in JSON values")
parser.add_argument("--nested", action="store_true", help="write one column `value` with the fields in it")
parser.add_argument(
    "--on-error",
    choices=("fail", "null"),
    default="fail",
    help="fail at a bad value, or leave its fields null (default: fail)",
)
parser.add_argument(
    "--changes", action="store_true", help="write all changes of a compacted topic, with a column deleted"
)
parser.add_argument(
    "--max-offsets", type=argument(arguments.count), metavar="N", help="write about N offsets in a batch"
)
parser.add_argument(
    "--max-bytes", type=argument(arguments.count), metavar="N", help="write about N bytes of log in a batch"
)

main = partial(run_job, parser, write_table)
