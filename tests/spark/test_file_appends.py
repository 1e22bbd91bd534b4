"""The append job on files: their order over many tasks, tasks that fail, bad lines, and inputs on an object store."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from addresses import Address
from job_runs import job as job
from job_runs import lines_file, ms, records
from pyspark import TaskContext
from pyspark.sql import SparkSession

import distlog
from distlog.core.errors import StorageError
from distlog.core.files.file_reader import FileReader
from distlog.core.files.input_files import ReadOptions
from distlog.core.storage.storage import InputStorage, Storage
from distlog.spark.appends import append_files
from distlog.spark.sink import WriteOptions

pytestmark = pytest.mark.spark

KEYS = 40
#: Files of growing, and then of shrinking sizes; the large one has several splits, and the others share tasks.
SIZES = [*range(1, 80), 60_000, *range(80, 1, -1)]


@pytest.fixture
def topic(url: str) -> distlog.Topic:
    return distlog.create(url, partitions=2, config={"retention.ms": -1})


def write_rows(path: Path, kind: str, numbers: range) -> None:
    """Write a file with a row per number: its key, and its number with some text."""
    rows = [(f"k{number % KEYS}", f"{number:09d}{'-' * 150}") for number in numbers]
    if kind == "parquet":
        table = pa.table({"key": [key for key, _ in rows], "value": [value for _, value in rows]})
        pq.write_table(table, path, row_group_size=5000, compression="none", use_dictionary=False)
    elif kind == "csv":
        with path.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([("key", "value"), *rows])
    elif kind == "jsonl":
        path.write_text("".join(json.dumps({"key": key, "value": value}) + "\n" for key, value in rows))
    else:
        path.write_text("".join(f"{key} {value}\n" for key, value in rows))


def write_files(folder: Path, kind: str) -> int:
    """Write files by day, and return the number of rows."""
    folder.mkdir()
    first = 0
    for day, size in enumerate(SIZES):
        write_rows(folder / f"day-{day:03d}.{kind}", kind, range(first, first + size))
        first += size
    return first


def numbers(topic: distlog.Topic, partition: int) -> list[int]:
    return [int(value[:9]) for value in topic.refresh().scan(partitions=partition).to_table()["value"].to_pylist()]


@pytest.mark.parametrize("kind", ["text", "jsonl", "csv", "parquet"])
def test_records_of_many_tasks_keep_the_order_of_files_and_lines(
    spark: SparkSession, topic: distlog.Topic, tmp_path: Path, kind: str
) -> None:
    count = write_files(tmp_path / "in", kind)
    fields: dict[str, Any] = {"key_separator": " "} if kind == "text" else {"key": "key", "value": "value"}
    reader = FileReader(ReadOptions(**fields), InputStorage())
    result = append_files(spark, topic, reader, reader.files([str(tmp_path / "in")]), WriteOptions(topic.storage))
    assert (result.appended.version, result.appended.record_count) == (1, count)
    numbers_read = [numbers(topic, partition) for partition in (0, 1)]
    assert [sorted(part) for part in numbers_read] == numbers_read
    assert topic.segments().num_rows >= 6


def test_inputs_keep_their_order(job: Any, url: str, tmp_path: Path) -> None:
    names = [lines_file(tmp_path, f"{name}.txt", [name]) for name in "abc"]
    arguments = [part for name in (names[2], names[0], names[1]) for part in ("--input", name)]
    assert job("append", *arguments, "--topic", url, "--create").status == 0
    assert [value for _, value, _ in records(url)] == [b"c", b"a", b"b"]


def test_a_retried_task_appends_its_records_once_in_order(
    spark: SparkSession, topic: distlog.Topic, tmp_path: Path
) -> None:
    # a class in a function is pickled to tasks with its code
    class FailingOnce(InputStorage):
        def __reduce__(self) -> tuple[Any, ...]:
            return FailingOnce, ()

        def chunks(self, url: str, start: int, end: int) -> Iterator[bytes]:
            yield from InputStorage.chunks(self, url, start, end)
            context = TaskContext.get()
            if context and (context.attemptNumber(), context.partitionId()) == (0, 1):
                (tmp_path / "failed").touch()
                raise StorageError("the server stopped")

    write_rows(tmp_path / "in.txt", "text", range(120_000))
    reader = FileReader(ReadOptions(key_separator=" "), FailingOnce())
    append_files(spark, topic, reader, reader.files([str(tmp_path / "in.txt")]), WriteOptions(topic.storage))
    numbers_read = [numbers(topic, partition) for partition in (0, 1)]
    assert [sorted(part) for part in numbers_read] == numbers_read
    assert sum(map(len, numbers_read)) == 120_000
    assert (tmp_path / "failed").exists()


def test_a_task_takes_memory_that_returns_to_the_system_and_the_driver_does_not(
    spark: SparkSession, topic: distlog.Topic, tmp_path: Path
) -> None:
    class Noting(InputStorage):
        def __reduce__(self) -> tuple[Any, ...]:
            return Noting, ()

        def chunks(self, url: str, start: int, end: int) -> Iterator[bytes]:
            name = "task" if TaskContext.get() else "driver"
            (tmp_path / name).write_text(pa.default_memory_pool().backend_name)
            yield from InputStorage.chunks(self, url, start, end)

    usual = pa.default_memory_pool().backend_name
    reader = FileReader(ReadOptions(key_separator=" "), Noting())
    for name, count in (("small", 10_000), ("large", 60_000)):
        write_rows(tmp_path / f"{name}.txt", "text", range(count))
        append_files(spark, topic, reader, reader.files([str(tmp_path / f"{name}.txt")]), WriteOptions(topic.storage))
    assert [(tmp_path / name).read_text() for name in ("task", "driver")] == ["jemalloc", usual]


def test_the_private_memory_of_a_task_does_not_grow_with_its_input(
    spark: SparkSession, topic: distlog.Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Noting(InputStorage):
        def __reduce__(self) -> tuple[Any, ...]:
            return Noting, ()

        def chunks(self, url: str, start: int, end: int) -> Iterator[bytes]:
            for chunk in InputStorage.chunks(self, url, start, end):
                if TaskContext.get():
                    status = Path("/proc/self/status").read_text()
                    private_kib = status.partition("RssAnon:")[2].split()[0]
                    with (tmp_path / "private").open("a") as file:
                        file.write(f"{private_kib}\n")
                yield chunk

    monkeypatch.setattr("distlog.spark.appends.MIN_TASK_BYTES", 256 << 20)
    write_rows(tmp_path / "in.txt", "text", range(10_000))
    text = (tmp_path / "in.txt").read_bytes()
    (tmp_path / "in.txt").write_bytes(text * 100)
    reader = FileReader(ReadOptions(key_separator=" "), Noting())
    append_files(spark, topic, reader, reader.files([str(tmp_path / "in.txt")]), WriteOptions(topic.storage))
    private_kib = [int(line) for line in (tmp_path / "private").read_text().split()]
    quarter = len(private_kib) // 4
    assert quarter > 4
    # the last three quarters of the input have 120 MB
    assert max(private_kib) - max(private_kib[:quarter]) < 60_000


@pytest.mark.parametrize(("held", "expected"), [(32 << 20, [True, True]), (1 << 19, [False, False])])
def test_a_task_writes_files_for_partitions_beyond_its_memory(
    spark: SparkSession,
    topic: distlog.Topic,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    held: int,
    expected: Any,
) -> None:
    monkeypatch.setattr("distlog.spark.appends.HELD_BYTES", held)
    write_rows(tmp_path / "in.txt", "text", range(23_000))
    reader = FileReader(ReadOptions(key_separator=" "), InputStorage())
    append_files(spark, topic, reader, reader.files([str(tmp_path / "in.txt")]), WriteOptions(topic.storage))
    segments = [segment for state in topic.refresh().snapshot.partitions for segment in state.segments]
    assert [segment.is_bundled for segment in segments] == expected
    assert sum(len(numbers(topic, partition)) for partition in (0, 1)) == 23_000


def test_rows_of_csv_with_line_ends_in_fields_are_whole_over_many_tasks(
    spark: SparkSession, topic: distlog.Topic, tmp_path: Path
) -> None:
    with (tmp_path / "in.csv").open("w", newline="") as file:
        rows = ((f"k{number % KEYS}", f"{number:09d}\n" + "x,\n" * 100) for number in range(40_000))
        csv.writer(file).writerows([("key", "value"), *rows])
    reader = FileReader(ReadOptions(key="key", value="value"), InputStorage())
    append_files(spark, topic, reader, reader.files([str(tmp_path / "in.csv")]), WriteOptions(topic.storage))
    numbers_read = [numbers(topic, partition) for partition in (0, 1)]
    assert [sorted(part) for part in numbers_read] == numbers_read
    assert sum(map(len, numbers_read)) == 40_000


def test_a_bad_line_in_a_task_names_file_and_line_and_nothing_is_appended(job: Any, url: str, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(150):
        lines_file(folder, f"{number:03d}.jsonl", ['{"k": 1}', '{"k": 2}' if number != 140 else "{no"])
    ran = job("append", "--input", folder, "--topic", url, "--create", "--key", "k", "--json")
    assert ran.status == 1
    error = ran.summary["error"]
    assert (error.startswith("not a record"), ran.err) == (True, f"append.py: {error}\n")
    assert error.endswith(f"(--bad-lines skip leaves bad lines out) (file={folder}/140.jsonl line=2)")
    assert distlog.open(url).version == 0
    ran = job("append", "--input", folder, "--topic", url, "--key", "k", "--json", "--bad-lines", "skip")
    assert (ran.summary["records"], ran.summary["skipped"]) == (299, 1)


def test_times_without_a_zone_are_utc_in_any_session(spark: SparkSession, job: Any, url: str, tmp_path: Path) -> None:
    path = lines_file(tmp_path, "in.jsonl", ['{"at": "2024-02-03T04:05:06"}'])
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        job("append", "--input", path, "--topic", url, "--create", "--timestamp", "at")
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert [time for _, _, time in records(url)] == [ms("2024-02-03T04:05:06")]


def test_the_job_has_the_options_of_the_command(job: Any, url: str, tmp_path: Path) -> None:
    path = lines_file(tmp_path, "in.log", ["a\t1", "b\t2"])
    options = ("--key-separator", r"\t", "--header", "host=web", "--header", "host=db", "--partition", 1)
    assert job("append", "--input", path, "--topic", url, "--create", "--partitions", 2, *options).status == 0
    rows = distlog.open(url).scan(partitions=1).to_table().to_pylist()
    assert [(row["key"], row["value"]) for row in rows] == [(b"a", b"1"), (b"b", b"2")]
    assert rows[0]["headers"] == [{"key": "host", "value": b"web"}, {"key": "host", "value": b"db"}]


def test_files_without_records_are_named(job: Any, url: str, tmp_path: Path) -> None:
    path = lines_file(tmp_path, "in.jsonl", ["", " "])
    ran = job("append", "--input", path, "--topic", url, "--create")
    assert (ran.status, ran.err) == (0, f"append.py: no records in 1 file: {path}\n")


@pytest.mark.s3
def test_s3a_has_the_endpoint_and_the_keys_of_hadoops_settings(
    spark: SparkSession, job: Any, url: str, s3_url: Address
) -> None:
    Storage(f"{s3_url.url}/in", s3_url.options).put("1.txt", b"a\nb\n")
    settings = {
        "endpoint": s3_url.options["endpoint_url"].removeprefix("http://"),
        "connection.ssl.enabled": "false",
        "access.key": s3_url.options["key"],
        "secret.key": s3_url.options["secret"],
    }
    for name, value in settings.items():
        spark.conf.set(f"spark.hadoop.fs.s3a.{name}", value)
    try:
        ran = job("append", "--input", f"s3a{s3_url.url[2:]}/in", "--topic", url, "--create")
    finally:
        for name in settings:
            spark.conf.unset(f"spark.hadoop.fs.s3a.{name}")
    assert (ran.status, ran.err) == (0, "")
    assert [value for _, value, _ in records(url)] == [b"a", b"b"]
