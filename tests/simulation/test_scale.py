"""The command that measures sizes in simulated time runs, and docs/scale.md has its figures."""

from __future__ import annotations

import json

import pytest
from docs_pages import ROOT, read

from simulation import scale
from simulation.scale_weeks import Weeks


@pytest.mark.long
@pytest.mark.parametrize("name", scale.SCENARIOS)
def test_each_scenario_counts_what_its_table_shows(name: str) -> None:
    scenario = scale.SCENARIOS[name]
    figures = scenario.run(scenario.sizes[:1], True)[scenario.sizes[0]]
    for column, least in (("appends a second", 0.1), ("requests an append", 2), ("names in _commits", 2)):
        assert column not in scenario.columns or figures[column] >= least
    assert len(scale.table(name, {"1": figures}).splitlines()) == 3


@pytest.mark.long
def test_a_year_of_short_weeks_leaves_as_much_as_one_week() -> None:
    weeks = Weeks(1, 2.0, 60.0)
    first, second, *_, last = weeks.play(scale.Stage(1, weeks.config), (1, 2, 4, 8)).values()
    assert last["commits"] > 6 * first["commits"]
    for column in ("names in _commits", "KB in _commits", "objects in all"):
        assert last[column] < 2 * first[column]
        assert last[column] < 1.5 * second[column]
    assert last["requests of a vacuum"] < 1.5 * second["requests of a vacuum"]


def test_groups_are_listed_and_deleted_by_requests_at_once() -> None:
    figures = scale.SCENARIOS["groups"].run([100], True)[100]
    assert figures["requests of a list"] > 200
    # a request takes 30 ms
    assert figures["s of a list"] < 3
    assert figures["s of a vacuum of groups"] < 3
    assert figures["objects left"] == 0


def test_a_writer_that_still_waits_at_the_end_leaves_its_time_open() -> None:
    stage = scale.Stage(10)
    measured = stage.play([stage.appender(10, 30.0) for _ in range(10)], 2.0)
    waiting = measured.started - len(measured.durations_s)
    assert 0 < waiting <= 10
    figures = measured.figures()
    assert figures["p99 ms"] is None
    assert figures["appends a second"] > 1
    header, _, row = scale.table("writers", {"10": figures}).splitlines()
    assert row.split("|")[header.split("|").index(" p99 ms ")] == " - "


def test_the_page_shows_the_figures_that_were_measured() -> None:
    figures = json.loads(read("docs/scale.json"))
    assert list(figures) == list(scale.SCENARIOS)
    assert {name: [int(size) for size in sizes] for name, sizes in figures.items()} == {
        name: list(scenario.sizes) for name, scenario in scale.SCENARIOS.items()
    }
    page = (ROOT / "docs" / "scale.md").read_text()
    assert scale.page(page, figures) == page


def test_a_table_replaces_the_old_one() -> None:
    figures = dict.fromkeys(scale.SCENARIOS["writers"].columns, 1234.5)
    text = "first\n\n<!-- table: writers -->\n| old |\n| --- |\n\nlast\n"
    page = scale.page(text, {"writers": {"1000": figures}})
    assert "| 1,000 | 1,234 |" in page
    assert "old" not in page
    assert page.startswith("first")
    assert page.endswith("\n\nlast\n")
