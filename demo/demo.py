"""The main job, end to end, on a local folder: append by Spark, read back, look up, and keep it in shape."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path

from pyspark.sql import SparkSession

import distlog
from demo.clicks import clicks
from distlog.core.files.file_reader import FileReader
from distlog.core.files.input_files import ReadOptions
from distlog.core.storage.storage import InputStorage
from distlog.spark import SparkExecutor, append, read, session
from distlog.spark.appends import append_files
from distlog.spark.sink import WriteOptions

FOLDER = Path(".demo")
ROWS = 1_000_000
PARTITIONS = 4
#: The combined log format of web servers. Log files in this format get keys and timestamps.
ACCESS_LOG = r'^(?P<key>\S+) \S+ \S+ \[(?P<timestamp>[^\]]+)\] ".*'


@contextmanager
def step(title: str) -> Iterator[None]:
    """Print a step's title, and how long the step took."""
    print(f"\n== {title}", flush=True)
    started = time.monotonic()
    yield
    print(f"   ({time.monotonic() - started:.1f} s)", flush=True)


def append_input(spark: SparkSession, arguments: argparse.Namespace, url: str) -> distlog.AppendResult:
    """Append the user's file, or generated clicks."""
    if arguments.input is None:
        return append(clicks(spark, arguments.rows), url)
    pattern = ACCESS_LOG if is_access_log(arguments.input) else None
    time_format = "%d/%b/%Y:%H:%M:%S %z" if pattern else None
    options = ReadOptions(
        key=arguments.key or None, timestamp=arguments.timestamp or None, pattern=pattern, time_format=time_format
    )
    reader = FileReader(options, InputStorage())
    topic = distlog.open(url)
    return append_files(spark, topic, reader, reader.files([arguments.input]), WriteOptions(topic.storage)).appended


def is_access_log(path: str) -> bool:
    """Whether the file is text whose first line looks like a web server's."""
    if Path(path).suffix in (".jsonl", ".json", ".ndjson", ".csv", ".parquet") or not Path(path).is_file():
        return False
    with open(path, encoding="utf-8", errors="replace") as lines:
        return re.match(ACCESS_LOG, lines.readline()) is not None


def show(records: Iterator[distlog.Record]) -> None:
    """Print records in a readable form."""
    for record in records:
        moment = datetime.fromtimestamp(record.timestamp / 1000, timezone.utc).isoformat(timespec="milliseconds")
        value = (record.value or b"").decode("utf-8", "replace")
        print(f"   partition {record.partition} offset {record.offset} at {moment}: {value[:90]}")


def fill(spark: SparkSession, arguments: argparse.Namespace, url: str) -> distlog.Topic:
    """Create the topic and append to it."""
    with step(f"Create the topic {url} with {PARTITIONS} partitions"):
        # the events may be years old
        distlog.create(url, partitions=PARTITIONS, config={"segment.bytes": 2 << 20, "retention.ms": -1})
    input_text = arguments.input or f"{arguments.rows:,} generated clicks"
    with step(f"Append {input_text} by Spark: every task routes its rows, one commit for all partitions"):
        result = append_input(spark, arguments, url)
        print(f"   version {result.version}, {result.record_count:,} records")
        for partition, (first, end) in sorted(result.offsets.items()):
            print(f"   partition {partition}: offsets {first:,} to {end:,}")
    return distlog.open(url)


def read_back(spark: SparkSession, topic: distlog.Topic) -> None:
    """Read everything by Spark, and check it against the metadata."""
    with step("Read it all back by Spark, and count by partition"):
        counts = read(spark, topic.url, columns=["partition", "offset"]).groupBy("partition")
        rows = counts.agg({"offset": "count"}).orderBy("partition").collect()
        for partition, count in rows:
            print(f"   partition {partition}: {count:,} records")
        if {row[0]: row[1] for row in rows} != {p: end for p, end in topic.end_offsets().items() if end}:
            raise SystemExit("   what was read is not what was appended")


