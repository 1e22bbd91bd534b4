"""Requests to an S3 server for the operations of a log, on moto's server or one that the environment names.

The peer is the least number of requests for a log of this design: an append must look once for a newer commit, put
its files (log, offset index when there is more than one entry's worth, time index) and put its commit.
DISTLOG_BENCH_S3_ENDPOINT, _KEY, _SECRET and _BUCKET name another server.
"""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import distlog
from benchmarks.s3_server import S3Server
from benchmarks.topics import table
from distlog.core.topic import Topic


def run(rows: int = 300_000) -> list[dict[str, Any]]:
    """Returns one dict per case: requests of distlog, the least possible number, and kilobytes read."""
    with server() as (url, options), _own_cache():
        topic = distlog.create(f"{url}/log", storage_options=options)
        return list(_cases(topic, rows, options))


def _cases(topic: Topic, rows: int, options: dict[str, Any]) -> Iterator[dict[str, Any]]:
    records = [{"value": b"v", "timestamp": 1}]
    yield _row("append one record", topic, lambda: topic.append(records), 1 + 2 + 1)
    yield _row("append 37 MB, in parts", topic, lambda: topic.append(table(rows, 100)), 1 + 5 + 2 + 1)
    yield _row("refresh, nothing new", topic, topic.refresh, 1)
    yield _row("count all records", topic, lambda: topic.scan().count(), 0)
    yield _row("first point read", topic, lambda: next(topic.records(0, start=rows // 2, limit=1)), 2)
    yield _row("another point read", topic, lambda: next(topic.records(0, start=rows // 3, limit=1)), 1)
    yield _row("scan 37 MB", topic, lambda: topic.scan(start=1).to_table(), 5)
    opened_topic = distlog.open(topic.url, storage_options=options)
    # the hint, a listing, three commits and the one that does not exist
    yield _counted("open, 3 commits", opened_topic.storage.counters, 6)


def _row(case: str, topic: Topic, action: Callable[[], Any], least: int) -> dict[str, Any]:
    counters = topic.storage.counters
    counters.gets = counters.puts = counters.lists = counters.deletes = counters.bytes_read = 0
    action()
    return _counted(case, counters, least)


def _counted(case: str, counters: Any, least: int) -> dict[str, Any]:
    total = counters.gets + counters.puts + counters.lists + counters.deletes
    return {
        "benchmark": "S3 requests",
        "case": f"{case} ({counters.bytes_read / 1000:,.0f} kB read)",
        "distlog": total,
        "peer": least,
        "peer_name": "the least possible",
        "unit": "requests",
        "ratio": round(least / total, 2) if total else 1.0,
    }


@contextmanager
def _own_cache() -> Iterator[None]:
    """Give this run a folder of its own for temporary files, where index files are cached."""
    former_folder = tempfile.tempdir
    with tempfile.TemporaryDirectory() as cache:
        tempfile.tempdir = cache
        try:
            yield
        finally:
            tempfile.tempdir = former_folder


@contextmanager
def server() -> Iterator[tuple[str, dict[str, Any]]]:
    names = [os.environ.get(f"DISTLOG_BENCH_S3_{name}") for name in ("ENDPOINT", "KEY", "SECRET", "BUCKET")]
    if all(names):
        endpoint, key, secret, bucket = names
        yield f"s3://{bucket}/{uuid.uuid4().hex}", {"endpoint_url": endpoint, "key": key, "secret": secret}
        return
    with S3Server() as server:
        yield f"{server.url}/run", server.options
