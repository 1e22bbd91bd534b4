"""Spark finds the format by its name; a failed import is reported when the format is used, and only then."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

ROOT = Path(__file__).parents[2]
PROGRAM = """
import importlib.abc, sys

class Broken(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Broken())
import pyspark_distlog
from pyspark import cloudpickle
source = cloudpickle.loads(cloudpickle.dumps(pyspark_distlog.DefaultSource))
print(source.name())
source({})
"""


def run(missing: str) -> subprocess.CompletedProcess[str]:
    """Import and use the format as Spark does, with a module missing."""
    program = [sys.executable, "-c", PROGRAM, missing]
    return subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.long
def test_the_format_is_found_and_used() -> None:
    process = run("nothing")
    assert (process.stdout, process.stderr, process.returncode) == ("distlog\n", "", 0)


@pytest.mark.long
@pytest.mark.parametrize("missing", ["distlog.spark.options", "pyarrow"])
def test_a_failed_import_is_reported_on_use(missing: str) -> None:
    process = run(missing)
    assert (process.stdout, process.returncode) == ("distlog\n", 1)
    message = f"ImportError: the format distlog cannot be imported: ModuleNotFoundError: No module named {missing!r}"
    assert process.stderr.splitlines()[-1] == message


def test_without_pyspark_the_format_is_missing() -> None:
    assert "No module named 'pyspark'" in run("pyspark").stderr


@pytest.mark.long
def test_an_editable_install_is_a_folder_on_the_path(tmp_path: Path) -> None:
    pytest.importorskip("setuptools", minversion="77", reason="older ones do not know the project's license")
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "distlog_command.py", "pyspark_distlog.py"):
        shutil.copy(ROOT / name, copy)
    (copy / "distlog" / "core").mkdir(parents=True)
    shutil.copy(ROOT / "distlog" / "__init__.py", copy / "distlog")
    shutil.copy(ROOT / "distlog" / "core" / "__init__.py", copy / "distlog" / "core")
    build = "import sys; from setuptools import build_meta; build_meta.build_editable(sys.argv[1])"
    subprocess.run([sys.executable, "-c", build, str(tmp_path)], cwd=copy, capture_output=True, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    installed = tmp_path / "installed"
    zipfile.ZipFile(wheel).extractall(installed)
    looks = (
        "import site, sys, pkgutil; site.addsitedir(sys.argv[1]); "
        "print([each.name for each in pkgutil.iter_modules() if each.name == 'pyspark_distlog'])"
    )
    program = [sys.executable, "-I", "-S", "-c", looks, str(installed)]
    process = subprocess.run(program, capture_output=True, text=True, check=True)
    assert process.stdout == "['pyspark_distlog']\n"
