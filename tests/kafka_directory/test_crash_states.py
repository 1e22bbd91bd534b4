"""Files of a broker that stopped during an operation: the same files apply as for that broker."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from log_dirs import copy_of, golden_of, partition_of, read

import distlog
from distlog import CorruptRecordError, InvalidTopicError
from distlog.core.format.record_batch import read_headers
from distlog.core.kafka.partition_folder import (
    LoadedFiles,
    PartitionName,
    loaded_files,
    read_offsets,
    write_offsets,
)
from distlog.core.segments.producer_states import read_producer_snapshot

A, B, C = (f"{offset:020d}" for offset in (0, 100, 200))


def loaded(*names: str, end: int = 0) -> LoadedFiles:
    return loaded_files(names, lambda name: end)


def stems(loaded_files: LoadedFiles) -> list[str]:
    return [files[".log"] for files in loaded_files.segments.values()]


def test_cleaned_files_alone_are_ignored() -> None:
    files = loaded(f"{A}.log", f"{B}.log", f"{A}.log.cleaned", f"{A}.index.cleaned")
    assert stems(files) == [f"{A}.log", f"{B}.log"]
    assert set(files.left_out) == {f"{A}.log.cleaned", f"{A}.index.cleaned"}


def test_swap_files_at_or_above_a_cleaned_one_are_ignored() -> None:
    files = loaded(f"{A}.log", f"{B}.log", f"{C}.log", f"{A}.log.cleaned", f"{B}.log.swap", end=200)
    assert stems(files) == [f"{A}.log", f"{B}.log", f"{C}.log"]


def test_a_swap_file_at_the_offset_of_the_first_cleaned_one_is_ignored() -> None:
    files = loaded(f"{A}.log", f"{B}.log", f"{A}.log.cleaned", f"{A}.log.swap", end=200)
    assert stems(files) == [f"{A}.log", f"{B}.log"]
    assert files.left_out[f"{A}.log.swap"] == "of a replacement that did not finish"


def test_complete_swap_files_replace_the_files_in_their_range() -> None:
    files = loaded(
        *(f"{A}.log", f"{A}.index", f"{B}.log", f"{B}.snapshot", f"{C}.log", f"{C}.snapshot"),
        *(f"{A}.log.swap", f"{A}.index.swap"),
        end=200,
    )
    assert stems(files) == [f"{A}.log.swap", f"{C}.log"]
    assert files.segments[0][".index"] == f"{A}.index.swap"
    assert files.snapshots == {200: f"{C}.snapshot"}


def test_swap_files_apply_after_the_old_ones_were_deleted() -> None:
    assert stems(loaded(f"{A}.log.deleted", f"{B}.log.deleted", f"{A}.log.swap", end=200)) == [f"{A}.log.swap"]


def test_remaining_swap_files_replace_only_their_range() -> None:
    """The first of two replacements has its final name; the old file of the second one still exists."""
    files = loaded(f"{A}.log", f"{B}.log", f"{B}.log.swap", f"{C}.log", end=200)
    assert stems(files) == [f"{A}.log", f"{B}.log.swap", f"{C}.log"]
    assert files.left_out == {f"{B}.log": "replaced by a .swap file"}


def test_a_swapped_index_alone_belongs_to_its_log() -> None:
    files = loaded(f"{A}.log", f"{A}.index", f"{A}.timeindex.swap", f"{B}.log")
    assert stems(files) == [f"{A}.log", f"{B}.log"]
    assert files.segments[0][".timeindex"] == f"{A}.timeindex.swap"


def test_deleted_files_and_indexes_without_a_log_are_ignored() -> None:
    files = loaded(f"{A}.log", f"{B}.index", f"{C}.log.deleted", "leader-epoch-checkpoint", "other.log")
    assert stems(files) == [f"{A}.log"]
    assert files.left_out == {f"{B}.index": "an index without a log", f"{C}.log.deleted": "was being deleted"}


def test_a_cleaning_that_stopped_before_its_last_renames_is_finished(tmp_path: Path) -> None:
    """The first two segments were cleaned into one that still ends in .swap; the old ones still exist."""
    folder = partition_of("cleaned", tmp_path, "compact-lz4-0")
    old = copy_of("first", tmp_path / "before") / "compact-lz4-0"
    for suffix in (".log", ".index", ".timeindex"):
        (folder / f"{A}{suffix}").rename(folder / f"{A}{suffix}.swap")
        shutil.copy(old / f"{A}{suffix}", folder)
    records = golden_of("cleaned")["compact-lz4-0"].records()
    report = distlog.adopt(folder)
    assert read(report.topic) == records
    assert f"compact-lz4: partition 0: {A}.log: replaced by a .swap file" in report.notes
    assert report.topic.verify().ok


def test_missing_and_insane_indexes_are_rebuilt(tmp_path: Path) -> None:
    folder = partition_of("first", tmp_path, "codec-zstd-0")
    logs = sorted(folder.glob("*.log"))
    right = {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix in (".index", ".timeindex")}
    logs[0].with_suffix(".index").unlink()
    logs[0].with_suffix(".timeindex").write_bytes(b"")
    logs[1].with_suffix(".index").write_bytes(b"seven b")
    data = right[logs[1].with_suffix(".timeindex").name]
    logs[1].with_suffix(".timeindex").write_bytes(data[:8] + b"\x00\x00\x00\x01" + data[12:])
    report = distlog.adopt(folder, config={"index.interval.bytes": 512})
    notes = [f"codec-zstd: partition 0: {log.name}: rebuilt the offset index and the time index" for log in logs[:2]]
    assert list(report.notes) == notes
    folder = folder.parent / "codec-zstd" / "codec-zstd-0"
    assert {name: (folder / name).read_bytes() for name in right} == right
    assert report.topic.verify().ok


@pytest.mark.parametrize("change", ["missing", "short", "of other transactions"])
def test_a_transaction_index_without_aborted_transactions_is_rebuilt(change: str, tmp_path: Path) -> None:
    folder = partition_of("first", tmp_path, "txn-0")
    right = {path.name: path.read_bytes() for path in folder.glob("*.txnindex")}
    for name, data in right.items():
        if change == "missing":
            (folder / name).unlink()
        elif change == "short":
            (folder / name).write_bytes(data[:-34])
        else:
            (folder / name).write_bytes(data[:9] + b"\x63" + data[10:])
    report = distlog.adopt(folder)
    assert len([note for note in report.notes if "rebuilt the" in note]) == len(right)
    copy = folder.parent / "txn" / "txn-0"
    assert {path.name: path.read_bytes() for path in copy.glob("*.txnindex")} == right
    assert read(report.topic, committed=True) == golden_of("first")["txn-0"].records(committed=True)


def crashed(tmp_path: Path, name: str = "codec-none-0", recovery_point: int = 0) -> Path:
    """Return a partition of a broker without a clean shutdown; bytes up to the recovery point were synced."""
    folder = partition_of("first", tmp_path, name)
    (folder.parent / ".kafka_cleanshutdown").unlink()
    topic = PartitionName(name.rpartition("-")[0], 0)
    checkpoint = folder.parent / "recovery-point-offset-checkpoint"
    checkpoint.write_bytes(write_offsets({**read_offsets(checkpoint.read_bytes()), topic: recovery_point}))
    return folder


def test_a_torn_write_is_truncated_and_named(tmp_path: Path) -> None:
    folder = crashed(tmp_path)
    last = sorted(folder.glob("*.log"))[-1]
    content, torn = last.read_bytes(), last.read_bytes()[:-7]
    last.write_bytes(torn)
    report = distlog.adopt(folder)
    batches = read_headers(content)
    start = int(batches["position"][-1])
    assert (
        f"{last.name}: cut {len(torn) - start} bytes from position {start}: the file ends within" in report.notes[0]
    )
    records = golden_of("first")["codec-none-0"].records()
    assert read(report.topic) == records[: -int(batches["record_count"][-1])]
    assert last.read_bytes() == torn
    assert report.topic.verify().ok


def test_preallocated_space_past_the_end_is_truncated(tmp_path: Path) -> None:
    folder = crashed(tmp_path)
    last = sorted(folder.glob("*.log"))[-1]
    last.write_bytes(last.read_bytes() + bytes(5000))
    report = distlog.adopt(folder)
    assert "cut 5000 bytes" in report.notes[0]
    assert read(report.topic) == golden_of("first")["codec-none-0"].records()


def test_after_a_crash_the_log_ends_with_the_first_damaged_batch(tmp_path: Path) -> None:
    folder = crashed(tmp_path)
    logs = sorted(folder.glob("*.log"))
    position = damage(logs[1], 5)
    report = distlog.adopt(folder)
    end = offset_at(logs[1], position)
    assert report.topic.end_offsets() == {0: end}
    assert read(report.topic) == [row for row in golden_of("first")["codec-none-0"].records() if row["offset"] < end]
    left_out = [note for note in report.notes if note.endswith("skipped, since it follows the cut")]
    assert [note.split(": ")[2] for note in left_out] == [log.name for log in logs[2:]]


def test_producers_of_a_cut_log_are_those_of_the_snapshot_before_the_cut(tmp_path: Path) -> None:
    folder = crashed(tmp_path, "txn-0")
    damage(sorted(folder.glob("*.log"))[-2], 3)
    report = distlog.adopt(folder)
    (end,) = report.topic.end_offsets().values()
    snapshot = (folder.parent / "txn" / "txn-0" / f"{end:020d}.snapshot").read_bytes()
    entries = read_producer_snapshot(snapshot)
    assert entries["producer_id"].tolist() == [7, 8, 9]
    assert max(entries["last_offset"]) < end


def test_synced_bytes_are_not_read_after_a_crash(tmp_path: Path) -> None:
    """As in a broker; verify reads the whole log."""
    folder = crashed(tmp_path, recovery_point=300)
    damage(sorted(folder.glob("*.log"))[1], 5)
    report = distlog.adopt(folder)
    assert report.notes == ()
    assert report.topic.end_offsets() == {0: 417}
    assert {anomaly.word for anomaly in report.topic.verify().anomalies} >= {"corrupt_batch"}


def test_a_log_that_ends_below_its_start_is_empty(tmp_path: Path) -> None:
    folder = crashed(tmp_path)
    checkpoint = folder.parent / "log-start-offset-checkpoint"
    checkpoint.write_bytes(write_offsets({PartitionName("codec-none", 0): 1000}))
    report = distlog.adopt(folder)
    assert report.topic.start_offsets() == report.topic.end_offsets() == {0: 1000}
    assert report.topic.append([{"value": b"next"}]).offsets == {0: (1000, 1001)}


def test_damage_that_a_broker_would_not_detect_fails(tmp_path: Path) -> None:
    folder = partition_of("first", tmp_path, "codec-none-0")
    first = sorted(folder.glob("*.log"))[0]
    data = bytearray(first.read_bytes())
    position = int(read_headers(bytes(data))["position"][5])
    data[position + 16] = 9
    first.write_bytes(data)
    with pytest.raises(CorruptRecordError) as caught:
        distlog.adopt(folder)
    assert (caught.value.details["file"], caught.value.details["position"]) == (str(first), position)
    assert not (folder.parent / "codec-none").exists()
    report = distlog.adopt(folder.parent)
    assert (report.ok, report.to_dict()["topics"][0]["topic"]) == (False, "codec-none")


def test_folders_of_deletions_and_moves_are_ignored(tmp_path: Path) -> None:
    log_dir = copy_of("first", tmp_path)
    unique = "0123456789abcdef0123456789abcdef"
    names = {f"txn-0.{unique}-delete", f"multi-0.{unique}-future", f"multi-1.{unique}-stray"}
    for name in names:
        (log_dir / name.split(".")[0]).rename(log_dir / name)
    shutil.copytree(log_dir / "multi-2", log_dir / "__cluster_metadata-0")
    report = distlog.adopt(log_dir)
    assert report.ok
    assert set(report.left_out) == names | {"__cluster_metadata-0"}
    assert "txn" not in report.topics
    for name in sorted(names):
        with pytest.raises(InvalidTopicError):
            distlog.adopt(log_dir / name)


def test_a_truncated_checkpoint_fails(tmp_path: Path) -> None:
    folder = crashed(tmp_path)
    for bad in (
        b"0\n2\ncodec-none 0 1\n",
        b"1\n0\n",
        b"0\n1\ncodec-none 0\n",
        b"0\n1\ncodec-none 0 -1\n",
        b"\xff\n0\n",
    ):
        (folder.parent / "recovery-point-offset-checkpoint").write_bytes(bad)
        with pytest.raises(distlog.CorruptMetadataError, match="recovery-point-offset-checkpoint"):
            distlog.adopt(folder)


def damage(log: Path, batch: int) -> int:
    data = bytearray(log.read_bytes())
    row = read_headers(bytes(data))[batch]
    data[int(row["position"] + row["size"]) - 1] ^= 1
    log.write_bytes(data)
    return int(row["position"])


def offset_at(log: Path, position: int) -> int:
    batches = read_headers(log.read_bytes())
    return int(batches["base_offset"][batches["position"] == position][0])
