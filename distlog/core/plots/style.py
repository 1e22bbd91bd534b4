"""How all pictures look: colours, axes, and numbers on them."""

from __future__ import annotations

from typing import Any

from distlog.core.display.units import size_text

INK, MUTED, GRID = "#24292f", "#6e7781", "#e3e6ea"
BLUE, RED = "#3274b5", "#cf4a3c"


def panel(axes: Any, title: str, note: str = "") -> None:
    """Give a panel its title on the left, a note on the right, and quiet axes."""
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold", color=INK)
    axes.set_title(note, loc="right", fontsize=8.5, color=MUTED)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(MUTED)
    axes.tick_params(colors=MUTED, labelsize=9)
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)


def labels(axes: Any, x: str, y: str) -> None:
    """Name the axes, with their units."""
    axes.set_xlabel(x, fontsize=9, color=MUTED)
    axes.set_ylabel(y, fontsize=9, color=MUTED)


def empty(axes: Any, why: str) -> None:
    """Say why there is nothing in a panel."""
    axes.text(0.5, 0.5, why, transform=axes.transAxes, ha="center", va="center", fontsize=10, color=MUTED)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(False)


def number_text(number: float, _position: object = None) -> str:
    """A number on an axis: `950`, `1.5 k`, `20 M`."""
    for factor, unit in ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(number) >= factor:
            return f"{number / factor:.3g}{unit}"
    return f"{number:.3g}"


def bytes_text(size: float, _position: object = None) -> str:
    """A size on an axis: `0`, `1.5 MB`, `20 MB`."""
    return size_text(size).replace(".0 ", " ") if size else "0"
