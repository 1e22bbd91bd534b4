"""Readers of a topic with direct appends of another process, which is alive or was killed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from live_writer import LiveWriter, check_every_reader

import distlog

pytestmark = pytest.mark.long

ROLLING = {"internal.segment.bytes": "20000", "index.interval.bytes": "100"}


@contextmanager
def writing(url: str, first: int, end: int, codec: str = "none") -> Iterator[LiveWriter]:
    writer = LiveWriter(url, first, end, codec)
    try:
        yield writer
    finally:
        writer.kill()


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_reader_reads_the_records_of_a_live_writer(codec: str, tmp_path: Path) -> None:
    url = str(tmp_path / "topic")
    topic = distlog.create(url, 3, config=ROLLING)
    with writing(url, 0, 600, codec) as writer:
        count = 0
        for step in (40, 200, 600):
            writer.wait_for(step)
            count = check_every_reader(topic.refresh(), 600, writer.acknowledged)
        assert count == 600
        assert all(state.segments[-1].is_active for state in topic.live_snapshot.partitions)
    assert check_every_reader(distlog.open(url), 600, 600) == 600


def test_readers_read_the_records_of_a_killed_writer_and_of_the_next(tmp_path: Path) -> None:
    url = str(tmp_path / "topic")
    topic = distlog.create(url, 3, config=ROLLING)
    with writing(url, 0, 100_000) as writer:
        writer.wait_for(300)
    records = check_every_reader(topic.refresh(), 100_000, writer.acknowledged)
    assert records >= writer.acknowledged >= 300
    assert check_every_reader(distlog.open(url), 100_000, writer.acknowledged) == records


def test_a_snapshot_stays_readable_while_its_segments_roll_and_are_merged(tmp_path: Path) -> None:
    url = str(tmp_path / "topic")
    topic = distlog.create(url, 2, config=ROLLING)
    with writing(url, 0, 2000) as writer:
        writer.wait_for(100)
        old = distlog.open(url)
        count = check_every_reader(old, 2000, 100)
        writer.wait_for(2000)
        assert check_every_reader(old, 2000, 100) == count
        topic.refresh()
        topic.alter_config({"internal.segment.bytes": "100000"})
        old_count = len(topic.segments())
        topic.compact()
        assert len(topic.segments()) < old_count
        assert check_every_reader(old, 2000, 100) == count
        assert check_every_reader(topic.refresh(), 2000, 2000) == 2000
        writer.close()
    assert check_every_reader(distlog.open(url), 2000, 2000) == 2000


def test_a_large_tail_is_read_by_its_indexes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    url = str(tmp_path / "topic")
    topic = distlog.create(url, 1, config={"index.interval.bytes": "500"})
    with writing(url, 0, 6000) as writer:
        for step in (4000, 6000):
            writer.wait_for(step)
            check_every_reader(topic.refresh(), 6000, step)
        (segment,) = topic.live_snapshot.partitions[0].segments
        assert segment.is_active
        assert segment.log_bytes > 300_000
    # a bad index logs a warning, and the result is right
    assert [line for line in caplog.messages if not line.startswith("compiling distlog's kernels")] == []
