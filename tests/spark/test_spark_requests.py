"""How often a Spark write loads the metadata of its topic: each load starts with a read of the checkpoint hint."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from addresses import S3Server
from fault_proxy import FaultProxy
from pyspark.sql import DataFrame, SparkSession

import distlog
from distlog.jobs.append import append_inputs
from distlog.spark import append

pytestmark = pytest.mark.spark


class Counted(NamedTuple):
    url: str
    options: dict[str, Any]
    proxy: FaultProxy

    def loads(self) -> int:
        return self.proxy.count("GET", "*/_commits/_last_checkpoint")

    def commits_read(self) -> list[str]:
        """Return the numbers of the requested commits in order of arrival."""
        reads = (request.path for request in self.proxy.requests if request.method == "GET")
        return [path.rpartition("/")[2][-6:-5] for path in reads if path.endswith(".json")]


@pytest.fixture
def counted(s3_server: S3Server) -> Iterator[Counted]:
    address = s3_server.address()
    distlog.create(address.url, 2, storage_options=address.options)
    with FaultProxy(s3_server.endpoint) as proxy:
        yield Counted(address.url, {**address.options, "endpoint_url": proxy.url}, proxy)


def rows(spark: SparkSession) -> DataFrame:
    return spark.range(0, 40, 1, 4).selectExpr("cast(id as string) key", "cast(id as string) value")


def test_a_write_loads_the_metadata_once_to_plan_and_once_to_commit(spark: SparkSession, counted: Counted) -> None:
    storage = {f"storage.{name}": value for name, value in counted.options.items()}
    rows(spark).write.format("distlog").mode("append").options(**storage).save(counted.url)
    assert counted.loads() == 2


@pytest.mark.parametrize("shuffle", [False, True])
def test_append_loads_the_metadata_once_and_reads_no_commit(
    spark: SparkSession, counted: Counted, shuffle: bool
) -> None:
    many = spark.range(0, 20_000, 1, 4).selectExpr("cast(id as string) key", "cast(id as string) value")
    result = append(many, counted.url, shuffle=shuffle, storage_options=counted.options)
    assert (result.version, result.record_count) == (1, 20_000)
    assert (counted.loads(), len(counted.commits_read())) == (1, 4)


def test_a_repeated_append_reads_only_the_first_commit(spark: SparkSession, counted: Counted) -> None:
    storage: dict[str, Any] = {"storage_options": counted.options, "app_id": "job", "batch_id": 7}
    first = append(rows(spark), counted.url, **storage)
    counted.proxy.reset()
    again = append(rows(spark), counted.url, **storage)
    assert (again.replayed, again.offsets) == (True, first.offsets)
    assert (counted.loads(), sorted(counted.commits_read())) == (0, ["1", "2"])
    assert counted.proxy.count("PUT") == 0


@pytest.mark.parametrize("create", [False, True])
def test_the_job_that_appends_loads_no_more(
    spark: SparkSession, counted: Counted, tmp_path: Path, create: bool
) -> None:
    (tmp_path / "lines.txt").write_text("a\nb\n")
    unset = ("format", "key", "value", "timestamp", "pattern", "time_format", "key_separator", "partition")
    unset += ("app_id", "batch_id", "compression", "partitions")
    options = argparse.Namespace(
        **dict.fromkeys(unset),
        topic=counted.url,
        storage=list(counted.options.items()),
        input=[str(tmp_path / "lines.txt")],
        bad_lines="fail",
        timestamp_unit="ms",
        create=create,
        config=[],
        header=[],
    )
    assert append_inputs(spark, options).fields["records"] == 2
    assert counted.loads() == 1
