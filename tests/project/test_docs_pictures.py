"""The pictures in docs/img are the output of tools/pages, and the charts show the figures of the table."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree

import pytest
from docs_pages import ROOT, read, table

from benchmarks.__main__ import NAMES
from tools.pages import scale_charts
from tools.pages.__main__ import FOLDER, pictures

FIGURES = json.loads(read("docs/figures.json"))
BARS = [bar for chart in FIGURES.values() for bar in chart["bars"]]


def test_the_pictures_are_up_to_date() -> None:
    stored = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.iterdir()}
    assert stored == pictures(), "run python -m tools.pages"


@pytest.mark.parametrize("bar", BARS, ids=lambda bar: bar["label"])
def test_a_bar_shows_figures_of_its_row(bar: dict[str, object]) -> None:
    rows = {row[0]: " ".join(row[1:]) for row in table(read("docs/benchmarks.md"), "## All figures")}
    figures = {float(figure) for figure in re.findall(r"\d+(?:\.\d+)?", rows[str(bar["row"])])}
    assert {bar["low"], bar["high"]} <= figures


@pytest.mark.parametrize(
    ("name", "heading", "columns"),
    [
        ("scale-writers", "## Writers", {"appends a second": 1, "p99 ms": 1000}),
        ("scale-partitions", "## Partitions", {"requests an append": 1, "$ a million records": 1}),
    ],
)
def test_a_chart_of_scale_shows_each_figure_of_its_table(name: str, heading: str, columns: dict[str, int]) -> None:
    page = read("docs/scale.md")
    names = next(line for line in page.partition(f"{heading}\n")[2].splitlines() if line.startswith("| "))
    header = [word.strip() for word in names.strip("|").split("|")]
    shown = [word.text for word in ElementTree.fromstring(pictures()[f"{name}.svg"]).iter() if word.text]
    for row in table(page, heading):
        assert row[0] in shown
        for column, unit in columns.items():
            figure = row[header.index(column)]
            if figure != "-":
                near = [float(figure.replace(",", "")) + more for more in (-0.4, 0, 0.4)]
                assert {scale_charts.shown(word / unit) for word in near} & {*shown}


def test_the_chart_of_commits_has_a_point_for_each_day_in_proportion() -> None:
    names = json.loads(read("docs/scale.json"))["micro-batches"]["365"]["names each day"]
    lines = [element.get("points", "") for element in ElementTree.fromstring(pictures()["scale-commits.svg"]).iter()]
    heights = [float(point.partition(",")[2]) for point in max(lines, key=len).split()]
    assert len(heights) == len(names) == 365
    slope = (min(heights) - max(heights)) / (max(names) - min(names))
    expected = [max(heights) + slope * (count - min(names)) for count in names]
    assert heights == pytest.approx(expected, abs=0.2)


def test_every_row_names_an_existing_benchmark() -> None:
    named = {row[3].strip("`") for row in table(read("docs/benchmarks.md"), "## All figures")}
    modules = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "benchmarks").glob("*.py")}
    assert named | {*NAMES} <= modules.keys()
    assert named - {*NAMES} <= {name for name, source in modules.items() if '__name__ == "__main__"' in source}
