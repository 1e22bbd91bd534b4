"""Short histories keep every promise, and let every pair of actors meet."""

from __future__ import annotations

from itertools import combinations

import pytest

from simulation.kinds import SHORT
from simulation.short_histories import ROLES, plan
from simulation.test_histories import simulated

#: How many short histories the suite has.
SEEDS = 80


@pytest.mark.long
def test_short_histories_keep_every_promise() -> None:
    done = simulated("--short", "--seeds", ",".join(map(str, telling_seeds())))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
def test_old_listings_lose_nothing_in_short_histories() -> None:
    done = simulated("--short", "--listing-lag", "30", "--histories", "22")
    assert done.returncode == 0, done.stdout + done.stderr


def pairs(seed: int) -> set[tuple[str, ...]]:
    """The pairs of actors that meet in a history."""
    return {*combinations(sorted({name for name, _ in plan(seed).cast if name in ROLES}), 2)}


def telling_seeds() -> list[int]:
    """The seeds that find planted bugs, and seeds in which the most other pairs of actors meet, SEEDS in all."""
    seeds = sorted({seed for seed in SHORT.found().values() if seed is not None})
    met = {seed: pairs(seed) for seed in range(1000)}
    left = {*combinations(sorted(ROLES), 2)}.difference(*map(pairs, seeds))
    while len(seeds) < SEEDS:
        seeds.append(max(met, key=lambda seed: len(met[seed] & left)))
        left -= met[seeds[-1]]
    return seeds


def test_in_these_most_pairs_of_actors_meet_and_in_all_each_does() -> None:
    every = {*combinations(sorted(ROLES), 2)}
    assert len(set().union(*map(pairs, telling_seeds()))) > 0.8 * len(every)
    assert set().union(*map(pairs, range(1000))) == every


def test_a_history_lasts_longer_than_the_leases_in_it_unless_a_crowd_makes_it_short() -> None:
    for drawn in map(plan, range(300)):
        names = {name for name, _ in drawn.cast}
        names &= ROLES.keys()
        assert "crowd" in names or drawn.length_s >= max(ROLES[name].least_s for name in names)
