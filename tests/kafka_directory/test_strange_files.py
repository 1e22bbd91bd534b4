"""Files that no broker made: links, pipes, and records of an export that are none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from log_dirs import copy_of, golden_of, partition_of, read

import distlog
from distlog import StorageError
from distlog.core.errors import CorruptMetadataError


@pytest.mark.parametrize("is_relative", [False, True])
def test_a_link_is_adopted_as_the_file_that_it_names(is_relative: bool, tmp_path: Path) -> None:
    folder = partition_of("first", tmp_path, "java-lz4-0")
    (log,) = folder.glob("*.log")
    other = log.rename(tmp_path / "elsewhere.log")
    log.symlink_to("../../elsewhere.log" if is_relative else other)
    topic = distlog.adopt(folder).topic
    other.unlink()
    assert read(topic) == golden_of("first")["java-lz4-0"].records()


def test_a_pipe_in_the_place_of_a_log_is_refused(tmp_path: Path) -> None:
    folder = partition_of("first", tmp_path, "java-lz4-0")
    (log,) = folder.glob("*.log")
    log.unlink()
    os.mkfifo(log)
    with pytest.raises(StorageError, match="not a file"):
        distlog.adopt(folder)


def test_a_record_of_an_export_that_is_nested_too_deep_is_corrupt(tmp_path: Path) -> None:
    folder = tmp_path / "logs" / "events-0"
    folder.mkdir(parents=True)
    (folder / ".distlog-export.json").write_text("[" * 200_000)
    with pytest.raises(CorruptMetadataError, match="not the record of an export"):
        distlog.create(str(tmp_path / "events")).export(tmp_path / "logs")


def test_partitions_of_different_topics_of_one_name_are_not_taken_as_one(tmp_path: Path) -> None:
    """Of UnifiedLogTest testLogFailsWhenInconsistentTopicIdSet."""
    log_dir = copy_of("first", tmp_path)
    metadata = log_dir / "multi-1" / "partition.metadata"
    metadata.write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ")
    report = distlog.adopt(log_dir)
    assert not report.ok
    (refused,) = [each for each in report.to_dict()["topics"] if each.get("error")]
    assert refused["topic"] == "multi"
    assert "different topics of one name" in refused["error"]
    assert not (log_dir / "multi").exists()
