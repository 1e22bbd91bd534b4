"""A store that ignores the condition of a put is detected by a race, at create and before the first commit."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from careless_bucket import Bucket
from careless_bucket import bucket as bucket
from careless_bucket import new_process as new_process
from fault_proxy import CUT, FOREVER, FaultProxy, answer

import distlog
from distlog.core.errors import StorageError
from distlog.core.storage import calls
from distlog.core.storage.backend import RACERS
from distlog.core.storage.storage import Storage

#: The puts of a race and the late one, the reads of the losers, and the deletion of the object.
RACE = {"PUT": RACERS + 1, "GET": RACERS, "POST": 1}


@pytest.mark.parametrize("fault", ["looks", "is_atomic"])
def test_create_refuses_a_store_that_ignores_the_condition_or_checks_it_too_early(
    bucket: type[Bucket], fault: str
) -> None:
    setattr(bucket, fault, False)
    with pytest.raises(StorageError, match=r"ignores the condition of a put .*or lets several concurrent writers"):
        distlog.create("gs://bucket/logs/clicks", partitions=1)
    assert Storage("gs://bucket/logs/clicks").list("_commits") == []


@pytest.mark.parametrize("fault", ["looks", "is_atomic"])
def test_a_topic_copied_to_a_bad_store_refuses_appends(bucket: type[Bucket], fault: str, new_process: Any) -> None:
    topic = distlog.create("gs://bucket/logs/clicks", partitions=1)
    topic.append([{"value": "a"}])
    setattr(bucket, fault, False)
    new_process()
    bucket(skip_instance_cache=True).begin()
    for _ in range(2):
        with pytest.raises(StorageError, match="commits could be lost"):
            topic.append([{"value": "b"}])
        bucket(skip_instance_cache=True).begin()
    assert distlog.open("gs://bucket/logs/clicks").version == topic.version == 1
    assert [file.name for file in topic.storage.list("_commits") if "probe" in file.name] == []


def test_readers_run_no_race(bucket: type[Bucket], new_process: Any) -> None:
    distlog.create("gs://bucket/logs/clicks", partitions=1).append([{"value": "a"}])
    bucket.looks = False
    new_process()
    topic = distlog.open("gs://bucket/logs/clicks")
    assert topic.scan().count() == 1
    assert topic.storage.counters.puts == 0


def requests(proxy: FaultProxy) -> dict[str, int]:
    methods = [request.method for request in proxy.requests]
    proxy.reset()
    return {method: methods.count(method) for method in dict.fromkeys(methods)}


@pytest.fixture
def proxy(s3_server: Any, new_process: Any) -> Iterator[FaultProxy]:
    with FaultProxy(s3_server.endpoint) as running:
        yield running


@pytest.fixture
def address(proxy: FaultProxy, s3_url: Any) -> Any:
    return s3_url.url, {**s3_url.options, "endpoint_url": proxy.url}


@pytest.mark.s3
def test_a_process_checks_a_bucket_once(proxy: FaultProxy, address: Any, new_process: Any) -> None:
    url, options = address
    assert Storage(f"{url}/a", options).put_if_absent("_commits/0", b"1") == b"1"
    assert requests(proxy) == {**RACE, "PUT": RACE["PUT"] + 1}
    for folder in ("a", "b"):
        storage = Storage(f"{url}/{folder}", options)
        assert storage.put_if_absent("_commits/1", b"1") == b"1"
        storage.probe_put_if_absent("_commits")
    assert requests(proxy) == {"PUT": 2}
    new_process()
    Storage(f"{url}/a", options).probe_put_if_absent("_commits")
    assert requests(proxy) == RACE
    assert [file.name for file in Storage(f"{url}/a", options).list("_commits")] == ["_commits/0", "_commits/1"]


@pytest.mark.s3
def test_concurrent_first_commits_check_once(proxy: FaultProxy, address: Any) -> None:
    storage = Storage(*address)
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda number: storage.put_if_absent(f"{number}/0", b"1"), range(6)))
    assert requests(proxy) == {**RACE, "PUT": RACE["PUT"] + 6}


def test_another_process_checks_again(memory_url: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Storage(*memory_url)
    storage.put_if_absent("0", b"1")
    process = os.getpid() + 1
    monkeypatch.setattr(os, "getpid", lambda: process)
    old_puts = storage.counters.puts
    storage.put_if_absent("1", b"1")
    assert storage.counters.puts - old_puts == RACERS + 2


@pytest.mark.s3
def test_transient_faults_do_not_fail_a_good_store(proxy: FaultProxy, address: Any) -> None:
    proxy.inject("PUT", CUT, times=5)
    proxy.inject("PUT", answer(503, "SlowDown"), times=3)
    proxy.inject("GET", CUT, times=2)
    assert Storage(*address).put_if_absent("_commits/0", b"1") == b"1"


@pytest.mark.s3
def test_an_unfinished_race_writes_no_data(proxy: FaultProxy, address: Any) -> None:
    storage = Storage(*address)
    storage.list()
    proxy.inject("PUT", CUT, times=FOREVER)
    with pytest.raises(StorageError, match="nothing was written: unknown"):
        storage.put_if_absent("_commits/0", b"1", timeout_s=0.1)
    proxy.reset()
    assert storage.list("_commits") == []
    assert storage.put_if_absent("_commits/0", b"1") == b"1"


@pytest.mark.s3
def test_a_writer_without_delete_rights_gets_a_warning(
    proxy: FaultProxy, address: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "RETRY_TIMEOUT_S", 0.0)
    storage = Storage(*address)
    proxy.inject("POST", answer(403, "AccessDenied"), times=FOREVER)
    with caplog.at_level(logging.WARNING, "distlog"):
        assert storage.put_if_absent("_commits/0", b"1") == b"1"
    assert "could not delete the test object in s3://" in caplog.text
    (name, _) = sorted(file.name for file in storage.list("_commits"))
    assert name.startswith("_commits/.probe-")
