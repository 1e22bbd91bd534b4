"""What programs tell of their stories, and the table of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import tomllib

Place = tuple[str, str]  # a program, and a story


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
    """A story that fails at gateways, and why."""

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
    """Those of a TOML file. Raises TypeError for one that lacks a field, or has another."""
    return [Expected(**each) for each in tomllib.loads(file.read_text(encoding="utf-8")).get("failure", [])]


def parsed(program: str, server: str, lines: Iterable[str], end: str) -> list[Result]:
    """The results among the lines of a program; one that does not say that it has ended has failed."""
    found, ended = [], False
    for line in lines:
        kind, _, rest = line.strip().partition(" ")
        story, _, reason = rest.partition(" ")
        ended |= line.strip() == "end"
        if kind in ("ok", "failed", "skipped") and story:
            found.append(Result(program, story, server, kind, reason))
    return found if ended else [*found, Result(program, "the-program", server, "failed", end)]


def wrong(results: Sequence[Result], expected: Sequence[Expected]) -> list[str]:
    """What makes a run fail: a failure that is not expected, and one that is expected and did not come."""
    found = []
    for each in results:
        reasons = [other.reason for other in expected if other.is_for(each)]
        place = f"{each.program}, {each.story}, {each.server}"
        if each.end == "failed" and not reasons:
            found.append(f"{place}: {each.reason}")
        if each.end == "ok" and reasons:
            found.append(f"{place}: is expected to fail, and did not ({reasons[0]})")
    return found


def table(results: Sequence[Result], expected: Sequence[Expected], servers: Sequence[str]) -> str:
    """Lines of a program and a story, and a column for each server."""
    cells: dict[Place, dict[str, str]] = {}
    for each in results:
        known = each.end == "failed" and any(other.is_for(each) for other in expected)
        cells.setdefault((each.program, each.story), {})[each.server] = "expected" if known else each.end.upper()
    rows = [["program", "story", *servers]]
    rows += [[*place, *(ends.get(server, "") for server in servers)] for place, ends in cells.items()]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def summary(results: Sequence[Result], versions: Mapping[str, str]) -> str:
    """The table of the documentation: programs, versions, and stories that ended well at each server."""
    servers = list(dict.fromkeys(each.server for each in results))
    lines = [f"| client | version | {' | '.join(servers)} |", "|---" * (2 + len(servers)) + "|"]
    for program in dict.fromkeys(each.program for each in results):
        own = [each for each in results if each.program == program and each.end != "skipped"]
        told = []
        for server in servers:
            ends = [each.end for each in own if each.server == server]
            told.append(f"{ends.count('ok')} of {len(ends)}" if ends else "")
        lines.append(f"| {program} | {versions.get(program, '')} | {' | '.join(told)} |")
    return "\n".join(lines)
