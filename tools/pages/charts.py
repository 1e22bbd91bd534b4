"""The charts of docs/benchmarks.md, drawn from docs/figures.json."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tools.pages.drawing import Drawing

FIGURES = Path(__file__).parents[2] / "docs" / "figures.json"
WIDTH, LABELS, RIGHT, TOP, ROW = 760, 310, 110, 74, 26


def charts() -> dict[str, str]:
    """The text of each chart, by the name of its file without the suffix."""
    figures = json.loads(FIGURES.read_text(encoding="utf-8"))
    return {name: _chart(chart) for name, chart in figures.items()}


def _chart(chart: Mapping[str, Any]) -> str:
    bars, is_log = chart["bars"], chart["scale"] == "log"
    drawing = Drawing(WIDTH, TOP + ROW * len(bars) + 34, chart["title"])
    drawing.text(20, 30, chart["title"], "title")
    drawing.text(20, 50, chart["note"], "small muted")
    ticks = _ticks(is_log, max(bar["high"] for bar in bars))
    bottom = TOP + ROW * len(bars)
    for tick in ticks:
        x = _x_of(tick, ticks, is_log)
        drawing.line((x, TOP - 6), (x, bottom), kind="line" if is_log and tick == 1 else "axis")
        drawing.text(x, bottom + 18, f"{tick:g}", "small muted", "middle")
    for number, bar in enumerate(bars):
        _bar(drawing, bar, TOP + ROW * number, ticks, is_log)
    return drawing.svg()


def _bar(drawing: Drawing, bar: Mapping[str, Any], y: float, ticks: list[float], is_log: bool) -> None:
    """From the line at 1, or from 0, to the range of the runs; the range is the thick part."""
    start, low, high = (_x_of(value, ticks, is_log) for value in (1 if is_log else 0, bar["low"], bar["high"]))
    kind = "worse" if is_log and bar["high"] < 1 else "bar"
    near, far = min(start, low, high), max(start, low, high)
    drawing.text(LABELS - 10, y + 15, bar["label"], "small", "end")
    drawing.rectangle(near, y + 9, far - near, 4, kind, 0)
    drawing.rectangle(min(low, high) - 1.5, y + 4, abs(high - low) + 3, 14, kind, 2)
    shown = (
        "more than " * bar.get("more", False)
        + f"{bar['low']:g}"
        + f" to {bar['high']:g}" * (bar["low"] != bar["high"])
    )
    drawing.text(max(far, start) + 9, y + 15, shown, "small")


def _ticks(is_log: bool, largest: float) -> list[float]:
    if is_log:
        return [0.1, 0.3, 1, 3, 10, 30, 100, 300]
    return [float(value) for value in range(0, math.ceil(largest / 10) * 10 + 1, 10)]


def _x_of(value: float, ticks: list[float], is_log: bool) -> float:
    first, last = ticks[0], ticks[-1]
    share = math.log(value / first) / math.log(last / first) if is_log else (value - first) / (last - first)
    return round(LABELS + share * (WIDTH - LABELS - RIGHT), 1)
