"""Finds the names and phrases of tools/words.toml: `python -m tools.words [--share | PATH...]`.

It lists the hits in the given files and folders, or in the whole project. A test lets no file have any.
"""

from __future__ import annotations

import argparse
import re
import symtable
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import tomllib

ROOT = Path(__file__).parents[1]
CODE = ("distlog", "tests", "benchmarks", "examples", "jobs", "tools", "demo")
DOCS = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "docs")
_LISTS = tomllib.loads(Path(__file__).with_name("words.toml").read_text(encoding="utf-8"))
_NAMES, _PHRASES = _LISTS["names"], _LISTS["phrases"]
BARE_NAMES, PARTS, VERBS, OVERRIDES = (
    frozenset(_NAMES[kind].split()) for kind in ("whole", "parts", "verbs", "overrides")
)
PHRASE = re.compile(
    "|".join(
        [rf"\b(?i:{'|'.join(_PHRASES['words'])})\b".replace(" ", r"\s+")]
        + [phrase.replace(" ", r"\s+") for phrase in _PHRASES["exact"]]
    ),
    re.MULTILINE,
)
#: A string, or comments on consecutive lines.
TEXT = re.compile(
    r"""[rbfuRBFU]{0,2}(?:\"{3}(?P<long>(?:[^\\]|\\.)*?)\"{3}|"(?P<double>(?:[^"\\\n]|\\.)*)"|'(?P<single>(?:[^'\\\n]|\\.)*)')"""
    r"|(?P<comment>\#[^\n]*(?:\n\s*\#[^\n]*)*)",
    re.DOTALL,
)
ATTRIBUTE = re.compile(r"\bself\.(\w+)(?:: [^=\n]+)? = ")
#: Markdown that is code, or the target of a link.
VERBATIM = re.compile(r"^```.*?^```|`[^`]*`|<!--.*?-->|\]\([^)]*\)", re.DOTALL | re.MULTILINE)
WORD = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])")
Hit = tuple[int, str]


@cache
def is_banned(name: str, is_callable: bool) -> bool:
    """Return whether a name says where a value came from instead of what it is."""
    bare = name.strip("_").lower()
    words = [word.lower() for word in WORD.findall(name)]
    return name not in OVERRIDES and (
        bare in BARE_NAMES
        or not PARTS.isdisjoint(words)
        or (is_callable and ((words[:1] != [] and words[0] in VERBS) or bare.startswith("let_go")))
    )


def bindings(source: str) -> Iterator[tuple[int, str, bool]]:
    """Yield each name that a scope binds: the line of the scope, the name, and whether it is a function's."""
    tables = [symtable.symtable(source, "source", "exec")]
    for table in tables:
        tables += table.get_children()
        for symbol in table.get_symbols():
            if symbol.is_parameter() or symbol.is_assigned():
                yield table.get_lineno(), symbol.get_name(), symbol.is_namespace()


def names(source: str) -> Iterator[Hit]:
    """Yield the banned names of a module, at the first line of the scope that has them."""
    lines = source.splitlines()
    for start, name, is_callable in bindings(source):
        if is_banned(name, is_callable):
            uses = re.compile(rf"\b{name}\b")
            yield next((n + 1 for n in range(max(start - 1, 0), len(lines)) if uses.search(lines[n])), start), name
    for match in ATTRIBUTE.finditer(source):
        if is_banned(match[1], False):
            yield line_of(source, match.start()), f"self.{match[1]}"


def line_of(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def phrases(source: str) -> Iterator[Hit]:
    """Yield the banned phrases of a module's comments, docstrings and messages."""
    for match in TEXT.finditer(source):
        kind = match.lastgroup or ""
        text = match[kind]
        if kind == "comment":
            text = re.sub(r"#:?", lambda mark: " " * len(mark[0]), text)
            text = re.sub(r"^\s+", lambda margin: "\n" * margin[0].count("\n"), text, flags=re.MULTILINE)
        if text.count(" ") > 1:
            for hit in PHRASE.finditer(text):
                yield line_of(source, match.start(kind)) + text.count("\n", 0, hit.end()), " ".join(hit[0].split())


def hits(path: Path) -> list[Hit]:
    """Return the line and the words of each hit in a file, in order."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return sorted([*names(text), *phrases(text)])
    prose = VERBATIM.sub(lambda code: re.sub(r"[^\n]", "`", code[0]), text)
    return [(line_of(prose, hit.end()), " ".join(hit[0].split())) for hit in PHRASE.finditer(prose)]


def files(roots: Iterable[Path]) -> Iterator[Path]:
    for root in roots:
        paths = sorted(path for path in root.rglob("*") if path.suffix in {".py", ".md"}) if root.is_dir() else [root]
        yield from (path for path in paths if not {"__pycache__", "data"} & set(path.relative_to(ROOT).parts))


def share() -> str:
    """Return the share of banned names in each folder of code."""
    rows = []
    for folder in CODE:
        sources = (path.read_text(encoding="utf-8") for path in (ROOT / folder).rglob("*.py"))
        judged = [is_banned(name, is_callable) for source in sources for _, name, is_callable in bindings(source)]
        rows.append(f"{folder:12}{sum(judged):6} of {len(judged):6} names {sum(judged) / max(len(judged), 1):7.2%}")
    return "\n".join(rows)


def all_hits(roots: Iterable[Path] = ()) -> Iterator[tuple[str, int, str]]:
    """Yield the path, the line and the words of each hit in files and folders, or in the whole project."""
    for path in files(roots or [ROOT / name for name in (*CODE, *DOCS)]):
        for line, words in hits(path):
            yield path.relative_to(ROOT).as_posix(), line, words


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="*", type=Path, help="list the hits in these files and folders")
    parser.add_argument("--share", action="store_true", help="print the share of banned names")
    arguments = parser.parse_args()
    if arguments.share:
        print(share())
        return
    for path, line, words in all_hits([path.resolve() for path in arguments.paths]):
        print(f"{path}:{line}: {words}")


if __name__ == "__main__":
    main()
