"""The streaming source for users: spark.readStream.format("distlog")."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from addresses import Address
from live_writer import LiveWriter, expected
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery
from spark_python import forked_python
from topics import NOW, values

import distlog
from distlog import Topic
from distlog.core.errors import ReadOnlyTopicError, TopicNotFoundError
from distlog.jobs.job import reason
from distlog.spark import stream

pytestmark = pytest.mark.spark


class Batches:
    """A sink that keeps the rows of each micro-batch; `fails_in` is a batch that fails."""

    def __init__(self) -> None:
        self.rows: dict[int, list[Any]] = {}
        self.fails_in: int | None = None

    def __call__(self, frame: DataFrame, number: int) -> None:
        self.rows[number] = frame.collect()
        if number == self.fails_in:
            raise RuntimeError("the sink fails on purpose")

    def offsets(self, number: int) -> dict[int, list[int]]:
        offsets_read: dict[int, list[int]] = {}
        for row in self.rows[number]:
            offsets_read.setdefault(row.partition, []).append(row.offset)
        return offsets_read


@pytest.fixture
def topic(tmp_path: Path) -> Topic:
    new_topic = distlog.create(str(tmp_path / "clicks"), 2)
    for partition in range(2):
        new_topic.append(values(range(5)), partition=partition)
    return new_topic


@pytest.fixture
def batches() -> Batches:
    return Batches()


Write = Callable[..., DataStreamWriter]


@pytest.fixture
def write(spark: SparkSession, tmp_path: Path, batches: Batches) -> Iterator[Write]:
    """Builds a query from a topic to `batches`, not started, with the test's own checkpoint."""

    def stream_writer(url: str | DataFrame, schema: str | None = None, **options: Any) -> DataStreamWriter:
        reader = spark.readStream.format("distlog").options(**options)
        frame = (reader.schema(schema) if schema else reader).load(url) if isinstance(url, str) else url
        return frame.writeStream.foreachBatch(batches).option("checkpointLocation", str(tmp_path / "checkpoint"))

    yield stream_writer
    for query in spark.streams.active:
        query.stop()


def finish(writer: DataStreamWriter, **trigger: Any) -> StreamingQuery:
    query = writer.trigger(**(trigger or {"availableNow": True})).start()
    assert query.awaitTermination(600)
    return query


def failure(writer: DataStreamWriter) -> str:
    with pytest.raises(Exception) as raised:  # noqa: PT011 - Spark has a type of its own for each process
        finish(writer)
    return str(raised.value)


def test_available_now_reads_in_batches_and_continues_its_checkpoint(
    topic: Topic, write: Write, batches: Batches
) -> None:
    source = write(topic.url, startingOffsets="earliest", maxOffsetsPerTrigger=6)
    query = finish(source)
    assert [batches.offsets(number) for number in sorted(batches.rows)] == [
        {0: [0, 1, 2], 1: [0, 1, 2]},
        {0: [3, 4], 1: [3, 4]},
    ]
    (read,) = query.recentProgress[-1]["sources"]
    topic_id, ends = topic.snapshot.topic_id, {"clicks": {"0": 5, "1": 5}}
    end, nothing = {"version": 1, "topicId": topic_id, "offsets": ends}, {"clicks": {}}
    assert json.loads(read["endOffset"]) == end
    metrics = {**end, "offsetsBehindLatest": nothing, "bytesBehindLatest": nothing}
    assert json.loads(read["latestOffset"]) == metrics
    assert sum(progress["numInputRows"] for progress in query.recentProgress) == 10
    topic.append(values(range(2)), partition=1)
    finish(source)
    assert batches.offsets(2) == {1: [5, 6]}


def test_the_function_stream_has_the_arguments_of_read(
    spark: SparkSession, topic: Topic, write: Write, batches: Batches
) -> None:
    frame = stream(spark, topic, ["partition", "offset"], {0: 2}, max_offsets=4, min_partitions=2)
    assert frame.columns == ["partition", "offset"]
    source = write(frame)
    finish(source)
    assert [batches.offsets(number) for number in sorted(batches.rows)] == [
        {0: [2, 3], 1: [0, 1]},
        {0: [4], 1: [2, 3, 4]},
    ]
    topic.append(values(range(2)), partition=1)
    finish(source)
    assert batches.offsets(2) == {1: [5, 6]}


