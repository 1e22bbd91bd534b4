"""The explorer runs the schedules of tiny scenarios, cheapest first, and finds bugs that random histories missed."""

from __future__ import annotations

import re

import pytest

from simulation.explorer import Deviation, parse, shown
from simulation.explorer_planted import EXPLORED_BUGS
from simulation.kinds import SCENARIOS
from simulation.test_histories import simulated


@pytest.mark.long
def test_the_cheapest_schedules_of_each_scenario_keep_every_promise() -> None:
    """`make soak SIMULATION=...` runs all schedules."""
    result = simulated("--explore", "all", "--schedules", "20")
    assert result.returncode == 0, result.stdout + result.stderr
    assert [line.partition(":")[0] for line in result.stdout.splitlines()] == list(SCENARIOS)


@pytest.mark.long
@pytest.mark.parametrize("name", EXPLORED_BUGS)
def test_a_bug_that_needs_one_delay_is_found(name: str) -> None:
    arguments = ("--explore", EXPLORED_BUGS[name].scenario, "--planted", name)
    result = simulated(*arguments, "--schedules", "100")
    broken = re.search(r"schedule '(.*)' breaks: (.*)", result.stdout)
    assert broken is not None, result.stdout + result.stderr
    replay = simulated(*arguments, "--schedule", broken[1])
    assert f"broken: {broken[2]}" in replay.stdout


def test_a_schedule_is_written_as_the_option_takes_it() -> None:
    schedule = (Deviation(3, "30s"), Deviation(12, "lost"))
    assert parse(shown(schedule)) == schedule
    assert parse("") == ()
