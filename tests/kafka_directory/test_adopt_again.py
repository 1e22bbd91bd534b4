"""Adoption of a topic in several directories: disks and brokers at once, or one after another."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest
from addresses import Address
from commits import put_commit
from log_dirs import STAGES, copy_of, golden_of, partition_of, read

import distlog
from distlog import InvalidTopicError, StorageError, TopicExistsError
from distlog.core import paths
from distlog.core.commits.actions import SetLogHorizon, SetVacuumHorizon
from distlog.core.commits.commit_log import CommitLog
from distlog.core.format.record_batch import read_headers

GOLDEN = golden_of("first")


def some_of(folder: Path, *names: str, stage: str = "first") -> Path:
    log_dir = copy_of(stage, folder)
    for path in log_dir.glob("*-[0-9]"):
        if path.name not in names:
            shutil.rmtree(path)
    return log_dir


def cut(folder: Path, offset: int) -> int:
    """Truncate a partition's folder to the files of a broker with a log end of about `offset`; return the log end."""
    for file in folder.glob("*.snapshot"):
        file.unlink()
    for log in sorted(folder.glob("*.log")):
        if int(log.stem) >= offset:
            for suffix in (".log", ".index", ".timeindex", ".txnindex"):
                log.with_suffix(suffix).unlink(missing_ok=True)
            continue
        rows = read_headers(log.read_bytes())
        row = rows[rows["base_offset"] + rows["last_offset_delta"] < offset]
        os.truncate(log, int(row["size"].sum()))
        end = int(row["base_offset"][-1] + row["last_offset_delta"][-1]) + 1
    return end


def test_a_topic_on_several_disks_or_brokers_is_adopted_from_all_of_them(tmp_path: Path) -> None:
    log_dirs = [some_of(tmp_path / "a", "multi-0", "multi-2", "txn-0"), some_of(tmp_path / "b", "multi-1")]
    report = distlog.adopt(log_dirs, str(tmp_path / "topics"))
    assert report.ok
    assert [note for note in report.notes if "is open" not in note] == []
    for number in range(3):
        assert read(report.topics["multi"], number) == GOLDEN[f"multi-{number}"].records()
    assert sorted(report.topics) == ["multi", "txn"]


def test_several_directories_need_an_address_and_are_of_one_kind(tmp_path: Path) -> None:
    log_dirs = [some_of(tmp_path / "a", "multi-0"), some_of(tmp_path / "b", "multi-1", "txn-0")]
    folders = [log_dirs[0] / "multi-0", log_dirs[1] / "multi-1"]
    for directories, url in (
        (log_dirs, None),
        ([], str(tmp_path / "topics")),
        ([log_dirs[0], folders[1]], str(tmp_path / "topics")),
        ([folders[0], log_dirs[1] / "txn-0"], str(tmp_path / "topics")),
    ):
        with pytest.raises(InvalidTopicError):
            distlog.adopt(directories, url)
    topic = distlog.adopt(folders, str(tmp_path / "both")).topic
    assert [read(topic, number) for number in range(2)] == [GOLDEN[f"multi-{n}"].records() for n in range(2)]


def test_a_second_adoption_adds_the_partitions_of_another_directory(storage_url: Address, tmp_path: Path) -> None:
    log_dirs = [some_of(tmp_path / "a", "multi-1"), some_of(tmp_path / "b", "multi-0", "multi-2")]
    url = f"{storage_url.url}/topics"
    for log_dir in log_dirs:
        report = distlog.adopt(log_dir, url, storage_options=storage_url.options)
    assert report.ok
    assert "multi: partition 2: added the offsets from 0 to 300" in [
        note.replace(str(report.topics["multi"].end_offsets()[2]), "300") for note in report.notes
    ]
    assert [row["partition"] for row in report.to_dict()["partitions"]] == [0, 1, 2]
    topic = distlog.open(f"{url}/multi", storage_options=storage_url.options)
    assert [read(topic, number) for number in range(3)] == [GOLDEN[f"multi-{n}"].records() for n in range(3)]
    assert topic.verify().ok
    assert [commit["operation"] for commit in topic.history().to_pylist()] == ["import", "import"]


def test_a_second_adoption_adds_partitions_without_records(tmp_path: Path) -> None:
    log_dir, url = some_of(tmp_path / "a", "multi-0"), str(tmp_path / "topics")
    distlog.adopt(log_dir, url)
    for number in (1, 3):
        shutil.copytree(log_dir / "multi-0", log_dir / f"multi-{number}")
        for file in (log_dir / f"multi-{number}").iterdir():
            if file.name.startswith("0"):
                file.unlink()
    report = distlog.adopt(log_dir, url)
    assert "multi: partition 3: added, without records" in report.notes
    assert "multi: partition 2 is not in this directory: it is empty here" in report.notes
    assert distlog.open(f"{url}/multi").end_offsets() == {0: len(GOLDEN["multi-0"].records()), 1: 0, 2: 0, 3: 0}
    assert report.topics["multi"].verify().ok


