"""Tries distlog with each version of PySpark: python -m tools.spark_versions [VERSION ...] [--write].

Each version lies in a folder of its own in .venv, before everything else on the path. What it can do is compared with
the table in docs/spark-setup.md, or written there.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "spark-setup.md"
#: The versions that are tried, oldest first; the last is the one of .venv, which all other tests run with.
VERSIONS = ("4.0", "4.1", "4.2", "4.3")
#: How the head of the table begins.
HEAD = "| PySpark |"


def path_of(version: str) -> Path:
    """Where the PySpark of a minor version is, if it is installed."""
    return Path(os.environ.get("DISTLOG_SPARK_VERSIONS", ROOT / ".venv" / "spark")) / version


def folder_of(version: str) -> Path:
    """The folder with the newest PySpark of a minor version, installed if it is not there."""
    folder = path_of(version)
    if not folder.exists():
        unfinished = folder.with_name(f"{version}.unfinished")
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--upgrade"]
        subprocess.run([*pip, "--target", str(unfinished), f"pyspark=={version}.*"], check=True)
        unfinished.rename(folder)
    return folder


def with_pyspark(folder: Path) -> dict[str, str]:
    """The environment of a program that imports the PySpark in this folder, and distlog."""
    return {**os.environ, "PYTHONPATH": f"{folder}:{ROOT}", "SPARK_HOME": str(folder / "pyspark")}


def tried(version: str) -> dict[str, str]:
    """The result of each step with the version: "yes", or the error."""
    is_newest = version == VERSIONS[-1]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)} if is_newest else with_pyspark(folder_of(version))
    program = [sys.executable, str(ROOT / "tests" / "support" / "spark_steps.py")]
    ran = subprocess.run(program, env=environment, stdout=subprocess.PIPE, text=True, check=False, timeout=1800)
    if ran.returncode != 0:
        raise SystemExit(f"PySpark {version} ended with status {ran.returncode}")
    results_by_step: dict[str, str] = json.loads(ran.stdout.splitlines()[-1])
    return results_by_step


def row_of(results: dict[str, str]) -> dict[str, str]:
    """Whether each step is done; SystemExit if one fails by another error than the one that names versions."""
    for step, result in results.items():
        if result != "yes" and "needs PySpark" not in result:
            raise SystemExit(f"{step}: {result}")
    return {step: "yes" if result == "yes" else "no" for step, result in results.items()}


def table_of(page: str) -> tuple[list[str], dict[str, dict[str, str]]]:
    """The versions in the head of the page's table, and the results by step and version."""
    (lines,) = re.findall(rf"^{re.escape(HEAD)}.*\n(?:\|.*\n)+", page, re.MULTILINE)
    head, _, *rows = ([cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines.splitlines())
    return head[1:], {step: dict(zip(head[1:], cells, strict=True)) for step, *cells in rows}


def written(page: str, results: dict[str, dict[str, str]]) -> str:
    """The page with a table of the results by version and step."""
    steps = list(next(iter(results.values())))
    lines = [f"{HEAD} " + " | ".join(results) + " |", "|---" * (len(results) + 1) + "|"]
    lines += [f"| {step} | " + " | ".join(row[step] for row in results.values()) + " |" for step in steps]
    return re.sub(rf"^{re.escape(HEAD)}.*\n(?:\|.*\n)+", "\n".join(lines) + "\n", page, flags=re.MULTILINE)


def main() -> None:
    """Try the versions that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("versions", nargs="*", choices=[*VERSIONS, []], default=[])
    parser.add_argument("--write", action="store_true", help="write the table into the page")
    arguments = parser.parse_args()
    results = {}
    for version in arguments.versions or VERSIONS:
        print(f"PySpark {version}", flush=True)
        results[version] = row_of(tried(version))
    page = PAGE.read_text(encoding="utf-8")
    _, table = table_of(page)
    if arguments.write:
        documented = {
            version: {step: cells.get(version, "") for step, cells in table.items()} for version in VERSIONS
        }
        PAGE.write_text(written(page, documented | results), encoding="utf-8")
        return
    for version, row in results.items():
        documented_row = {step: cells[version] for step, cells in table.items()}
        if documented_row != row:
            raise SystemExit(f"{PAGE.name} has for PySpark {version}: {documented_row}\nbut the result is: {row}")


if __name__ == "__main__":
    main()
