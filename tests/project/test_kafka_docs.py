"""docs/kafka.md cannot drift: its examples run."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest
from command_line import CommandLine
from docs_pages import Reader, examples, read
from topics import values

import distlog

TEXT = read("docs/kafka.md")


@pytest.fixture
def kafka_logs(tmp_path: Path) -> str:
    topic = distlog.create(f"{tmp_path}/made/clicks")
    topic.append(values(range(3)))
    return topic.export(tmp_path / "kafka-logs").log_dir


def test_the_python_example_runs(kafka_logs: str, reader: Reader) -> None:
    reader.pastes("docs/kafka.md")


def test_the_commands_run(tmp_path: Path, kafka_logs: str, cli: CommandLine) -> None:
    outputs = []
    for copy in ("kafka-logs-of-monday", "disk1/kafka-logs", "disk2/kafka-logs", "of-broker-2/kafka-logs"):
        shutil.copytree(kafka_logs, tmp_path / copy)
    for line in next(example.commands for example in examples(TEXT) if example.language == "sh"):
        command = line.removeprefix("distlog ").replace("/var/kafka-logs", kafka_logs)
        command = re.sub(r" /(disk|of-broker)", rf" {tmp_path}/\1", command)
        command = command.replace("s3://bucket", str(tmp_path)).replace("/data/logs", f"{tmp_path}/data")
        command, *arguments = shlex.split(command)
        if command == "export":
            arguments[1] += "-again"
        outcome = cli.bare(command, *arguments)
        assert (outcome.status, outcome.err) == (0, "")
        outputs.append(outcome)
    assert outputs[0].out.startswith("would adopt 1 topic, ")
    assert outputs[1].out.startswith("adopted 1 topic, ")
    assert outputs[2].out.startswith("adopted 1 topic, ")
    assert "clicks: was adopted before" in outputs[3].out
    assert outputs[4].json["partitions"][0]["log_end_offset"] == 3


def test_a_topic_that_cannot_be_adopted_makes_the_command_fail(
    tmp_path: Path, kafka_logs: str, cli: CommandLine
) -> None:
    distlog.create(f"{tmp_path}/topics/clicks")
    outcome = cli.bare("adopt", kafka_logs, "--to", f"{tmp_path}/topics", "--json")
    assert outcome.status == 1
    assert not outcome.json["ok"]
    assert "another topic is or was at this address" in outcome.json["topics"][0]["error"]
    outcome = cli.bare("adopt", f"{tmp_path}/absent")
    assert outcome.status == 1
    assert "the directory to adopt does not exist" in outcome.err


def test_text_for_people_has_a_row_for_each_topic(kafka_logs: str, cli: CommandLine) -> None:
    shown = cli.bare("adopt", kafka_logs).rows
    assert shown[1][:4] == ["topic", "result", "partitions", "records"]
    assert shown[2][:4] == ["clicks", "adopted", "1", "3"]
