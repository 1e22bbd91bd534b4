"""The project: its requirements, documentation of public names, and no local paths."""

from __future__ import annotations

import ast
import importlib
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

import pytest
from docs_pages import read, table

import distlog
from distlog.core import DISTRIBUTION
from tools import flows

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
_SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT, TOOLS = _SETTINGS["project"], _SETTINGS["tool"]
LIBRARY = sorted(path for path in (ROOT / "distlog").rglob("*.py") if "__pycache__" not in path.parts)
IGNORED = {".git", ".venv", "__pycache__", "build", "dist", ".demo", ".hypothesis", "data"}
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
TEXT_FILES = {".py", ".md", ".toml", ".sh", ".cfg", ".ini", ".yml", ".yaml", ".json", ""}


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[<>=!~; ]", requirement)[0] for requirement in requirements}


def test_the_library_needs_five_distributions() -> None:
    assert names(PROJECT["dependencies"]) == {"numpy", "pyarrow", "numba", "crc32c", "fsspec"}


def test_numba_is_bounded_by_the_tested_version() -> None:
    (requirement,) = (item for item in PROJECT["dependencies"] if item.startswith("numba"))
    assert re.fullmatch(r"numba>=0\.\d+,<0\.\d+", requirement)


@pytest.mark.parametrize(
    ("extra", "needed"),
    [
        ("spark", {"pyspark"}),
        ("s3", {"s3fs"}),
        ("gcs", {"gcsfs"}),
        ("azure", {"adlfs"}),
        ("cli", {"typer", "rich"}),
        ("metrics", {"prometheus-client"}),
        ("plot", {"matplotlib"}),
        ("duckdb", {"duckdb"}),
        ("test", {"pytest", "moto[server]", "hypothesis"}),
        ("bench", {"matplotlib"}),
        ("docs", {"mkdocs-material", "mkdocstrings[python]"}),
    ],
)
def test_extras_have_their_libraries(extra: str, needed: set[str]) -> None:
    assert needed <= names(PROJECT["optional-dependencies"][extra])


def test_there_are_no_other_extras() -> None:
    assert set(PROJECT["optional-dependencies"]) == {
        "spark",
        "s3",
        "gcs",
        "azure",
        "cli",
        "gateway",
        "metrics",
        "plot",
        "duckdb",
        "avro",
        "protobuf",
        "test",
        "bench",
        "docs",
    }


def test_python_and_license_are_stated() -> None:
    assert (PROJECT["requires-python"], PROJECT["license"]) == (">=3.10", "Apache-2.0")
    assert "Apache License" in (ROOT / "LICENSE").read_text(encoding="utf-8")


