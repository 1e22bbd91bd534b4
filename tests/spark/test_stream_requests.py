"""The number of requests of a micro-batch and a read does not grow with the number of commits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from addresses import S3Server
from fault_proxy import FaultProxy, Request
from pyspark.sql import SparkSession
from pyspark.sql.datasource import CaseInsensitiveDict
from sink_queries import Query, values

import distlog
from distlog.core.commits.commit_log import CommitLog
from distlog.spark import sink
from distlog.spark.batch_source import KNOWN_TOPICS, schema_of
from distlog.spark.stream_plan import REMOTE_REFRESH_S, DistlogStreamReader, StreamOptions

pytestmark = pytest.mark.spark

CHECKPOINT_COMMITS = 10


class Counted:
    """A stream into a topic on a counting proxy; the planner and the committing process share no state."""

    def __init__(self, url: str, options: dict[str, Any], proxy: FaultProxy, change: Callable[..., None]) -> None:
        self.url, self.options, self.proxy, self._change = url, options, proxy, change
        self.query = Query(url, mergeSegments="false", **self.storage)
        self.restart_processes()

    @property
    def storage(self) -> dict[str, str]:
        return {f"storage.{name}": str(value) for name, value in self.options.items()}

    def restart_processes(self) -> None:
        self._planner: dict[bytes, Any] = {}
        self._committer: dict[bytes, Any] = {}

    def batch(self, number: int) -> tuple[int, int]:
        """Write a micro-batch of one segment; return its GETs and its PUTs."""
        self.proxy.reset()
        self._change(KNOWN_TOPICS, "_loaded", self._planner)
        messages = self.query.write(number, ["a"])
        self._change(KNOWN_TOPICS, "_loaded", self._committer)
        self.query.commit(number, messages)
        return self.proxy.count("GET"), self.proxy.count("PUT")


@pytest.fixture
def counted(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Counted]:
    address = s3_server.address()
    monkeypatch.setitem(CommitLog.__init__.__kwdefaults__, "checkpoint_commits", CHECKPOINT_COMMITS)
    monkeypatch.setattr(sink, "RECENT_MS", 3_600_000)
    distlog.create(address.url, storage_options=address.options)
    with FaultProxy(s3_server.endpoint) as proxy:
        options = {**address.options, "endpoint_url": proxy.url}
        yield Counted(address.url, options, proxy, monkeypatch.setattr)


def test_the_requests_of_a_micro_batch_do_not_grow_with_the_number_of_commits(counted: Counted) -> None:
    batches = [counted.batch(number) for number in range(25)]
    # the planner reads the new commit, and the committing process reads nothing
    gets, puts = 1, 3
    expected = [(gets, puts + 2 * ((number + 1) % CHECKPOINT_COMMITS == 0)) for number in range(25)]
    assert batches[1:] == expected[1:]


def test_a_late_micro_batch_checks_for_later_commits(counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink, "RECENT_MS", 0)
    assert [counted.batch(number) for number in range(5)][1:] == [(2, 3)] * 4


def test_foreign_commits_are_read_once_by_each_process(counted: Counted) -> None:
    other = distlog.open(counted.url, storage_options=counted.options)
    for number in range(2):
        counted.batch(number)
    other.refresh().append([{"value": "x"}])
    # recent commits are planned one at a time; the put finds a foreign one, and then searches for more
    assert [counted.batch(number) for number in range(2, 5)] == [(1 + 2, 4), (1, 3), (1, 3)]
    assert values(other) == ["a", "a", "x", "a", "a", "a"]


def test_a_micro_batch_from_topic_to_topic_takes_seven_requests(s3_server: S3Server, counted: Counted) -> None:
    address = s3_server.address()
    source = distlog.create(address.url, storage_options=address.options)
    settings = {"path": address.url, "startingOffsets": "earliest", **counted.storage}
    options, clock = StreamOptions.parse(CaseInsensitiveDict(settings)), count(0, REMOTE_REFRESH_S)
    reader = DistlogStreamReader(options, schema_of(["value"], include_headers=False), lambda: next(clock))
    start, counts = reader.initialOffset(), []
    for number in range(10):
        source.append([{"value": f"{number}"}])
        counted.proxy.reset()
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        (split,) = reader.partitions(start, end)
        assert [row for batch in reader.read(split) for row in batch["value"].to_pylist()] == [b"%d" % number]
        start, reads = end, counted.proxy.count("GET")
        counts.append(reads + sum(counted.batch(number)))
    assert counts[2:] == [2 + 1 + 1 + 3] * 7 + [7 + 2], "the last one is followed by a checkpoint and its hint"


def test_restarted_processes_read_only_what_follows_the_last_checkpoint(counted: Counted) -> None:
    counts = {}
    for number in range(25):
        if number % CHECKPOINT_COMMITS == 4:
            counted.restart_processes()
        counts[number] = counted.batch(number)
    assert counts[4] != (0, 0)
    assert counts[14] == counts[24]


def test_a_query_of_spark_takes_as_many_requests_for_each_micro_batch(
    spark: SparkSession, counted: Counted, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    for number in range(6):
        (tmp_path / "in" / f"{number}.txt").write_text("a")
    stream = spark.readStream.format("text").option("maxFilesPerTrigger", "1").load(str(tmp_path / "in"))
    query = stream.writeStream.format("distlog").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = query.options(mergeSegments="false", **counted.storage).trigger(availableNow=True)
    counted.proxy.reset()
    query.start(counted.url).awaitTermination()
    # the planner reads the last commit, and checks for a later one after a second;
    # Spark alternates between idle workers of earlier queries, and each reads the commits since its last task
    counts = reads_of_metadata(counted.proxy.requests)[2:]
    assert len(counts) == 4
    assert max(counts) <= 4


def reads_of_metadata(requests: list[Request]) -> list[int]:
    """Return the GETs of commits, checkpoints and hints before each put of a commit."""
    groups, reads = [], 0
    for request in requests:
        is_commit = "/_commits/" in request.path
        reads += is_commit and request.method == "GET"
        if is_commit and request.method == "PUT" and request.path.endswith(".json"):
            groups.append(reads)
            reads = 0
    return groups
