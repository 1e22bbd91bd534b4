"""The segments that compaction chooses, and their groups: Kafka's LogCleanerManagerTest and LogCleanerTest."""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from adopted import describe, put
from command_line import CommandLine
from commits import put_commit
from compacting import CompactedTopic
from compacting import log as log
from crc32c import crc32c
from histories import History, segment
from raw_batches import batch, record, with_right_crc

import distlog
from distlog.core.arrays import MAX_INT
from distlog.core.commits.actions import Action, Add, Cleaned, Remove, SetLogStartOffset
from distlog.core.commits.segment_table import UNKNOWN, SegmentInfo
from distlog.core.commits.snapshot import PartitionState, Snapshot
from distlog.core.config import TopicConfig
from distlog.core.errors import StorageError
from distlog.core.maintain.compaction import CompactionReport, cleanable, group_segments, plan_compaction
from distlog.core.maintain.group_rewrite import RewriteFailure, result_or_failure

NOW = 10_000


def snapshot(segments: Sequence[SegmentInfo], *actions: Action, **settings: object) -> Snapshot:
    """Return a topic of two partitions with `segments`, after `actions`."""
    history = History()
    config = {"cleanup.policy": "compact", **{name.replace("_", "."): str(value) for name, value in settings.items()}}
    history.create(2, **config)
    history.commit(*map(Add, segments))
    if actions:
        history.commit(*actions)
    return history.snapshot()


def row(count: int, partition: int = 0, **changes: Any) -> list[SegmentInfo]:
    """Return adjacent segments of ten records and 1,000 bytes each."""
    return [segment(partition, 10 * number, **changes) for number in range(count)]


def of(state: Snapshot, last_stable_offset: int | None = None) -> tuple[int, int]:
    partition = state.partitions[0]
    stable = partition.log_end_offset if last_stable_offset is None else last_stable_offset
    plan = cleanable(0, partition, state.config, NOW, stable)
    return plan.first_dirty_offset, plan.first_uncleanable_offset


def test_everything_sealed_is_cleanable() -> None:
    assert of(snapshot(row(3))) == (0, 30)
    assert of(snapshot(row(3), Cleaned(0, 20))) == (20, 30)


def test_a_checkpoint_below_the_log_start_counts_as_the_log_start() -> None:
    assert of(snapshot(row(3), Cleaned(0, 5), SetLogStartOffset(0, 15))) == (15, 30)


def test_a_checkpoint_above_the_log_end_counts_as_the_log_start() -> None:
    state = PartitionState(3, 10, snapshot(row(1)).partitions[0].segments, first_dirty_offset=200)
    assert cleanable(0, state, TopicConfig(), NOW, 10).first_dirty_offset == 3


def test_a_log_start_above_every_segment_leaves_nothing_to_clean() -> None:
    state = snapshot(row(2), SetLogStartOffset(0, 20))
    assert of(state) == (20, 20)
    assert plan_compaction(state, NOW) == []


def test_segments_from_the_first_one_younger_than_the_lag_wait() -> None:
    ages = [segment(0, 10 * n, max_timestamp=time) for n, time in enumerate([1000, NOW - 500, NOW - 499, 1000])]
    assert of(snapshot(ages, min_compaction_lag_ms=500)) == (0, 20)
    assert of(snapshot(ages, min_compaction_lag_ms=499)) == (0, 40)
    assert of(snapshot(ages)) == (0, 40)
    assert of(snapshot(ages, Cleaned(0, 30), min_compaction_lag_ms=500)) == (30, 40)


def test_segments_without_timestamps_are_as_old_as_their_files() -> None:
    state = snapshot(row(2, max_timestamp=-1, offset_of_max_timestamp=-1), min_compaction_lag_ms=5_001)
    assert of(state) == (0, 0)
    state = snapshot(row(2, max_timestamp=-1, offset_of_max_timestamp=-1), min_compaction_lag_ms=5_000)
    assert of(state) == (0, 20)


def test_segments_from_the_first_open_transaction_are_not_cleanable() -> None:
    state = snapshot(row(3))
    assert of(state, last_stable_offset=20) == (0, 20)
    assert of(state, last_stable_offset=19) == (0, 10)
    assert of(state, last_stable_offset=0) == (0, 0)
    assert of(snapshot(row(3), Cleaned(0, 20)), last_stable_offset=15) == (20, 20)


def test_a_gap_between_segments_is_skipped() -> None:
    segments = row(3)
    state = snapshot(segments, Remove(0, segments[1].stem))
    assert of(state, last_stable_offset=15) == (0, 15)


def test_a_partly_clean_segment_counts_twice() -> None:
    state = snapshot(row(6), Cleaned(0, 20), min_compaction_lag_ms=1)
    plan = cleanable(0, state.partitions[0], state.config, NOW, 40)
    assert (plan.clean_bytes, plan.dirty_bytes, plan.dirty_ratio) == (2000, 2000, 0.5)
    cut = snapshot(row(6), Cleaned(0, 25))
    plan = cleanable(0, cut.partitions[0], cut.config, NOW, 60)
    assert (plan.clean_bytes, plan.dirty_bytes) == (3000, 4000)


