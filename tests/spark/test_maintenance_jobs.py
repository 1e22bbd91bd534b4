"""The maintenance jobs for one topic or all in a root: their output, exit status and failures."""

from __future__ import annotations

import argparse
import gc
import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from addresses import Address

import distlog
from distlog.console.output import Report, Summary
from distlog.core.errors import InvalidConfigError
from distlog.core.storage.storage import Storage
from distlog.jobs.maintenance import MaintenanceJob, maintenance_parser

JOBS = Path(__file__).parents[2] / "jobs"
OLD = {"retention.ms": 1000, "file.delete.delay.ms": 0}


class Ran:
    """The output and the exit status of a job."""

    def __init__(self, status: int, out: str, err: str) -> None:
        self.status, self.out, self.err = status, out, err

    @property
    def summary(self) -> Any:
        return json.loads(self.out.splitlines()[-1])

    @property
    def topics(self) -> dict[str, dict[str, Any]]:
        return {summary["topic"].rpartition("/")[2]: summary for summary in self.summary["topics"]}


@pytest.fixture
def job(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    def run(name: str, *arguments: object) -> Ran:
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(JOBS / f"{name}.py"), run_name="__main__")
        return Ran(int(ended.value.code or 0), *capsys.readouterr())

    return run


def old_topic(url: str, options: dict[str, Any] | None = None) -> distlog.Topic:
    topic = distlog.create(url, config=OLD, storage_options=options)
    topic.append([{"value": f"v{number}", "timestamp": number} for number in range(2)])
    return topic


def storage_arguments(options: dict[str, Any]) -> list[str]:
    return [part for name, value in options.items() for part in ("--storage", f"{name}={value}")]


def test_retention_then_vacuum_of_a_topic_on_every_kind_of_storage(storage_url: Address, job: Any) -> None:
    url = f"{storage_url.url}/clicks"
    topic = old_topic(url, storage_url.options)
    arguments = ("--topic", url, "--json", *storage_arguments(storage_url.options))
    (summary,) = job("retention", *arguments).summary["topics"]
    assert (summary["topic"], summary["segments"], summary["records"], summary["version"]) == (url, 1, 2, 2)
    assert topic.refresh().start_offsets() == {0: 2}
    ran = job("vacuum", *arguments)
    assert (ran.status, ran.summary["topics"][0]["files"], ran.summary["failed"]) == (0, 2, 0)
    assert topic.storage.list("clicks-0") == []
    if storage_url.options:
        assert storage_url.options["secret"] not in ran.out + ran.err


def test_a_dry_run_changes_nothing(tmp_path: Path, job: Any) -> None:
    topic = old_topic(f"{tmp_path}/clicks")
    ran = job("retention", "--topic", topic.url, "--dry-run")
    assert ran.out.startswith(f"{topic.url}: would delete 1 segment, ")
    assert (topic.refresh().version, topic.scan().count()) == (1, 2)
    topic.retention()
    version = topic.version
    ran = job("vacuum", "--topic", topic.url, "--dry-run", "--json")
    assert (ran.summary["topics"][0]["dry_run"], ran.summary["topics"][0]["files"]) == (True, 2)
    assert (topic.refresh().version, len(topic.storage.list("clicks-0"))) == (version, 2)


@pytest.mark.s3
def test_every_topic_below_a_root_on_an_object_store(s3_url: Address, job: Any) -> None:
    for name in ("a", "b"):
        old_topic(f"{s3_url.url}/{name}", s3_url.options)
    ran = job("retention", "--root", s3_url.url, "--json", *storage_arguments(s3_url.options))
    assert (ran.status, ran.err) == (0, "")
    assert {name: summary["segments"] for name, summary in ran.topics.items()} == {"a": 1, "b": 1}


def test_a_failing_topic_does_not_stop_the_others(tmp_path: Path, job: Any) -> None:
    for name in ("a", "b", "c"):
        old_topic(f"{tmp_path}/{name}")
    for file in Path(tmp_path, "b", "_commits").glob("*.json"):
        file.write_text("no commit")
    ran = job("retention", "--root", tmp_path, "--json")
    assert (ran.status, ran.summary["failed"], list(ran.topics)) == (1, 1, ["a", "b", "c"])
    assert ran.topics["c"]["segments"] == ran.topics["a"]["segments"] == 1
    assert ran.err.count("\n") == 1
    assert ran.err.startswith(f"retention.py: {tmp_path}/b: ")
    assert ran.err.strip().endswith(ran.topics["b"]["error"])
    ran = job("retention", "--root", tmp_path)
    assert (ran.status, len(ran.out.splitlines())) == (1, 3)
    assert ran.out.splitlines()[-1].startswith("3 topics in ")
    assert ran.out.endswith(" s, 1 failed\n")


