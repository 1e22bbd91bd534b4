"""The pictures in docs/img are what tools/pages draws, and the charts show the figures of the table."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree

import pytest
from docs_pages import ROOT, read, table

from tools.pages.__main__ import FOLDER, pictures

FIGURES = json.loads(read("docs/figures.json"))
BARS = [bar for chart in FIGURES.values() for bar in chart["bars"]]


def test_the_pictures_are_as_they_are_drawn() -> None:
    stored = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.iterdir()}
    assert stored == pictures(), "python -m tools.pages draws them anew"


@pytest.mark.parametrize("name", pictures())
def test_a_picture_has_a_title_dark_colours_and_a_page(name: str) -> None:
    svg = pictures()[name]
    assert ElementTree.fromstring(svg)[0].text
    assert "prefers-color-scheme: dark" in svg
    assert any(f"img/{name})" in path.read_text(encoding="utf-8") for path in (ROOT / "docs").rglob("*.md"))


@pytest.mark.parametrize("bar", BARS, ids=lambda bar: bar["label"])
def test_a_bar_shows_figures_of_its_row(bar: dict[str, object]) -> None:
    rows = {row[0]: " ".join(row[1:]) for row in table(read("docs/benchmarks.md"), "## All figures")}
    figures = {float(each) for each in re.findall(r"\d+(?:\.\d+)?", rows[str(bar["row"])])}
    assert {bar["low"], bar["high"]} <= figures


def test_every_row_names_a_benchmark_that_there_is() -> None:
    named = {row[3].strip("`") for row in table(read("docs/benchmarks.md"), "## All figures")}
    assert named <= {path.stem for path in (ROOT / "benchmarks").glob("*.py")}
