"""Read a topic to the console, Parquet or JSON."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Iterator
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from distlog.console import arguments
from distlog.console.output import Summary
from distlog.core.display import counted
from distlog.core.errors import InvalidConfigError
from distlog.core.files.text_lines import split_lines
from distlog.core.format.record_batch import COLUMNS, SCHEMA
from distlog.core.read.row_lines import json_objects, tabbed
from distlog.jobs.job import argument, job_parser, run_job
from distlog.spark.batch_source import SPARK_NAMES
from distlog.spark.frames import read
from distlog.spark.versions import map_in_arrow

#: The number of records that are printed if --limit is missing.
CONSOLE_LIMIT = 20


def read_topic(spark: SparkSession, options: argparse.Namespace) -> Summary:
    start_s = time.monotonic()
    if options.format and not options.output:
        raise InvalidConfigError("--format needs --output")
    rows = read(
        spark,
        options.topic,
        start=options.start,
        end=options.end,
        start_time=options.since,
        end_time=options.until,
        partitions=options.partitions,
        include_headers=True,
        limit=options.limit if options.output or options.limit is not None else CONSOLE_LIMIT,
        storage_options=dict(options.storage),
    ).drop("topic")
    count = _write(rows, options) if options.output else _print(rows, as_json=options.json)
    seconds = time.monotonic() - start_s
    destination = options.output or "the console"
    fields = {"topic": options.topic, "records": count, "output": options.output, "seconds": round(seconds, 3)}
    return Summary(f"read {counted(count, 'record')} of {options.topic} to {destination} in {seconds:.1f} s", fields)


def _write(rows: DataFrame, options: argparse.Namespace) -> int:
    observation = Observation("rows")
    counted_rows = rows.observe(observation, F.count(F.lit(1)).alias("records"))
    if options.format == "json":
        map_in_arrow(counted_rows, _json_lines, "value string").write.text(options.output)
    else:
        counted_rows.write.parquet(options.output)
    return int(observation.get["records"])


def _json_lines(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for records in _with_core_columns(pa.Table.from_batches([batch])).to_batches():
            lines = split_lines(bytes(json_objects(records)).removesuffix(b"\n"))
            yield pa.record_batch({"value": lines.cast(pa.string())})


def _with_core_columns(rows: pa.Table) -> pa.Table:
    return rows.select([SPARK_NAMES[name] for name in COLUMNS]).rename_columns(COLUMNS).cast(SCHEMA)


def _print(rows: DataFrame, *, as_json: bool) -> int:
    records = _with_core_columns(rows.toArrow())
    columns = COLUMNS if as_json else ("partition", "offset", "timestamp", "key", "value")
    if not as_json:
        print(*columns, sep="\t")
    for batch in records.select(columns).to_batches():
        # as text, not bytes, so that standard output escapes the characters that its encoding lacks
        sys.stdout.write(bytes(json_objects(batch) if as_json else tabbed(batch)).decode())
    return int(records.num_rows)


parser = job_parser("read.py", __doc__)
parser.add_argument(
    "--partitions", type=argument(arguments.partitions), metavar="0,1", help="read only these partitions"
)
start = parser.add_mutually_exclusive_group()
start.add_argument(
    "--start",
    type=argument(arguments.offsets),
    metavar="OFFSETS",
    help="start at this offset: 10 for all partitions, or 0:10,1:7 by partition",
)
start.add_argument(
    "--since",
    type=argument(arguments.record_time),
    metavar="TIME",
    help="read records at or after TIME: ms since 1970, ISO 8601, now, or -1h",
)
end = parser.add_mutually_exclusive_group()
end.add_argument(
    "--end",
    type=argument(arguments.offsets),
    metavar="OFFSETS",
    help="end before this offset, in the form of --start",
)
end.add_argument("--until", type=argument(arguments.record_time), metavar="TIME", help="read records before TIME")
parser.add_argument(
    "--limit",
    type=argument(arguments.count),
    metavar="N",
    help=f"read at most N records (default: {CONSOLE_LIMIT} on the console, all with --output)",
)
parser.add_argument("--output", metavar="PATH", help="write files to this new folder instead of the console")
parser.add_argument("--format", choices=("parquet", "json"), help="set the format of the files (default: parquet)")

main = partial(run_job, parser, read_topic)
