"""Histories of the simulation keep every promise, are the same for the same seed, and find planted bugs."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping

import pytest
from forked_programs import run

from simulation.explorer_planted import EXPLORED_BUGS, ExploredBug
from simulation.kinds import ON_DISK, ON_STORE, SHORT, Kind
from simulation.planted import Bug


def simulated(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process with a fixed order of sets of strings."""
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    return run("simulation", *arguments, module=True, env=environment, imports=["simulation.kinds"], timeout=1000)


@pytest.mark.long
def test_histories_keep_every_promise() -> None:
    """Seed 54 has a large group, 58 many bases of checkpoints, 195 dumps of empty batches; a soak has many more."""
    result = simulated("--seeds", "54,56,58,195")
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.long
def test_old_listings_lose_nothing() -> None:
    result = simulated("--listing-lag", "30", "--histories", "3")
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.long
def test_the_same_seed_gives_the_same_history() -> None:
    first, two = (
        simulated("--seed", "3", "--length", "10", "--trace", *more).stdout.splitlines()
        for more in ([], ["--histories", "2"])
    )
    assert two[: len(first) - 1] == first[:-1]
    assert two[len(first) - 1 : -1] != first[:-1]
    assert len(first) > 50


@pytest.mark.parametrize("bugs", [SHORT.bugs, ON_DISK.bugs, EXPLORED_BUGS], ids=["store", "disk", "explorer"])
def test_each_bug_can_be_planted_in_the_library(bugs: Mapping[str, Bug | ExploredBug]) -> None:
    for bug in bugs.values():
        with bug.plant():
            pass


@pytest.mark.long
@pytest.mark.parametrize(("kind", "share"), [(ON_STORE, 12), (SHORT, 3), (ON_DISK, 1)])
def test_each_planted_bug_is_found_by_its_seed(kind: Kind, share: int) -> None:
    # a change of the library may give a seed another history: then search again with
    # `--planted found --histories 300 --keep`; `make soak` plants all bugs
    seeds = {name: seed for name, seed in kind.kept_seeds().items() if seed is not None}
    names = list(seeds)[::share]
    result = simulated(*kind.arguments, *(word for name in ("found", *names) for word in ("--planted", name)))
    for name in names:
        assert f"{name}: by seed {seeds[name]}: " in result.stdout, result.stdout + result.stderr


@pytest.mark.parametrize("kind", [SHORT, ON_DISK], ids=lambda kind: kind.name)
def test_the_bugs_that_have_a_seed_are_found_below_twenty_thousand(kind: Kind) -> None:
    """Some bugs have none: seeds change with the actors."""
    seeds = kind.kept_seeds()
    assert seeds.keys() <= kind.bugs.keys()
    assert [name for name, seed in seeds.items() if seed is None or seed >= 20_000] == []


@pytest.mark.long
def test_a_history_that_keeps_every_promise_is_not_made_smaller() -> None:
    result = simulated("--shrink", "3", "--length", "10")
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.splitlines()[-1].endswith("0 broke a promise")
