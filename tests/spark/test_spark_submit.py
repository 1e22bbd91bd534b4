"""The jobs under spark-submit: exit status, output, interrupts, and the library in a zip."""

from __future__ import annotations

import marshal
import os
import re
import signal
import subprocess
import sys
import time
import venv
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from zipfile import ZipFile

import pyarrow
import pytest
from addresses import Address
from submitted import JOBS, command, environment, submit

import distlog

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
DAEMONS_WORD = (
    r"Traceback \(most recent call last\):\n(  File .*/daemon\.py.*\n(    .*\n)*)*(BrokenPipeError: .*\n|\Z)"
)


def lines_file(folder: Path, name: str, lines: list[str]) -> Path:
    path = folder / name
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def test_a_bad_line_is_one_line_of_standard_error_and_one_object(s3_url: Address, tmp_path: Path) -> None:
    lines = lines_file(tmp_path, "app.jsonl", ['{"value": 1}', "{no"])
    storage = [part for name, value in s3_url.options.items() for part in ("--storage", f"{name}={value}")]
    ran = submit(JOBS / "append.py", "--input", lines, "--topic", s3_url.url, "--create", "--json", *storage)
    assert ran.status == 1
    assert ran.out.count("\n") == 1
    # Spark's daemon prints the closed socket of a worker that the failure ended, sometimes at the very end
    err = re.sub(DAEMONS_WORD, "", ran.err)
    assert ran.summary["error"] == err.splitlines()[-1].removeprefix("append.py: ")
    assert "app.jsonl line=2" in ran.summary["error"]
    assert "Traceback" not in err
    assert "\tat " not in err
    assert s3_url.options["secret"] not in ran.out + ran.err
    assert distlog.open(s3_url.url, storage_options=s3_url.options).scan().count() == 0


def compile_sources(archive: Path) -> None:
    """Add the bytecode of each source to the archive: each Spark process would compile it for half a second."""
    with ZipFile(archive, "a") as zipped:
        for name in zipped.namelist():
            if name.endswith(".py"):
                code = compile(zipped.read(name), f"{archive}/{name}", "exec")
                # the first flag disables the check of the source
                zipped.writestr(f"{name}c", MAGIC_NUMBER + bytes([1, *[0] * 11]) + marshal.dumps(code))


def test_an_interrupt_is_quiet(tmp_path: Path) -> None:
    """Ctrl-C reaches all processes of the job, after it created the topic and before it read a line."""
    arguments = ("--input", lines_file(tmp_path, "lines", ["x"]), "--topic", tmp_path / "new", "--create")
    outputs = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    child = subprocess.Popen(
        command(JOBS / "append.py", *arguments), env=environment(), start_new_session=True, **outputs
    )
    while not (tmp_path / "new" / "_commits" / f"{0:020d}.json").exists():
        assert child.poll() is None
        time.sleep(0.05)
    os.killpg(child.pid, signal.SIGINT)
    out, err = child.communicate(timeout=600)
    assert (child.returncode, out) == (130, "")
    # Spark's daemon prints its own broken pipe, if it meets one, and may end while it does
    traces = [trace for trace in err.split("Traceback (most recent call last):\n")[1:] if trace]
    assert all("pyspark/daemon.py" in trace for trace in traces), err
    assert "append.py" not in err


def test_a_zip_brings_the_library_to_a_session_that_knows_nothing_of_it(tmp_path: Path) -> None:
    """The interpreter has the dependencies of distlog, but not distlog; the program is from docs/spark-setup.md."""
    clean = tmp_path / "clean"
    venv.create(clean, symlinks=True)
    (site,) = clean.glob("lib/python*/site-packages")
    packages = str(Path(pyarrow.__file__).parents[1])
    # PySpark comes from there too: Spark's own zip has no bytecode, so each process would compile it
    (site / "needs.pth").write_text(f"import sys; sys.path.insert(0, {packages!r})\n")
    archive, program = tmp_path / "distlog.zip", tmp_path / "plain.py"
    subprocess.run([sys.executable, ROOT / "tools" / "spark_zip.py", archive], check=True)
    compile_sources(archive)
    example, *_ = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "spark-setup.md").read_text(), re.DOTALL)
    where = 'import sys\n\nprint(*sys.modules["distlog"].__path__)\n'
    program.write_text(f"{example.replace('/tmp/distlog', str(tmp_path))}\n{where}")
    distlog.create(str(tmp_path / "clicks"))
    python = {"PYSPARK_PYTHON": str(clean / "bin/python"), "PYSPARK_DRIVER_PYTHON": str(clean / "bin/python")}
    # for one record it is not worth compiling kernels, which a zip cannot cache
    python |= {"NUMBA_DISABLE_JIT": "1", "PYTHONWARNINGS": "ignore::FutureWarning"}
    env = {name: value for name, value in environment().items() if name != "PYTHONPATH"} | python
    # on one core: each worker compiles the library again
    spark_command = command("--master", "local[1]", "--py-files", archive, program, tmp_path / "clicks")
    ran = subprocess.run(spark_command, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert ran.stdout.splitlines()[-1].endswith("distlog.zip/distlog")
    assert [record.value for record in distlog.open(str(tmp_path / "clicks")).records()] == [b"v"]
