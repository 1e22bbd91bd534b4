"""A program that is forked for a test behaves as one that Python was started for."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import spark_python
from forked_programs import Program, command, run, start_server
from spark_python import python_of_spark


@pytest.mark.parametrize(
    "text",
    [
        "print('out'); import sys; print('err', file=sys.stderr)",
        "import sys; sys.exit(3)",
        "import sys; sys.exit('a message')",
        "import sys; print(sys.argv, input(), __name__)",
        "import os; os._exit(5)",
        "import os; os.kill(os.getpid(), 9)",
        "import atexit; atexit.register(print, 'at exit'); raise SystemExit",
        "import threading; threading.Thread(target=lambda: (threading.main_thread().join(), print('last'))).start()",
        "class A:\n    def __del__(self):\n        print('let go')\na = A()",
        "import os, sys; print(os.getcwd(), os.environ['NAME'], sys.stdin.read())",
    ],
)
def test_it_ends_and_prints_as_one_that_was_started(text: str, tmp_path: Path) -> None:
    options = {"cwd": tmp_path, "env": {"NAME": "value"}, "input": "a line\nrest\n"}
    started = subprocess.run(
        [sys.executable, "-c", text, "one", "2"], capture_output=True, text=True, check=False, **options
    )
    forked = run(text, "one", 2, **options)
    assert (forked.returncode, forked.stdout, forked.stderr) == (started.returncode, started.stdout, started.stderr)


def test_an_exception_has_its_traceback_and_status() -> None:
    done = run("def f():\n    return {}['key']\nf()")
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback (most recent call last):\n")
    assert done.stderr.endswith("KeyError: 'key'\n")


def test_a_living_one_is_given_lines_and_signals() -> None:
    text = "import sys\nfor line in sys.stdin: print(line.upper(), end='', flush=True)"
    with Program(text, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as echo:
        assert echo.stdin is not None
        assert echo.stdout is not None
        echo.stdin.write("one\n")
        echo.stdin.flush()
        assert echo.stdout.readline() == "ONE\n"
        assert echo.poll() is None
        assert echo.communicate("two\nthree\n") == ("TWO\nTHREE\n", "")
        assert echo.wait() == 0
    with Program("input()", stdin=subprocess.PIPE) as waiting:
        waiting.terminate()
        assert waiting.wait(300) == -signal.SIGTERM
        waiting.kill()


def test_the_command_is_the_one_of_the_library(tmp_path: Path) -> None:
    created = command("create", tmp_path / "clicks", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert (created.communicate()[1], created.returncode) == ("", 0)
    wrong = command("describe", tmp_path / "none", stderr=subprocess.PIPE)
    assert "there is no topic here" in wrong.communicate()[1]
    assert wrong.returncode == 1


def test_the_python_that_spark_gets_ends_as_its_program_does_and_passes_signals_on() -> None:
    pytest.importorskip("pyspark")
    text = "import sys; print(sys.argv, input()); sys.exit(3)"
    done = subprocess.run(
        [python_of_spark(), "-c", text, "one"], input="line", capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (3, "['-c', 'one'] line\n", "")
    program = [python_of_spark(), "-c", "print('begun', flush=True); input()"]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as waiting:
        assert waiting.stdout is not None
        assert waiting.stdout.readline() == b"begun\n"
        waiting.terminate()
        assert waiting.wait(300) == 128 + signal.SIGTERM


def test_what_that_python_runs_is_killed_with_it() -> None:
    """As Spark, or a story of kills, kills a process that it has started."""
    pytest.importorskip("pyspark")
    text = "import os, time; os.setpgid(0, 0); os.fork(); print(os.getpid(), flush=True); time.sleep(600)"
    with subprocess.Popen([python_of_spark(), "-c", text], stdout=subprocess.PIPE) as stands_for_it:
        assert stands_for_it.stdout is not None
        assert [stands_for_it.stdout.readline().strip().isdigit() for _ in range(2)] == [True, True]
        stands_for_it.kill()
        assert stands_for_it.stdout.read() == b""  # when none of them lives


def test_what_that_python_runs_is_killed_with_the_process_that_forked_it() -> None:
    text = "import time; print('begun', flush=True); time.sleep(600)"
    with TemporaryDirectory() as folder:
        forks = start_server(f"{folder}/door", has_distlog=False)
        program = [sys.executable, "-IS", spark_python.__file__, sys.executable, f"{folder}/door", "-c", text]
        with subprocess.Popen(program, stdout=subprocess.PIPE) as stands_for_it:
            assert stands_for_it.stdout is not None
            assert stands_for_it.stdout.readline() == b"begun\n"
            forks.close()
            assert stands_for_it.stdout.read() == b""  # when none of them lives
            assert stands_for_it.wait(300) == 1
