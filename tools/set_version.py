"""Gives the project a version, everywhere: `make version VERSION=0.2.0`. Then commit, and tag the commit v0.2.0."""

from __future__ import annotations

import re
import sys
from datetime import date
from pathlib import Path

from distlog.core import VERSION

#: Where the version stands, and the words around it.
LOCATIONS = {
    "distlog/core/__init__.py": 'VERSION = "{}"',
    "docs/cluster.md": "pydistlog-{}-py3-none-any.whl",
    "docs/is-it-for-me.md": "| age | version {}",
}
_UNRELEASED = "## [Unreleased]\n"
_NOT_YET = "\nVersion {}, which was not released yet.\n"


def set_version(root: Path, old: str, new: str, day: date) -> None:
    """Replace `old`, and move the unreleased changes to `new`, which must follow `old`, or be it.

    Raises ValueError for another version, and where the files are not as they should be; then nothing is changed.
    """
    if not re.fullmatch(r"(0|[1-9]\d*)(\.(0|[1-9]\d*)){2}", new) or _numbers(new) < _numbers(old):
        raise ValueError(f"a version is three numbers, from {old} on, as in 0.2.0: {new!r}")
    texts = {name: (root / name).read_text(encoding="utf-8") for name in (*LOCATIONS, "CHANGELOG.md")}
    for name, words in LOCATIONS.items():
        if words.format(old) not in texts[name]:
            raise ValueError(f"{name} does not have {words.format(old)}")
        texts[name] = texts[name].replace(words.format(old), words.format(new))
    texts["CHANGELOG.md"] = _released(texts["CHANGELOG.md"], old, new, day)
    for name, text in texts.items():
        (root / name).write_text(text, encoding="utf-8")


def _released(changelog: str, old: str, new: str, day: date) -> str:
    """The changelog with the unreleased changes below a heading of their own."""
    if changelog.count(_UNRELEASED) != 1 or f"## [{new}]" in changelog:
        raise ValueError(f"CHANGELOG.md has no changes to release, or has {new} already")
    if not changelog.partition(_UNRELEASED)[2].partition("\n## [")[0].strip():
        raise ValueError("CHANGELOG.md has nothing that is unreleased")
    changelog = changelog.replace(_NOT_YET.format(old), "")
    return changelog.replace(_UNRELEASED, f"{_UNRELEASED}\n## [{new}] - {day:%Y-%m-%d}\n")


def _numbers(version: str) -> list[int]:
    return [int(number) for number in version.split(".")]


def main() -> int:
    """Set the version that is the only argument."""
    try:
        (new,) = sys.argv[1:] or [""]
        set_version(Path(__file__).parents[1], VERSION, new, date.today())
    except ValueError as error:
        print(f"version: {error}", file=sys.stderr)
        return 2
    print(f"now commit, and tag the commit v{new}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
