"""The manager as a whole: its threads, its errors, one run of everything, and its metrics."""

from __future__ import annotations

import logging
import shutil
import threading
from pathlib import Path

import pytest
from left_transactions import TIME_MS, in_transaction, left_log_dir, plain
from managed import Managed, create
from partition_logs import Process, append, new_topic
from topics import values

import distlog
from distlog.core.log_manager.log_manager import Metric
from distlog.core.log_manager.log_tasks import LogTasks, TaskRun
from distlog.core.read.fetch import MAX_TIMEOUT_MS

TASKS = [
    *("load-logs", "log-retention", "log-cleaner", "segment-merge", "delete-logs"),
    *("recovery-point-offset-checkpoint", "log-start-offset-checkpoint"),
]


def test_in_a_with_block_the_tasks_run_in_threads_until_its_end(tmp_path: Path) -> None:
    create(tmp_path, "clicks", retention_ms=1).append(values(range(3)))
    ran, retained = set[str](), threading.Event()

    def on_run(run: TaskRun) -> None:
        ran.add(run.task)
        if run.task == "log-retention":
            retained.set()

    settings = {"log.initial.task.delay.ms": 0}
    with distlog.LogManager(str(tmp_path), config=settings, on_run=on_run) as manager:
        assert [topic.name for topic in manager.topics] == ["clicks"]
        assert retained.wait(60)
    assert distlog.open(f"{tmp_path}/clicks").start_offsets() == {0: 3}
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("distlog-log")] == []
    assert (tmp_path / "recovery-point-offset-checkpoint").read_text() == "0\n1\nclicks 0 3\n"
    assert {"load-logs", "log-retention", "recovery-point-offset-checkpoint"} <= ran


def test_the_checkpoint_files_are_written_when_the_manager_stops(tmp_path: Path) -> None:
    topic = create(tmp_path, "clicks")
    with distlog.LogManager(str(tmp_path)):
        topic.append(values(range(5)))
    assert (tmp_path / "recovery-point-offset-checkpoint").read_text() == "0\n1\nclicks 0 5\n"
    assert (tmp_path / "log-start-offset-checkpoint").read_text() == "0\n0\n"


def test_each_task_runs_once_and_returns_its_success(tmp_path: Path) -> None:
    create(tmp_path, "clicks", retention_ms=1).append(values(range(3)))
    managed = Managed(tmp_path)
    managed.runs.clear()
    managed.clock.now_ms += 1000
    assert managed.manager.run_once()
    assert [run.task for run in managed.runs] == TASKS
    assert managed.manager.topic("clicks").start_offsets() == {0: 3}
    (tmp_path / "clicks" / "_commits" / f"{3:020}.json").write_text("{")
    assert not managed.manager.run_once()


def test_an_error_is_logged_once_until_it_changes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    create(tmp_path, "clicks")
    managed = Managed(tmp_path)
    bad = tmp_path / "clicks" / "_commits" / f"{1:020}.json"
    bad.write_text("{")
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            managed.after(minutes=10)
        assert len(caplog.messages) == 1
        assert caplog.messages[0].startswith(f"load-logs failed at {tmp_path}/clicks: not a commit")
        bad.unlink()
        managed.after(minutes=10)
        bad.write_text("{")
        managed.after(minutes=10)
    assert len(caplog.messages) == 2


def test_a_fault_of_a_task_is_reported_and_the_task_runs_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(tmp_path, "clicks")
    managed = Managed(tmp_path)
    topic = managed.manager.topic("clicks")
    monkeypatch.setattr(topic, "retention", lambda: 1 / 0)
    managed.after(minutes=5)
    assert managed.manager.errors["log-retention"] == {topic.url: "ZeroDivisionError: division by zero"}
    monkeypatch.undo()
    managed.after(minutes=5)
    assert managed.manager.errors == {}


def test_a_fault_outside_of_any_topic_does_not_end_the_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LogTasks, "clean_up_logs", lambda self, run: 1 / 0)
    managed = Managed(tmp_path)
    for _ in range(2):
        runs = managed.after(minutes=5)
        assert [run.errors for run in runs if run.task == "log-retention"] == [
            {str(tmp_path): "ZeroDivisionError: division by zero"}
        ]


