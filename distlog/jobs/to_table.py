"""Add what is new in a topic to a table of Parquet, Delta or Iceberg, each record once."""

from __future__ import annotations

import argparse
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any, get_args

from pyspark.sql import SparkSession

from distlog.console import arguments
from distlog.console.output import Summary
from distlog.core.display import counted
from distlog.core.errors import InvalidConfigError
from distlog.core.topics.open_topic import open as open_topic
from distlog.core.topics.topic import Topic
from distlog.core.values.registry import SchemaRegistry, split_subject
from distlog.jobs.job import argument, job_parser, run_job
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


parser = job_parser(__file__, __doc__)
parser.add_argument("--table", required=True, help="its folder in Spark's file systems, or name in a catalog")
parser.add_argument("--output", choices=OUTPUTS, default="parquet", help="what the table is; by default parquet")
parser.add_argument("--checkpoint", metavar="PATH", help="where the state of parquet is; by default in its folder")
parser.add_argument("--format", choices=FORMATS, default="binary", help="what values are; by default they stay bytes")
schema = parser.add_mutually_exclusive_group()
schema.add_argument("--schema", metavar="TEXT", help="the fields: of JSON as 'user string, at timestamp'")
schema.add_argument("--schema-file", metavar="FILE", help="a local file of it: .avsc, .proto, or as --schema")
schema.add_argument("--subject", help="the registry's subject of the fields; by default the topic's name and -value")
parser.add_argument(
    "--registry",
    metavar="URL",
    help=f"a registry of schemas, or its topic, as logs/_schemas; by default the variable {REGISTRY_VARIABLE}",
)
parser.add_argument("--message", metavar="NAME", help="the full name of a message of Protobuf; by default the first")
parser.add_argument("--framed", action="store_true", help="values of JSON begin with the id of a registry's schema")
parser.add_argument("--nested", action="store_true", help="one column `value` with the fields as its parts")
parser.add_argument(
    "--on-error",
    choices=("fail", "null"),
    default="fail",
    help="at a bad value fail (default), or leave its fields null",
)
parser.add_argument("--changes", action="store_true", help="of a compacted topic all changes, with a column deleted")
parser.add_argument("--max-offsets", type=argument(arguments.count), metavar="N", help="about so many in a batch")
parser.add_argument(
    "--max-bytes", type=argument(arguments.count), metavar="N", help="so many bytes of log in a batch"
)

main = partial(run_job, parser, write_table)

if __name__ == "__main__":
    sys.exit(main())
