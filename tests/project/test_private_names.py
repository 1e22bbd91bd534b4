"""Tests use the public API: no private attributes, and few patches of the library's modules and classes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parents[1]
#: The simulation replaces the machine under the library, and bugs are planted inside it.
INSIDE = re.compile(r"simulation/(?:\w*planted\w*|local_disk|object_store|pure|surroundings)\.py")
#: Public names with an underscore: of Python and IPython, PySpark, and confluent_kafka.
PUBLIC = re.compile(
    r"_(?:replace|asdict|fields|make|repr_html_|exit|getframe|current_frames"
    r"|gateway|jvm|jdf|FENCED|AUTHENTICATION|PARTITION_EOF|AUTO_OFFSET_RESET)"
)
#: The private names that tests use, by file.
ALLOWED_USES = {
    # the state of the group, without a record that an iteration would return
    "consuming/group_members.py": {"_assignment"},
    # the process is killed during a batch of a table
    "spark/killed_driver.py": {"_ParquetWriter"},
    "tiered/test_chunk_requests.py": {"_decompressed"},
    # the table that the page repeats
    "project/test_command_line_docs.py": {"_COLUMN_OF"},
}
#: The patches of modules and classes of the library other than constants: a number that only shrinks.
MOST_PATCHES = 121

#: Parsing would take a hundred times as long, and only omit functions inside functions.
DEFINITION = re.compile(r"^[ \t]+def (\w+)|\b(?:self|cls)\.(\w+)|^[ \t]+(_\w+)(?::| =)", re.MULTILINE)


def defined(source: str) -> Iterator[str]:
    """Yield the names of methods and attributes of a module's classes."""
    return (name for names in DEFINITION.findall(source) for name in names if name)


@cache
def shared() -> frozenset[str]:
    """Return the names in the classes that tests share."""
    return frozenset(name for path in (TESTS / "support").glob("*.py") for name in defined(path.read_text("utf-8")))


def used_privately(source: str) -> Iterator[str]:
    """Yield the foreign private attributes that a file uses."""
    public_names = {*defined(source), *shared()}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            is_own = node.attr in public_names or ast.unparse(node.value) in ("self", "cls", "super()")
            if not is_own and not PUBLIC.fullmatch(node.attr):
                yield node.attr


def patched(source: str) -> Iterator[str]:
    """Yield the names that a file replaces in modules and classes of the library, except constants."""
    tree = ast.parse(source)
    imports = (node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom)))
    imported = {
        alias.asname or alias.name
        for node in imports
        for alias in node.names
        if (getattr(node, "module", None) or alias.name).startswith("distlog")
    }
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr="setattr"), args=[ast.Constant(value=str(path)), *_]):
                *of, name = path.rpartition(".")
                is_ours = path.startswith("distlog.")
            case ast.Call(func=ast.Attribute(attr="setattr"), args=[of, name, *_]):
                name = name.value if isinstance(name, ast.Constant) else ast.unparse(name)
                is_ours = ast.unparse(of).partition(".")[0] in imported
            case _:
                continue
        if is_ours and not name.isupper():
            yield name


def sources(pattern: str) -> Iterator[tuple[str, str]]:
    """Yield the test files with a match of `pattern`, which is much faster than parsing."""
    for path in sorted(TESTS.rglob("*.py")):
        file = path.relative_to(TESTS).as_posix()
        if not INSIDE.fullmatch(file) and re.search(pattern, source := path.read_text("utf-8")):
            yield file, source


def test_tests_use_no_private_attribute_of_the_library() -> None:
    private_uses = {
        file: names
        for file, source in sources(r"(?<!self)(?<!cls)\._[a-zA-Z]")
        if (names := {*used_privately(source)})
    }
    assert private_uses == ALLOWED_USES


def test_tests_replace_no_more_of_the_library_than_before() -> None:
    patches = [f"{file}: {name}" for file, source in sources(r"\.setattr\(") for name in patched(source)]
    assert len(patches) <= MOST_PATCHES, patches


def test_the_scans_detect_the_owner_of_a_name() -> None:
    source = """
from distlog.core import module
class Own:
    def _mine(self): ...
    def test(self, member, monkeypatch):
        self._state = member._signs, Own()._mine, other._replace(a=1)
        monkeypatch.setattr(module, "work", 1)
        monkeypatch.setattr("distlog.core.module.work", 1)
        monkeypatch.setattr(module, "_MOST", 1)
        monkeypatch.setattr(os, "fsync", 1)
"""
    assert list(used_privately(source)) == ["_signs"]
    assert list(patched(source)) == ["work", "work"]
