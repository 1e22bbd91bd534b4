"""The searches of the suite, with many more examples: each run takes one test file, by its seed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from soak.tally import Tally, demand

TESTS = Path(__file__).parents[1]
#: The factor of the number of examples.
FACTOR = 20


def run(folder: Path, seed: int, file: Path | None = None, factor: int = FACTOR) -> Tally:
    """Run the tests of `file`, by default of the seed's file, with new examples."""
    files = searching()
    file = file or files[seed % len(files)]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--basetemp={folder / 'searched'}"]
    ran = subprocess.run(
        [*command, f"--hypothesis-seed={seed}", "-m", "not spark", str(file)],
        env={**os.environ, "DISTLOG_SEARCH_FACTOR": str(factor)},
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
    )
    demand(ran.returncode == 0, f"{file.name} fails:\n{ran.stdout[-5000:]}{ran.stderr[-1000:]}")
    return Tally({"files searched": 1})


def searching() -> list[Path]:
    """Return the test files with random searches, without Spark."""
    files = sorted(path for path in TESTS.rglob("test_*.py") if path.parent.name != "spark")
    return [path for path in files if re.search(r"from (hypothesis|searches)\b", path.read_text(encoding="utf-8"))]