@pytest.mark.parametrize("name", ["txn-0", "codec-lz4-0", "java-zstd-0"])
def test_a_final_adoption_adds_the_records_since_a_trial(name: str, tmp_path: Path) -> None:
    trial = partition_of("first", tmp_path / "trial", name)
    end = cut(trial, GOLDEN[name].records()[-1]["offset"] // 2)
    final, url = partition_of("first", tmp_path / "final", name), str(tmp_path / "topic")
    assert distlog.adopt(trial, url).topic.end_offsets() == {0: end}
    planned = distlog.adopt(final, url, dry_run=True)
    assert distlog.open(url).end_offsets() == {0: end}
    report = distlog.adopt(final, url)
    assert planned.to_table() == report.to_table()
    assert report.notes[-1].endswith("was adopted before")
    assert f"added the offsets from {end} to" in report.notes[0]
    assert read(report.topic) == GOLDEN[name].records()
    assert report.topic.verify().ok
    if name.startswith("txn"):
        assert read(report.topic, committed=True) == GOLDEN[name].records(committed=True)
    files = sorted(path.name for path in (tmp_path / "topic").rglob("*.log"))
    again = distlog.adopt(final, url)
    assert (again.topic.version, again.notes) == (1, ("topic: was adopted before",))
    assert sorted(path.name for path in (tmp_path / "topic").rglob("*.log")) == files
    assert str(again).startswith("adopted 0 topics, 0 bytes")


@pytest.mark.parametrize("is_appended_to", [False, True])
def test_a_shared_batch_marks_the_new_records_after_commits_were_deleted(
    is_appended_to: bool, tmp_path: Path
) -> None:
    name, url = "codec-none-0", str(tmp_path / "topic")
    trial, final = partition_of("first", tmp_path / "trial", name), partition_of("first", tmp_path / "final", name)
    cut(trial, 150)
    topic = distlog.adopt(trial, url).topic
    if is_appended_to:
        topic.append([{"value": b"ours"}])
    log = CommitLog(topic.storage, clock=lambda: 0, random=random.Random(0), writer="a", checkpoint_commits=1)
    for _ in range(3):
        put_commit(log, log.load(), "gc", lambda head: [SetVacuumHorizon(head.version), SetLogHorizon(head.version)])
    topic.storage.delete([paths.commit_file(version) for version in range(2)])
    if is_appended_to:
        with pytest.raises(TopicExistsError, match="partition 0 has other records"):
            distlog.adopt(final, url)
    else:
        assert read(distlog.adopt(final, url).topic) == GOLDEN[name].records()


def test_new_records_are_not_appended_after_foreign_records(tmp_path: Path) -> None:
    trial, name = partition_of("first", tmp_path / "trial", "codec-none-0"), "codec-none-0"
    end = cut(trial, 150)
    final, url = partition_of("first", tmp_path / "final", name), str(tmp_path / "topic")
    topic = distlog.adopt(trial, url).topic
    topic.append([{"value": b"ours"}])
    with pytest.raises(TopicExistsError, match="partition 0 has other records"):
        distlog.adopt(final, url)
    assert distlog.open(url).end_offsets() == {0: end + 1}
    # the same directory adds nothing on the second run
    assert distlog.adopt(trial, url).ok
    # another log of the same topic id, which diverges from ours before our end
    other = shutil.copytree(trial.parent, tmp_path / "other" / "logs") / name
    distlog.adopt(other, str(tmp_path / "second"))
    for suffix in (".log", ".index", ".timeindex"):
        for file in final.glob(f"*{suffix}"):
            file.unlink()
    shutil.copytree(STAGES["first"] / "codec-gzip-0", final, dirs_exist_ok=True, ignore=shutil.ignore_patterns("p*"))
    with pytest.raises(TopicExistsError, match="partition 0 has other records"):
        distlog.adopt(final, str(tmp_path / "second"))


def test_a_file_that_the_broker_extended_leaves_the_directly_adopted_topic(tmp_path: Path) -> None:
    folder = partition_of("first", tmp_path, "codec-none-0")
    cut(folder, 150)
    distlog.adopt(folder)
    for log in sorted(folder.glob("*.log")):
        with log.open("ab") as file:
            file.write((STAGES["first"] / "codec-none-0" / log.name).read_bytes()[log.stat().st_size :])
    with pytest.raises(StorageError, match="appended to files that it shares"):
        distlog.adopt(folder)


def test_the_replica_with_the_latest_leader_epoch_and_length_is_adopted(tmp_path: Path) -> None:
    name, records = "codec-none-0", GOLDEN["codec-none-0"].records()
    short, long = (some_of(tmp_path / folder_name, name) for folder_name in ("short", "long"))
    end = cut(short / name, 150)
    report = distlog.adopt([short, long], str(tmp_path / "topics"))
    assert read(report.topics["codec-none"]) == records
    assert report.notes == (
        f"codec-none: partition 0: of 2 replicas, the one in {long}/{name}/ is used, which ends at {len(records)}",
    )
    # a longer replica whose leader was never elected had uncommitted records
    (short / name / "leader-epoch-checkpoint").write_text(f"0\n2\n0 0\n7 {end - 1}\n")
    report = distlog.adopt([long, short], str(tmp_path / "elected"))
    assert report.topics["codec-none"].end_offsets() == {0: end}
    assert f"had committed records up to {len(records)}" in report.notes[1]
    assert f"the log ends at {end}, below its high watermark {len(records)}" in report.notes[-1]
    # a damaged replica is ignored while there is another
    damaged = next((short / name).glob("*0.log"))
    damaged.write_bytes(b"\0" * damaged.stat().st_size)
    report = distlog.adopt([long, short], str(tmp_path / "whole"))
    assert read(report.topics["codec-none"]) == records
    assert "a replica was left out" in report.notes[0]


def test_replicas_of_two_topics_of_one_name_are_not_mixed(tmp_path: Path) -> None:
    log_dirs = [some_of(tmp_path / name, "codec-none-0") for name in ("a", "b")]
    (log_dirs[1] / "codec-none-0" / "partition.metadata").write_text("version: 0\ntopic_id: MkU3OEVBNTcwNTJENDM2Qg")
    report = distlog.adopt(log_dirs, str(tmp_path / "topics"))
    assert isinstance(report.adopted[0].error, InvalidTopicError)
