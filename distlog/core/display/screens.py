"""Where progress is shown: a line of a terminal, or the output of a notebook's cell."""

from __future__ import annotations

import sys
from html import escape
from typing import Any, Protocol, TextIO


class Screen(Protocol):
    """Shows one line of text, and a bar where `share` (0 to 1) is known."""

    def draw(self, line: str, share: float | None) -> None:
        """Show the line in place of the one before."""

    def close(self, line: str) -> None:
        """The work is over, and `line` says what was done. It is called only if something was drawn."""


class Terminal:
    """The last line of a terminal; it is wiped at the end."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def draw(self, line: str, share: float | None) -> None:
        """Show the line in place of the one before."""
        self._write(f"\r{line}\x1b[K")

    def close(self, line: str) -> None:
        """Wipe the line."""
        self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


class Notebook:
    """A bar and a line in the output of the cell that runs; the line stays. `display` is IPython's."""

    def __init__(self, display: Any) -> None:
        self._display = display
        self._handle: Any = None

    def draw(self, line: str, share: float | None) -> None:
        """Show the bar and the line in place of those before."""
        value = "" if share is None else f' value="{share:.3f}"'
        self._show(f"<progress{value}></progress> {escape(line)}", line)

    def close(self, line: str) -> None:
        """Leave the line alone."""
        self._show(escape(line), line)

    def _show(self, html: str, line: str) -> None:
        shown = {"text/html": f"<div>{html}</div>", "text/plain": line}
        if self._handle is None:
            self._handle = self._display(shown, raw=True, display_id=True)
        else:
            self._handle.update(shown, raw=True)


def screen_of(shown: bool | None, stream: TextIO | None = None) -> Screen | None:
    """The screen of this process: its notebook, or the terminal of `stream` (default: standard error).

    None if it has none, and if `shown` is false. With `shown` None a program that runs by itself in a terminal gets
    none either: only who types sees progress without asking for it.
    """
    if shown is False:
        return None
    if (ipython := sys.modules.get("IPython")) and hasattr(ipython.get_ipython(), "kernel"):
        return Notebook(sys.modules["IPython.display"].display)
    stream = sys.stderr if stream is None else stream
    return Terminal(stream) if stream.isatty() and (shown or hasattr(sys, "ps1")) else None
