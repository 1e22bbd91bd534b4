"""Files into a topic: the Spark job, next to the command, Spark's JSON to Parquet, and pyarrow with `append`.

    python -m benchmarks file_appends

2.5 million JSON lines (440 MB) go into 16 partitions, and so do 5 million rows of Parquet and 10,000 files of 1 KB.
The files are generated first. The start of Spark is left out, the start of the command is not. "per CPU" has the CPU
time of all processes of Spark. Output is removed between the measurements. The first append and the first task of
Python are each the first work of a session in a process of its own: "distlog" is what the append takes, "peer" the
task. The memory is the largest resident set that a worker of Python has had (VmHWM); "peer" is the most private
memory (RssAnon, sampled), which leaves out the pages of libraries that workers share.

    python -m benchmarks.file_appends local 4

prints both in MB, for 4 GB of JSON lines into a local disk, or with `s3` into moto's server.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import truediv
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import distlog
from benchmarks.s3_server import S3Server
from benchmarks.spark_processes import cpu_seconds, memory_peaks
from distlog.core.files.file_reader import FileReader
from distlog.core.files.input_files import ReadOptions
from distlog.core.storage.storage import InputStorage
from distlog.spark import append, session
from distlog.spark.appends import append_files
from distlog.spark.sink import WriteOptions

LINES, ROWS, FILES, FILE_LINES, WRITES, SMALL = 2_500_000, 5_000_000, 10_000, 6, 20, 1000
ROUNDS = 3
PARTITIONS = 16
_CHUNK = 100_000
SETTINGS = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
TO_PARQUET = "Spark's read.json, write.parquet"
UNITS = ("s", "CPU s")
#: (ours, peer, case, name of the peer, the place of the unit)
CASES = (
    ("job jsonl", "command jsonl", f"{LINES:,} JSON lines by the job", "distlog append", 0),
    ("job jsonl", "spark jsonl", f"{LINES:,} JSON lines by the job", TO_PARQUET, 0),
    ("command jsonl", "spark jsonl", f"{LINES:,} JSON lines by the command", TO_PARQUET, 0),
    ("job parquet", "pyarrow", f"{ROWS:,} rows of Parquet by the job", "pyarrow and append", 0),
    ("job parquet", "pyarrow", f"{ROWS:,} rows of Parquet by the job", "pyarrow and append", 1),
    ("job files", "command files", f"{FILES:,} files of 1 KB by the job", "distlog append", 0),
    ("small appends", "small writes", f"{WRITES} appends of {SMALL:,} rows", "Spark's append to Parquet", 0),
)


def run() -> list[dict[str, Any]]:
    """Measure each case and its peer in turn; one dict per pair."""
    folder = Path(tempfile.mkdtemp(prefix="distlog-benchmark-"))
    try:
        write_inputs(folder)
        seconds = _rounds(folder, _actions(session("benchmark", **SETTINGS), folder))
        memory = {work: [_printed(work, "1") for _ in range(ROUNDS)] for work in ("local", "s3")}
        first = [
            _printed("append", str(folder / f"first-{number}")) + _printed("task", str(folder))
            for number in range(ROUNDS)
        ]
    finally:
        shutil.rmtree(folder)
    rows = [
        _row(case, peer_name, *([round_[part] for round_ in seconds[name]] for name in (ours, peer)), UNITS[part])
        for ours, peer, case, peer_name, part in CASES
    ]
    ours, theirs = ([pair[part] for pair in first] for part in (0, 1))
    rows.append(_row(f"first append of a session, {SMALL:,} rows", "a first task of Python", ours, theirs, "s"))
    for work, measured in memory.items():
        resident, private = ([pair[part] for pair in measured] for part in (0, 1))
        rows.append(
            _row(f"memory of a worker of the job, 1 GB, {work}", "its private memory", resident, private, "MB")
        )
    return rows


def _row(case: str, peer: str, ours: Sequence[float], theirs: Sequence[float], unit: str) -> dict[str, Any]:
    return {
        "benchmark": "file_appends",
        "case": case,
        "distlog": statistics.median(ours),
        "peer": statistics.median(theirs),
        "peer_name": peer,
        "unit": unit,
        "ratio": statistics.median(map(truediv, theirs, ours)),
    }


def write_inputs(folder: Path) -> None:
    """The files of all cases."""
    with (folder / "lines.jsonl").open("w") as file:
        for first in range(0, LINES, _CHUNK):
            file.writelines(_lines(range(first, min(first + _CHUNK, LINES))))
    (folder / "files").mkdir()
    for number in range(FILES):
        text = "".join(_lines(range(number * FILE_LINES, (number + 1) * FILE_LINES)))
        (folder / "files" / f"{number:05}.jsonl").write_text(text)
    schema = pa.schema([("key", pa.binary()), ("value", pa.binary()), ("timestamp", pa.timestamp("ms", "UTC"))])
    with pq.ParquetWriter(folder / "rows.parquet", schema) as writer:
        for first in range(0, ROWS, _CHUNK):
            numbers = range(first, min(first + _CHUNK, ROWS))
            keys = [b"user-%d" % _user(number) for number in numbers]
            values = [
                b"value of event number %012d with payload %016x" % (number, number * 7919) for number in numbers
            ]
            times = pa.array([1_700_000_000_000 + number for number in numbers], pa.timestamp("ms", "UTC"))
            writer.write_table(pa.table([pa.array(keys), pa.array(values), times], schema=schema))


def _user(number: int) -> int:
    return number * 2_654_435_761 % 1_000_003


def _lines(numbers: range) -> Iterator[str]:
    for number in numbers:
        mixed = number * 2_654_435_761 % 2**32
        yield (
            f'{{"id":{number},"user":"user-{_user(number)}","at":{1_700_000_000_000 + number},'
            f'"action":"{("view", "click", "buy")[number % 3]}","amount":{mixed % 1000}.{mixed % 90 + 10},'
            f'"session":"{mixed:08x}-{mixed * 7 % 2**32:08x}","tags":["a{number % 7}","b{number % 11}"],'
            f'"note":"some text of this event {number * 37}"}}\n'
        )


def _actions(spark: SparkSession, folder: Path) -> dict[str, Callable[[], object]]:
    generated, lines, files, rows = (str(folder / name) for name in ("made", "lines.jsonl", "files", "rows.parquet"))
    small = spark.range(SMALL).selectExpr("cast(id as string) key", "concat('value of ', id) value")

    def topic() -> distlog.Topic:
        return distlog.create(generated, PARTITIONS, config={"retention.ms": -1})

    def job(path: str, **options: str) -> None:
        reader, target = FileReader(ReadOptions(**options), InputStorage()), topic()  # type: ignore[arg-type]
        append_files(spark, target, reader, reader.files([path]), WriteOptions(target.storage))

    def command(path: str) -> None:
        options = ("--key", "user", "--timestamp", "at")
        run = [sys.executable, "-m", "distlog", "append", topic().url, path, *options]
        subprocess.run(run, check=True, stdout=subprocess.DEVNULL)

    def small_appends() -> None:
        topic()
        for _ in range(WRITES):
            append(small, generated)

    def small_writes() -> None:
        for _ in range(WRITES):
            small.write.mode("append").parquet(generated)

    return {
        "job jsonl": lambda: job(lines, key="user", timestamp="at"),
        "command jsonl": lambda: command(lines),
        "spark jsonl": lambda: spark.read.json(lines).write.parquet(generated),
        "job parquet": lambda: job(rows, key="key", value="value", timestamp="timestamp"),
        "pyarrow": lambda: topic().append(pq.read_table(rows)),
        "job files": lambda: job(files, key="user", timestamp="at"),
        "command files": lambda: command(files),
        "small appends": small_appends,
        "small writes": small_writes,
    }


def _rounds(folder: Path, actions: Mapping[str, Callable[[], object]]) -> dict[str, list[tuple[float, float]]]:
    """The seconds of each on the clock and of CPU, in turn; a first round warms up."""
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in actions}
    for _ in range(1 + ROUNDS):
        for name, action in actions.items():
            shutil.rmtree(folder / "made", ignore_errors=True)
            started, cpu_before_s = time.perf_counter(), cpu_seconds()
            action()
            seconds[name].append((time.perf_counter() - started, cpu_seconds() - cpu_before_s))
    return {name: measured[1:] for name, measured in seconds.items()}


def _printed(work: str, argument: str) -> tuple[float, ...]:
    """The numbers that `main` prints in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.file_appends", work, argument]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return tuple(map(float, output.splitlines()[-1].split()))


