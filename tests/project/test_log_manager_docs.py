"""docs/log-manager.md cannot drift: its examples run, and its tables match the code."""

from __future__ import annotations

import inspect
import re
import shlex
from pathlib import Path

import pytest
from command_line import CommandLine
from docs_pages import Reader, examples, read, table
from managed import Managed, create
from topics import values

import distlog
from distlog.core.log_manager import log_manager
from distlog.core.log_manager.broker_config import SAME_MEANING, TIMES, BrokerConfig, settings_of, settings_with_texts

TEXT = read("docs/log-manager.md")
TABLES = TEXT.replace("`", "")


def test_the_python_example_runs(reader: Reader) -> None:
    reader.pastes("docs/log-manager.md")


def test_the_commands_run(tmp_path: Path, cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "server.properties").write_text("broker.id=0\nlog.dirs=/tmp\nlog.retention.hours=24\n")
    (tmp_path / "logs").mkdir()
    lines = next(example.commands for example in examples(TEXT) if example.language == "sh")
    assert len(lines) == 3
    for line in lines:
        # each command ends with --once, and without the example's bucket
        command = re.sub(r" --root s3:\S+| --metrics-port \S+| --once", "", line.removeprefix("distlog "))
        command = f"{command.replace('/data/logs', shlex.quote(str(tmp_path / 'logs')))} --once"
        run = cli.bare(*shlex.split(command))
        assert (run.status, run.err) == (0, ""), line


def test_the_tasks_are_those_of_the_table(tmp_path: Path) -> None:
    managed = Managed(tmp_path, log_flush_scheduler_interval_ms=1)
    managed.runs.clear()
    managed.manager.run_once()
    assert [row[0] for row in table(TABLES, "## The tasks")] == [run.task for run in managed.runs]
    assert {row[1] for row in table(TABLES, "## The tasks")} < {
        setting.name for setting in settings_of(BrokerConfig).values()
    }


def test_the_schedules_settings_are_those_of_the_table() -> None:
    expected = [[setting.name, value] for setting, value, _ in settings_with_texts(BrokerConfig())]
    assert table(TABLES, "## Kafka broker settings") == expected


def test_the_topics_settings_are_those_of_the_table() -> None:
    expected = {topic: broker for broker, topic in SAME_MEANING.items()}
    expected |= {topic: ", ".join(name for name, _ in times) for topic, times in TIMES.items()}
    assert table(TABLES, "## Kafka broker settings", 1) == [list(row) for row in sorted(expected.items())]


def test_the_metrics_are_those_of_the_table(tmp_path: Path) -> None:
    create(tmp_path, "clicks", retention_ms=1).append(values(range(3)))
    with distlog.open(str(tmp_path / "clicks")).writer() as writer:
        writer.append(b"in place")
    managed = Managed(tmp_path)
    managed.manager.run_once()
    rows = [
        [metric.name + "_total" * (metric.kind == "counter"), set(metric.values[0][0]), metric.meaning]
        for metric in managed.manager.metrics()
        if not re.match(
            "distlog_(load|log|delete|segment|recovery|transaction)_(?!(start_o|end|size|segments|late|append|flush(es|_s)))",
            metric.name,
        )
    ]
    assert rows == [[name, set(labels.split(", ")), meaning] for name, labels, meaning in table(TABLES, "## Metrics")]
    names = {metric.name + "_total" for metric in managed.manager.metrics()}
    assert "distlog_log_retention_deleted_bytes_total" in names


def test_the_seconds_of_the_end_are_those_of_the_text() -> None:
    assert f"waits {log_manager.STOP_TIMEOUT_S:g} seconds" in " ".join(TEXT.split())
    assert (
        inspect.signature(log_manager.LogManager.stop).parameters["timeout_s"].default == log_manager.STOP_TIMEOUT_S
    )
