"""The cleaner compacts the dirtiest topic first; topics that are not compacted get larger segments."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import pytest
from addresses import Address
from left_transactions import TIME_MS, left_log_dir, plain
from managed import MINUTE, Managed, create, effects, errors
from raw_batches import batch, record
from topics import NOW, Clock, contents, values

import distlog
from distlog.core.commits.snapshot import PartitionState, Snapshot
from distlog.core.config import HOUR_MS
from distlog.core.format.record_batch import read_headers
from distlog.core.log_manager import log_tasks
from distlog.core.segments.segment_reader import TopicHandle
from distlog.core.topic import Topic


def compacted(root: Path, name: str, keys: int, records: int, **settings: Any) -> Topic:
    """Return a topic with two appends of `keys` keys and `records` records, compacted up to the end of the first."""
    topic = create(root, name, **{"cleanup_policy": "compact", "min_cleanable_dirty_ratio": 0, **settings})
    topic.append(keyed(range(keys)))
    topic.compact()
    topic.append(keyed(range(records), keys))
    topic.alter_config({"min.cleanable.dirty.ratio": settings.get("min_cleanable_dirty_ratio", 0.5)})
    return topic


def keyed(numbers: range, keys: int = 1 << 30) -> list[dict[str, Any]]:
    return [
        {"key": b"%d" % (number % keys), "value": b"v%d" % number, "timestamp": NOW + number} for number in numbers
    ]


def cleaned_order(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    order, real = list[tuple[str, int]](), log_tasks.compact

    def noted(handle: TopicHandle, snapshot: Snapshot, *, partitions: Collection[int]) -> Any:
        order.extend((snapshot.name, partition) for partition in partitions)
        return real(handle, snapshot, partitions=partitions)

    monkeypatch.setattr(log_tasks, "compact", noted)
    return order


def test_the_dirtiest_topic_is_cleaned_first_and_a_clean_one_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = [
        compacted(tmp_path, "half", 40, 80),
        compacted(tmp_path, "most", 10, 400),
        compacted(tmp_path, "little", 80, 20),
    ]
    managed = Managed(tmp_path)
    order = cleaned_order(monkeypatch)
    run = effects(managed.after(minutes=1), "log-cleaner")
    assert order == [("most", 0), ("half", 0)]
    assert (run["cleaned_partitions"], run["deleted_records"]) == (2, 480)
    assert len(contents_by_key(topics[0])) == 40
    assert len(contents_by_key(topics[1])) == 10
    assert topics[2].refresh().scan().count() == 100
    assert managed.manager.errors == {}
    assert effects(managed.after(minutes=1), "log-cleaner") == {}


def test_the_dirtiest_partition_of_all_topics_is_cleaned_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dirty = {"a": (60, 900, 10), "b": (300, 20, 70)}
    for name, shares in dirty.items():
        topic = create(tmp_path, name, 3, cleanup_policy="compact", min_cleanable_dirty_ratio=0)
        for partition in range(3):
            topic.append(keyed(range(100)), partition=partition)
        topic.compact()
        for partition, records in enumerate(shares):
            topic.append(keyed(range(records), 100), partition=partition)
        topic.alter_config({"min.cleanable.dirty.ratio": 0.2})
    order, managed = cleaned_order(monkeypatch), Managed(tmp_path)
    assert effects(managed.after(minutes=1), "log-cleaner")["cleaned_partitions"] == 4
    assert order == [("a", 1), ("b", 0), ("b", 2), ("a", 0)]


def test_an_uncleanable_partition_does_not_stop_the_others(tmp_path: Path) -> None:
    topic = create(tmp_path, "clicks", 3, cleanup_policy="compact")
    for partition in range(3):
        topic.append(keyed(range(90), 10), partition=partition)
    logs = [Path(topic.storage.local_path(topic.reader.name(state.segments[-1], ".log"))) for state in _states(topic)]
    contents = [log.read_bytes() for log in logs]
    for log in logs[:2]:
        log.write_bytes(log.read_bytes()[:100])
    managed = Managed(tmp_path)
    runs = managed.after(minutes=1)
    assert effects(runs, "log-cleaner")["cleaned_partitions"] == 1
    error = errors(runs, "log-cleaner")[topic.url]
    assert re.findall(r"cannot clean partition (\d)", error) == ["0", "1"]
    topic.append(keyed(range(90), 10), partition=2)
    assert effects(managed.after(minutes=1), "log-cleaner")["cleaned_partitions"] == 1
    for log, data in zip(logs, contents, strict=True):
        if log.exists():
            log.write_bytes(data)
    managed.after(minutes=6)
    assert (topic.refresh().scan().count(), managed.manager.errors) == (30, {})


def _states(topic: Topic) -> Sequence[PartitionState]:
    return topic.refresh().snapshot.partitions


def contents_by_key(topic: Topic) -> dict[bytes, bytes]:
    table = topic.refresh().scan().to_table()
    pairs = dict(zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True))
    assert len(pairs) == table.num_rows
    return pairs


def test_records_past_max_compaction_lag_are_cleaned(tmp_path: Path) -> None:
    topic = compacted(tmp_path, "clicks", 100, 10, max_compaction_lag_ms=HOUR_MS)
    managed = Managed(tmp_path)
    assert effects(managed.after(minutes=59), "log-cleaner") == {}
    assert effects(managed.after(minutes=2), "log-cleaner")["cleaned_partitions"] == 1
    assert len(contents_by_key(topic)) == 100


def test_the_cleaner_runs_every_backoff(tmp_path: Path) -> None:
    managed = Managed(tmp_path, log_cleaner_backoff_ms=7_000)
    ran = [sum(run.task == "log-cleaner" for run in managed.after(minutes=1 / 60)) for _ in range(51)]
    assert [second for second, count in enumerate(ran, 1) if count] == [30, 37, 44, 51]


def test_a_check_of_a_compacted_topic_is_one_get_and_of_others_none(memory_url: Address) -> None:
    for name in ("a", "b"):
        create(memory_url.url, name, cleanup_policy="compact").append(keyed(range(3)))
    create(memory_url.url, "c").append(keyed(range(3)))
    managed = Managed(memory_url.url)
    managed.after(minutes=0.5)
    counters = managed.manager.topic("a").storage.counters
    old_fields = dataclasses.asdict(counters)
    assert [run.task for run in managed.after(minutes=0.25)] == ["log-cleaner"]
    after = dataclasses.asdict(counters)
    assert {name: after[name] - old_fields[name] for name in after if after[name] != old_fields[name]} == {"gets": 2}


def test_the_brokers_ratio_applies_to_topics_without_one(tmp_path: Path) -> None:
    topic = create(tmp_path, "clicks", cleanup_policy="compact")
    topic.append(keyed(range(10)))
    topic.compact()
    topic.append(keyed(range(8)))
    assert effects(Managed(tmp_path).after(minutes=1), "log-cleaner") == {}
    managed = Managed(tmp_path, log_cleaner_min_cleanable_ratio=0.1)
    assert effects(managed.after(minutes=1), "log-cleaner")["deleted_records"] == 8


@pytest.mark.parametrize("minutes", [4, -60])
def test_a_topic_that_cannot_be_cleaned_is_retried_later(tmp_path: Path, minutes: int) -> None:
    bad, good = (compacted(tmp_path, name, 10, 90) for name in ("bad", "good"))
    segment = bad.refresh().snapshot.partitions[0].segments[-1]
    log = Path(bad.storage.local_path(bad.reader.name(segment, ".log")))
    content = log.read_bytes()
    log.write_bytes(content[:100] + b"\0\0\0\0" + content[104:])
    managed = Managed(tmp_path)
    runs = managed.after(minutes=1)
    assert list(errors(runs, "log-cleaner")) == [bad.url]
    assert effects(runs, "log-cleaner")["cleaned_partitions"] == 1
    assert len(contents_by_key(good)) == 10
    log.write_bytes(content)
    runs = managed.after(minutes=1)
    assert list(errors(runs, "log-cleaner")) == [bad.url]
    managed.clock.now_ms += minutes * MINUTE
    managed.runs.clear()
    managed.manager.run_once()
    assert effects(managed.runs, "log-cleaner")["cleaned_partitions"] == 1
    assert (len(contents_by_key(bad)), managed.manager.errors) == (10, {})


@pytest.mark.parametrize("change", ["dropped", "no longer compacted"])
def test_a_topic_without_compaction_no_longer_fails(tmp_path: Path, change: str) -> None:
    bad = compacted(tmp_path, "bad", 10, 90)
    segment = bad.refresh().snapshot.partitions[0].segments[-1]
    log = Path(bad.storage.local_path(bad.reader.name(segment, ".log")))
    log.write_bytes(log.read_bytes()[:100])
    managed = Managed(tmp_path)
    assert list(errors(managed.after(minutes=1), "log-cleaner")) == [bad.url]
    if change == "dropped":
        bad.drop()
    else:
        bad.alter_config({"cleanup.policy": "delete"})
    managed.after(minutes=1)
    assert errors(managed.after(minutes=1), "log-cleaner") == {}


def test_small_segments_are_merged_at_the_retention_interval(tmp_path: Path) -> None:
    topic = create(tmp_path, "clicks", 2)
    for number in range(8):
        topic.append(values([number]), partition=number % 2)
    managed = Managed(tmp_path)
    assert effects(managed.after(minutes=1), "segment-merge") == {
        "merged_segments": 8,
        "segments_made": 2,
        "merged_bytes": int(topic.snapshot.partitions[0].segments.log_bytes.sum()) * 2,
    }
    assert contents(topic.refresh()) == {0: [b"v0", b"v2", b"v4", b"v6"], 1: [b"v1", b"v3", b"v5", b"v7"]}
    version = topic.version
    assert effects(managed.after(minutes=5), "segment-merge") == {}
    assert topic.refresh().version == version


def test_without_the_cleaner_nothing_is_rewritten(tmp_path: Path) -> None:
    topic = compacted(tmp_path, "clicks", 1, 10)
    managed = Managed(tmp_path, log_cleaner_enable="false")
    tasks = {run.task for run in managed.after(minutes=10)}
    assert not tasks & {"log-cleaner", "segment-merge"}
    assert topic.refresh().scan().count() == 11


@pytest.mark.parametrize(("limit_ms", "kept_batches"), [(1001, 2), (1000, 1)])
def test_the_last_batch_of_a_silent_producer_expires_by_setting(
    limit_ms: int, kept_batches: int, tmp_path: Path
) -> None:
    of = {"producer": (7, 3, 0), "base_timestamp": TIME_MS, "max_timestamp": TIME_MS}
    log_dir = left_log_dir(tmp_path, {"log-0": batch([record(0, 0, b"k", b"old")], **of) + plain(1, b"new")}, {})
    config = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0}
    topic = distlog.adopt(log_dir, str(tmp_path / "root"), config=config).topics["log"]
    clock = Clock()
    clock.now_ms = TIME_MS + 1000 - MINUTE
    managed = Managed(tmp_path / "root", clock=clock, producer_id_expiration_ms=limit_ms)
    assert effects(managed.after(minutes=1), "log-cleaner")["deleted_records"] == 1
    assert len(read_headers(bytes(topic.refresh().read(0, 0)))) == kept_batches
