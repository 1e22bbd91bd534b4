"""Partitions that compaction cannot clean: they are named with the reason, and the others are cleaned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from adopted import describe, put
from command_line import CommandLine
from compacting import CompactedTopic
from compacting import log as log
from crc32c import crc32c
from raw_batches import batch, record, with_right_crc

import distlog
from distlog.core.commits.actions import Add
from distlog.core.commits.segment_info import UNKNOWN
from distlog.core.errors import StorageError
from distlog.core.maintenance.compaction import CompactionReport
from distlog.core.maintenance.group_rewrite import RewriteFailure, result_or_failure

#: Of three partitions, the one that cannot be cleaned: neither the first nor the last.
BAD = 1


def topic_of_three(url: str) -> distlog.Topic:
    """Two records of one key in each partition, all of them due."""
    topic = distlog.create(url, 3, {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0})
    for partition in range(3):
        topic.append([{"key": b"k", "value": b"%d" % number} for number in range(2)], partition=partition)
    return topic


def damage(topic: distlog.Topic) -> str:
    """Flip the last byte of the bad partition's log; its name."""
    name = topic.reader.name(topic.snapshot.partitions[BAD].segments[0])
    data = bytearray(topic.storage.read(name))
    data[-1] ^= 0xFF
    topic.storage.put(name, data)
    return name


def offsets(topic: distlog.Topic, *partitions: int) -> list[int]:
    return topic.scan(partitions, columns=["offset"]).to_table()["offset"].to_pylist()  # type: ignore[no-any-return]


def error_of(report: Any) -> str:
    """The reason of the bad partition, which must be the only one with a reason."""
    assert isinstance(report, CompactionReport)
    errors = {one.partition: one.error for one in report.partitions}
    assert [number for number, error in errors.items() if error is not None] == [BAD]
    return str(errors[BAD])


def test_a_damaged_partition_is_named_and_the_others_are_cleaned(tmp_path: Path) -> None:
    topic = topic_of_three(f"{tmp_path}/log")
    name = damage(topic)
    report = topic.compact()
    assert name in error_of(report)
    assert not report.ok
    assert str(report).startswith("compacted 2 partitions: ")
    assert f"cannot clean partition {BAD}: {error_of(report)}" in str(report)
    assert offsets(topic, 0, 2) == [1, 1]
    states = topic.snapshot.partitions
    assert [state.first_dirty_offset for state in states] == [2, 0, 2]
    assert states[BAD].segments[0].record_count == 2


def test_the_report_says_the_same_to_programs(tmp_path: Path) -> None:
    topic = topic_of_three(f"{tmp_path}/log")
    damage(topic)
    report = topic.compact()
    facts = json.loads(json.dumps(report.to_dict()))
    assert facts["ok"] is False
    assert {each["partition"]: each["error"] for each in facts["partitions"]} == {
        0: None, BAD: error_of(report), 2: None
    }  # fmt: skip
    assert report.to_table().to_pylist() == facts["partitions"]
    topic.append([{"key": b"k", "value": b"new"}], partition=0)
    assert topic.compact(dry_run=True).to_dict()["ok"] is True


def test_what_could_not_be_cleaned_is_tried_again(tmp_path: Path) -> None:
    topic = topic_of_three(f"{tmp_path}/log")
    name = damage(topic)
    assert not topic.compact().ok
    assert error_of(topic.compact())
    good = bytearray(topic.storage.read(name))
    good[-1] ^= 0xFF
    topic.storage.put(name, good)
    assert topic.compact().ok
    assert offsets(topic, BAD) == [1]


def test_a_partition_whose_file_is_gone_does_not_stop_the_others(tmp_path: Path) -> None:
    topic = topic_of_three(f"{tmp_path}/log")
    topic.storage.delete([topic.reader.name(topic.snapshot.partitions[BAD].segments[0])])
    assert "vacuum deletes" in error_of(topic.compact())
    assert offsets(topic, 0, 2) == [1, 1]


def test_damage_in_transactions_is_the_partitions_own_too(tmp_path: Path) -> None:
    topic = topic_of_three(f"{tmp_path}/log")
    files = {".log": batch([record(0, 0, b"k", b"v")], base_offset=2, producer=(7, 0, 0), attributes=0x10)}
    segment = describe(files, 2, 3, partition=BAD)
    put(topic, segment, {".log": files[".log"][:-1] + b"\xff"})
    topic.log.commit(topic.snapshot, "import", lambda _: [Add(segment)])
    assert segment.stem in error_of(topic.compact())
    assert offsets(topic, 0, 2) == [1, 1]


def test_any_damage_is_found_before_anything_is_committed(log: CompactedTopic, tmp_path: Path) -> None:
    log.append((b"a", b"1"), (b"a", b"2"))
    version = log.topic().version
    (path,) = tmp_path.rglob("*.log")
    good = path.read_bytes()
    for bad in (good[:-1] + b"\xff", good[:16] + b"\x05" + good[17:], good[:-1]):
        path.write_bytes(bad)
        done = log.compact()
        assert done is not None
        assert path.name in (done.error or "")
    assert log.topic().version == version


def test_a_malformed_record_behind_a_right_checksum_is_damage(log: CompactedTopic) -> None:
    log.append((b"a", b"1"))
    good = batch([record(0, 0, b"1")], base_offset=1)
    bad = with_right_crc(good[:61] + b"\x02" + good[62:])
    facts = {"crc32c": crc32c(bad), "first_batch_crc": UNKNOWN, "last_batch_crc": UNKNOWN}
    segment, topic = describe({".log": good}, 1, 2, **facts), log.topic()
    put(topic, segment, {".log": bad})
    topic.log.commit(topic.snapshot, "import", lambda _: [Add(segment)])
    done = log.compact()
    assert done is not None
    assert "offset=1" in (done.error or "")


def test_what_no_file_is_the_reason_of_is_raised() -> None:
    def fail() -> None:
        raise StorageError("no answer")

    with pytest.raises(StorageError):
        result_or_failure(0, fail)
    assert result_or_failure(0, lambda: "done") == "done"
    assert isinstance(result_or_failure(0, lambda: RewriteFailure(0, "why")), RewriteFailure)


def test_the_command_fails_and_says_why(cli: CommandLine) -> None:
    name = damage(topic_of_three(cli.url))
    ran = cli("compact")
    assert ran.status == 1
    assert f"cannot clean partition {BAD}: " in ran.out
    assert name in ran.out
    assert cli("compact", "--json").json["partitions"][0]["partition"] == BAD


@pytest.mark.spark
def test_tasks_give_the_reason_back_and_do_not_fail(spark: Any, tmp_path: Path) -> None:
    from distlog.spark import compact

    topic = topic_of_three(f"{tmp_path}/log")
    name = damage(topic)
    report = compact(spark, topic.url)
    assert name in error_of(report)
    assert offsets(topic.refresh(), 0, 2) == [1, 1]


@pytest.mark.spark
def test_the_job_of_all_that_is_due_fails_with_it(
    spark: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from distlog.jobs.maintain import main

    assert spark
    damage(topic_of_three(f"{tmp_path}/log"))
    given = ["--topic", f"{tmp_path}/log", "--json"]
    assert main(given) == 1
    facts = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert (facts["failed"], facts["topics"][0]["compact"]["ok"]) == (1, False)
    assert "vacuum" in facts["topics"][0]
