"""The results of stories, and their table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import tomllib

StoryKey = tuple[str, str]  # a program, and a story


@dataclass(frozen=True, slots=True)
class Result:
    """How a story of a program ended at a server: "ok", "failed" or "skipped", and why."""

    program: str
    story: str
    server: str
    end: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Expected:
    program: str
    story: str
    server: str
    reason: str

    def is_for(self, result: Result) -> bool:
        """Whether it speaks of this result; a name that ends with * is of all that begin so."""
        pairs = ((self.program, result.program), (self.story, result.story), (self.server, result.server))
        return all(_matches(pattern, name) for pattern, name in pairs)


def _matches(pattern: str, name: str) -> bool:
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


def expected_failures(file: Path) -> list[Expected]:
    """Read the expected failures from a TOML file. Raises TypeError for one that lacks a field, or has another."""
    return [Expected(**fields) for fields in tomllib.loads(file.read_text(encoding="utf-8")).get("failure", [])]


def parsed(program: str, server: str, lines: Iterable[str], end: str) -> list[Result]:
    """The results among the lines of a program; one that does not say that it has ended has failed."""
    results, ended = [], False
    for line in lines:
        kind, _, remainder = line.strip().partition(" ")
        story, _, reason = remainder.partition(" ")
        ended |= line.strip() == "end"
        if kind in ("ok", "failed", "skipped") and story:
            results.append(Result(program, story, server, kind, reason))
    return results if ended else [*results, Result(program, "the-program", server, "failed", end)]


def wrong(results: Sequence[Result], expected: Sequence[Expected]) -> list[str]:
    """Return the unexpected failures of a run, and the expected failures that did not come."""
    faults = []
    for result in results:
        reasons = [other.reason for other in expected if other.is_for(result)]
        label = f"{result.program}, {result.story}, {result.server}"
        if result.end == "failed" and not reasons:
            faults.append(f"{label}: {result.reason}")
        if result.end == "ok" and reasons:
            faults.append(f"{label}: is expected to fail, and did not ({reasons[0]})")
    return faults


def table(results: Sequence[Result], expected: Sequence[Expected], servers: Sequence[str]) -> str:
    """Lines of a program and a story, and a column for each server."""
    cells: dict[StoryKey, dict[str, str]] = {}
    for result in results:
        is_expected = result.end == "failed" and any(other.is_for(result) for other in expected)
        cells.setdefault((result.program, result.story), {})[result.server] = (
            "expected" if is_expected else result.end.upper()
        )
    rows = [["program", "story", *servers]]
    rows += [[*label, *(ends.get(server, "") for server in servers)] for label, ends in cells.items()]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def summary(results: Sequence[Result], versions: Mapping[str, str]) -> str:
    """The table of the documentation: programs, versions, and stories that ended well at each server."""
    servers = list(dict.fromkeys(result.server for result in results))
    lines = [f"| client | version | {' | '.join(servers)} |", "|---" * (2 + len(servers)) + "|"]
    for program in dict.fromkeys(result.program for result in results):
        own_results = [result for result in results if result.program == program and result.end != "skipped"]
        cells = []
        for server in servers:
            ends = [result.end for result in own_results if result.server == server]
            cells.append(f"{ends.count('ok')} of {len(ends)}" if ends else "")
        lines.append(f"| {program} | {versions.get(program, '')} | {' | '.join(cells)} |")
    return "\n".join(lines)
