"""Histories in simulated time, in a process of their own: as many seeds as some minutes give, on all cores."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from soak.tally import Tally, demand

TESTS = Path(__file__).parents[1]
#: Each run begins with seeds that no other one has.
_SEEDS = 1_000_000


def run(folder: Path, seed: int, *, minutes: float = 1.0, more: Sequence[str] = ()) -> Tally:
    """Run histories from seeds that `seed` chooses; raises Violation with the seed of one that breaks a promise.

    The command of the simulation gets `more` arguments.
    """
    path = os.pathsep.join([str(TESTS.parent), str(TESTS)])
    seeds = ["--seed", str(seed * _SEEDS), "--histories", str(_SEEDS)]
    done = subprocess.run(
        [sys.executable, "-m", "simulation", "--cores", "0", *seeds, "--minutes", str(minutes), *more],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "0"},
        check=False,
    )
    demand(done.returncode == 0, done.stdout + done.stderr)
    histories, requests = re.findall(r"^(\d+) histories, (\d+) requests", done.stdout, re.MULTILINE)[-1]
    return Tally({"histories": int(histories), "requests": int(requests)})
