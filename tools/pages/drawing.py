"""Pictures as SVG: boxes, arrows, bars and text, readable on light and on dark screens."""

from __future__ import annotations

from html import escape

#: Colours by class: fill and stroke, light and dark.
_STYLE = """
text { font: 13px system-ui, "Segoe UI", Roboto, "Liberation Sans", sans-serif; fill: #20242c; }
.small { font-size: 11.5px; } .title { font-size: 15px; font-weight: 600; }
.code { font-family: ui-monospace, monospace; }
.ground { fill: #ffffff; } .muted { fill: #5a6270; } .axis { stroke: #b9c0cb; stroke-width: 1; }
.box { fill: #eceffb; stroke: #3f51b5; } .file { fill: #f4f5f7; stroke: #8a93a2; }
.new { fill: #e4f4ea; stroke: #2e7d4f; }
.gone { fill: #fbecea; stroke: #b3422f; stroke-dasharray: 5 3; } .hot { fill: #fff3dc; stroke: #b07a12; }
.bar { fill: #3f51b5; } .worse { fill: #b07a12; } .line { stroke: #4b5361; stroke-width: 1.4; fill: none; }
.head { fill: #4b5361; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6e9ef; } .ground { fill: #1e2129; } .muted { fill: #a3abb9; } .axis { stroke: #4a5160; }
  .box { fill: #2a3157; stroke: #8c9eff; } .file { fill: #2a2f39; stroke: #8a93a2; }
  .new { fill: #1d3a2a; stroke: #6fcf97; }
  .gone { fill: #41231e; stroke: #ef8d7b; } .hot { fill: #43371a; stroke: #e3b65b; }
  .bar { fill: #8c9eff; } .worse { fill: #e3b65b; } .line { stroke: #c3cad6; } .head { fill: #c3cad6; }
}
"""


class Drawing:
    """A picture of a size; shapes are drawn in the order of the calls. `title` is what a screen reader says."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self._width, self._height, self._title = width, height, title
        self._shapes: list[str] = []

    def rectangle(self, x: float, y: float, width: float, height: float, kind: str, radius: float = 4) -> None:
        """A rectangle of the class `kind`."""
        self._shapes.append(
            f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius:g}"/>'
        )

    def box(self, x: float, y: float, width: float, height: float, text: str, kind: str = "box") -> None:
        """A rectangle with lines of text in its middle; a line that begins with ~ is smaller."""
        self.rectangle(x, y, width, height, kind)
        lines = text.split("\n")
        for number, line in enumerate(lines):
            baseline = y + height / 2 + 4.5 + (number - (len(lines) - 1) / 2) * 16
            self.text(x + width / 2, baseline, line.removeprefix("~"), "small muted" * line.startswith("~"), "middle")

    def text(self, x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> None:
        """A line of text from x on, around it (`middle`) or up to it (`end`)."""
        marks = f' class="{kind}"' * bool(kind) + f' text-anchor="{anchor}"' * (anchor != "start")
        self._shapes.append(f'<text x="{x:g}" y="{y:g}"{marks}>{escape(text, quote=False)}</text>')

    def line(self, *points: tuple[float, float], kind: str = "line") -> None:
        """A line through points."""
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        self._shapes.append(f'<polyline class="{kind}" points="{path}"/>')

    def arrow(self, *points: tuple[float, float]) -> None:
        """A line through points with a head at the last one."""
        (x, y), (before_x, before_y) = points[-1], points[-2]
        self.line(*points)
        along = (x > before_x) - (x < before_x), (y > before_y) - (y < before_y)
        back, side = (x - 8 * along[0], y - 8 * along[1]), (4 * along[1], 4 * along[0])
        corners = [(x, y), (back[0] + side[0], back[1] + side[1]), (back[0] - side[0], back[1] - side[1])]
        self._shapes.append(
            '<polygon class="head" points="' + " ".join(f"{px:g},{py:g}" for px, py in corners) + '"/>'
        )

    def svg(self) -> str:
        """The picture as the text of a file."""
        size = f'viewBox="0 0 {self._width} {self._height}" width="{self._width}" height="{self._height}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">'
        ground = f'<rect class="ground" width="{self._width}" height="{self._height}" rx="8"/>'
        parts = [head, f"<title>{escape(self._title)}</title>", f"<style>{_STYLE}</style>", ground, *self._shapes]
        return "\n".join([*parts, "</svg>\n"])