def test_a_stream_of_the_function_is_checked_before_it_starts(spark: SparkSession, topic: Topic) -> None:
    with pytest.raises(ReadOnlyTopicError):
        stream(spark, distlog.open(topic.url, version=1))
    with pytest.raises(TopicNotFoundError, match="partition=2"):
        stream(spark, topic.url, start={2: 0})


def test_a_checkpoint_of_sparks_kafka_source_is_continued(
    topic: Topic, write: Write, batches: Batches, tmp_path: Path
) -> None:
    source = write(topic.url, startingOffsets="earliest")
    finish(source)
    offsets = tmp_path / "checkpoint" / "offsets"
    version, conf, _ = (offsets / "0").read_text().splitlines()
    (offsets / ".0.crc").unlink()
    (offsets / "0").write_text(f'{version}\n{conf}\n{{"clicks":{{"1":3,"0":4}}}}')
    finish(source)
    assert batches.offsets(1) == {0: [4], 1: [3, 4]}
    topic.append(values(range(2)), partition=1)
    finish(source)
    assert batches.offsets(2) == {1: [5, 6]}


def test_rows_have_the_shape_of_the_kafka_source(topic: Topic, write: Write, batches: Batches) -> None:
    topic.append([{"key": b"k", "value": b"v", "timestamp": NOW, "headers": [("h", b"1")], "partition": 0}])
    start = json.dumps({"clicks": {"0": 5, "1": -1}})
    finish(write(topic.url, startingOffsets=start, includeHeaders="true"))
    (row,) = batches.rows[0]
    assert " ".join(row.asDict()) == "key value topic partition offset timestamp timestampType headers"
    assert (bytes(row.key), bytes(row.value), row.topic, row.partition, row.offset) == (b"k", b"v", "clicks", 0, 5)
    assert (row.timestamp.timestamp() * 1000, row.timestampType) == (NOW, 0)
    assert [(header.key, bytes(header.value)) for header in row.headers] == [("h", b"1")]


def test_a_schema_or_columns_narrow_a_stream(topic: Topic, write: Write, batches: Batches, tmp_path: Path) -> None:
    finish(write(topic.url, schema="offset long", startingOffsets="earliest"))
    assert batches.rows[0][0].asDict() == {"offset": 0}
    again = write(topic.url, columns="partition,value", startingOffsets="earliest")
    finish(again.option("checkpointLocation", str(tmp_path / "another")))
    assert batches.rows[0][0].asDict() == {"partition": 0, "value": bytearray(b"v0")}


def test_a_running_stream_reads_direct_appends(
    tmp_path: Path, spark: SparkSession, batches: Batches, write: Write
) -> None:
    topic = distlog.create(str(tmp_path / "clicks"), 3, {"internal.segment.bytes": "20000"})
    query = write(topic.url, startingOffsets="earliest", maxOffsetsPerTrigger=400).start()
    writer = LiveWriter(topic.url, 0, 1000)
    try:
        for count in (300, 700, 1000):
            writer.wait_for(count)
            query.processAllAvailable()
            assert sum(map(len, batches.rows.values())) >= count
    finally:
        writer.kill()
    query.stop()
    rows = [row for number in sorted(batches.rows) for row in batches.rows[number]]
    offsets: dict[int, list[int]] = {number: [] for number in range(3)}
    for row in rows:
        assert row.offset == len(offsets[row.partition])
        offsets[row.partition].append(int(row.value))
    assert {number: sorted(read) for number, read in offsets.items()} == expected(3, 1000)


def test_a_processing_time_trigger_reads_new_records(topic: Topic, write: Write, batches: Batches) -> None:
    query = write(topic.url).trigger(processingTime="100 milliseconds").start()
    query.processAllAvailable()
    for number in range(2):
        topic.append(values(range(1)), partition=number)
        query.processAllAvailable()
    assert [row.offset for records in batches.rows.values() for row in records] == [5, 5]


