"""What a Python process of Spark takes out of garbage collection and does not print, and that no other is touched."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import gc, sys
from importlib.machinery import ModuleSpec

if sys.argv[1]:
    sys.modules["__main__"].__spec__ = ModuleSpec(sys.argv[1], None)
from distlog.spark.data_source import DistlogDataSource

DistlogDataSource({})
print(gc.get_freeze_count() > 0)
"""


@pytest.mark.parametrize(
    ("program", "frozen"), [("pyspark.daemon", True), ("pyspark.sql.worker.x", True), ("", False), ("mine", False)]
)
def test_only_sparks_own_processes_stop_collecting_what_was_imported(program: str, frozen: bool) -> None:
    run = subprocess.run([sys.executable, "-c", PROGRAM, program], capture_output=True, text=True, check=False)
    assert (run.stdout, run.returncode) == (f"{frozen}\n", 0), run.stderr


WORKS_FOR = """
import sys
from importlib.machinery import ModuleSpec

sys.modules["__main__"].__spec__ = ModuleSpec(sys.argv.pop(1), None)
from distlog.spark.streaming.stream_sink import COMMITTER
from distlog.spark.worker import works_for

print(works_for(COMMITTER))
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
def test_a_process_of_spark_is_known_by_the_module_that_it_works_for(
    program: str, argument: str, expected: bool
) -> None:
    command = [sys.executable, "-c", WORKS_FOR, program, argument]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (run.stdout, run.returncode) == (f"{expected}\n", 0), run.stderr


HANG_UP = """
import sys, traceback
from importlib.machinery import ModuleSpec

sys.modules["__main__"].__spec__ = ModuleSpec("pyspark.daemon", None)
from distlog.spark.data_source import DistlogDataSource

DistlogDataSource({})
for error in (BrokenPipeError, ValueError):
    try:
        raise error("said")
    except BaseException:
        traceback.print_exc()
"""


def test_a_worker_says_nothing_when_spark_hangs_up_and_all_about_other_errors() -> None:
    """As the main module, which is Spark's daemon, prints what ends a worker."""
    run = subprocess.run([sys.executable, "-c", HANG_UP], capture_output=True, text=True, check=False)
    assert (run.stdout, run.returncode) == ("", 0)
    assert run.stderr.splitlines()[-1] == "ValueError: said"
    assert run.stderr.count("Traceback") == 1
