"""Runs the jobs as their users do: by spark-submit."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from spark_python import forked_python

JOBS = Path(__file__).parents[2] / "jobs"
NO_TOPIC = "there is no topic here: check the address, or create the topic"


class Ran:
    """The output and the exit status of a job."""

    def __init__(self, status: int, out: str, err: str) -> None:
        self.status, self.out, self.err = status, out, err

    @property
    def summary(self) -> dict[str, Any]:
        return json.loads(self.out.splitlines()[-1])  # type: ignore[no-any-return]


def environment() -> dict[str, str]:
    """Return the environment of a user who activated the virtual environment of the tests."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "PATH": path}


def command(*arguments: object) -> list[str]:
    program = shutil.which("spark-submit", path=environment()["PATH"])
    assert program
    return [program, "--master", "local[2]", "--conf", "spark.ui.enabled=false", *map(str, arguments)]


def submit(*arguments: object) -> Ran:
    env = {**environment(), **forked_python()}
    ran = subprocess.run(command(*arguments), env=env, capture_output=True, text=True, check=False)
    return Ran(ran.returncode, ran.stdout, ran.stderr)