@pytest.mark.s3
def test_an_object_store_is_streamed_through_storage_options(write: Write, batches: Batches, s3_url: Address) -> None:
    topic = distlog.create(s3_url.url, 2, storage_options=s3_url.options)
    topic.append(values(range(5)), partition=0)
    options = {f"storage.{name}": value for name, value in s3_url.options.items()}
    source = write(topic.url, startingOffsets="earliest", maxBytesPerTrigger=1, **options)
    finish(source)
    topic.append(values(range(2)), partition=1)
    topic.append(values(range(2)), partition=1)
    finish(source)
    assert [batches.offsets(number) for number in sorted(batches.rows)] == [
        {0: [0, 1, 2, 3, 4]},
        {1: [0, 1]},
        {1: [2, 3]},
    ]


def test_wrong_options_are_explained_when_the_query_starts(topic: Topic, write: Write) -> None:
    assert "option endingOffsets is for batch reads" in failure(write(topic.url, endingOffsets="latest"))
    assert "a stream follows the newest version" in failure(write(topic.url, versionAsOf="1"))
    assert "column offset must be bigint, not int" in failure(write(topic.url, schema="offset int"))
    last = reason(Exception(failure(write(topic.url, maxOffsetsPerTrigger="0"))))
    assert last.startswith("InvalidConfigError: option maxOffsetsPerTrigger must be a whole number, at least 1")


def test_a_batch_read_ignores_the_options_of_streams(topic: Topic, spark: SparkSession) -> None:
    options = {"maxOffsetsPerTrigger": 1, "minOffsetsPerTrigger": 1, "maxTriggerDelay": "1m", "maxBytesPerTrigger": 1}
    assert spark.read.format("distlog").options(**options).load(topic.url).count() == 10


KILLED_IN = 1
PROGRAM = """
import os, signal, sys
from pyspark.sql import SparkSession

url, folder, killed_in = sys.argv[1], sys.argv[2], int(sys.argv[3])
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()

def write(frame, number):
    frame.select("partition", "offset").write.mode("overwrite").parquet(f"{folder}/rows/batch={number}")
    if number == killed_in:
        os.kill(spark.sparkContext._gateway.proc.pid, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

stream = spark.readStream.format("distlog").option("maxOffsetsPerTrigger", 4).option("startingOffsets", "earliest")
query = stream.load(url).writeStream.foreachBatch(write).option("checkpointLocation", f"{folder}/checkpoint")
query.trigger(availableNow=True).start().awaitTermination()
"""


def test_a_killed_driver_continues_with_its_batch(
    topic: Topic, tmp_path: Path, spark: SparkSession, write: Write, batches: Batches
) -> None:
    absent = tmp_path / "absent" / "pandas"
    absent.mkdir(parents=True)
    (absent / "__init__.py").write_text("raise ModuleNotFoundError('no pandas', name='pandas')")
    folders = [str(absent.parent), str(Path(distlog.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(folders), **forked_python(str(absent.parent))}
    command = [sys.executable, "-c", PROGRAM, topic.url, str(tmp_path), str(KILLED_IN)]
    killed = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    rows = spark.read.parquet(str(tmp_path / "rows")).orderBy("batch", "partition", "offset").collect()
    assert [(row.batch, row.partition, row.offset) for row in rows] == [
        *[(0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1)],
        *[(1, 0, 2), (1, 0, 3), (1, 1, 2), (1, 1, 3)],
    ]
    for partition in range(2):
        topic.append(values(range(4)), partition=partition)
    finish(write(topic.url, startingOffsets="latest", maxOffsetsPerTrigger=6))
    assert min(batches.rows) == KILLED_IN
    assert batches.offsets(KILLED_IN) == {0: [2, 3], 1: [2, 3]}
    read = {
        number: [n for batch in sorted(batches.rows) for n in batches.offsets(batch).get(number, [])]
        for number in (0, 1)
    }
    assert read == {0: list(range(2, 9)), 1: list(range(2, 9))}
