"""`distlog doctor`: what is well is ok, and each thing that is wrong has a row that says what to do."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from careless_bucket import Bucket
from careless_bucket import bucket as bucket
from careless_bucket import new_process as new_process
from command_line import CommandLine
from docs_pages import read, table

import distlog

LIBRARY = Path(distlog.__file__).parent.parent
Rows = dict[str, dict[str, str]]


@pytest.fixture(autouse=True)
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fake Java and Python programs without faults; real ones take a tenth of a second to answer."""
    folder = tmp_path / "programs"
    program(folder / "bin" / "java", "echo 'openjdk version \"21\"' >&2")
    program(folder / "python", """echo '[["pyspark_distlog"], {}, "distlog", "pyspark_distlog"]'""")
    monkeypatch.setenv("JAVA_HOME", str(folder))
    monkeypatch.setenv("PYSPARK_PYTHON", str(folder / "python"))


def rows(cli: CommandLine, *arguments: str, status: int = 0) -> Rows:
    """Return the worst row of each check."""
    outcome = cli.bare("doctor", *arguments, "--json")
    assert (outcome.status, outcome.json["ok"], outcome.err) == (status, status == 0, "")
    return by_check(outcome.json["checks"])


def by_check(checks: list[dict[str, str]]) -> Rows:
    order = ["ok", "warning", "error"]
    return {row["check"]: row for row in sorted(checks, key=lambda row: order.index(row["status"]))}


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Python for Spark with only the standard library; tests change its program."""
    path = tmp_path / "python"
    program(path, f'exec {sys.executable} -S -E "$@"')
    monkeypatch.setenv("PYSPARK_PYTHON", str(path))
    monkeypatch.chdir(tmp_path)
    return path


def program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.fixture
def spark() -> None:
    pytest.importorskip("pyspark")


def test_a_healthy_machine_has_no_error_and_the_page_lists_every_check(
    cli: CommandLine, spark: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    records = rows(cli, cli.url)
    assert {row["status"] for name, row in records.items() if name != "kernels"} == {"ok"}
    shown = {name.partition(":")[0].strip("`") for name, *_ in table(read("docs/command-line.md"), "## doctor")}
    assert shown == {name.partition(":")[0] for name in records}
    assert not Path(cli.url).exists()


def test_text_output_is_a_count_and_a_table(cli: CommandLine, spark: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nonexistent")
    outcome = cli.bare("doctor")
    assert (outcome.status, outcome.rows[1]) == (1, ["check", "status", "found", "advice"])
    assert outcome.rows[0][0].startswith("1 error")
    (java,) = (row for row in outcome.rows if row[0] == "Java")
    assert java[1:3] == ["error", "none in JAVA_HOME=/nonexistent"]


@pytest.mark.parametrize(
    ("said", "status"),
    [
        ('openjdk version "17.0.15" 2025-04-15', "ok"),
        ('openjdk version "25" 2025-09-16', "ok"),
        ('java version "1.8.0_402"', "error"),
        ('openjdk version "11.0.22" 2024-01-16', "error"),
        ("Error: could not find libjava.so", "error"),
    ],
)
def test_java_is_that_of_java_home_and_17_or_newer(
    cli: CommandLine, spark: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, status: str
) -> None:
    program(tmp_path / "java" / "bin" / "java", f"echo '{said}' >&2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    row = rows(cli, status=1 if status == "error" else 0)["Java"]
    assert (row["status"], "install Java 17" in row["advice"]) == (status, status == "error")
    monkeypatch.setenv("SPARK_REMOTE", "sc://elsewhere")
    assert rows(cli)["Java"]["status"] == "ok"


def test_java_runs_without_the_option_variables(
    cli: CommandLine, spark: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(
        tmp_path / "java" / "bin" / "java", 'echo "$JAVA_TOOL_OPTIONS $_JAVA_OPTIONS $JDK_JAVA_OPTIONS no version"'
    )
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    for name in ("JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "JDK_JAVA_OPTIONS"):
        monkeypatch.setenv(name, "-Dpassword=s3cret")
    row = rows(cli, status=1)["Java"]
    assert ("does not print its version" in row["found"], "s3cret" in row["found"]) == (True, False)


def test_a_java_that_does_not_answer_is_reported(
    cli: CommandLine, spark: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path / "java" / "bin" / "java", "exec sleep 60")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    monkeypatch.setattr("distlog.cli.maintenance_commands._TIMEOUT_S", 0.25)
    records = rows(cli, status=1)
    assert records["Java"]["found"].endswith("does not print its version: no answer in 0.25 s")


def test_missing_java_is_reported(
    cli: CommandLine, spark: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    records = rows(cli, status=1)
    assert (records["Java"]["status"], records["Java"]["found"]) == ("error", "none in PATH")


@pytest.mark.parametrize("jars", [[], ["spark-core_2.13-4.1.0.jar"]])
def test_another_spark_in_spark_home_is_reported(
    cli: CommandLine, spark: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jars: list[str]
) -> None:
    for name in jars:
        program(tmp_path / "jars" / name, "")
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    row = rows(cli, status=1)["PySpark"]
    assert row["status"] == "error"
    assert ("Spark 4.1.0 of SPARK_HOME" if jars else "has no Spark") in row["found"]


def stand_in(cli: CommandLine) -> dict[str, str]:
    return rows(cli)['format("distlog")']


def test_a_python_of_spark_without_distlog_is_named(cli: CommandLine, spark: None, python: Path) -> None:
    row = stand_in(cli)
    assert (row["status"], row["found"]) == (
        "warning",
        f"{python} (by PYSPARK_PYTHON), which Spark would run, has no distlog",
    )
    assert f"PYSPARK_PYTHON={sys.executable}" in row["advice"]
    python.unlink()
    assert "which Spark would run, fails" in stand_in(cli)["found"]


#: An editable install of setuptools: a finder has the module, and no folder of sys.path does.
FINDER = """
import importlib.util, sys

