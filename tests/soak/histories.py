"""Histories in simulated time, in processes of their own: as many seeds as some minutes give, on all cores."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from soak.tally import Tally, demand

TESTS = Path(__file__).parents[1]
#: Each process begins with seeds that no other one has.
_SEEDS = 1_000_000


def run(folder: Path, seed: int, *, minutes: float = 1.0, more: Sequence[str] = ()) -> Tally:
    """Run histories from seeds that `seed` chooses; raises Violation with the seed of one that breaks a promise.

    The command of the simulation gets `more` arguments.
    """
    cores, tally = os.cpu_count() or 1, Tally()
    with ThreadPoolExecutor(cores) as threads:
        for done in threads.map(lambda core: _simulated((seed * cores + core) * _SEEDS, minutes, more), range(cores)):
            demand(done.returncode == 0, done.stdout + done.stderr)
            histories, requests = re.findall(r"^(\d+) histories, (\d+) requests", done.stdout, re.MULTILINE)[-1]
            tally.update({"histories": int(histories), "requests": int(requests)})
    return tally


def _simulated(seed: int, minutes: float, more: Sequence[str]) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(TESTS.parent), str(TESTS)])
    arguments = ["--seed", str(seed), "--histories", str(_SEEDS), "--minutes", str(minutes), *more]
    return subprocess.run(
        [sys.executable, "-m", "simulation", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "0"},
        check=False,
    )
