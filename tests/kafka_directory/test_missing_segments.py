"""A broker's log without a segment, or without its last records. A compacted log is whole."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from commits import put_commit
from log_dirs import STAGES, contents, copy_of, partition_of, read

import distlog
from distlog.core.commits.actions import Add, Remove

NAME = "codec-none-0"


def without(log_dir: Path, folder: Path, segment: int) -> tuple[int, int]:
    """Remove a segment from a folder; return the missing offsets."""
    bases = [int(log.stem) for log in sorted(folder.glob("*.log"))]
    for file in folder.glob(f"{bases[segment]:020d}.*"):
        file.unlink()
    return bases[segment], bases[segment + 1]


@pytest.mark.parametrize("way", ["in place", "copied"])
def test_a_missing_segment_is_reported_and_stays_an_anomaly(way: str, tmp_path: Path) -> None:
    folder = partition_of("first", tmp_path, NAME)
    begin, end = without(folder.parent, folder, 1)
    report = distlog.adopt(folder, None if way == "in place" else str(tmp_path / "copy"))
    (note,) = report.notes
    assert f"partition 0: no batch holds the offsets from {begin} to {end}" in note
    assert read(report.topic)[begin]["offset"] == end
    verified = report.topic.verify()
    assert [(anomaly.word, anomaly.partition, anomaly.offset) for anomaly in verified.anomalies] == [
        ("offset_gap", 0, begin)
    ]
    assert [verdict.ok for verdict in verified.segments] == [False, True, True]


def test_segments_before_the_log_start_are_not_missed(tmp_path: Path) -> None:
    folder = partition_of("first", tmp_path, NAME)
    _, end = without(folder.parent, folder, 1)
    (folder.parent / "log-start-offset-checkpoint").write_text(f"0\n1\ncodec-none 0 {end}\n")
    report = distlog.adopt(folder)
    assert (report.notes, report.topic.verify().ok) == ((), True)


def test_a_log_that_ends_below_its_high_watermark_is_reported(tmp_path: Path) -> None:
    folder = partition_of("first", tmp_path, NAME)
    bases = sorted(int(log.stem) for log in folder.glob("*.log"))
    for file in folder.glob(f"{bases[-1]:020d}.*"):
        file.unlink()
    (folder.parent / "replication-offset-checkpoint").write_text("0\n1\ncodec-none 0 457\n")
    (note,) = [note for note in distlog.adopt(folder).notes if "high watermark" in note]
    assert f"the log ends at {bases[-1]}, below its high watermark 457" in note


@pytest.mark.parametrize("evidence", ["its checkpoint", "the configuration", "its batches"])
def test_gaps_of_a_compacted_log_are_accepted(evidence: str, tmp_path: Path) -> None:
    folder = partition_of("cleaned-again", tmp_path, "compact-none-0")
    without(folder.parent, folder, 1)
    if evidence != "its checkpoint":
        (folder.parent / "cleaner-offset-checkpoint").unlink()
    config = {"cleanup.policy": "compact"} if evidence == "the configuration" else {}
    report = distlog.adopt(folder, config=config)
    assert not any("no batch holds" in note for note in report.notes)
    assert report.topic.verify().ok
    assert {segment["compacted"] for segment in report.topic.segments().to_pylist()} == {True, False}


def test_compacted_segments_of_an_earlier_adoption_are_accepted(tmp_path: Path) -> None:
    for folder in (STAGES["cleaned"] / "compact-none-0", STAGES["cleaned-again"] / "compact-txn-0"):
        name = folder.name.removesuffix("-0")
        topic = distlog.adopt(folder, str(tmp_path / name)).topic
        segments = list(topic.snapshot.partitions[0].segments)
        plain = [dataclasses.replace(segment, compacted=False) for segment in segments]
        actions = [*(Remove(0, segment.stem) for segment in segments), *map(Add, plain)]
        put_commit(topic.log, topic.snapshot, "rebuild", lambda _, actions=actions: actions)  # type: ignore[misc]
        assert distlog.open(topic.url).verify().ok


@pytest.mark.parametrize("stage", STAGES)
def test_golden_directories_miss_nothing(stage: str, tmp_path: Path) -> None:
    log_dir = copy_of(stage, tmp_path)
    (log_dir / "cleaner-offset-checkpoint").unlink(missing_ok=True)
    report = distlog.adopt(log_dir)
    assert not [note for note in report.notes if "no batch holds" in note or "high watermark" in note]
    assert all(topic.verify().ok for topic in report.topics.values())
    assert contents(log_dir)
