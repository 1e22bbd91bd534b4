"""Draws the pictures of the documentation: `python -m tools.pages` writes docs/img/*.svg."""

from __future__ import annotations

from pathlib import Path

from tools.pages import charts, commit_diagrams, scale_charts, segment_diagrams

FOLDER = Path(__file__).parents[2] / "docs" / "img"


def pictures() -> dict[str, str]:
    """The text of each picture, by the name of its file."""
    drawn = {name: draw() for name, draw in {**commit_diagrams.PICTURES, **segment_diagrams.PICTURES}.items()}
    return {f"{name}.svg": svg for name, svg in {**drawn, **charts.charts(), **scale_charts.charts()}.items()}


def main() -> None:
    """Write each picture."""
    FOLDER.mkdir(exist_ok=True)
    for name, svg in pictures().items():
        (FOLDER / name).write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