def patterns(tree: ast.Module) -> Iterator[str]:
    """Yield the regular expressions in calls like re.compile; an inserted value counts as a digit."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="re")), args=[ast.Constant(value=str(pattern)), *_]):
                yield pattern
            case ast.Call(func=ast.Attribute(value=ast.Name(id="re")), args=[ast.JoinedStr(values=parts), *_]):
                yield "".join([str(part.value) if isinstance(part, ast.Constant) else "1" for part in parts])


def needs_python_3_11(pattern: str) -> bool:
    """Return whether a pattern has a possessive quantifier or an atomic group."""
    parsed = repr(importlib.import_module("re._parser").parse(pattern))
    return "POSSESSIVE_REPEAT" in parsed or "ATOMIC_GROUP" in parsed


def test_regular_expressions_work_on_the_oldest_python(trees: dict[str, ast.Module]) -> None:
    """Mypy and ruff, as configured, find everything else that is too new."""
    assert [needs_python_3_11(pattern) for pattern in ("a*+", "(?>a)b", "[*+]", r"\++")] == [True, True, False, False]
    # few files have any, and a search of the text is faster than a walk over all nodes
    uses = re.compile(r"\bre\.\w")
    users = {path: tree for path, tree in trees.items() if uses.search((ROOT / path).read_text(encoding="utf-8"))}
    all_patterns = [(path, pattern) for path, tree in users.items() for pattern in patterns(tree)]
    assert len(all_patterns) > 50
    assert not [(path, pattern) for path, pattern in all_patterns if needs_python_3_11(pattern)]


def test_mypy_and_ruff_check_for_the_oldest_python() -> None:
    oldest = PROJECT["requires-python"].removeprefix(">=")
    assert (TOOLS["mypy"]["python_version"], TOOLS["ruff"]["target-version"]) == (
        oldest,
        f"py{oldest.replace('.', '')}",
    )


def public_definitions(module: ast.Module, public: set[str]) -> Iterator[tuple[str, Definition]]:
    """Yield the functions and classes in `public`, and the public methods of the classes, by name."""
    for node in module.body:
        if isinstance(node, Definition) and node.name in public:
            yield node.name, node
            for method in node.body if isinstance(node, ast.ClassDef) else ():
                is_overload = "overload" in map(ast.unparse, getattr(method, "decorator_list", ()))
                if isinstance(method, Definition) and not (method.name.startswith("_") or is_overload):
                    yield f"{node.name}.{method.name}", method


@pytest.fixture(scope="module")
def trees() -> dict[str, ast.Module]:
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text(encoding="utf-8")) for path in LIBRARY}


def test_modules_and_the_public_api_have_docstrings(trees: dict[str, ast.Module]) -> None:
    pages = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "reference").glob("*.md"))
    public = {*distlog.__all__, *re.findall(r"^::: .*\b(\w+)$", pages, re.MULTILINE)}
    bare = [path for path, module in trees.items() if module.body and not ast.get_docstring(module)]
    bare += [
        f"{path}.{name}"
        for path, module in trees.items()
        for name, node in public_definitions(module, public)
        if not ast.get_docstring(node)
    ]
    assert len(public) > 60
    assert bare == []


def test_no_file_names_a_folder_of_one_machine() -> None:
    local = re.compile(r"/(?:home|Users)/(?!someone\b)\w|(?<!\w)/root/\w|C:\\\\Users")
    matches = [
        str(path.relative_to(ROOT))
        for path in ROOT.rglob("*")
        if path.suffix in TEXT_FILES and path.is_file() and not IGNORED & set(path.relative_to(ROOT).parts)
        if path != Path(__file__) and local.search(path.read_text(encoding="utf-8", errors="replace"))
    ]
    assert matches == []


def test_scripts_are_valid_bash() -> None:
    for script in ("tools/bootstrap.sh", ".ci/run"):
        subprocess.run(["bash", "-n", str(ROOT / script)], check=True)


def test_no_two_files_of_tests_have_the_same_name() -> None:
    """Pytest imports each file by its name only, and would skip the second."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []


@pytest.mark.parametrize("mode", [0o600, 0o664])
def test_a_wheel_needs_no_java_and_has_the_same_rights_in_each_clone(tmp_path: Path, mode: int) -> None:
    """Run the real Makefile with a program in place of pip that prints the rights of its inputs."""
    for name in ("Makefile", "pyproject.toml", "README.md", "LICENSE", "distlog_command.py", "pyspark_distlog.py"):
        shutil.copy(ROOT / name, tmp_path)
    tell = """
[ "$2" = pip ] || exit 0
for source; do :; done
mkdir dist; touch dist/a-py3-none-any.whl; find "$source" -type f -exec stat -c %a {} + | sort -u
"""
    set_up = '[ "$*" = build/python ] && mkdir -p "$1/bin" && cp pip/python "$1/bin"'
    for name, text in (("tools/bootstrap.sh", set_up), ("pip/python", tell), ("distlog/py.typed", "")):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(mode if name == "distlog/py.typed" else 0o755)
    (tmp_path / "LICENSE").chmod(mode)
    ran = subprocess.run(["make", "-s", "dist"], cwd=tmp_path, capture_output=True, text=True)
    assert ran.stdout.splitlines() == ["644", "dist/a-py3-none-any.whl"], ran.stderr


