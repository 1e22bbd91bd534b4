"""Retention, vacuum, flushes and checkpoint files on real topics, with a clock that the test sets."""

from __future__ import annotations

import pickle
from pathlib import Path

from addresses import Address
from managed import Managed, create, effects, errors
from partition_logs import Process, append, new_topic
from topics import NOW, Clock, contents, files, named_files, values

import distlog
from distlog.core import paths
from distlog.core.config import DAY_MS, HOUR_MS
from distlog.core.log.partition_log import LogEnd
from distlog.core.log_manager.log_manager import LogManager
from distlog.core.log_manager.log_tasks import TaskRun
from distlog.core.segments.segment_state import packed_position

FIVE = 5 * 60_000


def test_retention_runs_after_the_initial_delay_and_then_at_its_interval(tmp_path: Path) -> None:
    topic = create(tmp_path, "clicks", retention_ms=10 * 60_000)
    topic.append(values([0]))
    topic.append(values([8 * 60_000]))
    managed = Managed(tmp_path)
    assert [run.task for run in managed.after(minutes=0.4) if run.task == "log-retention"] == []
    assert effects(managed.after(minutes=0.1), "log-retention") == {}
    assert [run for run in managed.after(minutes=4.9) if run.task == "log-retention"] == []
    assert effects(managed.after(minutes=0.1), "log-retention") == {}
    assert effects(managed.after(minutes=5), "log-retention")["deleted_records"] == 1
    assert contents(topic.refresh()) == {0: [b"v%d" % (8 * 60_000)]}
    assert effects(managed.after(minutes=10), "log-retention")["deleted_segments"] == 1
    assert contents(topic.refresh()) == {0: []}


def test_broker_settings_are_for_topics_that_set_nothing_themselves(tmp_path: Path) -> None:
    week = {"retention_ms": 7 * DAY_MS}
    topics = {
        "unset": create(tmp_path, "unset"),
        "restated": create(tmp_path, "restated", **week),
        "own": create(tmp_path, "own", retention_ms=2 * HOUR_MS),
    }
    for topic in topics.values():
        topic.append(values([0]))
    managed = Managed(tmp_path, log_retention_hours=1)
    managed.after(minutes=61)
    held = {name: topic.refresh().end_offsets()[0] - topic.start_offsets()[0] for name, topic in topics.items()}
    assert held == {"unset": 0, "restated": 1, "own": 1}
    assert topics["unset"].config.retention_ms == 7 * DAY_MS
    assert managed.manager.topic("unset").config.retention_ms == HOUR_MS


def test_a_changed_setting_of_a_managed_topic_applies(tmp_path: Path) -> None:
    topic = create(tmp_path, "clicks")
    topic.append(values([0]))
    managed = Managed(tmp_path, log_retention_ms=FIVE)
    topic.refresh().alter_config({"retention.ms": 7 * DAY_MS})
    managed.after(minutes=30)
    assert contents(topic.refresh()) == {0: [b"v0"]}
    topic.alter_config({"retention.ms": None})
    managed.after(minutes=30)
    assert contents(topic.refresh()) == {0: []}


def test_broker_settings_are_never_stored_in_a_topic(tmp_path: Path) -> None:
    create(tmp_path, "clicks", segment_ms=5)
    managed = Managed(tmp_path, log_retention_ms=FIVE, log_roll_ms=9)
    topic = managed.manager.topic("clicks")
    assert (topic.config.retention_ms, topic.config.segment_ms) == (FIVE, 5)
    topic.alter_config({"retention.bytes": 1 << 20})
    for _ in range(101):
        topic.append(values([0]))
    read = Managed(tmp_path).manager.topic("clicks").config
    assert read.overrides() == {"segment.ms": "5", "retention.bytes": str(1 << 20)}


