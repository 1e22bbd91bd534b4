"""Reads as Spark plans and does them, but without Spark."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

import pytest
from addresses import Address
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    CaseInsensitiveDict,
)

import distlog
from distlog.core.errors import InvalidConfigError
from distlog.spark.batch_source import schema_of
from distlog.spark.data_source import DistlogDataSource


def filled(url: str) -> str:
    """A topic of three partitions in small segments, with a second between records; its head is version 2."""
    fill(distlog.create(url, partitions=PARTITIONS, config={"internal.segment.bytes": "600", "batch.bytes": "100"}))
    return url


PARTITIONS = 3
TINY_BATCHES = {"batch.bytes": 60, "index.interval.bytes": 0}
#: Records of each partition.
RECORDS = 40


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return filled(str(tmp_path_factory.mktemp("source") / "clicks"))


def at_s(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, timezone.utc)


def fill(topic: distlog.Topic) -> None:
    for half in (range(RECORDS // 2), range(RECORDS // 2, RECORDS)):
        topic.append(
            [
                {"key": b"k%d" % number, "value": b"v%d" % number, "timestamp": 1000 * number, "partition": partition}
                for partition in range(PARTITIONS)
                for number in half
            ]
        )


def source(url: str, **options: Any) -> DistlogDataSource:
    """The data source that Spark creates in a planning process, and sends to the next."""
    data_source = DistlogDataSource(
        options=CaseInsensitiveDict({"path": url, **{k: str(v) for k, v in options.items()}})
    )
    data_source.schema()
    return pickle.loads(pickle.dumps(data_source))  # type: ignore[no-any-return]


def rows(url: str, **options: Any) -> list[list[dict[str, Any]]]:
    """The rows of each task of a read, as Spark would run it but without Spark."""
    planned = source(url, **options)
    reader = planned.reader(schema_of(None, False))
    partitions = reader.partitions()
    in_task = pickle.loads(pickle.dumps((reader, planned)))[0]
    return [[row for batch in in_task.read(part) for row in batch.to_pylist()] for part in partitions]


def offsets(url: str, **options: Any) -> dict[int, list[int]]:
    """The offsets by partition, in the order in which they come; a partition without any is missing."""
    read_offsets: dict[int, list[int]] = {}
    for row in itertools.chain.from_iterable(rows(url, **options)):
        read_offsets.setdefault(row["partition"], []).append(row["offset"])
    return read_offsets


def load(spark: SparkSession, url: str, **options: Any) -> DataFrame:
    return spark.read.format("distlog").options(**options).load(url)


def message(action: Callable[[], Any]) -> str:
    with pytest.raises(Exception) as raised:  # noqa: PT011 - each process of Spark has a type of its own for it
        action()
    return str(raised.value)


def storage_options(address: Address) -> dict[str, str]:
    return {f"storage.{name}": value for name, value in address.options.items()}


def refusal(url: str, **options: Any) -> str:
    with pytest.raises(InvalidConfigError) as raised:
        rows(url, **options)
    return str(raised.value)
