"""Read a topic to the console, Parquet or JSON."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from functools import partial

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from distlog.console import arguments
from distlog.console.output import Milliseconds, Summary, text
from distlog.core.display import counted
from distlog.core.errors import InvalidConfigError
from distlog.jobs.job import argument, job_parser, run_job
from distlog.spark.frames import read

#: How many records are printed without a limit.
CONSOLE_LIMIT = 20


def read_topic(spark: SparkSession, options: argparse.Namespace) -> Summary:
    """Read records, and print them or write them to files."""
    started = time.monotonic()
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
    seconds = time.monotonic() - started
    destination = options.output or "the console"
    fields = {"topic": options.topic, "records": count, "output": options.output, "seconds": round(seconds, 3)}
    return Summary(f"read {counted(count, 'record')} of {options.topic} to {destination} in {seconds:.1f} s", fields)


def _write(rows: DataFrame, options: argparse.Namespace) -> int:
    observation = Observation("rows")
    watched = rows.observe(observation, F.count(F.lit(1)).alias("records"))
    if options.format == "json":
        watched.select(json_line()).write.text(options.output)
    else:
        watched.write.parquet(options.output)
    return int(observation.get["records"])


def _print(rows: DataFrame, *, as_json: bool) -> int:
    if as_json:
        lines = [row[0] for row in rows.select(json_line()).collect()]
    else:
        names = ("partition", "offset", "timestamp", "key", "value")
        table = rows.withColumn("timestamp", F.unix_millis("timestamp")).select(*names).collect()
        lines = ["\t".join(_cell(name, row[name]) for name in names) for row in table]
        print(*names, sep="\t")
    for line in lines:
        print(line)
    return len(lines)


def _cell(name: str, value: object) -> str:
    if name == "timestamp" and isinstance(value, int):
        return str(Milliseconds(value))
    return text(bytes(value) if isinstance(value, bytearray) else value)


def json_line() -> Column:
    """A record as the command line prints it: bytes as text if they are UTF-8, else {"base64": "..."}.

    It is an expression of Spark, not the kernel of `lines`, since Spark's plan writes it where the records are: no
    worker of Python is started, and no record crosses to one.
    """
    headers = F.transform(
        "headers", lambda header: _object({"key": _json_text(header["key"]), "value": _json_bytes(header["value"])})
    )
    return _object(
        {
            "partition": F.col("partition").cast("string"),
            "offset": F.col("offset").cast("string"),
            "timestamp": F.unix_millis("timestamp").cast("string"),
            "timestamp_type": F.col("timestampType").cast("string"),
            "key": _json_bytes(F.col("key")),
            "value": _json_bytes(F.col("value")),
            "headers": F.concat(F.lit("["), F.concat_ws(", ", headers), F.lit("]")),
        }
    ).alias("value")


def _object(members: Mapping[str, Column]) -> Column:
    columns = [column for name, value in members.items() for column in (F.lit(f', "{name}": '), value)]
    columns[0] = F.lit(f'{{"{next(iter(members))}": ')
    return F.concat(*columns, F.lit("}"))


def _json_bytes(column: Column) -> Column:
    decoded = column.cast("string")
    encoded = F.concat(F.lit('{"base64": "'), F.base64(column), F.lit('"}'))
    return (
        F.when(column.isNull(), F.lit("null")).when(F.is_valid_utf8(decoded), _json_text(decoded)).otherwise(encoded)
    )


def _json_text(column: Column) -> Column:
    """The text as a JSON string: Spark's JSON of a list of one, without the brackets."""
    return F.regexp_replace(F.to_json(F.array(column)), r"^\[|\]$", "")


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
