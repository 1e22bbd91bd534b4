"""Compaction against Kafka's cleaner: its output for a broker's partitions, batch by batch and byte by byte."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compacting import DAY, CompactedTopic
from golden import DATA, GoldenPartition, partitions

from distlog.core.format.record_batch import DELETE_HORIZON, read_headers

TOPICS = ("compact-none-0", "compact-lz4-0", "compact-zstd-0", "compact-txn-0")
HEADER = (
    "base_offset",
    "last_offset_delta",
    "leader_epoch",
    "attributes",
    "base_timestamp",
    "max_timestamp",
    "producer_id",
    "producer_epoch",
    "base_sequence",
    "record_count",
)


def checkpoint(partition: str) -> int:
    lines = (DATA / "kafka-4.1" / "cleaned" / "cleaner-offset-checkpoint").read_text().splitlines()
    return int(next(line.split()[2] for line in lines if partition.startswith(f"{line.split()[0]}-")))


def cleaned(partition: str) -> tuple[np.ndarray, bytes]:
    """Return the headers and the bytes of the batches that Kafka's cleaner left before its checkpoint."""
    data = b"".join(path.read_bytes() for path in partitions()[f"cleaned.{partition}"].logs)
    batches = read_headers(data)
    batches = batches[batches["base_offset"] < checkpoint(partition)]
    return batches, data[: int(batches["size"].sum())]


def compacted(tmp_path: Path, partition: str) -> CompactedTopic:
    """Return the original partition, compacted at the time of Kafka's cleaner."""
    batches, _ = cleaned(partition)
    horizons = batches["base_timestamp"][batches["attributes"] & DELETE_HORIZON != 0]
    topic = CompactedTopic(f"{tmp_path}/log", internal_segment_bytes=8192)
    topic.clock.now = int(horizons[0]) - DAY
    topic.adopt(partitions()[f"first.{partition}"].folder)
    assert topic.compact_range(0, checkpoint(partition)) == checkpoint(partition)
    return topic


def rows(partition: GoldenPartition, **options: Any) -> list[tuple[Any, ...]]:
    return [(row["offset"], row["key"], row["value"], row["timestamp"]) for row in partition.records(**options)]


def read(topic: CompactedTopic, isolation: str = "read_uncommitted") -> list[tuple[Any, ...]]:
    return [
        (row["offset"], row["key"], row["value"], round(row["timestamp"].timestamp() * 1000))
        for row in topic.rows(isolation)
    ]


@pytest.mark.parametrize("partition", TOPICS)
def test_the_remaining_records_equal_kafkas(tmp_path: Path, partition: str) -> None:
    topic, expected = compacted(tmp_path, partition), partitions()[f"cleaned.{partition}"]
    assert read(topic) == rows(expected)
    assert len(topic.offsets()) < len(partitions()[f"first.{partition}"].records())


def test_committed_records_equal_kafkas(tmp_path: Path) -> None:
    topic = compacted(tmp_path, "compact-txn-0")
    assert read(topic, "read_committed") == rows(partitions()["cleaned.compact-txn-0"], committed=True)


@pytest.mark.parametrize("partition", TOPICS)
def test_every_header_field_equals_kafkas(tmp_path: Path, partition: str) -> None:
    expected, _ = cleaned(partition)
    batches = compacted(tmp_path, partition).batches()[: len(expected)]
    for name in HEADER:
        assert batches[name].tolist() == expected[name].tolist(), name


@pytest.mark.parametrize("partition", ["compact-none-0", "compact-txn-0"])
def test_uncompressed_batches_equal_kafkas_byte_for_byte(tmp_path: Path, partition: str) -> None:
    _, expected = cleaned(partition)
    assert compacted(tmp_path, partition).log_bytes()[: len(expected)] == expected


@pytest.mark.long
@pytest.mark.parametrize("partition", ["compact-none-0", "compact-lz4-0", "compact-zstd-0"])
def test_the_same_records_appended_here_leave_the_same_offsets(tmp_path: Path, partition: str) -> None:
    golden, end = partitions()[f"first.{partition}"], checkpoint(partition)
    topic = CompactedTopic(
        f"{tmp_path}/log", compression_type=partition.split("-")[1].replace("none", "uncompressed")
    )
    topic.clock.now = 1_795_233_889_250
    records = [record for record in golden.records() if record["offset"] < end]
    for log in golden.logs:
        for batch in read_headers(log.read_bytes()):
            first, last = int(batch["base_offset"]), int(batch["base_offset"] + batch["last_offset_delta"])
            if last < end:
                columns = ("key", "value", "timestamp", "headers")
                topic.topic().append([{name: row[name] for name in columns} for row in records[first : last + 1]])
    topic.compact()
    offsets = [row["offset"] for row in partitions()[f"cleaned.{partition}"].records() if row["offset"] < end]
    assert topic.offsets() == offsets


@pytest.mark.parametrize("partition", TOPICS)
def test_the_output_of_compaction_is_sound(tmp_path: Path, partition: str) -> None:
    report = compacted(tmp_path, partition).topic().verify()
    assert report.ok, str(report)