def test_a_ratio_equal_to_the_least_is_not_enough() -> None:
    half = row(4)
    assert plan_compaction(snapshot(half, Cleaned(0, 20), min_cleanable_dirty_ratio=0.5), NOW) == []
    assert plan_compaction(snapshot(half, Cleaned(0, 19), min_cleanable_dirty_ratio=0.5), NOW) != []
    assert plan_compaction(snapshot(half, Cleaned(0, 40), min_cleanable_dirty_ratio=0), NOW) == []


def test_the_dirtiest_partition_is_first() -> None:
    state = snapshot([*row(4), *row(4, partition=1)], Cleaned(0, 30), Cleaned(1, 10), min_cleanable_dirty_ratio=0.1)
    assert [plan.partition for plan in plan_compaction(state, NOW)] == [1, 0]


def test_only_topics_that_are_compacted_are_chosen() -> None:
    assert plan_compaction(snapshot(row(2), cleanup_policy="delete"), NOW) == []
    for policy in ("compact", "compact,delete", "delete,compact"):
        assert len(plan_compaction(snapshot(row(2), cleanup_policy=policy), NOW)) == 1


def test_an_old_dirty_record_is_due_at_any_ratio() -> None:
    settings = {"min_cleanable_dirty_ratio": 1, "max_compaction_lag_ms": NOW - 1_001}
    assert [plan.is_overdue for plan in plan_compaction(snapshot(row(2), **settings), NOW)] == [True]
    settings["max_compaction_lag_ms"] = NOW - 1_000
    assert plan_compaction(snapshot(row(2), **settings), NOW) == []
    unknown = row(2, first_timestamp=-1)
    assert plan_compaction(snapshot(unknown, min_cleanable_dirty_ratio=1, max_compaction_lag_ms=1), NOW) == []
    clean = snapshot(row(2), Cleaned(0, 20), min_cleanable_dirty_ratio=1, max_compaction_lag_ms=1)
    assert plan_compaction(clean, NOW) == []


def test_open_transactions_are_given_by_partition() -> None:
    state = snapshot([*row(2), *row(2, partition=1)], min_cleanable_dirty_ratio=0)
    report = plan_compaction(state, NOW, {1: 10})
    assert [(transaction.partition, transaction.first_uncleanable_offset) for transaction in report] == [
        (0, 20),
        (1, 10),
    ]
    assert pickle.loads(pickle.dumps(report)) == report


def groups(segments: Sequence[SegmentInfo], **settings: Any) -> list[list[int]]:
    config = TopicConfig(**settings)
    return [[info.base_offset for info in group] for group in group_segments(segments, config)]


def test_everything_small_is_one_group_and_order_is_kept() -> None:
    assert groups(row(4)) == [[0, 10, 20, 30]]
    assert groups([]) == []


@pytest.mark.parametrize(
    "settings", [{"segment_bytes": 999}, {"segment_index_bytes": 11}, {"segment_bytes": 1999}, {"segment_bytes": 14}]
)
def test_a_segment_that_fits_with_no_other_is_a_group(settings: dict[str, int]) -> None:
    assert groups(row(3), **settings) == [[0], [10], [20]]


def test_groups_are_filled_up_to_the_limit() -> None:
    assert groups(row(5), segment_bytes=2000) == [[0, 10], [20, 30], [40]]
    assert groups(row(5, time_index_bytes=0), segment_index_bytes=24) == [[0, 10, 20], [30, 40]]
    assert groups(row(5, offset_index_bytes=0), segment_index_bytes=24) == [[0, 10], [20, 30], [40]]


def test_a_group_spans_at_most_the_offsets_that_an_index_can_hold() -> None:
    far = segment(0, MAX_INT, count=1)
    assert groups([segment(0, 0), far]) == [[0, MAX_INT]]
    assert groups([segment(0, 0), segment(0, MAX_INT, count=2)]) == [[0], [MAX_INT]]
    assert groups([segment(0, 1), far, segment(0, MAX_INT + 1, count=1)]) == [[1, MAX_INT, MAX_INT + 1]]


def test_a_segment_without_bytes_has_no_offsets_that_an_index_holds() -> None:
    empty = segment(0, 10, count=2 * MAX_INT, record_count=0, log_bytes=0)
    assert groups([segment(0, 0), empty]) == [[0, 10]]
    assert groups([segment(0, 0), empty, segment(0, empty.next_offset)]) == [[0, 10], [empty.next_offset]]


#: The partition that cannot be cleaned: in the middle of three.
BAD = 1


def topic_of_three(url: str) -> distlog.Topic:
    """Return a topic with two records of one key, due for compaction, in each partition."""
    topic = distlog.create(url, 3, {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0})
    for partition in range(3):
        topic.append([{"key": b"k", "value": b"%d" % number} for number in range(2)], partition=partition)
    return topic


