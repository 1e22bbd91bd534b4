"""A sound topic passes verify, whoever wrote it."""

from __future__ import annotations

from pathlib import Path

import pytest
from adopted import adopt_golden
from golden import partitions
from verified_topics import (
    CONFIG,
    NOW,
    found,
    topic_at,
    verified,
)

import distlog
from distlog import Topic


@pytest.fixture
def topic(tmp_path: Path) -> Topic:
    return topic_at(str(tmp_path / "log"))


GOLDEN = partitions()


def test_a_sound_topic_passes(topic: Topic) -> None:
    report = verified(topic)
    assert report.ok
    assert [verdict.records for verdict in report.segments] == [40, 40]
    assert all(verdict.batches > 5 for verdict in report.segments)


@pytest.mark.parametrize("codec", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("kind", ["CreateTime", "LogAppendTime"])
def test_every_codec_and_kind_of_timestamp_passes(tmp_path: Path, codec: str, kind: str) -> None:
    config = {"compression.type": codec, "message.timestamp.type": kind}
    assert found(topic_at(str(tmp_path / "log"), config=config)) == []


def test_records_without_a_timestamp_pass(tmp_path: Path) -> None:
    topic = distlog.create(str(tmp_path / "log"), config=CONFIG)
    topic.append([{"value": b"v", "timestamp": -1}] * 20)
    assert found(topic) == []


@pytest.mark.parametrize("name", [name for name in GOLDEN if not name.startswith("crashed")])
def test_what_a_broker_wrote_passes(tmp_path: Path, name: str) -> None:
    assert found(adopt_golden(str(tmp_path / "log"), GOLDEN[name])) == []


@pytest.mark.parametrize("policy", ["compact", "delete"])
def test_what_compaction_and_merging_wrote_passes(tmp_path: Path, policy: str) -> None:
    config = {
        "cleanup.policy": policy,
        "internal.segment.bytes": 10_000,
        "min.cleanable.dirty.ratio": 0,
        "delete.retention.ms": 0,
    }
    topic = distlog.create(str(tmp_path / "log"), config={**CONFIG, **config})
    for number in range(8):
        rows = range(40 * number, 40 * number + 40)
        topic.append(
            [
                {"key": b"%d" % (row % 7), "value": b"v" * 30 if row % 5 else None, "timestamp": NOW + row}
                for row in rows
            ]
        )
        if number % 4 == 3:
            before = topic.segments().num_rows
            topic.compact()
            assert topic.segments().num_rows < before
            assert found(topic) == []


@pytest.mark.parametrize("name", [name for name in GOLDEN if "compact" in name])
def test_what_compaction_made_of_what_a_broker_wrote_passes(tmp_path: Path, name: str) -> None:
    config = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0, "delete.retention.ms": 0}
    topic = adopt_golden(str(tmp_path / "log"), GOLDEN[name], config=config)
    topic.compact()
    assert found(topic) == []
