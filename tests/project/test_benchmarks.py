"""Benchmarks: figures of other sources are never shown as measured, and the right calls are measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import distlog
from benchmarks import gateway_requests, partitions
from benchmarks.stream_queries import TopicCopy
from distlog.gateway.config import GatewayConfig


def row(case: str, **more: Any) -> dict[str, Any]:
    numbers = {"distlog": 1.5, "peer": 3.0, "unit": "us", "ratio": 2.0, "peer_name": "a plain write"}
    return {"benchmark": "log", "case": case, **numbers, **more}


@pytest.mark.long
def test_an_append_to_more_partitions_takes_no_more_requests_and_no_more_bytes_for_each() -> None:
    rows = partitions.run((300, 1200))
    by_case = {row["case"]: row["distlog"] for row in rows}
    sizes = [by_case[f"bytes of a commit for a part, {count:,} partitions"] for count in (300, 1200)]
    assert 20 > sizes[0] > sizes[1] > 10
    assert {by_case[f"requests of an append, {count:,} partitions"] for count in (300, 1200)} == {3}


@pytest.mark.long
def test_the_requests_of_a_gateways_group_commit_are_counted() -> None:
    requests = gateway_requests.fed(1, 1, GatewayConfig(linger_bytes=200_000))
    assert requests.puts > 0


@pytest.mark.spark
def test_a_latency_ends_with_new_records_and_not_with_a_merge(spark: SparkSession, tmp_path: Path) -> None:
    copy = TopicCopy(spark, str(tmp_path), str(tmp_path / "checkpoints"), partitions=1)
    copy.start(available_now=True).awaitTermination()
    target = distlog.open(copy.target)
    for _ in range(2):
        target.append([{"value": b"v"}])
    old_requests = copy.read_count()
    assert target.refresh().compact().version > 2
    assert copy.read_count() == old_requests
    target.refresh().append([{"value": b"v"}])
    assert copy.read_count() > old_requests
