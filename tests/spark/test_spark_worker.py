"""Garbage collection in Python processes of Spark: imports are frozen there, and in no other process."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from spark_python import python_of_spark

import distlog

PROGRAM = """
import gc, sys
from importlib.machinery import ModuleSpec

# this process was forked from one that has frozen what it imported
gc.unfreeze()
if sys.argv[1]:
    sys.modules["__main__"].__spec__ = ModuleSpec(sys.argv[1], None)
from contextlib import suppress

from distlog.core.errors import InvalidConfigError
from distlog.spark.data_source import DistlogDataSource

counts, clients = [0], []
for _ in range(3):
    with suppress(InvalidConfigError):  # it has no path, but by then all is imported
        DistlogDataSource({}).schema()
    counts.append(gc.get_freeze_count())
    clients += [[] for _ in range(1000)]
print(*(after - before >= 1000 for before, after in zip(counts, counts[1:])))
"""


@pytest.mark.parametrize(
    ("program", "frozen"),
    [
        ("pyspark.daemon", (True, True, False)),
        ("pyspark.sql.worker.x", (True, True, False)),
        ("", (False, False, False)),
        ("mine", (False, False, False)),
    ],
)
def test_only_sparks_processes_freeze_imports(program: str, frozen: tuple[bool, ...]) -> None:
    """The first and the second task freeze them, and the third does not."""
    run = subprocess.run([python_of_spark(), "-c", PROGRAM, program], capture_output=True, text=True, check=False)
    assert (run.stdout.split(), run.returncode) == ([str(number) for number in frozen], 0), run.stderr


WORKS_FOR = """
import sys
from importlib.machinery import ModuleSpec

sys.modules["__main__"].__spec__ = ModuleSpec(sys.argv.pop(1), None)
from distlog.spark.sink import COMMITTER_MODULE
from distlog.spark.options import is_spark_worker_for

print(is_spark_worker_for(COMMITTER_MODULE))
"""

RUNNER = "pyspark.sql.worker.python_streaming_sink_runner"


@pytest.mark.parametrize(
    ("program", "argument", "expected"),
    [
        ("pyspark.daemon", RUNNER, True),
        (RUNNER, "", True),
        ("pyspark.daemon", "pyspark.sql.worker.write_into_data_source", False),
        ("mine", RUNNER, False),
    ],
)
def test_a_process_of_spark_is_recognized_by_its_module(program: str, argument: str, expected: bool) -> None:
    command = [python_of_spark(), "-c", WORKS_FOR, program, argument]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (run.stdout, run.returncode) == (f"{expected}\n", 0), run.stderr


IMPORTED = """
import sys
from distlog.spark.data_source import DistlogDataSource
from distlog.spark.batch_source import schema_of

source = DistlogDataSource({"path": sys.argv[1]})
source.streamReader(schema_of(["value"], False))
unneeded = "distlog.spark.", "distlog.core.write.", "pandas.", "fsspec."
print(*sorted(name for name in sys.modules if name.startswith(unneeded)))
"""


@pytest.mark.long
def test_the_planner_of_a_stream_imports_little(tmp_path: Path) -> None:
    """Each streaming query starts a process like this, and waits for its imports."""
    distlog.create(str(tmp_path / "clicks"))
    command = [sys.executable, "-c", IMPORTED, str(tmp_path / "clicks")]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    spark = ["batch_source", "data_source", "options", "stream_plan", "versions"]
    assert run.stdout.split() == ["distlog.core.write.rows", *(f"distlog.spark.{name}" for name in spark)]


READ_AND_WRITTEN = """
import sys
from distlog.core.files.file_reader import FileReader
from distlog.core.files.input_files import ReadOptions
from distlog.core.storage.storage import InputStorage
from distlog.spark.appends import RunWork
from distlog.spark.sink import PlannedTopic, WriteOptions
import pickle

run, facts, storage = pickle.load(open(sys.argv[1], "rb"))
options = ReadOptions(key="user", timestamp="at")
done = RunWork(FileReader(options, InputStorage()), WriteOptions(storage), facts)(run)
assert sum(split.records for split in done.report.splits) == 2, done
unneeded = "pandas", "fsspec", "pyarrow.parquet", "pyarrow.dataset", "distlog.core.topic"
print(*(name for name in unneeded if name in sys.modules))
"""


@pytest.mark.long
@pytest.mark.parametrize("time", ['"2024-01-01T00:00:00Z"', "1700000000000"])
def test_a_task_that_appends_imports_little(tmp_path: Path, time: str) -> None:
    from distlog.core.files.file_reader import FileReader
    from distlog.core.files.input_files import ReadOptions
    from distlog.core.storage.storage import InputStorage
    from distlog.spark.sink import PlannedTopic

    topic = distlog.create(str(tmp_path / "clicks"), 2)
    lines = tmp_path / "a.jsonl"
    lines.write_text(f'{{"user": "a", "at": {time}}}\n' * 2)
    reader = FileReader(ReadOptions(), InputStorage())
    [split] = reader.splits(reader.files([str(lines)]))
    work = tmp_path / "work"
    work.write_bytes(pickle.dumps(([split], PlannedTopic.of(topic.snapshot, None, None), topic.storage)))
    command = [sys.executable, "-c", READ_AND_WRITTEN, str(work)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (run.stdout, run.returncode) == ("\n", 0), run.stderr