def test_other_folders_in_a_root_are_not_topics(tmp_path: Path, job: Any) -> None:
    old_topic(f"{tmp_path}/logs/clicks")
    (tmp_path / "logs" / "notes").mkdir()
    (tmp_path / "logs" / "README").write_text("a file, not a topic")
    (tmp_path / "logs" / "group" / "clicks" / "_commits").mkdir(parents=True)
    ran = job("retention", "--root", tmp_path / "logs", "--json")
    assert (ran.status, list(ran.topics)) == (0, ["clicks"])


def test_vacuum_leaves_only_commits_of_a_dropped_topic(tmp_path: Path, job: Any) -> None:
    for name in ("a", "b"):
        old_topic(f"{tmp_path}/{name}")
    distlog.open(f"{tmp_path}/a").drop()
    ran = job("retention", "--root", tmp_path, "--json")
    assert (ran.status, list(ran.topics)) == (0, ["b"])
    ran = job("vacuum", "--root", tmp_path, "--json")
    assert {name: summary["files"] for name, summary in ran.topics.items()} == {"a": 2, "b": 2}
    assert Storage(tmp_path / "a").list("a-0") == []
    assert job("retention", "--topic", tmp_path / "a").status == 1


@pytest.mark.parametrize("where", ["--topic", "--root"])
@pytest.mark.parametrize("name", ["retention", "vacuum"])
def test_a_missing_topic_fails(tmp_path: Path, job: Any, name: str, where: str) -> None:
    ran = job(name, where, tmp_path)
    assert (ran.status, ran.out, ran.err.count("\n")) == (1, "", 1)
    assert "no topic" in ran.err


@pytest.mark.parametrize("arguments", [(), ("--topic", "a", "--root", "b"), ("--topic", "a", "--storage", "x")])
@pytest.mark.parametrize("name", ["retention", "vacuum"])
def test_a_wrong_command_line_is_status_2(job: Any, name: str, arguments: tuple[str, ...]) -> None:
    assert job(name, *arguments).status == 2


def refuse(url: str, options: argparse.Namespace) -> Report:
    if url.endswith("wrong"):
        raise InvalidConfigError("not so")
    return Summary("done", {})


def test_an_invalid_argument_for_a_topic_is_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old_topic(f"{tmp_path}/wrong")
    old_topic(f"{tmp_path}/right")
    parser = maintenance_parser("job.py", "A job.")
    assert MaintenanceJob(parser, refuse).main(["--topic", f"{tmp_path}/wrong"]) == 2
    assert MaintenanceJob(parser, refuse).main(["--topic", f"{tmp_path}/right"]) == 0
    assert MaintenanceJob(parser, refuse).main(["--root", str(tmp_path), "--json"]) == 1
    out, err = capsys.readouterr()
    assert err.count(f"{tmp_path}/wrong: not so\n") == 2
    assert json.loads(out.splitlines()[-1])["failed"] == 1


def test_a_job_does_not_collect_garbage_of_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A collection at exit would use a quarter of the CPU of a job without Spark."""
    frozen: list[str] = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append("by a program"))
    parser = maintenance_parser("job.py", "A job.")
    MaintenanceJob(parser, dict).main(["--root", str(tmp_path)])
    assert not frozen
    monkeypatch.setattr(sys, "argv", ["a-job", "--root", str(tmp_path)])
    MaintenanceJob(parser, dict).main()
    assert frozen == ["by a program"]


@pytest.mark.long
def test_retention_and_vacuum_start_no_java(tmp_path: Path) -> None:
    old_topic(f"{tmp_path}/clicks")
    for name in ("retention", "vacuum"):
        command = [sys.executable, JOBS / f"{name}.py", "--root", tmp_path, "--json"]
        environment = {"PATH": "/nonexistent", "JAVA_HOME": "/nonexistent", "HOME": str(tmp_path)}
        environment["PYTHONPATH"] = str(JOBS.parent)
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert (ran.returncode, ran.stderr) == (0, "")
        assert json.loads(ran.stdout)["failed"] == 0
