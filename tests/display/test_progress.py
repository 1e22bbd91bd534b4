"""Progress: one line on a terminal, nothing elsewhere."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import distlog
from distlog.core.display import Progress, duration_text, size_text


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def test_a_terminal_shows_rows_bytes_rate_share_and_time_left() -> None:
    terminal, clock = Terminal(), Clock()
    with Progress("appending", total_bytes=400_000_000, stream=terminal, clock=clock) as progress:
        clock.seconds = 2.0
        progress.add(1_000_000, 100_000_000)
        shown = terminal.getvalue()
    assert shown == "\rappending  1,000,000 rows  100.0 MB  50.0 MB/s  25%  6 s left\x1b[K"


def test_the_line_is_wiped_at_the_end() -> None:
    terminal, clock = Terminal(), Clock()
    with Progress("x", stream=terminal, clock=clock) as progress:
        clock.seconds = 1.0
        progress.add(1)
    assert terminal.getvalue() == "\rx  1 rows\x1b[K\r\x1b[K"


def test_hidden_progress_is_not_wiped() -> None:
    terminal = Terminal()
    with Progress("x", stream=terminal, clock=Clock()):
        pass
    assert terminal.getvalue() == ""


@pytest.mark.parametrize("is_typed", [True, False])
def test_interactive_sessions_show_progress_after_a_second(monkeypatch: pytest.MonkeyPatch, is_typed: bool) -> None:
    terminal, clock = Terminal(), Clock()
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    if not is_typed:
        monkeypatch.delattr(sys, "ps1")
    with Progress("reading", total_rows=4, shown=None, stream=terminal, clock=clock) as progress:
        clock.seconds = 0.9
        progress.add(1)
        assert terminal.getvalue() == ""
        clock.seconds = 1.0
        progress.add(1)
        assert terminal.getvalue() == ("\rreading  2 rows  50%  1 s left\x1b[K" if is_typed else "")


def test_disabled_progress_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, clock = Terminal(), Clock()
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    with Progress("reading", shown=False, stream=terminal, clock=clock) as progress:
        clock.seconds = 9.0
        progress.add(1)
    assert terminal.getvalue() == ""


def test_a_notebook_shows_a_bar_and_keeps_the_last_line(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    class Handle:
        def update(self, shown: Any, raw: bool) -> None:
            calls.append(shown)

    def display(shown: Any, raw: bool, display_id: bool) -> Handle:
        calls.append(shown)
        return Handle()

    shell = SimpleNamespace(kernel=None)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
    clock = Clock()
    with Progress("<reading>", total_rows=10, shown=None, clock=clock) as progress:
        for seconds in (1.0, 2.0):
            clock.seconds = seconds
            progress.add(4)
        clock.seconds = 3.0
    assert [call["text/html"] for call in calls] == [
        '<div><progress value="0.400"></progress> &lt;reading&gt;  4 rows  40%  2 s left</div>',
        '<div><progress value="0.800"></progress> &lt;reading&gt;  8 rows  80%  0 s left</div>',
        "<div>&lt;reading&gt;  8 rows  3 s</div>",
    ]
    assert calls[-1]["text/plain"] == "<reading>  8 rows  3 s"


def test_the_time_left_is_not_guessed_without_a_total() -> None:
    clock = Clock()
    progress = Progress("x", stream=Terminal(), clock=clock)
    clock.seconds = 1.0
    progress.add(1, 10)
    assert progress.line() == "x  1 rows  10 B  10 B/s"


def test_the_line_is_not_drawn_more_often_than_the_interval() -> None:
    terminal, clock = Terminal(), Clock()
    with Progress("x", stream=terminal, clock=clock, interval_s=0.2) as progress:
        for _ in range(100):
            clock.seconds += 0.01
            progress.add(1, 1)
        assert terminal.getvalue().count("\r") in (4, 5)


def test_a_program_without_standard_error_appends_and_reads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    topic = distlog.create(tmp_path / "clicks", partitions=1)
    topic.append([{"key": b"k", "value": b"v"}])
    assert topic.scan().to_table().num_rows == 1


def test_a_pipe_shows_nothing() -> None:
    pipe, clock = io.StringIO(), Clock()
    with Progress("x", total_bytes=10, stream=pipe, clock=clock) as progress:
        clock.seconds = 9.0
        progress.add(5, 5)
    assert pipe.getvalue() == ""
    assert (progress.rows, progress.bytes) == (5, 5)


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (999_949, "999.9 kB"), (999_950, "1.0 MB"), (5e18, "5000.0 PB")],
)
def test_sizes_are_in_powers_of_1000(size: float, text: str) -> None:
    assert size_text(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (3599, "59 min 59 s"),
        (7800, "2 h 10 min"),
        (604_800, "7 d"),
        (90_000, "1 d 01 h"),
    ],
)
def test_durations_have_at_most_two_units(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text
