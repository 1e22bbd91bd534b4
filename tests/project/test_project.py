"""The project as a whole: what it asks to be installed, that what is public is documented, that nothing is local."""

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
def test_extras_bring_what_their_name_says(extra: str, needed: set[str]) -> None:
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
    """The regular expressions in calls like re.compile; what is inserted into one counts as a digit."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="re")), args=[ast.Constant(value=str(pattern)), *_]):
                yield pattern
            case ast.Call(func=ast.Attribute(value=ast.Name(id="re")), args=[ast.JoinedStr(values=parts), *_]):
                yield "".join([str(part.value) if isinstance(part, ast.Constant) else "1" for part in parts])


def needs_python_3_11(pattern: str) -> bool:
    """True if a text pattern has a possessive quantifier or an atomic group."""
    parsed = repr(importlib.import_module("re._parser").parse(pattern))
    return "POSSESSIVE_REPEAT" in parsed or "ATOMIC_GROUP" in parsed


def test_regular_expressions_work_on_the_oldest_python(trees: dict[str, ast.Module]) -> None:
    """The configured mypy and ruff find what else of the language and its library is too new."""
    assert [needs_python_3_11(pattern) for pattern in ("a*+", "(?>a)b", "[*+]", r"\++")] == [True, True, False, False]
    # few files have any, and a look at all nodes takes longer than one at the text
    uses = re.compile(r"\bre\.\w")
    some = {path: tree for path, tree in trees.items() if uses.search((ROOT / path).read_text(encoding="utf-8"))}
    found = [(path, pattern) for path, tree in some.items() for pattern in patterns(tree)]
    assert len(found) > 50
    assert not [each for each in found if needs_python_3_11(each[1])]


def test_mypy_and_ruff_check_for_the_oldest_python() -> None:
    oldest = PROJECT["requires-python"].removeprefix(">=")
    assert (TOOLS["mypy"]["python_version"], TOOLS["ruff"]["target-version"]) == (
        oldest,
        f"py{oldest.replace('.', '')}",
    )


def public_definitions(module: ast.Module, public: set[str]) -> Iterator[tuple[str, Definition]]:
    """The functions and classes named in `public`, and the public methods of these classes, by their names."""
    for node in module.body:
        if isinstance(node, Definition) and node.name in public:
            yield node.name, node
            for method in node.body if isinstance(node, ast.ClassDef) else ():
                if isinstance(method, Definition) and not method.name.startswith("_"):
                    yield f"{node.name}.{method.name}", method


@pytest.fixture(scope="module")
def trees() -> dict[str, ast.Module]:
    """The syntax tree of each module of the library, by its path."""
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


@pytest.mark.parametrize("mode", [0o600, 0o664])
def test_a_wheel_is_made_without_java_and_packages_and_of_files_with_the_same_rights_in_each_clone(
    tmp_path: Path, mode: int
) -> None:
    """Of the real Makefile, with a program in place of pip that tells the rights of what it is given."""
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
    """A gateway reads one beside its modules."""
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


def test_who_installs_is_told_of_the_dependency_that_is_under_the_lgpl() -> None:
    assert "`crc32c`, which computes checksums, is under the LGPL 2.1 or later" in " ".join(
        (ROOT / "README.md").read_text().split()
    )


#: What stands behind `pip install`: this project's name, a clone or wheel of it, or a package of another project.
KNOWN_INSTALLS = re.compile(
    rf"""\{{install\}}|\{{extra\(|\{{DISTRIBUTION\}}|'\{{(?:self|each)\.package\}}|--quiet # what the code inserts
    |'\./distlog\[|'/tmp/{DISTRIBUTION}-|matplotlib\b|venv-pack\b|pyspark==""",
    re.VERBOSE,
)


def test_no_text_installs_the_other_project_that_has_the_name_of_the_import() -> None:
    """`pip install distlog` would run the set-up of strangers."""
    assert PROJECT["name"] == DISTRIBUTION
    found = []
    for path in ROOT.rglob("*"):
        parts = set(path.relative_to(ROOT).parts)
        is_ours = not {*IGNORED, "tests", f"{DISTRIBUTION}.egg-info"} & parts
        if is_ours and path.suffix in {*TEXT_FILES, ".ipynb"} and path.is_file():
            text = path.read_text(encoding="utf-8", errors="replace")
            found += [(path.name, one) for one in re.findall(r"pip install .*", text) if not known(one)]
            found += [(path.name, one) for one in re.findall(r"(?<![\w./(-])distlog\[[a-z].*", text)]
    assert found == []


def known(command: str) -> bool:
    """True if the command installs nothing but what is known."""
    return KNOWN_INSTALLS.match(command.removeprefix("pip install ")) is not None


def test_the_table_of_flows_has_the_flows_of_the_tool_and_each_crosses_files() -> None:
    rows = table(read("CONTRIBUTING.md"), "## Code layout", 1)
    assert [row[0] for row in rows] == list(flows.FLOWS)
    name, files, functions, *_ = flows.row("scan", flows.layers())
    assert name == "scan"
    assert 1 < int(files) < int(functions)