def damage(topic: distlog.Topic) -> str:
    """Flip the last byte of the bad partition's log, and return the name of the log."""
    name = topic.reader.name(topic.snapshot.partitions[BAD].segments[0])
    data = bytearray(topic.storage.read(name))
    data[-1] ^= 0xFF
    topic.storage.put(name, data)
    return name


def offsets(topic: distlog.Topic, *partitions: int) -> list[int]:
    return topic.scan(partitions, columns=["offset"]).to_table()["offset"].to_pylist()  # type: ignore[no-any-return]


def error_of(report: Any) -> str:
    """Return the reason of the bad partition, and check that no other one has a reason."""
    assert isinstance(report, CompactionReport)
    errors = {partition.partition: partition.error for partition in report.partitions}
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
    document = json.loads(json.dumps(report.to_dict()))
    assert document["ok"] is False
    assert {partition["partition"]: partition["error"] for partition in document["partitions"]} == {
        0: None, BAD: error_of(report), 2: None
    }  # fmt: skip
    assert report.to_table().to_pylist() == document["partitions"]
    topic.append([{"key": b"k", "value": b"new"}], partition=0)
    assert topic.compact(dry_run=True).to_dict()["ok"] is True


def test_a_failed_partition_is_cleaned_again(tmp_path: Path) -> None:
    topic = topic_of_three(f"{tmp_path}/log")
    name = damage(topic)
    assert not topic.compact().ok
    assert error_of(topic.compact())
    good = bytearray(topic.storage.read(name))
    good[-1] ^= 0xFF
    topic.storage.put(name, good)
    assert topic.compact().ok
    assert offsets(topic, BAD) == [1]


def test_a_partition_with_a_missing_file_does_not_stop_the_others(tmp_path: Path) -> None:
    topic = topic_of_three(f"{tmp_path}/log")
    topic.storage.delete([topic.reader.name(topic.snapshot.partitions[BAD].segments[0])])
    assert "vacuum deletes" in error_of(topic.compact())
    assert offsets(topic, 0, 2) == [1, 1]


def test_damage_in_transactions_is_the_partitions_own_too(tmp_path: Path) -> None:
    topic = topic_of_three(f"{tmp_path}/log")
    files = {".log": batch([record(0, 0, b"k", b"v")], base_offset=2, producer=(7, 0, 0), attributes=0x10)}
    segment = describe(files, 2, 3, partition=BAD)
    put(topic, segment, {".log": files[".log"][:-1] + b"\xff"})
    put_commit(topic.log, topic.snapshot, "import", lambda _: [Add(segment)])
    assert segment.stem in error_of(topic.compact())
    assert offsets(topic, 0, 2) == [1, 1]


def test_any_damage_is_found_before_anything_is_committed(log: CompactedTopic, tmp_path: Path) -> None:
    log.append((b"a", b"1"), (b"a", b"2"))
    version = log.topic().version
    (path,) = tmp_path.rglob("*.log")
    good = path.read_bytes()
    for bad in (good[:-1] + b"\xff", good[:16] + b"\x05" + good[17:], good[:-1]):
        path.write_bytes(bad)
        report = log.compact()
        assert report is not None
        assert path.name in (report.error or "")
    assert log.topic().version == version


def test_a_malformed_record_with_a_right_checksum_is_damage(log: CompactedTopic) -> None:
    log.append((b"a", b"1"))
    good = batch([record(0, 0, b"1")], base_offset=1)
    bad = with_right_crc(good[:61] + b"\x02" + good[62:])
    fields = {"crc32c": crc32c(bad), "first_batch_crc": UNKNOWN, "last_batch_crc": UNKNOWN}
    segment, topic = describe({".log": good}, 1, 2, **fields), log.topic()
    put(topic, segment, {".log": bad})
    put_commit(topic.log, topic.snapshot, "import", lambda _: [Add(segment)])
    report = log.compact()
    assert report is not None
    assert "offset=1" in (report.error or "")


def test_errors_without_a_file_are_raised() -> None:
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
def test_tasks_return_the_reason(spark: Any, tmp_path: Path) -> None:
    from distlog.spark import SparkExecutor

    topic = topic_of_three(f"{tmp_path}/log")
    name = damage(topic)
    report = topic.compact(executor=SparkExecutor(spark))
    assert name in error_of(report)
    assert offsets(topic.refresh(), 0, 2) == [1, 1]


@pytest.mark.spark
def test_the_job_of_all_that_is_due_fails_with_it(
    spark: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from distlog.jobs.maintenance import maintain

    assert spark
    damage(topic_of_three(f"{tmp_path}/log"))
    arguments = ["--topic", f"{tmp_path}/log", "--json"]
    assert maintain.main(arguments) == 1
    document = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert (document["failed"], document["topics"][0]["compact"]["ok"]) == (1, False)
    assert "vacuum" in document["topics"][0]
