"""Histories on a local disk keep every promise, are the same for the same seed, and find planted bugs."""

from __future__ import annotations

import pytest

from simulation.test_histories import simulated


@pytest.mark.long
def test_histories_on_a_disk_keep_every_promise() -> None:
    done = simulated("--disk", "--histories", "12")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
def test_the_same_seed_gives_the_same_history_on_a_disk() -> None:
    first, both = (
        simulated("--disk", "--seed", "6", "--trace", *more).stdout.splitlines()
        for more in ([], ["--histories", "2"])
    )
    assert both[: len(first) - 1] == first[:-1]
    assert both[len(first) - 1 : -1] != first[:-1]
    assert len(first) > 50