def find_records(topic: distlog.Topic) -> None:
    """Find records by offset and by time, through the indexes."""
    partition, end = max(topic.end_offsets().items(), key=lambda item: item[1])
    with step(f"Look up by offset: partition {partition}, offset {end // 2:,}"):
        show(topic.records(partition, start=end // 2, limit=2))
    middle = next(topic.records(partition, start=end // 2, limit=1)).timestamp
    moment = datetime.fromtimestamp(middle / 1000, timezone.utc).isoformat()
    with step(f"Look up by time: the first record of each partition at or after {moment}"):
        for number, record_offset in topic.offsets_for_times(middle).items():
            if record_offset:
                show(topic.records(number, start=record_offset[0], limit=1))


def shape(topic: distlog.Topic) -> str:
    """Segments, bytes and records of a topic, in words."""
    segments = topic.refresh().segments()
    size, records = (sum(segments[name].to_pylist()) for name in ("log_bytes", "record_count"))
    return f"{segments.num_rows} segments, {size / 1e6:.1f} MB, {records:,} records"


def maintain(spark: SparkSession, topic: distlog.Topic) -> None:
    """Run retention, compaction and index rebuild, and print what each did."""
    print(f"\nThe topic has {shape(topic)}.")
    sizes = [int(state.segments.log_bytes.sum()) for state in topic.snapshot.partitions]
    with step("Retention: keep half of what the largest partition has"):
        topic.alter_config({"retention.bytes": max(sizes) // 2})
        print(f"   {str(topic.retention()).replace(chr(10), chr(10) + '   ')}\n   now {shape(topic)}")
    with step("Merging: small segments become large ones, no record is decoded"):
        topic.alter_config({"segment.bytes": 64 << 20})
        topic.compact(executor=SparkExecutor(spark))
        print(f"   now {shape(topic)}")
    with step("Compaction: the last record of each key stays, at its offset"):
        topic.alter_config({"cleanup.policy": "compact"})
        topic.compact(executor=SparkExecutor(spark))
        print(f"   now {shape(topic)}; the log ends where it did: {topic.end_offsets()}")
    with step("Index rebuild: one index file is deleted and one is damaged, then both are made again from the log"):
        damage(Path(topic.url))
        topic.rebuild_indexes(executor=SparkExecutor(spark))
        print(f"   {str(topic.verify()).splitlines()[0]}")


def damage(folder: Path) -> None:
    """Delete the first time index, and overwrite the last one; a topic of a few records has none."""
    indexes = sorted(folder.glob("*/*.timeindex"))
    for index in indexes[:1]:
        index.unlink()
    for index in indexes[1:][-1:]:
        index.write_bytes(b"not an index")


@contextmanager
def without_noise() -> Iterator[None]:
    """Keep two things off standard error that mean nothing: a line of Java, and stacks of Spark's Python daemon."""
    standard_error = os.dup(2)
    reader, writer = os.pipe()
    os.dup2(writer, 2)
    os.close(writer)
    threading.Thread(target=pass_on, args=(reader, standard_error), daemon=True).start()
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(standard_error, 2)


def pass_on(reader: int, writer: int) -> None:
    """Copy lines, without the lines that `without_noise` names: the daemon prints that Spark has closed a socket."""
    stack: list[bytes] = []
    with open(reader, "rb", buffering=0) as lines:
        for line in lines:
            if line.startswith(b"Traceback ") or (stack and line.startswith(b" ")):
                stack.append(line)
                continue
            is_daemons = all(b"pyspark/daemon.py" in frame for frame in stack if frame.startswith(b"  File "))
            is_noise = stack and is_daemons and line.startswith(b"BrokenPipeError")
            if not is_noise and b"Using incubator modules" not in line:
                os.write(writer, b"".join([*stack, line]))
            stack = []


def main() -> None:
    """Run the demo. It replaces the folder of the run before."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--input", help="your own file: .jsonl, .csv, .parquet, or lines of text")
    parser.add_argument("--key", help="its column or field that is the key")
    parser.add_argument("--timestamp", help="its column or field that is the time")
    parser.add_argument("--rows", type=int, default=ROWS, help="clicks to generate without an input")
    arguments = parser.parse_args()
    shutil.rmtree(FOLDER, ignore_errors=True)
    with without_noise():
        run(arguments)


def run(arguments: argparse.Namespace) -> None:
    """Run the steps, and say what to try next."""
    with step("Compile distlog's kernels, which takes some 20 s of CPU time the first time"):
        distlog.warm_up()
    with step("Start Spark"):
        spark = session("distlog demo", **{"spark.master": "local[*]", "spark.ui.enabled": "false"})
    topic = fill(spark, arguments, str((FOLDER / "logs" / "events").absolute()))
    read_back(spark, topic)
    find_records(topic)
    maintain(spark, topic)
    spark.stop()
    print(f"\nThe topic is in {topic.url}. Try next:")
    for command in ("describe {}", "read {} --tail 5", "history {}", "read {} --follow"):
        print(f"   .venv/bin/distlog {command.format(FOLDER / 'logs' / 'events')}")
    print("   docs/tutorial.md: the first log of your own")


if __name__ == "__main__":
    main()
