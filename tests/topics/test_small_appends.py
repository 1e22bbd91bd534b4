"""An append of few rows to each of many partitions is encoded in columns: the same bytes and metadata."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from topics import NOW, contents, topic_on

from distlog.core import paths
from distlog.core.commits.segment_table import SegmentInfo
from distlog.core.config import TopicConfig
from distlog.core.errors import InvalidRecordError
from distlog.core.segments import segment_writer
from distlog.core.storage.storage import Storage
from distlog.core.write import append as appender_module
from distlog.core.write.append import Appender

PARTITIONS = 100


def rows(count: int = 5, seed: int = 1, **columns: pa.Array) -> pa.RecordBatch:
    """Return `count` records for each partition, of random sizes and times, in random order."""
    random, total = np.random.default_rng(seed), count * PARTITIONS
    partitions = random.permutation(np.arange(total) % PARTITIONS)
    generated = {
        "partition": pa.array(partitions, pa.int32()),
        "key": pa.array([None if n % 3 else random.bytes(n % 11) for n in range(total)], pa.binary()),
        "value": pa.array([random.bytes(int(size)) for size in random.integers(0, 300, total)], pa.binary()),
        "timestamp": pa.array(NOW + random.integers(0, 1000, total)),
    }
    return pa.RecordBatch.from_pydict({**generated, **columns})


@pytest.fixture(params=["local", "memory"])
def storages(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    root = str(tmp_path) if request.param == "local" else f"memory://small{tmp_path}"
    return (Storage(f"{root}/{number}") for number in itertools.count())


def written(
    storage: Storage, config: TopicConfig, *batches: pa.RecordBatch, compression: str | None = None
) -> tuple[list[SegmentInfo], dict[str, bytes]]:
    """Return the segments and files that an appender writes for the batches, with one stem."""
    appender = Appender(
        storage,
        "clicks",
        config,
        PARTITIONS,
        read_version=0,
        first_partition=0,
        clock=lambda: NOW,
        random=Random(0),
        compression=compression,
        workers=1,
    )
    assert [appender.append(batch) for batch in batches] == [batch.num_rows for batch in batches]
    segments = list(appender.close())
    stems = {
        stem: paths.new_stem(0, f"{n:032x}")
        for n, stem in enumerate(dict.fromkeys(segment.stem for segment in segments))
    }
    files = [(stem, storage.read(paths.bundle_file(stem))) for stem in stems]
    return [dataclasses.replace(segment, stem=stems[segment.stem]) for segment in segments], {
        stems[stem]: data for stem, data in files
    }


def written_singly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(appender_module, "MANY_PARTITIONS", 10**9)


@pytest.mark.parametrize("compression", [None, "zstd", "gzip"])
@pytest.mark.parametrize("settings", [{}, {"message.timestamp.type": "LogAppendTime"}, {"index.interval.bytes": "1"}])
def test_the_segments_equal_a_writer_per_partition(
    settings: dict[str, Any], compression: str | None, storages: Iterator[Storage], monkeypatch: pytest.MonkeyPatch
) -> None:
    config, results = TopicConfig.parse(settings), list[object]()
    monkeypatch.setattr(appender_module, "SegmentWriter", lambda *_, **__: results.append(1))
    segments = written(next(storages), config, rows(), compression=compression)
    assert not results
    monkeypatch.undo()
    written_singly(monkeypatch)
    assert segments == written(next(storages), config, rows(), compression=compression)
    assert len(segments[0]) == PARTITIONS


def test_headers_and_missing_keys_and_times_are_equal(
    storages: Iterator[Storage], monkeypatch: pytest.MonkeyPatch
) -> None:
    total = 5 * PARTITIONS
    headers = pa.array([[("n", b"%d" % n)] if n % 4 else [] for n in range(total)], segment_writer_headers())
    few = rows(headers=headers).drop_columns(["timestamp", "key"])
    segments = written(next(storages), TopicConfig(), few)
    written_singly(monkeypatch)
    assert segments == written(next(storages), TopicConfig(), few)


def segment_writer_headers() -> pa.DataType:
    return pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@pytest.mark.parametrize(
    "batches",
    [
        [rows(), rows(seed=2)],
        [rows(), rows(seed=2), rows(1, seed=3)],
        [rows(value=pa.array([b"x" * 200_000 if n < 9 else b"" for n in range(5 * PARTITIONS)], pa.binary()))],
    ],
)
def test_other_appends_are_written_by_partition(
    batches: list[pa.RecordBatch], storages: Iterator[Storage], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = TopicConfig.parse({"batch.bytes": "100000", "max.message.bytes": "300000"})
    segments = written(next(storages), config, *batches)
    written_singly(monkeypatch)
    assert segments == written(next(storages), config, *batches)


@pytest.mark.long
def test_a_topic_has_all_records_in_both_ways(storages: Iterator[Storage], monkeypatch: pytest.MonkeyPatch) -> None:
    topics = [topic_on(next(storages), PARTITIONS) for _ in range(2)]
    for topic in topics:
        for seed in range(6):
            result = topic.append(rows(seed=seed))
            assert len(result.offsets) == PARTITIONS
            assert result.offsets == dict.fromkeys(range(PARTITIONS), (5 * seed, 5 * seed + 5))
            if seed % 3 == 0:
                topic.append([{"partition": 7, "value": b"x"}] if seed > 20 else [])
        written_singly(monkeypatch)
    assert contents(topics[0]) == contents(topics[1]) == contents(topic_on(topics[0].storage))
    assert topics[0].verify().ok
    app = {"app_id": "a", "batch_id": 1}
    with topics[0].transaction(**app) as transaction:
        transaction.append(rows(seed=99))
    assert not transaction.result.replayed
    with topics[0].transaction(**app) as again:
        again.append(rows(seed=99))
    assert again.result.replayed
    assert again.result.offsets == transaction.result.offsets


def test_an_invalid_record_is_refused_and_named(storages: Iterator[Storage]) -> None:
    topic = topic_on(next(storages), PARTITIONS)
    times = np.full(5 * PARTITIONS, NOW)
    times[33] = -7
    with pytest.raises(InvalidRecordError), topic.transaction() as transaction:
        transaction.append(rows(timestamp=pa.array(times)))
    assert topic.refresh().version == 0
    large = pa.array([b"x" * 2_000_000 if n == 3 else b"" for n in range(5 * PARTITIONS)], pa.binary())
    with pytest.raises(InvalidRecordError, match=r"max\.message\.bytes"), topic.transaction() as transaction:
        transaction.append(rows(value=large))
    assert topic.refresh().version == 0


def test_an_append_to_many_partitions_takes_as_many_requests_as_one_to_few(tmp_path: Path) -> None:
    counts = []
    for partitions in (100, 1000):
        topic = topic_on(Storage(f"memory://requests{tmp_path}/{partitions}"), partitions)
        batch = pa.table({"partition": pa.array(range(partitions), pa.int32()), "value": [b"v"] * partitions})
        topic.append(batch)
        counters = topic.storage.counters
        old_counters = counters.gets, counters.puts, counters.lists
        topic.append(batch)
        counts.append(
            (counters.gets - old_counters[0], counters.puts - old_counters[1], counters.lists - old_counters[2])
        )
        assert set(topic.refresh().end_offsets().values()) == {2}
    assert counts == [(1, 2, 0)] * 2
    assert segment_writer.LARGEST_PART > appender_module.SMALL_PART_BYTES
