"""Progress: one line on a terminal, nothing elsewhere."""

from __future__ import annotations

import io

import pytest

from distlog.console.progress import Progress, duration_text, size_text


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


class Clock:
    """Seconds that pass when told to."""

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
    terminal = Terminal()
    with Progress("x", stream=terminal, clock=Clock()):
        pass
    assert terminal.getvalue() == "\r\x1b[K"


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
    [(0.4, "0 s"), (59.4, "59 s"), (59.6, "1 min 00 s"), (3599, "59 min 59 s"), (7800, "2 h 10 min")],
)
def test_durations_have_two_units_at_the_most(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text
