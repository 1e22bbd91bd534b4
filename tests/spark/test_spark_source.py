"""The data source without Spark: the plan for the options of a read, and the rows of each task."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
from addresses import Address, S3Server
from fault_proxy import FaultProxy
from planned_reads import (
    PARTITIONS,
    RECORDS,
    fill,
    filled,
    offsets,
    refusal,
    rows,
    source,
    storage_options,
)

import distlog
from distlog.core.errors import InvalidConfigError, OffsetOutOfRangeError
from distlog.spark.batch_source import Split, schema_of


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return filled(str(tmp_path_factory.mktemp("source") / "clicks"))


def test_minPartitions_and_maxRecordsPerPartition_cut(url: str) -> None:  # noqa: N802 - the options' names
    assert len(rows(url)) == 1
    for options in ({"minPartitions": 9}, {"maxRecordsPerPartition": 17}):
        parts = rows(url, **options)
        assert 7 <= len(parts) <= 12
        assert [row for part in parts for row in part] == rows(url)[0]


def test_offsets_bound_a_read(url: str) -> None:
    read = offsets(
        url,
        startingOffsets='{"clicks": {"0": 35, "1": -2, "2": 40}}',
        endingOffsets='{"clicks": {"0": -1, "1": 3, "2": -1}}',
    )
    assert read == {0: [35, 36, 37, 38, 39], 1: [0, 1, 2]}


def test_assign_chooses_partitions(url: str) -> None:
    read = offsets(url, assign='{"clicks": [2, 0]}', endingOffsets='{"clicks": {"0": 1, "2": 2}}')
    assert read == {0: [0], 2: [0, 1]}
    assert "partitions that it has" in refusal(url, assign='{"clicks": [3]}')


def test_subscribe_may_only_repeat_the_path(url: str) -> None:
    assert rows(url, subscribe="clicks") == rows(url)
    assert "must name the topic of the path" in refusal(url, subscribe="views")
    assert "leave out subscribePattern" in refusal(url, subscribePattern="cl.*")
    assert "give load() one path" in refusal(url, paths=f'["{url}", "{url}"]')


def test_times_bound_a_read(url: str) -> None:
    between = offsets(url, startingTimestamp=10_001, endingTimestamp=13_000)
    assert between == {partition: [11, 12] for partition in range(PARTITIONS)}
    by_partition = offsets(
        url,
        startingOffsetsByTimestamp='{"clicks": {"0": 39000, "1": 0, "2": 38001}}',
        endingOffsetsByTimestamp='{"clicks": {"0": 99000, "1": 1000, "2": 99000}}',
    )
    assert by_partition == {0: [39], 1: [0], 2: [39]}


def test_a_start_after_the_last_record_is_an_error_or_the_end(url: str) -> None:
    assert "startingOffsetsByTimestampStrategy=latest" in refusal(url, startingTimestamp=1_000_000)
    assert rows(url, startingTimestamp=1_000_000, startingOffsetsByTimestampStrategy="latest") == []


def test_a_batch_read_refuses_reversed_bounds(url: str) -> None:
    for latest in ("latest", '{"clicks": {"0": -1, "1": 0, "2": 0}}'):
        assert "cannot be latest in a batch read" in refusal(url, startingOffsets=latest)
    for earliest in ("earliest", '{"clicks": {"0": 5, "1": -2, "2": 5}}'):
        assert "cannot be earliest in a batch read" in refusal(url, endingOffsets=earliest)


def test_offsets_for_some_partitions_only_are_refused(url: str) -> None:
    assert "must give a number for every partition" in refusal(url, startingOffsets='{"clicks": {"0": 1}}')


@pytest.mark.parametrize(("option", "remaining"), [("startingOffsets", 0), ("endingOffsets", 10)])
def test_missing_offsets_fail_the_read_unless_allowed(tmp_path: Path, option: str, remaining: int) -> None:
    topic = distlog.create(str(tmp_path / "clicks"))
    topic.append([{"value": b"%d" % number} for number in range(10)])
    options = {option: '{"clicks": {"0": 11}}'}
    with pytest.raises(OffsetOutOfRangeError, match="offset=11 log_start_offset=0 log_end_offset=10"):
        rows(topic.url, **options)
    assert offsets(topic.url, failOnDataLoss="false", **options) == ({0: list(range(remaining))} if remaining else {})


def test_versions_and_times_of_commits_are_read_again(url: str) -> None:
    half = [row["offset"] for row in rows(url, versionAsOf=1)[0]]
    assert half == PARTITIONS * list(range(RECORDS // 2))
    newest, old_values = distlog.open(url).history().column("timestamp").to_pylist()[:2]
    assert len(rows(url, timestampAsOf=old_values.isoformat())[0]) == PARTITIONS * RECORDS // 2
    assert len(rows(url, timestampAsOf=newest.isoformat())[0]) == PARTITIONS * RECORDS
    with pytest.raises(OffsetOutOfRangeError):
        rows(url, versionAsOf=9)


def test_overwriting_is_refused(url: str) -> None:
    with pytest.raises(InvalidConfigError, match="append only"):
        source(url).writer(schema_of(None, False), overwrite=True)


def test_tasks_read_no_commit(url: str, tmp_path: Path) -> None:
    planned = source(url)
    reader = planned.reader(planned.schema())
    partitions = reader.partitions()
    in_task = pickle.loads(pickle.dumps((reader, planned)))[0]
    commits = Path(url, "_commits")
    commits.rename(tmp_path / "elsewhere")
    try:
        assert sum(batch.num_rows for part in partitions for batch in in_task.read(part)) == PARTITIONS * RECORDS
    finally:
        (tmp_path / "elsewhere").rename(commits)


def test_the_pickle_of_a_task_is_small(tmp_path: Path) -> None:
    topic = distlog.create(str(tmp_path / "clicks"), config={"internal.segment.bytes": "200", "batch.bytes": "100"})
    topic.append([{"value": bytes(90)} for _ in range(300)])
    planned = source(topic.url)
    old_size = len(pickle.dumps(planned))
    reader = planned.reader(schema_of(None, False))
    assert len(topic.scan().slices) == 300
    assert len(pickle.dumps((reader, planned))) < 8_000 < old_size


def test_planning_reads_metadata_and_tasks_their_ranges(s3_server: S3Server) -> None:
    address = s3_server.address()
    topic = distlog.create(
        address.url, PARTITIONS, {"internal.segment.bytes": "600", "batch.bytes": "100"}, address.options
    )
    fill(topic)
    with FaultProxy(s3_server.endpoint) as proxy:
        storage = storage_options(Address(address.url, {**address.options, "endpoint_url": proxy.url}))
        bounds = {
            f"{side}Offsets": json.dumps({topic.name: {"1": offset}})
            for side, offset in (("starting", 5), ("ending", 9))
        }
        planned = source(address.url, assign=json.dumps({topic.name: [1]}), **bounds, **storage)
        reader = planned.reader(schema_of(["offset"], False))
        (split,) = reader.partitions()
        assert not any(f"{topic.name}-" in request.path for request in proxy.requests)
        proxy.reset()
        assert [row["offset"] for batch in reader.read(split) for row in batch.to_pylist()] == [5, 6, 7, 8]
        assert isinstance(split, Split)
        assert 0 < len(proxy.requests) <= len(split.slices) < len(topic.snapshot.partitions[1].segments)
        assert not any("_commits" in request.path for request in proxy.requests)
