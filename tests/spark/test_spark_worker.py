"""What a Python process of Spark takes out of garbage collection, and that nobody else's is touched."""

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
