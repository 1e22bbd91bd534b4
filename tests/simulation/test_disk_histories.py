"""Histories on a local disk keep every promise, are the same for the same seed, and find planted bugs."""

from __future__ import annotations

import pytest

from simulation.test_histories import simulated


@pytest.mark.long
def test_histories_on_a_disk_keep_every_promise() -> None:
    result = simulated("--disk", "--histories", "12")
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.long
def test_the_same_seed_gives_the_same_history_on_a_disk_in_any_process() -> None:
    cold = simulated("--disk", "--seed", "5", "--digest")
    warm = simulated("--disk", "--seeds", "6,2,5", "--digest")
    assert cold.stdout.splitlines()[0].startswith("seed 5: ")
    assert cold.stdout.splitlines()[0] == warm.stdout.splitlines()[2]