sys.prefix = "PREFIX"

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        places = {"distlog": "LIBRARY/distlog/__init__.py", "pyspark_distlog": "LIBRARY/pyspark_distlog.py"}
        return importlib.util.spec_from_file_location(name, places[name]) if name in places else None

sys.meta_path.append(Finder)
text = sys.argv[2]
sys.argv[1:3] = []
exec(text)
"""


def test_an_editable_install_outside_sparks_path_is_reported(cli: CommandLine, spark: None, python: Path) -> None:
    finder = python.with_name("finder.py")
    finder.write_text(FINDER.replace("LIBRARY", str(LIBRARY)).replace("PREFIX", sys.prefix))
    program(python, f'exec {sys.executable} -S -E {finder} "$@"')
    row = stand_in(cli)
    assert (row["status"], str(LIBRARY / "pyspark_distlog.py") in row["found"]) == ("warning", True)
    assert row["advice"].startswith("call distlog.spark.register(spark)")


@pytest.mark.parametrize("name", ["pyspark_broken", "distlog.spark"])
def test_modules_missing_in_sparks_python_are_named(cli: CommandLine, spark: None, python: Path, name: str) -> None:
    if name == "pyspark_broken":
        program(python, f'PYTHONPATH={LIBRARY}:{python.parent} exec {sys.executable} "$@"')
        (python.parent / "pyspark_broken.py").write_text("raise RuntimeError('no')")
    else:
        program(python, f'PYTHONPATH={python.parent} exec {sys.executable} -S "$@"')
        shutil.copytree(LIBRARY / "distlog", python.parent / "distlog")
    row = stand_in(cli)
    assert (row["status"], f"cannot import {name}" in row["found"]) == ("warning", True)


def test_output_of_python_and_modules_is_ignored(cli: CommandLine, spark: None, python: Path) -> None:
    packages = python.parent / "packages"
    packages.mkdir()
    (packages / "pyspark_talks.py").write_text("print('hello')")
    program(python, f'PYTHONWARNINGS=foo PYTHONPATH={LIBRARY}:{packages} exec {sys.executable} "$@"')
    assert stand_in(cli)["status"] == "ok"


def test_no_module_of_the_current_folder_is_run(cli: CommandLine, spark: None, python: Path) -> None:
    program(python, f'PYTHONPATH={LIBRARY} exec {sys.executable} "$@"')
    for name in ("pyspark_other", "json"):
        (python.parent / f"{name}.py").write_text(f"open('ran-{name}', 'w')")
    assert stand_in(cli)["status"] == "ok"
    assert list(python.parent.glob("ran-*")) == []


def test_few_open_files_are_a_warning(cli: CommandLine) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    try:
        row = rows(cli)["open files"]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert (row["status"], row["found"][:4]) == ("warning", "512;")


@pytest.mark.parametrize(("name", "check"), [("f_bavail", "space"), ("f_favail", "inodes")])
def test_a_full_disk_is_an_error_and_one_that_is_nearly_full_a_warning(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch, name: str, check: str
) -> None:
    disk = dict.fromkeys(("f_bavail", "f_blocks", "f_favail", "f_files", "f_frsize"), 1000)
    for free, status in ((0, "error"), (49, "warning"), (50, "ok")):
        statvfs = type("Disk", (), {**disk, name: free})
        monkeypatch.setattr(os, "statvfs", lambda _, statvfs=statvfs: statvfs)
        assert rows(cli, cli.url, status=1 if status == "error" else 0)[check]["status"] == status


def test_an_unusable_store_is_reported(cli: CommandLine, bucket: type[Bucket]) -> None:
    bucket.looks = False
    records = rows(cli, "gs://bucket/logs", status=1)
    assert [name for name, row in records.items() if row["status"] == "error"] == ["store: a race for one name"]
    assert records["store: clock"]["status"] == "ok"


def test_a_wrong_address_is_reported_without_its_secret(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s3cret")
    for url in ("s3://key:s3cret@bucket/logs", "hdfs://host/logs"):
        outcome = cli.bare("doctor", url, "--storage", "secret=s3cret")
        assert (outcome.status, "s3cret" in outcome.out + outcome.err) == (1, False)
        assert outcome.rows[-1][:2] == ["store", "error"]


def test_damaged_and_copied_topics_are_reported(cli: CommandLine, tmp_path: Path) -> None:
    root = tmp_path / "root"
    for name in ("clicks", "damaged"):
        distlog.create(str(root / name))
    (root / "damaged" / "_commits" / f"{0:020d}.json").write_bytes(b"{}")
    shutil.copytree(root / "clicks", root / "backup")
    records = rows(cli, str(root), status=1)
    assert records["topics"]["found"] == "2 topics can be opened"
    assert (records["topics: damaged"]["status"], records["topics: backup"]["status"]) == ("error", "warning")
    assert records["topics: backup"]["found"].startswith("has the topic id of clicks, since one is a copy")
    assert records["topics: backup"]["advice"] == f"distlog alter {root}/backup --new-id"


@pytest.fixture
def bare(tmp_path: Path) -> Any:
    """Run the doctor in a Python without PySpark, s3fs and Java, and with another version of a package."""
    packages = tmp_path / "packages"
    packages.mkdir()
    for search_path in map(Path, sys.path):
        for path in search_path.iterdir() if search_path.name == "site-packages" else ():
            if not path.name.startswith(("pyspark", "s3fs", "numba-", "__editable__")):
                (packages / path.name).symlink_to(path)
    folder = packages / "numba-0.99.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: numba\nVersion: 0.99.0\n")
    environment = {"PATH": str(tmp_path), "PYTHONPATH": f"{LIBRARY}:{packages}", "NUMBA_CACHE_DIR": str(tmp_path)}

    def run(*arguments: str) -> Rows:
        command = [sys.executable, "-S", "-m", "distlog_command", "doctor", *arguments, "--json"]
        ran = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert (ran.returncode, ran.stderr) == (1, "")
        return by_check(json.loads(ran.stdout)["checks"])

    return run


@pytest.mark.long
def test_it_works_without_java_pyspark_and_s3fs(bare: Any) -> None:
    checks = bare("s3://bucket/logs")
    assert [
        (checks[name]["status"], "only Spark needs" in checks[name]["found"]) for name in ("Java", "PySpark")
    ] == [
        ("ok", True),
        ("ok", True),
    ]
    assert 'format("distlog")' not in checks
    store = checks["store: writes and reads"]
    assert (store["status"], "pydistlog[s3]" in store["found"]) == ("error", True)
    assert checks["packages"]["status"] == "ok"
    assert "numba 0.99.0" in checks["packages"]["found"]
    assert "s3fs" not in checks["packages"]["found"]
    assert (checks["kernels"]["status"], checks["kernels"]["found"][:5]) == ("warning", "cold:")
    assert str(os.geteuid()) in checks["kernels"]["found"]
