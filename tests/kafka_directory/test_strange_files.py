"""Foreign files in a log directory: links, pipes, and invalid records of an export."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from dying_calls import before_call
from log_dirs import contents, copy_of, partition_of

import distlog
from distlog import StorageError
from distlog.core.errors import CorruptMetadataError, UnsupportedVersionError


@pytest.mark.parametrize("way", ["in place", "copied"])
def test_a_link_in_a_partitions_folder_fails_and_is_not_copied(way: str, tmp_path: Path) -> None:
    log_dir = copy_of("first", tmp_path)
    for folder, name in (("java-lz4-0", "00000000000000000000.log"), ("codec-none-0", "leader-epoch-checkpoint")):
        (log_dir / folder / name).rename(tmp_path / name)
        (log_dir / folder / name).symlink_to(tmp_path / name)
    report = distlog.adopt(log_dir, None if way == "in place" else str(tmp_path / "topics"))
    assert [topic.name for topic in report.adopted if isinstance(topic.error, StorageError)] == [
        "codec-none",
        "java-lz4",
    ]
    assert "refusing to follow a link" in " ".join(report.notes)


@pytest.mark.parametrize("way", ["in place", "copied"])
@pytest.mark.parametrize("subject", ["the log", "its folder"])
def test_a_link_that_replaces_a_log_during_adoption_is_not_followed(
    way: str, subject: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = partition_of("first", tmp_path, "java-lz4-0")

    def put_a_link() -> None:
        replaced = next(folder.glob("*.log")) if subject == "the log" else folder
        replaced.rename(tmp_path / "secret")
        replaced.symlink_to(tmp_path / "secret")

    before_call(monkeypatch, "link", lambda _, to: to.endswith("/.adoption"), put_a_link)
    target = tmp_path / "topics" / "java-lz4"
    with pytest.raises(StorageError, match="refusing to follow a link"):
        distlog.adopt(folder, None if way == "in place" else str(target))
    assert not list((target if way == "copied" else folder.parent / "java-lz4").rglob("*.log"))


def test_a_link_instead_of_a_partition_folder_fails_its_topic(tmp_path: Path) -> None:
    log_dir = copy_of("first", tmp_path)
    (log_dir / "multi-1").rename(tmp_path / "multi-1")
    (log_dir / "multi-1").symlink_to(tmp_path / "multi-1")
    report = distlog.adopt(log_dir, str(tmp_path / "topics"))
    assert [topic.name for topic in report.adopted if topic.error] == ["multi"]
    assert not (tmp_path / "topics" / "multi").exists()
    # an export does not follow a link
    (tmp_path / "exported").mkdir()
    (tmp_path / "exported" / "txn-0").symlink_to(tmp_path / "multi-1")
    old_contents = contents(tmp_path / "multi-1")
    with pytest.raises(StorageError, match="refusing to follow a link"):
        report.topics["txn"].export(tmp_path / "exported")
    assert contents(tmp_path / "multi-1") == old_contents


def test_a_pipe_instead_of_a_log_is_refused(tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("version: 1\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ", UnsupportedVersionError),
        ("version: -1\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ", CorruptMetadataError),
        ("version: \ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ", CorruptMetadataError),
        ("", CorruptMetadataError),
    ],
)
def test_a_partition_metadata_of_an_unknown_version_is_refused(
    text: str, error: type[Exception], tmp_path: Path
) -> None:
    folder = partition_of("first", tmp_path, "java-lz4-0")
    (folder / "partition.metadata").write_text(text)
    with pytest.raises(error, match=r"partition\.metadata"):
        distlog.adopt(folder)


def test_a_partition_without_a_log_is_empty_at_its_log_start(tmp_path: Path) -> None:
    log_dir = copy_of("first", tmp_path)
    for folder in (log_dir / "deleted-records-0", log_dir / "multi-2"):
        for file in folder.iterdir():
            if file.name != "partition.metadata":
                file.unlink()
    report = distlog.adopt(log_dir, str(tmp_path / "topics"), topics=["deleted-records", "multi"])
    assert report.ok
    topic = report.topics["deleted-records"]
    assert (topic.start_offsets(), topic.end_offsets()) == ({0: 137}, {0: 137})
    assert report.topics["multi"].end_offsets()[2] == 0
    topic.append([{"value": b"next"}])
    assert (topic.end_offsets(), topic.verify().ok) == ({0: 138}, True)


def test_partitions_with_different_topic_ids_are_refused(tmp_path: Path) -> None:
    """UnifiedLogTest: testLogFailsWhenInconsistentTopicIdSet."""
    log_dir = copy_of("first", tmp_path)
    metadata = log_dir / "multi-1" / "partition.metadata"
    metadata.write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ")
    report = distlog.adopt(log_dir)
    assert not report.ok
    (refused,) = [topic for topic in report.to_dict()["topics"] if topic.get("error")]
    assert refused["topic"] == "multi"
    assert "ids of several topics" in refused["error"]
    assert not (log_dir / "multi").exists()
