"""How a job ends, without Spark: its exit status and its messages."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from spark_python import python_of_spark

pytest.importorskip("pyspark")

PROGRAM = """
import sys
from distlog.jobs.job import run_program, job_parser

def run(chosen):
    {body}

sys.exit(run_program(job_parser("job.py", "Do it."), run, {given!r}))
"""


def ended(body: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [python_of_spark(), "-c", PROGRAM.format(body=body, given=["--topic", "t", *arguments])]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_failure_is_a_line_and_an_object() -> None:
    run = ended('raise OSError("two\\nlines")', "--json")
    assert (run.returncode, run.stderr) == (1, "job.py: two lines\n")
    assert json.loads(run.stdout) == {"error": "two lines", "type": "OSError"}


def test_a_wrong_command_line_is_a_line_and_an_object() -> None:
    run = ended("return 0", "--json", "--no")
    assert (run.returncode, run.stderr.splitlines()[-1]) == (2, "job.py: unrecognized arguments: --no")
    assert json.loads(run.stdout)["error"] == "unrecognized arguments: --no"


@pytest.mark.long
def test_an_interrupt_and_a_closed_pipe_end_it_silently() -> None:
    run = ended("raise KeyboardInterrupt", "--json")
    assert (run.returncode, run.stdout, run.stderr) == (130, "", "")
    program = PROGRAM.format(body="[print('x' * 1000) for _ in range(1000)]", given=["--topic", "t"])
    command = ["bash", "-c", 'set -o pipefail; "$0" -c "$1" | head -n 1', sys.executable, program]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout.count("\n"), run.stderr) == (1, 1, "")


def test_a_closed_output_and_one_that_lacks_characters_fail_no_job() -> None:
    program = PROGRAM.format(body="print('\u00e9', flush=True); sys.stdout.flush(); return 0", given=["--topic", "t"])
    for redirected, shown in ((">&-", ""), ("", "\\xe9\n")):
        command = ["bash", "-c", f'exec "$0" -c "$1" {redirected}', sys.executable, program]
        env = {**os.environ, "PYTHONIOENCODING": "ascii"}
        ran = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert (ran.returncode, ran.stdout, ran.stderr) == (0, shown, "")


def test_py4j_logs_nothing_after_an_interrupt() -> None:
    logged = "__import__('logging').exception('said', exc_info=({0}, {0}(), None)); raise KeyboardInterrupt"
    error = "__import__('py4j.protocol').protocol.Py4JNetworkError"
    assert ended(logged.format(error)).stderr == ""
    assert ended(logged.format("KeyboardInterrupt")).stderr == ""
    assert ended(logged.format("ValueError")).stderr.splitlines()[-1] == "ValueError"


def test_an_error_of_py4j_after_an_interrupt_is_an_interrupt() -> None:
    """It closes its connection then, and fails at that if the connection was not made yet."""
    body = """
    from py4j.protocol import Py4JError
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        try:
            raise Py4JError("Gateway must be connected to send cancel cmd.")
        except Py4JError as error:
            raise OSError("the JVM cannot be asked") from error
    """
    run = ended(body, "--json")
    assert (run.returncode, run.stdout, run.stderr) == (130, "", "")


def test_another_broken_pipe_is_a_failure() -> None:
    run = ended("raise BrokenPipeError(32, 'Broken pipe')")
    assert (run.returncode, run.stderr) == (1, "job.py: [Errno 32] Broken pipe\n")
