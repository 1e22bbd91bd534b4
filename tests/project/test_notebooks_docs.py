"""docs/notebooks.md cannot drift: its examples run, and its names exist."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
from docs_pages import Reader

import distlog
from distlog.core import display
from distlog.core.read.scan import FIRST_OFFSETS, Scan

TEXT = (Path(__file__).parents[2] / "docs" / "notebooks.md").read_text(encoding="utf-8")


@pytest.mark.long
def test_the_examples_run(tmp_path: Path, reader: Reader) -> None:
    for library in ("pandas", "polars", "duckdb", "matplotlib"):
        pytest.importorskip(library)
    pytest.importorskip("matplotlib").use("Agg")
    names = reader.pastes("docs/notebooks.md").names
    topic = names["topic"]
    assert names["table"].schema.names == ["user", "item", "city"]
    assert (names["polars_frame"].height, len(topic.scan())) == (20, 42)
    assert (tmp_path / "topic.png").stat().st_size > 10_000


def test_its_names_exist() -> None:
    assert f"the last {FIRST_OFFSETS:,} offsets" in TEXT
    assert display.PATIENCE_S == 1
    (sentence,) = re.findall(r"nowhere; (.*?) take it", TEXT, re.DOTALL)
    for name in re.findall(r"`(\w+)`", sentence):
        assert "progress" in inspect.signature(getattr(Scan, name, None) or getattr(distlog.Topic, name)).parameters
