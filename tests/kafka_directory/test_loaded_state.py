"""What a broker's loader does beside loading segments: producers come from snapshots, and odd batches end a log."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from log_dirs import golden_of, partition_of, read

import distlog
from distlog.core.batches.record_batch import read_headers
from distlog.core.transactions.producer_states import read_producer_snapshot

DAMAGES = {
    "empty": lambda _: b"",
    "cut": lambda data: data[: len(data) // 2],
    "zeros": lambda data: bytes(37) + data[37:],
}


def producers(folder: Path) -> list[tuple[int, ...]]:
    """The producers at the end of the adopted partition."""
    (snapshot,) = (folder.parent / "txn" / "txn-0").glob("*.snapshot")
    return sorted(read_producer_snapshot(snapshot.read_bytes()).tolist())


@pytest.mark.parametrize("damage", DAMAGES)
def test_behind_a_damaged_snapshot_producers_are_those_of_the_one_before_and_of_the_log(
    damage: str, tmp_path: Path
) -> None:
    """testLoadFromEmptySnapshotFile, testLoadFromTruncatedSnapshotFile, testLoadFromCorruptSnapshotFile."""
    folder = partition_of("first", tmp_path, "txn-0")
    distlog.adopt(folder)
    right = producers(folder)
    shutil.rmtree(folder.parent / "txn")
    *_, before, newest = sorted(folder.glob("*.snapshot"))
    assert (
        read_producer_snapshot(before.read_bytes()).tolist() != read_producer_snapshot(newest.read_bytes()).tolist()
    )
    newest.write_bytes(DAMAGES[damage](newest.read_bytes()))
    distlog.adopt(folder)
    assert producers(folder) == right


def test_a_stray_snapshot_behind_the_log_end_is_not_taken(tmp_path: Path) -> None:
    """testRemoveExpiredPidsOnReload, testRemoveAllStraySnapshots."""
    folder = partition_of("first", tmp_path, "txn-0")
    distlog.adopt(folder)
    right = producers(folder)
    shutil.rmtree(folder.parent / "txn")
    first = sorted(folder.glob("*.snapshot"))[0]
    shutil.copy(first, folder / f"{10**6:020d}.snapshot")
    assert distlog.adopt(folder).ok
    assert producers(folder) == right


def moved(log: Path, batch: int, base_offset: int) -> int:
    """Append a batch of the log again, at another offset, which is outside of its checksum; its position."""
    data = log.read_bytes()
    row = read_headers(data)[batch]
    again = data[row["position"] : row["position"] + row["size"]]
    log.write_bytes(data + base_offset.to_bytes(8, "big") + again[8:])
    return len(data)


@pytest.mark.parametrize("clean", [False, True])
def test_offsets_that_go_back_end_the_log(clean: bool, tmp_path: Path) -> None:
    """Step 8 of the loader: InvalidOffset."""
    folder = partition_of("first", tmp_path, "codec-none-0")
    if not clean:
        (folder.parent / ".kafka_cleanshutdown").unlink()
    last = sorted(folder.glob("*.log"))[-1]
    position = moved(last, 0, int(last.stem))
    report = distlog.adopt(folder)
    assert f"{last.name}: cut" in report.notes[0]
    assert f"from position {position}: a record batch cannot follow those before it" in report.notes[0]
    assert read(report.topic) == golden_of("first")["codec-none-0"].records()
