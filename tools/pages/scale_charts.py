"""The charts of docs/scale.md, drawn from docs/scale.json: narrow, so that they are read on a phone without zoom."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from tools.pages.drawing import Drawing

FIGURES = Path(__file__).parents[2] / "docs" / "scale.json"
WIDTH, LEFT_MARGIN, RIGHT_MARGIN, INSET = 420, 58, 34, 24
#: Where the panels begin, the space from one to the next, and the height of what is drawn in one.
TOP, PANEL, HEIGHT = 62, 196, 118


@dataclass(frozen=True, slots=True)
class Axis:
    """Values from `low` to `high`, by a line or by their logarithms, and the ones that have labels."""

    low: float
    high: float
    ticks: Sequence[float]
    is_log: bool = False

    @classmethod
    def linear(cls, values: Sequence[float]) -> Axis:
        """From 0 on, with two to five round numbers."""
        high = max(values)
        step = 10 ** math.floor(math.log10(high))
        step = next(step * part for part in (0.2, 0.5, 1, 2, 5) if high / (step * part) <= 5)
        ticks = [step * number for number in range(math.ceil(high / step) + 1)]
        return cls(0, ticks[-1], ticks)

    @classmethod
    def log(cls, values: Sequence[float]) -> Axis:
        """Whole powers of ten around the values."""
        first, last = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
        ticks = [10.0**power for power in range(first, last + 1)]
        return cls(ticks[0], ticks[-1], ticks, is_log=True)

    def share(self, value: float) -> float:
        """Where a value is on the axis, from 0 to 1."""
        if self.is_log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


def shown(value: float | None) -> str:
    """A figure with three digits that count, as the tables have it; None is not known."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


@dataclass(frozen=True, slots=True)
class Panel:
    """One line in a chart; `marks` says whether each value is a dot with its number."""

    heading: str
    values: Sequence[tuple[float, float]]
    across: Axis
    up: Axis
    below: str
    marks: bool = True

    def draw(self, drawing: Drawing, top: float) -> None:
        """Draw it from `top` on."""
        bottom = top + 14 + HEIGHT
        points = [(self._x(x), round(bottom - self.up.share(y) * HEIGHT, 1)) for x, y in self.values]
        drawing.text(16, top, self.heading)
        for tick in self.up.ticks:
            y = round(bottom - self.up.share(tick) * HEIGHT, 1)
            drawing.line((LEFT_MARGIN, y), (WIDTH - RIGHT_MARGIN, y), kind="axis")
            drawing.text(LEFT_MARGIN - 8, y + 4, f"{tick:,.7g}", "small muted", "end")
        for tick in self.across.ticks:
            drawing.text(self._x(tick), bottom + 17, f"{tick:,g}", "small muted", "middle")
        drawing.text((LEFT_MARGIN + WIDTH - RIGHT_MARGIN) / 2, bottom + 33, self.below, "small muted", "middle")
        drawing.line(*points)
        for (x, y), (_, value) in zip(points, self.values, strict=True):
            if self.marks:
                width = 6.5 * len(shown(value))
                drawing.rectangle(x - width / 2, y - 19, width, 13, "ground", 0)
                drawing.rectangle(x - 4, y - 4, 8, 8, "bar", 4)
                drawing.text(x, y - 9, shown(value), "small", "middle")

    def _x(self, value: float) -> float:
        start = LEFT_MARGIN + INSET * self.marks
        return round(start + self.across.share(value) * (WIDTH - RIGHT_MARGIN - start), 1)


def panel(figures: Mapping[str, Any], heading: str, column: str, below: str, up: Any, scale: float = 1) -> Panel:
    """A panel of one figure of each size, where it is known; it shows the figure times `scale`."""
    values = [(float(size), row[column] * scale) for size, row in figures.items() if row[column] is not None]
    return Panel(heading, values, Axis.log([*map(float, figures)]), up([y for _, y in values]), below)


def chart(title: str, note: str, panels: Sequence[Panel]) -> str:
    """Panels below each other."""
    drawing = Drawing(WIDTH, TOP + PANEL * len(panels) - 6, title)
    drawing.text(16, 26, title, "title")
    drawing.text(16, 44, note, "small muted")
    for top, part in zip(count(TOP + 14, PANEL), panels, strict=False):
        part.draw(drawing, top)
    return drawing.svg()


def writers(figures: Mapping[str, Any]) -> str:
    """How much the writers of one topic append together, and how long each waits."""
    panel_of = partial(panel, figures["writers"], below="writers")
    return chart(
        "Writers of one topic",
        "Each with one append of ten records after the other.",
        [
            panel_of("appends a second, of all writers", "appends a second", up=Axis.linear),
            panel_of("seconds of an append, 99th percentile", "p99 ms", up=Axis.log, scale=0.001),
        ],
    )


def partitions(figures: Mapping[str, Any]) -> str:
    """The requests of an append into many partitions, and the price of its records."""
    panel_of = partial(panel, figures["partitions"], below="partitions")
    return chart(
        "One append a second into all partitions",
        "Ten records of 100 bytes for each partition, with maintain.",
        [
            panel_of("requests an append", "requests an append", up=Axis.linear),
            panel_of("dollars of a million records", "$ a million records", up=Axis.log),
        ],
    )


def commits(figures: Mapping[str, Any]) -> str:
    """How many names the commit log has over a year."""
    names = max(figures["micro-batches"].items(), key=lambda part: int(part[0]))[1]["names each day"]
    values = [(float(day), float(count)) for day, count in enumerate(names, start=1)]
    across = Axis(0, len(names), range(0, len(names) + 1, max(1, len(names) // 6 // 10 * 10)))
    return chart(
        "Names in _commits",
        "An append an hour; before each day's maintain.",
        [Panel("names", values, across, Axis.linear(names), "days", marks=False)],
    )


def charts() -> dict[str, str]:
    """The text of each chart, by the name of its file without the suffix."""
    figures = json.loads(FIGURES.read_text(encoding="utf-8"))
    drawn = {"scale-writers": writers, "scale-partitions": partitions, "scale-commits": commits}
    return {name: draw(figures) for name, draw in drawn.items()}
