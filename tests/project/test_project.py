"""The project as a whole: what it asks to be installed, that what is public is documented, that nothing is local."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
LIBRARY = sorted((ROOT / "distlog").rglob("*.py"))
IGNORED = {".git", ".venv", "__pycache__", "build", "dist", ".demo", "data"}
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
TEXT_FILES = {".py", ".md", ".toml", ".sh", ".cfg", ".ini", ".yml", ".yaml", ".json", ""}


def names(requirements: list[str]) -> set[str]:
    """The distributions that the requirements name, with their extras."""
    return {re.split(r"[<>=!~; ]", requirement)[0] for requirement in requirements}


def test_the_library_needs_five_distributions() -> None:
    assert names(PROJECT["dependencies"]) == {"numpy", "pyarrow", "numba", "crc32c", "fsspec"}


def test_numba_of_which_private_parts_are_used_is_bounded_by_what_was_tested() -> None:
    (requirement,) = (each for each in PROJECT["dependencies"] if each.startswith("numba"))
    assert re.fullmatch(r"numba>=0\.\d+,<0\.\d+", requirement)


@pytest.mark.parametrize(
    ("extra", "needed"),
    [
        ("spark", {"pyspark"}),
        ("s3", {"s3fs"}),
        ("cli", {"typer", "rich"}),
        ("metrics", {"prometheus-client"}),
        ("plot", {"matplotlib"}),
        ("duckdb", {"duckdb"}),
        ("test", {"pytest", "moto[server]", "hypothesis"}),
        ("bench", {"matplotlib"}),
        ("docs", {"mkdocs-material", "mkdocstrings[python]"}),
    ],
)
def test_extras_bring_what_their_name_says(extra: str, needed: set[str]) -> None:
    assert needed <= names(PROJECT["optional-dependencies"][extra])


def test_there_are_no_other_extras() -> None:
    assert set(PROJECT["optional-dependencies"]) == {
        "spark",
        "s3",
        "cli",
        "gateway",
        "metrics",
        "plot",
        "duckdb",
        "test",
        "bench",
        "docs",
    }


def test_python_and_license_are_stated() -> None:
    assert (PROJECT["requires-python"], PROJECT["license"]) == (">=3.10", "Apache-2.0")
    assert "Apache License" in (ROOT / "LICENSE").read_text(encoding="utf-8")


def is_protocol(node: ast.ClassDef) -> bool:
    """True for a Protocol: its one docstring may say what all of its methods do."""
    return any(isinstance(base, ast.Name) and base.id == "Protocol" for base in node.bases)


def public_definitions(node: ast.Module | ast.ClassDef, prefix: str) -> Iterator[tuple[str, Definition]]:
    """Public functions, classes and methods, by their dotted name."""
    for child in node.body:
        if isinstance(child, Definition) and not child.name.startswith("_"):
            if any(isinstance(mark, ast.Name) and mark.id == "overload" for mark in child.decorator_list):
                continue
            yield f"{prefix}.{child.name}", child
            if isinstance(child, ast.ClassDef) and not is_protocol(child):
                yield from public_definitions(child, f"{prefix}.{child.name}")


@pytest.mark.parametrize("path", LIBRARY, ids=lambda path: str(path.relative_to(ROOT)))
def test_everything_public_has_a_docstring(path: Path) -> None:
    module = ast.parse(path.read_text(encoding="utf-8"))
    assert ast.get_docstring(module) or not module.body, "the module has none"
    bare = [name for name, node in public_definitions(module, path.stem) if not ast.get_docstring(node)]
    assert bare == []


def test_no_file_names_a_folder_of_one_machine() -> None:
    local = re.compile(r"/(?:home|Users)/(?!someone\b)\w|/root/\w|C:\\\\Users")
    found = [
        str(path.relative_to(ROOT))
        for path in ROOT.rglob("*")
        if path.suffix in TEXT_FILES and path.is_file() and not IGNORED & set(path.relative_to(ROOT).parts)
        if path != Path(__file__) and local.search(path.read_text(encoding="utf-8", errors="replace"))
    ]
    assert found == []


def test_scripts_are_valid_bash() -> None:
    for script in ("tools/bootstrap.sh", ".ci/run"):
        subprocess.run(["bash", "-n", str(ROOT / script)], check=True)


def test_no_two_files_of_tests_have_the_same_name() -> None:
    """pytest imports each by its name alone, and would leave out the second."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []
