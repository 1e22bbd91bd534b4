"""The headers of a log outside the page cache are prefetched alone, at the positions of the index."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from log_dirs import copy_of, golden_of, read
from logs import batches_of

import distlog
from distlog import CorruptRecordError
from distlog.core.format.indexes import OFFSET_ENTRY
from distlog.core.format.record_batch import read_headers
from distlog.core.kafka import partition_folder
from distlog.core.kafka.partition_folder import HeaderScan, PartitionFolder, PartitionName, batch_positions
from distlog.core.storage.local_files import SparseMap
from distlog.core.storage.storage import Storage

BATCH_BYTES = 64 << 10
SIZE = 40 << 20


@pytest.fixture
def cold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Headers are announced to the system for any pages in memory, and for small batches."""
    monkeypatch.setattr(SparseMap, "is_in_memory", lambda *_: False)
    monkeypatch.setattr(partition_folder, "_MIN_BATCH_BYTES", 0)


def forget(path: Path) -> None:
    """Drop a file from the page cache, or skip the test."""
    file = os.open(path, os.O_RDONLY)
    os.fsync(file)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(file)
    if SparseMap(os.open(path, os.O_RDONLY)).is_in_memory([0], 1):
        pytest.skip("the system keeps the files of this file system in memory")


def bytes_from_disk() -> int:
    lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    return int(dict(line.split(": ") for line in lines)["read_bytes"])


def test_a_cold_log_is_not_read_between_its_headers(tmp_path: Path) -> None:
    topic = distlog.create(str(tmp_path / "clicks"), config={"batch.bytes": BATCH_BYTES})
    topic.append([{"value": os.urandom(BATCH_BYTES // 2)} for _ in range(2 * SIZE // BATCH_BYTES)])
    topic.export(tmp_path / "kafka")
    (tmp_path / "kafka" / ".kafka_cleanshutdown").touch()
    (log,) = (tmp_path / "kafka" / "clicks-0").glob("*.log")
    assert log.stat().st_size > SIZE
    right = distlog.adopt(tmp_path / "kafka", str(tmp_path / "right"))
    forget(log)
    old_bytes = bytes_from_disk()
    report = distlog.adopt(tmp_path / "kafka", dry_run=True)
    assert bytes_from_disk() - old_bytes < SIZE // 4
    assert report.adopted[0].partitions[0].segments[0].info == right.topic.snapshot.partitions[0].segments[0]


@pytest.mark.usefixtures("cold")
@pytest.mark.parametrize("stage", ["first", "cleaned", "logs"])
def test_announced_headers_equal_a_map(stage: str, tmp_path: Path) -> None:
    report = distlog.adopt(copy_of(stage, tmp_path))
    assert report.ok
    for name, partition in golden_of(stage).items():
        topic, _, number = name.rpartition("-")
        assert read(report.topics[topic], int(number)) == partition.records()


@pytest.mark.parametrize("missing", ["RWF_NOWAIT", "posix_fadvise"])
def test_adoption_works_without_posix_fadvise(missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_folder, "_MIN_BATCH_BYTES", 0)
    monkeypatch.delattr(os, missing)
    assert distlog.adopt(copy_of("first", tmp_path)).ok


def index_of(*positions: int) -> bytes:
    entries = np.zeros(len(positions), OFFSET_ENTRY)
    entries["position"] = positions
    return entries.tobytes()


@pytest.mark.usefixtures("cold")
@pytest.mark.parametrize("change", ["right", "one wrong", "all wrong", "descending", "past the end", "cut", "empty"])
def test_a_wrong_index_changes_nothing(change: str, tmp_path: Path) -> None:
    log = b"".join(path.read_bytes() for path in golden_of("first")["codec-none-0"].logs)
    batches = batches_of(log)
    assert len(batches) > 50
    (tmp_path / "x.log").write_bytes(log)
    positions = np.cumsum([len(batch) for batch in batches])[:-1]
    index = {
        "right": index_of(*positions),
        "one wrong": index_of(*positions[:7], positions[7] + 1, *positions[8:]),
        "all wrong": index_of(*(positions + 1)),
        "descending": index_of(*positions[::-1]),
        "past the end": index_of(*positions, len(log)),
        "cut": index_of(*positions)[:-3],
        "empty": b"",
    }[change]
    headers = PartitionFolder(Storage(tmp_path), PartitionName("x", 0), Storage(tmp_path).list()).headers(
        "x.log", index
    )
    is_scan = isinstance(getattr(headers.read, "__self__", None), HeaderScan)
    assert is_scan == (change in ("right", "one wrong", "cut"))
    assert headers.size == len(log)
    half = int(positions[19])
    assert [bytes(headers.read(0, half)), bytes(headers.read(half, len(log)))] == [log[:half], log[half:]]
    assert len(read_headers(headers.read(half, len(log)))) == len(batches) - 20


def test_positions_come_from_the_index_and_at_the_beginning() -> None:
    assert batch_positions(index_of(500, 900), 1000).tolist() == [0, 500, 900]
    for positions in ((900, 500), (500, 500), (0, 500), (500, 1000), (-5, 500)):
        assert batch_positions(index_of(*positions), 1000).tolist() == []


@pytest.mark.usefixtures("cold")
def test_damage_is_found_at_its_position(tmp_path: Path) -> None:
    folder = copy_of("first", tmp_path) / "codec-none-0"
    log = sorted(folder.glob("*.log"))[0]
    data = bytearray(log.read_bytes())
    position = int(read_headers(bytes(data))["position"][1])
    data[position + 16] = 9
    log.write_bytes(data)
    with pytest.raises(CorruptRecordError) as caught:
        distlog.adopt(folder)
    assert caught.value.details["position"] == position
