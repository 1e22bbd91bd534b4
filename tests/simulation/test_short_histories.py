"""Short histories keep every promise, and let every pair of actors meet."""

from __future__ import annotations

from itertools import combinations

import pytest

from simulation.short_histories import ROLES, plan
from simulation.test_histories import simulated


@pytest.mark.long
def test_short_histories_keep_every_promise() -> None:
    done = simulated("--short", "--histories", "130")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
def test_old_listings_lose_nothing_in_short_histories() -> None:
    done = simulated("--short", "--listing-lag", "30", "--histories", "22")
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_pair_of_actors_meets() -> None:
    met = set[tuple[str, ...]]()
    for drawn in map(plan, range(1000)):
        met.update(combinations(sorted({name for name, _ in drawn.cast}), 2))
    assert met == set(combinations(sorted(ROLES), 2))


def test_a_history_lasts_longer_than_the_leases_in_it_unless_a_crowd_makes_it_short() -> None:
    for drawn in map(plan, range(300)):
        names = {name for name, _ in drawn.cast}
        assert "crowd" in names or drawn.length_s >= max(ROLES[name].least_s for name in names)
