"""Histories in simulated time, in another process: as many seeds as fit in some minutes, on all cores."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from soak.tally import Tally, demand

TESTS = Path(__file__).parents[1]
#: Each run starts with its own seeds.
_SEEDS = 1_000_000


def run(folder: Path, seed: int, *, minutes: float = 1.0, more: Sequence[str] = ()) -> Tally:
    """Run histories from seeds that depend on `seed`; raises Violation with the seed of a broken promise."""
    seeds = ["--seed", str(seed * _SEEDS), "--histories", str(_SEEDS)]
    output = _output_of("--cores", "0", *seeds, "--minutes", str(minutes), *more)
    histories, requests = re.findall(r"^(\d+) histories, (\d+) requests", output, re.MULTILINE)[-1]
    return Tally({"histories": int(histories), "requests": int(requests)})


def find_planted(folder: Path, seed: int) -> Tally:
    """Plant each known bug in histories of all kinds; raises Violation if its seed does not find it."""
    kinds = ([], ["--short"], ["--disk"])
    return Tally({"planted bugs": sum(_output_of("--planted", "found", *kind).count(": by seed ") for kind in kinds)})


def _output_of(*arguments: str) -> str:
    """Return the output of the simulation; raises Violation with its findings, without the progress."""
    path = os.pathsep.join([str(TESTS.parent), str(TESTS)])
    process = subprocess.run(
        [sys.executable, "-m", "simulation", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "0"},
        check=False,
    )
    _, broken, remainder = process.stdout.partition("broken by seed ")
    demand(process.returncode == 0, broken + remainder or process.stdout + process.stderr)
    return process.stdout