def main(work: str, argument: str) -> None:
    """Print the seconds of the first append or task of a session, or the memory of a worker (`local`, `s3`)."""
    if work in ("local", "s3"):
        print(*memory_of_workers(int(argument) << 30, in_bucket=work == "s3").values())
        return
    spark = session("benchmark", **SETTINGS)
    if work == "append":
        distlog.create(argument, PARTITIONS)
    started = time.perf_counter()
    if work == "append":
        append(spark.range(SMALL).selectExpr("cast(id as string) value"), argument)
    else:
        rows = spark.range(SMALL)
        rows.mapInArrow(lambda batches: batches, rows.schema).collect()
    print(time.perf_counter() - started)


def memory_of_workers(size: int, *, in_bucket: bool) -> dict[str, float]:
    """The memory of a worker of Python in an append of `size` bytes of JSON lines, as `memory_peaks` returns it."""
    spark, reader = (
        session("benchmark", **SETTINGS),
        FileReader(ReadOptions(key="user", timestamp="at"), InputStorage()),
    )
    with TemporaryDirectory(prefix="distlog-benchmark-") as folder, S3Server() as server:
        with Path(folder, "lines.jsonl").open("w") as file:
            first = 0
            while file.tell() < size:
                file.writelines(_lines(range(first, first + _CHUNK)))
                first += _CHUNK
        url, options = (f"{server.url}/topic", server.options) if in_bucket else (f"{folder}/topic", None)
        topic = distlog.create(url, PARTITIONS, config={"retention.ms": -1}, storage_options=options)
        with memory_peaks("pyspark.worker") as peaks:
            append_files(spark, topic, reader, reader.files([f"{folder}/lines.jsonl"]), WriteOptions(topic.storage))
    return peaks


if __name__ == "__main__":
    main(*sys.argv[1:])
