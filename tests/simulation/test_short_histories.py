"""Short histories keep every promise, and let every pair of actors meet."""

from __future__ import annotations

from itertools import combinations

import pytest

from simulation.kinds import SHORT
from simulation.short_histories import ROLES, plan
from simulation.test_histories import simulated

#: The number of short histories in the suite.
SEEDS = 80


@pytest.mark.long
def test_short_histories_keep_every_promise() -> None:
    result = simulated("--short", "--seeds", ",".join(map(str, seeds_of_the_suite())))
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.long
def test_old_listings_lose_nothing_in_short_histories() -> None:
    result = simulated("--short", "--listing-lag", "30", "--histories", "22")
    assert result.returncode == 0, result.stdout + result.stderr


def pairs(seed: int) -> set[tuple[str, ...]]:
    return {*combinations(sorted({name for name, _ in plan(seed).cast if name in ROLES}), 2)}


def seeds_of_the_suite() -> list[int]:
    """The seeds that find planted bugs, and further seeds that meet the most other pairs of actors."""
    seeds = sorted({seed for seed in SHORT.kept_seeds().values() if seed is not None})
    pairs_by_seed = {seed: pairs(seed) for seed in range(1000)}
    missing_pairs = {*combinations(sorted(ROLES), 2)}.difference(*map(pairs, seeds))
    while len(seeds) < SEEDS:
        seeds.append(max(pairs_by_seed, key=lambda seed: len(pairs_by_seed[seed] & missing_pairs)))
        missing_pairs -= pairs_by_seed[seeds[-1]]
    return seeds


def test_most_pairs_of_actors_meet_in_these_and_all_of_them_in_a_thousand() -> None:
    every = {*combinations(sorted(ROLES), 2)}
    assert len(set().union(*map(pairs, seeds_of_the_suite()))) > 0.8 * len(every)
    assert set().union(*map(pairs, range(1000))) == every


def test_a_history_lasts_longer_than_the_leases_in_it_unless_a_crowd_makes_it_short() -> None:
    for drawn in map(plan, range(300)):
        names = {name for name, _ in drawn.cast}
        names &= ROLES.keys()
        assert "crowd" in names or drawn.length_s >= max(ROLES[name].least_s for name in names)