def test_one_commit_makes_one_zip_for_spark(tmp_path: Path) -> None:
    subprocess.run([sys.executable, ROOT / "tools" / "spark_zip.py", tmp_path / "made.zip"], check=True)
    with ZipFile(tmp_path / "made.zip") as archive:
        entries = archive.infolist()
    assert {(entry.date_time, entry.external_attr) for entry in entries} == {((1980, 1, 1, 0, 0, 0), 0o644 << 16)}
    assert "distlog/py.typed" in [entry.filename for entry in entries]


@pytest.mark.long
def test_a_zip_for_spark_has_the_files_of_the_wheel(tmp_path: Path) -> None:
    """A gateway reads a data file next to its modules."""
    package_data = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    subprocess.run([sys.executable, ROOT / "tools" / "spark_zip.py", tmp_path / "made.zip"], check=True)
    program = "from distlog.gateway.protocol import messages; print(messages.__file__, len(messages._BLOCKS) > 0)"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "made.zip")}
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert ran.stdout == f"{tmp_path}/made.zip/distlog/gateway/protocol/messages.py True\n", ran.stderr
    with ZipFile(tmp_path / "made.zip") as archive:
        assert {f"distlog/{name}" for name in package_data["distlog"]} <= set(archive.namelist())


def test_the_dependency_under_the_lgpl_is_documented() -> None:
    assert "`crc32c`, which computes checksums, is under the LGPL 2.1 or later" in " ".join(
        (ROOT / "README.md").read_text().split()
    )


#: A target of `pip install`: this project's name, a clone or wheel of this project, or another package.
KNOWN_INSTALLS = re.compile(
    rf"""\{{install\}}|\{{extra\(|\{{DISTRIBUTION\}}|'\{{(?:self|each)\.package\}}|--quiet # what the code inserts
    |'\./distlog\[|'/tmp/{DISTRIBUTION}-|matplotlib\b|venv-pack\b|pyspark==""",
    re.VERBOSE,
)


def test_no_text_installs_the_foreign_project_distlog() -> None:
    """`pip install distlog` would install a foreign project."""
    assert PROJECT["name"] == DISTRIBUTION
    matches = []
    for path in ROOT.rglob("*"):
        parts = set(path.relative_to(ROOT).parts)
        is_ours = not {*IGNORED, "tests", f"{DISTRIBUTION}.egg-info"} & parts
        if is_ours and path.suffix in {*TEXT_FILES, ".ipynb"} and path.is_file():
            text = path.read_text(encoding="utf-8", errors="replace")
            matches += [(path.name, line) for line in re.findall(r"pip install .*", text) if not is_known(line)]
            matches += [(path.name, line) for line in re.findall(r"(?<![\w./(-])distlog\[[a-z].*", text)]
    assert matches == []


def is_known(command: str) -> bool:
    """Return whether the command installs only known packages."""
    return KNOWN_INSTALLS.match(command.removeprefix("pip install ")) is not None


def test_the_table_of_flows_has_the_flows_of_the_tool_and_each_crosses_files() -> None:
    rows = table(read("CONTRIBUTING.md"), "## Code layout", 1)
    assert [row[0] for row in rows] == [*flows.FLOWS, flows.PRODUCE]
    name, files, leaf_files, functions, *_ = flows.row("scan", flows.layers())
    assert name == "scan"
    assert 1 < int(leaf_files) < int(files) < int(functions)


def test_a_module_binds_each_constant_once() -> None:
    # a second one under the same name would replace the first for all of the module
    for path in LIBRARY:
        targets = [
            target
            for node in ast.parse(path.read_text()).body
            if isinstance(node, ast.Assign)
            for target in node.targets
        ]
        names = [
            name.id
            for target in targets
            for name in (target.elts if isinstance(target, ast.Tuple) else [target])
            if isinstance(name, ast.Name) and name.id.isupper()
        ]
        assert len(set(names)) == len(names), f"{path}: {max(names, key=names.count)}"
