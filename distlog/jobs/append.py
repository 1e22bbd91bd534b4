"""Append files to a topic, in the order of the arguments; the files of a folder or pattern by path."""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from pyspark.sql import SparkSession

from distlog.console.arguments import APPEND_HELP, unescaped
from distlog.console.output import Summary
from distlog.core.display import counted
from distlog.core.errors import InvalidConfigError
from distlog.core.files.file_reader import FileReader, warning_of_no_records
from distlog.core.files.input_files import FAIL, FORMATS, SKIP, ReadOptions
from distlog.core.opening import open as open_topic
from distlog.core.opening import open_or_create
from distlog.core.storage.storage import InputStorage
from distlog.core.times import TIME_UNITS, now_ms
from distlog.core.write.append import checked_batch_id
from distlog.jobs.job import add_settings, argument, job_parser, run_job
from distlog.spark.appends import FilesResult, append_files
from distlog.spark.sink import WriteOptions, parse_batch_id

#: Further arguments of `add_argument`, for options that do not accept every text.
_OPTION_ARGUMENTS: Mapping[str, Mapping[str, Any]] = {
    "--format": {"choices": FORMATS},
    "--timestamp-unit": {"choices": TIME_UNITS, "default": "ms"},
    "--key-separator": {"type": argument(unescaped)},
    "--partition": {"type": int},
    "--bad-lines": {"choices": (FAIL, SKIP), "default": FAIL},
}


def _parser() -> argparse.ArgumentParser:
    parser = job_parser("append.py", __doc__)
    help = "append a file, folder, pattern or URL; may be repeated"
    parser.add_argument("--input", required=True, action="append", metavar="PATH", help=help)
    for name, (metavar, text) in APPEND_HELP.items():
        if name == "--header":
            add_settings(parser, name, text, repeats_names=True)
            continue
        placeholder: Mapping[str, Any] = {"metavar": metavar} if metavar else {}
        # argparse formats percent signs
        parser.add_argument(name, help=text.replace("%", "%%"), **placeholder, **_OPTION_ARGUMENTS.get(name, {}))
    parser.add_argument("--create", action="store_true", help="create the topic if it does not exist")
    parser.add_argument("--partitions", type=int, metavar="N", help="with --create: create N partitions (default: 1)")
    add_settings(parser, "--config", "with --create: set a topic setting, as retention.ms=604800000; may be repeated")
    return parser


def append_inputs(spark: SparkSession, options: argparse.Namespace) -> Summary:
    start_s = time.monotonic()
    names = {field.name for field in dataclasses.fields(ReadOptions)} & vars(options).keys()
    chosen_options = {name: getattr(options, name) for name in names}
    reader_options = ReadOptions(**chosen_options, headers=tuple(options.header), now_ms=now_ms())
    if (options.app_id is None) != (options.batch_id is None):
        raise InvalidConfigError("give --app-id and --batch-id together: one alone prevents no duplicates")
    if not options.create and (options.config or options.partitions is not None):
        raise InvalidConfigError("--partitions and --config need --create: use `distlog alter` to change a topic")
    batch_id = parse_batch_id(checked_batch_id(options.app_id, options.batch_id))
    storage = dict(options.storage)
    reader = FileReader(reader_options, InputStorage(input_settings(spark, options.input, storage)))
    files = reader.files(options.input)
    # check the first files before a task starts, and before a topic is created
    reader.check_first_files(files)
    if options.create:
        topic = open_or_create(options.topic, options.partitions, dict(options.config), storage)
    else:
        topic = open_topic(options.topic, storage_options=storage)
    write = WriteOptions(topic.storage, options.app_id, batch_id, options.compression)
    result = append_files(spark, topic, reader, files, write)
    if result.without_records:
        print(f"append.py: {warning_of_no_records(result.without_records)}", file=sys.stderr)
    return _summary(options.topic, result, time.monotonic() - start_s)


_S3A_SETTINGS = "spark.hadoop.fs.s3a."
_S3A_SCHEMES = ("s3a://", "s3n://")


def input_settings(spark: SparkSession, inputs: Sequence[str], storage: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of the client that reads the inputs; for s3a://, Spark's Hadoop settings take precedence."""
    if not any(path.lower().startswith(_S3A_SCHEMES) for path in inputs):
        return dict(storage)

    def hadoop_setting(name: str) -> str | None:
        return spark.conf.get(_S3A_SETTINGS + name, None)

    endpoint, region = hadoop_setting("endpoint"), hadoop_setting("endpoint.region")
    if endpoint and "://" not in endpoint:
        is_plain = (hadoop_setting("connection.ssl.enabled") or "true").lower() == "false"
        endpoint = f"{'http' if is_plain else 'https'}://{endpoint}"
    hadoop_options: dict[str, Any] = {
        "endpoint_url": endpoint,
        "key": hadoop_setting("access.key"),
        "secret": hadoop_setting("secret.key"),
        "token": hadoop_setting("session.token"),
        "client_kwargs": {"region_name": region} if region else None,
    }
    return {**storage, **{name: value for name, value in hadoop_options.items() if value}}


def _summary(url: str, result: FilesResult, seconds: float) -> Summary:
    appended, skipped = result.appended, result.skipped
    records = appended.record_count
    fields: dict[str, Any] = {
        "topic": url,
        "version": appended.version,
        "records": records,
        "offsets": {str(partition): list(span) for partition, span in sorted(appended.offsets.items())},
        "replayed": appended.replayed,
        "skipped": skipped,
        "seconds": round(seconds, 3),
    }
    verb = "had appended" if appended.replayed else "appended"
    version = "" if appended.version is None else f" as version {appended.version}"
    lines = [f"{verb} {counted(records, 'record')} to {url}{version} in {seconds:.1f} s"]
    lines += [f"partition {n}: offsets {first} to {end}" for n, (first, end) in sorted(appended.offsets.items())]
    if skipped:
        lines.append(f"skipped {counted(skipped, 'bad line')}")
    return Summary("\n".join(lines), fields)


parser = _parser()
main = partial(run_job, parser, append_inputs)
