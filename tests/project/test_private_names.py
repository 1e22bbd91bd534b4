"""Tests look at what a package does for others: its private attributes are for its own tests alone."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]

#: By private name: the packages of distlog whose objects have an attribute or a method of this name.
Owners = dict[str, set[str]]


#: Bugs are planted inside the library, so these files alone take what is private.
PLANTED = {ROOT / "tests" / "simulation" / name for name in ("planted.py", "planted_state.py", "disk_planted.py")}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("_")


#: Parsing takes a hundred times as long, and finds fewer by the functions inside functions alone.
MADE = re.compile(r"^[ \t]+def (\w+)|\bself\.(\w+)", re.MULTILINE)


def made(source: str) -> Iterator[str]:
    """The names of the methods of a module's classes, and of what their objects have."""
    return (method or attribute for method, attribute in MADE.findall(source))


@cache
def owners() -> Owners:
    found = defaultdict(set)
    for path in (ROOT / "distlog").rglob("*.py"):
        parts = path.relative_to(ROOT / "distlog").parts
        package = parts[1] if parts[0] == "core" else parts[0]
        for name in filter(is_private, made(path.read_text(encoding="utf-8"))):
            found[name].add(package.removesuffix(".py"))
    return found


def modules_in(tree: ast.Module) -> set[str]:
    """The names that a file imports: what it takes of these is no attribute of an object."""
    imports = (node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom)))
    return {alias.asname or alias.name for node in imports for alias in node.names if alias.name.islower()}


def taken(source: str, package: str, known: Owners) -> Iterator[str]:
    """The private attributes of objects of other packages that a test of `package` takes."""
    tree = ast.parse(source)
    mine, modules = {*made(source), *shared()}, modules_in(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in known and node.attr not in mine:
            of, whose = known[node.attr], ast.unparse(node.value)
            if package not in of and whose not in modules:
                yield f"line {node.lineno}: {whose}.{node.attr} of {' or '.join(sorted(of))}"


@cache
def shared() -> set[str]:
    """What the classes that tests share have of their own."""
    files = (ROOT / "tests" / "support").glob("*.py")
    return {name for path in files for name in made(path.read_text("utf-8"))}


def test_tests_take_no_private_attribute_of_another_package() -> None:
    known, tests = owners(), ROOT / "tests"
    # few files name any of these, and parsing takes a hundred times as long as such a look
    named = re.compile(rf"\b(?:{'|'.join(known)})\b")
    found = [
        f"{path.relative_to(ROOT)} {line}"
        for path in sorted({*tests.rglob("*.py")} - PLANTED)
        if named.search(source := path.read_text(encoding="utf-8"))
        for line in taken(source, path.relative_to(tests).parts[0].split(".")[0], known)
    ]
    assert found == []


def test_the_scan_knows_whose_an_attribute_is() -> None:
    known, source = owners(), "def test() -> None:\n    member._signs.clear()\n"
    assert list(taken(source, "topics", known)) == ["line 2: member._signs of groups"]
    assert list(taken(source, "groups", known)) == []
