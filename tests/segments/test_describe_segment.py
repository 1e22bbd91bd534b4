"""The description of a segment from its log only equals the writer's, and a broker's consumer confirms it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import described_segment as module
import pytest
from described_segment import describe_segment
from golden import GoldenPartition, partitions
from topics import NOW, topic_on

from distlog.core.commits.segment_table import UNDETERMINED_OFFSET, SegmentInfo
from distlog.core.errors import CorruptRecordError
from distlog.core.format.record_batch import read_headers
from distlog.core.segments.segment_state import LogDescription
from distlog.core.storage.storage import Storage


def described(log: Any, base_offset: int = 0, interval_bytes: int = 4096) -> tuple[SegmentInfo, dict[str, bytes]]:
    return describe_segment(
        log, base_offset, partition=0, stem="x", created_ms=NOW, interval_bytes=interval_bytes, file="x.log"
    )


@pytest.mark.parametrize("codec", ["uncompressed", "lz4"])
@pytest.mark.parametrize("part_bytes", [100, 4 << 20])
def test_a_log_has_the_description_of_its_writer(
    codec: str, part_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PART_BYTES", part_bytes)
    storage = Storage(str(tmp_path))
    topic = topic_on(storage, 1, {"compression.type": codec, "batch.bytes": 1000})
    topic.append([{"value": b"v" * 50, "timestamp": NOW + number * 7 % 101} for number in range(3000)])
    (written,) = topic.snapshot.partitions[0].segments
    name = topic.reader.name(written)
    description, files = described(storage.read(name))
    same = {"stem": written.stem, "created_ms": written.created_ms, "first_unstable_offset": -1}
    assert description.first_unstable_offset == UNDETERMINED_OFFSET
    assert dataclasses.replace(description, **same) == written
    for suffix, data in files.items():
        assert data
        assert data == storage.read(topic.reader.name(written, suffix))


#: Logs whose records a consumer read completely.
LOGS = {
    name: partition
    for name, partition in partitions().items()
    if name.startswith(("first.", "logs.")) and "deleted-records" not in name
}


@pytest.mark.parametrize("partition", LOGS.values(), ids=LOGS)
def test_a_brokers_log_has_the_records_of_a_consumer(partition: GoldenPartition) -> None:
    records = partition.records()
    for log in partition.logs:
        base = int(log.stem)
        description, _ = described(log.read_bytes(), base)
        own_records = [record for record in records if base <= record["offset"] < description.next_offset]
        times = [record["timestamp"] for record in own_records]
        assert (description.base_offset, description.stored_base_offset, description.shift) == (base, base, 0)
        assert (description.record_count, description.log_bytes) == (len(own_records), log.stat().st_size)
        assert (description.first_timestamp, description.min_timestamp, description.max_timestamp) == (
            times[0],
            min(times),
            max(times),
        )
        newest = next((record["offset"] for record in own_records if record["timestamp"] == max(times) >= 0), -1)
        assert description.offset_of_max_timestamp == newest
        assert description.has_transactions == ("txn" in partition.name)
        description.check()


@pytest.mark.parametrize("cut", [1, 11, 12, 60, 100])
def test_a_log_ends_before_a_batch_that_is_not_whole(cut: int) -> None:
    log = LOGS["first.compact-none-0"].logs[0].read_bytes()
    full, _ = described(log)
    torn, _ = described(log + log[:cut])
    assert torn == full


def test_a_damaged_batch_is_reported_with_its_position() -> None:
    log = bytearray(LOGS["first.compact-none-0"].logs[0].read_bytes())
    log[-1] ^= 1
    with pytest.raises(CorruptRecordError, match=r"fails its checksum.*position="):
        described(log)


def test_a_log_without_a_batch_has_nothing() -> None:
    description, files = described(b"", 7)
    assert (description.base_offset, description.next_offset, description.record_count, description.log_bytes) == (
        7,
        7,
        0,
        0,
    )
    assert (description.max_timestamp, description.min_timestamp, description.offset_of_max_timestamp) == (-1, -1, -1)
    assert not any(files.values())


def moved(log: bytes, base_offset: int) -> bytes:
    """Return the log of one batch with another base offset, which is outside its checksum."""
    return base_offset.to_bytes(8, "big", signed=True) + log[8:]


@pytest.mark.parametrize("base_offset", [-(1 << 63), 6, 7, (1 << 31) + 7, (1 << 63) - 1])
def test_a_misplaced_batch_is_reported_with_its_position(
    base_offset: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = topic_on(Storage(str(tmp_path)), 1)
    topic.append([{"value": b"v"}])
    log = bytes(topic.read(0, 0).data)
    details = rf"file=x.log position={len(log)}"
    for part_bytes in (4 << 20, len(log)):
        monkeypatch.setattr(module, "_PART_BYTES", part_bytes)
        with pytest.raises(CorruptRecordError, match=details):
            described(moved(log, 7) + moved(log, base_offset), 7)
    with pytest.raises(CorruptRecordError, match=r"file=x.log position=0 offset=6"):
        described(moved(log, 6), 7)
    assert described(moved(log, 7) + moved(log, 8), 7)[0].next_offset == 9


def test_a_log_with_a_codec_that_kafka_does_not_have_gets_no_metadata() -> None:
    log = LOGS["first.compact-none-0"].logs[0].read_bytes()
    batches, description = read_headers(log).copy(), LogDescription()
    batches["attributes"][-1] |= 5
    description.add(log, batches)
    with pytest.raises(CorruptRecordError, match=r"unknown codec.*partition=3"):
        description.describe(3, "x", NOW)