def test_a_failing_topic_does_not_stop_the_retention_of_the_others(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        create(tmp_path, name, retention_ms=1).append(values([0]))
    managed = Managed(tmp_path)
    (tmp_path / "b" / "_commits" / f"{2:020}.json").write_text("{")
    runs = managed.after(minutes=1)
    assert effects(runs, "log-retention")["deleted_segments"] == 2
    assert list(errors(runs, "log-retention")) == [f"{tmp_path}/b"]
    assert managed.names() == ["a", "b", "c"]


def test_files_are_deleted_when_their_delay_has_passed_once_per_delay(tmp_path: Path) -> None:
    topic = create(tmp_path, "clicks", file_delete_delay_ms=0, retention_ms=60_000)
    topic.append(values([0]))
    topic.append(values([3_600_000]))
    other = create(tmp_path, "other")
    managed = Managed(tmp_path)
    old_files = files(topic.storage)
    first = effects(managed.after(minutes=5), "delete-logs")
    assert files(topic.storage) == named_files(topic.refresh()) < old_files
    assert (first["vacuumed_topics"], first["deleted_files"]) == (2, len(old_files - files(topic.storage)))
    assert effects(managed.after(minutes=5), "delete-logs") == {"vacuumed_topics": 1}
    assert effects(managed.after(minutes=24 * 60), "delete-logs")["vacuumed_topics"] == 2
    assert other.refresh().version == other.snapshot.version


def test_the_files_of_a_dropped_topic_are_deleted(tmp_path: Path) -> None:
    topic = create(tmp_path, "clicks", file_delete_delay_ms=0)
    topic.append(values(range(5)))
    managed = Managed(tmp_path)
    topic.drop()
    old_files = files(topic.storage)
    assert old_files
    runs = managed.after(minutes=5)
    assert effects(runs, "delete-logs")["deleted_files"] == len(old_files)
    assert (files(topic.storage), managed.names(), managed.manager.errors) == (set(), [], {})


def test_active_segments_are_flushed_when_flush_ms_has_passed(tmp_path: Path) -> None:
    clock = Clock()
    process = Process(new_topic(tmp_path / "clicks", 2, flush_messages=100, flush_ms=3 * 60_000), clock=clock)
    append(process[0], b"a")
    managed = Managed(tmp_path, clock=clock, log_flush_scheduler_interval_ms=60_000)
    flushed = []
    for _ in range(6):
        flushed.append(effects(managed.after(minutes=1), "log-flusher").get("flushes", 0))
        flushed_offset = process[0].end().flushed_offset
    assert (flushed, flushed_offset) == ([0, 0, 1, 0, 0, 0], 1)
    append(process[0], b"b", b"c")
    assert process[0].end() == LogEnd(3, 1)
    for _ in range(4):
        managed.after(minutes=1)
    assert process[0].end() == LogEnd(3, 3)
    assert managed.manager.errors == {}
    process.close()


def test_a_flush_by_somebody_else_begins_the_time_again(tmp_path: Path) -> None:
    clock = Clock()
    process = Process(new_topic(tmp_path / "clicks", flush_messages=100, flush_ms=3 * 60_000), clock=clock)
    append(process[0], b"a")
    managed = Managed(tmp_path, clock=clock, log_flush_scheduler_interval_ms=60_000)
    managed.after(minutes=1)
    managed.after(minutes=1)
    process[0].flush()
    append(process[0], b"b")
    flushes = [effects(managed.after(minutes=1), "log-flusher").get("flushes", 0) for _ in range(4)]
    assert flushes == [0, 0, 1, 0]
    process.close()


def test_without_flush_settings_nothing_is_flushed_as_in_kafka(tmp_path: Path) -> None:
    process = Process(new_topic(tmp_path / "clicks"))
    append(process[0], b"a")
    managed = Managed(tmp_path)
    assert "log-flusher" not in [run.task for run in managed.after(minutes=10_000)]
    assert process[0].end() == LogEnd(1, 0)
    process.close()


def test_the_recovery_points_are_written_as_kafka_writes_them(tmp_path: Path) -> None:
    clicks = Process(new_topic(tmp_path / "clicks", 2))
    append(clicks[0], b"a", b"b", b"c")
    clicks[0].flush()
    append(clicks[0], b"d")
    create(tmp_path, "orders").append(values(range(7)))
    managed = Managed(tmp_path)
    file = tmp_path / "recovery-point-offset-checkpoint"
    managed.after(minutes=1)
    assert file.read_text() == "0\n3\nclicks 0 3\nclicks 1 0\norders 0 7\n"
    clicks[0].flush()
    managed.after(minutes=1)
    assert file.read_text() == "0\n3\nclicks 0 4\nclicks 1 0\norders 0 7\n"
    clicks.close()


def test_a_stopped_manager_leaves_durable_logs(tmp_path: Path) -> None:
    clicks = Process(new_topic(tmp_path / "clicks", 2))
    for partition in range(2):
        append(clicks[partition], b"a", b"b")
    file = tmp_path / "recovery-point-offset-checkpoint"
    with LogManager(str(tmp_path), clock=Clock()) as manager:
        manager.run_once()
        assert file.read_text() == "0\n2\nclicks 0 0\nclicks 1 0\n"
    assert file.read_text() == "0\n2\nclicks 0 2\nclicks 1 2\n"
    for partition in range(2):
        record = clicks.record(partition)
        assert record is not None
        assert record.state is not None
        assert packed_position(record.recovery_point) == record.state.position > 0
    clicks.close()


def test_a_stopping_manager_flushes_other_logs_after_a_failed_one(tmp_path: Path) -> None:
    clicks = Process(new_topic(tmp_path / "clicks", 2))
    for partition in range(2):
        append(clicks[partition], b"a")
    runs = list[TaskRun]()
    with LogManager(str(tmp_path), on_run=runs.append, clock=Clock()):
        (clicks.folder(0) / paths.FLUSH_FILE).mkdir()
    assert "recovery-point-offset-checkpoint" in {run.task for run in runs if run.errors}
    assert (clicks[0].end(), clicks[1].end()) == (LogEnd(1, 0), LogEnd(1, 1))


def test_log_start_offsets_are_written_where_no_segment_shows_them(tmp_path: Path) -> None:
    first, full, emptied = (create(tmp_path, name) for name in ("first", "whole", "emptied"))
    for topic in (first, full, emptied):
        topic.append(values(range(4)))
        topic.append(values(range(4)))
    first.delete_records({0: 2})
    full.delete_records({0: 4})
    full.retention()
    emptied.delete_records({0: 8})
    emptied.retention()
    managed = Managed(tmp_path)
    managed.after(minutes=1)
    file = tmp_path / "log-start-offset-checkpoint"
    assert file.read_text() == "0\n2\nemptied 0 8\nfirst 0 2\n"
    first.refresh().drop()
    managed.after(minutes=1)
    assert file.read_text() == "0\n1\nemptied 0 8\n"


def test_files_are_deleted_after_a_clock_that_was_years_ahead_was_set_back(tmp_path: Path) -> None:
    create(tmp_path, "clicks")
    managed = Managed(tmp_path, clock=Clock(NOW + 10 * 365 * DAY_MS))
    managed.manager.run_once()
    managed.clock.now_ms = NOW
    managed.runs.clear()
    managed.manager.run_once()
    assert effects(managed.runs, "delete-logs")["vacuumed_topics"] == 1


def test_the_checkpoint_files_of_a_broker_stay_as_they_are(tmp_path: Path) -> None:
    """A broker's directory with two topics: one is adopted directly and managed, the other one later."""
    directory = tmp_path / "kafka-logs"
    for name in ("adopted", "left"):
        topic = create(tmp_path / "made", name)
        topic.append(values(range(4)))
        topic.delete_records({0: 2})
        topic.export(directory)
    assert distlog.adopt(directory, topics=["adopted"]).ok
    old_files = {file.name: file.read_bytes() for file in directory.iterdir() if file.is_file()}
    Managed(directory).after(minutes=10)
    assert {file.name: file.read_bytes() for file in directory.iterdir() if file.is_file()} == old_files
    assert distlog.adopt(directory, topics=["left"]).topics["left"].start_offsets() == {0: 2}


def test_a_topic_named_like_a_partition_is_in_the_checkpoint_files(tmp_path: Path) -> None:
    create(tmp_path, "clicks-0").append(values(range(3)))
    Managed(tmp_path).after(minutes=1)
    assert (tmp_path / "recovery-point-offset-checkpoint").read_text() == "0\n1\nclicks-0 0 3\n"


def test_an_object_store_root_gets_no_checkpoint_files(memory_url: Address) -> None:
    url = memory_url.url
    create(url, "clicks").append(values(range(4)))
    managed = Managed(url)
    tasks = {run.task for run in managed.after(minutes=10)}
    assert tasks == {"load-logs", "log-retention", "log-cleaner", "segment-merge", "delete-logs"}


def test_topics_of_the_manager_append_with_the_brokers_settings(tmp_path: Path) -> None:
    create(tmp_path, "clicks", clock=Clock(NOW))
    topic = Managed(tmp_path, log_message_timestamp_type="LogAppendTime").manager.topic("clicks")
    topic.append([{"value": "v", "timestamp": 5}])
    assert topic.scan().to_table()["timestamp_type"].to_pylist() == [1]


def test_a_topic_of_the_manager_keeps_the_brokers_settings_when_pickled(tmp_path: Path) -> None:
    create(tmp_path, "clicks")
    topic = Managed(tmp_path, log_retention_hours=24).manager.topic("clicks")
    copy = pickle.loads(pickle.dumps(topic))
    assert copy.config.retention_ms == topic.config.retention_ms == 24 * HOUR_MS
    distlog.open(topic.url).append([{"value": "v"}])
    assert copy.refresh().config.retention_ms == 24 * HOUR_MS
