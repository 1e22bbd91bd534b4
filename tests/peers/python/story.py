"""Runs the stories of a client for Python, and prints a line about each."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

#: How long a story may take: the machine may do much else.
PATIENCE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Target:
    """Two servers, and a name for the topic and the group of a story."""

    address: str
    secured: str
    topic: str


def run(stories: Mapping[str, Callable[[Target], None]]) -> None:
    """All stories, or those that the arguments ask for: ADDRESS ADDRESS-WITH-ACLS PREFIX [STORY...]"""
    address, secured, prefix, *only = sys.argv[1:]
    for name, story in stories.items():
        if not only or name in only:
            _report(name, story, Target(address, secured, f"{prefix}-{name}"))
    print("end", flush=True)


def _report(name: str, story: Callable[[Target], None], target: Target) -> None:
    start_s, ends = time.monotonic(), ["failed it does not end"]

    def run_story() -> None:
        try:
            story(target)
            ends.append(f"ok {int((time.monotonic() - start_s) * 1000)}")
        except Exception as error:
            ends.append(f"failed {type(error).__name__} {' '.join(str(error).split())}")

    thread = threading.Thread(target=run_story, daemon=True)
    thread.start()
    thread.join(PATIENCE_SECONDS + 10)
    end, _, remainder = ends[-1].partition(" ")
    print(end, name, remainder, flush=True)


def same(subject: str, actual: object, expected: object) -> None:
    """Raises AssertionError unless both are the same."""
    assert actual == expected, f"{subject}: expected {expected!r:.200}, found {actual!r:.200}"


def until(subject: str, holds: Callable[[], object]) -> None:
    """Ask until it holds. Raises AssertionError if that takes too long."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < end, f"not in time: {subject}"
        time.sleep(0.05)