def test_a_callback_that_fails_does_not_end_the_task(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    runs, enough = list[str](), threading.Event()

    def on_run(run: TaskRun) -> None:
        if run.task == "log-retention":
            runs.append(run.task)
            if len(runs) == 3:
                enough.set()
            raise BrokenPipeError("nobody reads the output")

    settings = {"log.initial.task.delay.ms": 0, "log.retention.check.interval.ms": 1}
    with distlog.LogManager(str(tmp_path), config=settings, on_run=on_run):
        assert enough.wait(60)
    assert "on_run failed after log-retention: BrokenPipeError: nobody reads the output" in caplog.text


def values_of(metrics: list[Metric], name: str) -> dict[str, float]:
    """Return the values of a metric by their labels without the root."""
    selected = next(metric for metric in metrics if metric.name == name)
    return {
        ",".join(f"{key}={text}" for key, text in labels.items() if key != "root"): value
        for labels, value in selected.values
    }


def test_the_metrics_cover_partitions_and_tasks(tmp_path: Path) -> None:
    topic = create(tmp_path, "clicks", 2, retention_ms=60_000)
    topic.append(values(range(10)), partition=0)
    topic.append(values([290_000]), partition=0)
    managed = Managed(tmp_path)
    managed.after(minutes=5)
    metrics = managed.manager.metrics()
    first, two = "topic=clicks,partition=0", "topic=clicks,partition=1"
    assert values_of(metrics, "distlog_log_start_offset") == {first: 10, two: 0}
    assert values_of(metrics, "distlog_log_end_offset") == {first: 11, two: 0}
    assert values_of(metrics, "distlog_log_segments") == {first: 1, two: 0}
    assert values_of(metrics, "distlog_log_late_transaction") == {first: 0, two: 0}
    size = int(topic.refresh().snapshot.partitions[0].segments.log_bytes.sum())
    assert values_of(metrics, "distlog_log_size_bytes") == {first: size, two: 0}
    assert values_of(metrics, "distlog_topics") == {"": 1}
    assert values_of(metrics, "distlog_root_offline") == {"": 0}
    assert values_of(metrics, "distlog_log_retention_deleted_records") == {"": 10}
    runs = values_of(metrics, "distlog_task_runs")
    assert runs == {f"task={task}": 2 if task == "load-logs" else 1 for task in TASKS}
    managed.after(minutes=5)
    metrics = managed.manager.metrics()
    assert values_of(metrics, "distlog_task_runs")["task=log-retention"] == 2
    last = values_of(metrics, "distlog_task_last_run_timestamp_seconds")["task=log-retention"]
    assert last == managed.clock.now_ms / 1000
    assert set(values_of(metrics, "distlog_task_failing").values()) == {0}


def test_a_metric_names_a_partition_whose_transaction_is_open_for_too_long(tmp_path: Path) -> None:
    log_dir = left_log_dir(tmp_path, {"clicks-0": plain(0, b"a") + in_transaction(1, b"b"), "clicks-1": b""}, {})
    distlog.adopt(log_dir, str(tmp_path / "root"))
    managed = Managed(tmp_path / "root")
    for late_ms, is_late in ((0, 0), (1, 1)):
        managed.clock.now_ms = TIME_MS + MAX_TIMEOUT_MS + 300_000 + late_ms
        samples = values_of(managed.manager.metrics(), "distlog_log_late_transaction")
        assert samples == {"topic=clicks,partition=0": is_late, "topic=clicks,partition=1": 0}


def test_the_metrics_count_direct_appends_and_syncs_of_any_process(tmp_path: Path) -> None:
    create(tmp_path, "bulk").append(values(range(10)))
    process = Process(new_topic(tmp_path / "clicks", 2))
    append(process[1], b"a")
    append(process[1], b"b", b"c")
    process[1].flush()
    (log,) = (tmp_path / "clicks/clicks-1").glob("*.log")
    managed = Managed(tmp_path)
    metrics, partition = managed.manager.metrics(), "topic=clicks,partition=1"
    assert values_of(metrics, "distlog_log_appends") == {partition: 2}
    assert values_of(metrics, "distlog_log_append_bytes") == {partition: log.stat().st_size}
    assert values_of(metrics, "distlog_log_flushes") == {partition: 1}
    for name in ("append", "flush"):
        assert 0 < values_of(metrics, f"distlog_log_{name}_seconds")[partition] < 3600
    append(process[1], b"d")
    assert values_of(managed.manager.metrics(), "distlog_log_appends") == {partition: 3}
    process.close()


def test_a_copied_topic_has_metrics_of_its_own(tmp_path: Path) -> None:
    """The copy's commits have the name of the original, and Prometheus refuses two values with one name."""
    create(tmp_path, "clicks")
    shutil.copytree(tmp_path / "clicks", tmp_path / "copy")
    metrics = Managed(tmp_path).manager.metrics()
    samples = values_of(metrics, "distlog_log_end_offset")
    assert samples == {"topic=clicks,partition=0": 0, "topic=copy,partition=0": 0}


def test_the_metrics_report_a_root_that_does_not_answer(tmp_path: Path) -> None:
    (tmp_path / "root").write_text("")
    metrics = Managed(tmp_path / "root").manager.metrics()
    assert values_of(metrics, "distlog_root_offline") == {"": 1}
    assert values_of(metrics, "distlog_task_errors") == {"task=load-logs": 1}
