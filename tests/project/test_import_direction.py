"""Imports go down, and each outside library has one home."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

#: Lowest first: the modules and packages of the library. A module imports its own layer and those below; in each
#: layer, as in each package, the imports between packages have no circle either.
LAYERS = (
    "errors config display paths times arrays",
    "storage schemas format",
    "commits",
    "segments",
    "log read",
    "write maintain",
    "kafka files tiered",
    "topic opening sql log_manager warm_up distlog console",
    "gateway spark",
    "cli jobs __main__",
)
#: The users of the library: scripts, and the modules that Spark and the shell look for.
PROGRAMS = ("jobs", "demo", "benchmarks", "distlog_command", "pyspark_distlog")

#: An alarm, not a goal: a deep module has 150 to 600 lines. Sections of docstrings (`Args:`) are not counted.
MAX_FILE_LINES = 800
VAGUE_NAMES = {"utils", "util", "helpers", "helper", "base", "common", "misc"}
OPTIONAL = (
    "pyspark",
    "s3fs",
    "gcsfs",
    "adlfs",
    "typer",
    "rich",
    "pandas",
    "matplotlib",
    "prometheus_client",
    "polars",
    "duckdb",
    "IPython",
    "kio",
    "fastavro",
    "pyruhvro",
    "google",
    "ptars",
    "grpc_tools",
)


@cache
def modules() -> dict[str, Path]:
    files = [*ROOT.glob("*.py")]
    for folder in ("distlog", "jobs", "demo", "benchmarks"):
        files += [path for path in (ROOT / folder).rglob("*.py") if "__pycache__" not in path.parts]
    parts = {path: path.relative_to(ROOT).with_suffix("").parts for path in files}
    return {".".join(name[:-1] if name[-1] == "__init__" else name): path for path, name in parts.items()}


@cache
def nodes(module: str) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(ast.parse(modules()[module].read_text(encoding="utf-8"))))


@pytest.fixture(scope="module", autouse=True)
def nothing_is_kept() -> Iterator[None]:
    """Cached nodes of all modules, half a million, would slow each later garbage collection."""
    yield
    nodes.cache_clear()


def layer(module: str) -> int:
    """Return the height of a module; an AssertionError names the table for a new one."""
    if module == "distlog.core":
        return 0
    parts = module.split(".")
    if parts[0] in PROGRAMS:
        return len(LAYERS)
    name = parts[2] if module.startswith("distlog.core.") else parts[1] if parts[1:] else parts[0]
    heights = {word: height for height, names in enumerate(LAYERS) for word in names.split()}
    assert name in heights, f"add {name} of {module} to LAYERS in tests/project/test_import_direction.py"
    return heights[name]


@cache
def imports(module: str) -> tuple[str, ...]:
    """Return the imports anywhere in a module, also for types; an imported module counts as a module."""
    return tuple(_imports(module))


def _imports(module: str) -> Iterator[str]:
    for node in nodes(module):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} imports relatively; write the full name"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in modules() else str(node.module)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            yield from (name.value for name in node.args if isinstance(name, ast.Constant))


def importers(library: str) -> set[str]:
    return {module for module in modules() if any(name.split(".")[0] == library for name in imports(module))}


def test_every_module_has_a_layer() -> None:
    assert {"distlog", "distlog.core.errors", "distlog.core.format.kernels.native"} <= modules().keys()
    assert "numba" in set(imports("distlog.core.format.kernels.native"))
    assert "distlog.spark.versions" in imports("distlog.spark")


def test_no_module_imports_a_higher_layer() -> None:
    upward = [
        f"{module} imports {target}"
        for module in modules()
        for target in imports(module)
        if target in modules() and layer(target) > layer(module)
    ]
    assert upward == []


def test_imports_have_no_cycle() -> None:
    graph = {module: [name for name in imports(module) if name != module] for module in modules()}
    TopologicalSorter(graph).prepare()


def test_rooms_of_a_package_have_no_cycle() -> None:
    """The folders and modules in each package have no cycle either, so that a package reads from the bottom up."""
    rooms = [module for module, path in modules().items() if path.name == "__init__.py"]
    assert {"distlog.core.commits", "distlog.gateway.groups"} <= set(rooms)
    for room in rooms:
        graph: dict[str, set[str]] = {}
        for module in modules():
            child = _child(room, module)
            imported = {_child(room, name) for name in imports(module) if name in modules()} - {child, ""}
            if child:
                graph.setdefault(child, set()).update(imported)
        TopologicalSorter(graph).prepare()


def _child(room: str, module: str) -> str:
    """Return the part of a folder that has a module, or nothing for modules outside it."""
    return module.removeprefix(f"{room}.").split(".")[0] if module.startswith(f"{room}.") else ""


def test_only_storage_imports_fsspec_and_its_file_systems() -> None:
    for library in ("fsspec", "s3fs", "gcsfs", "adlfs"):
        names = {
            module.removeprefix("distlog.core.") for module in importers(library) if module.startswith("distlog")
        }
        assert {name for name in names if not name.startswith("storage.")} == set()


def test_only_one_module_maps_files() -> None:
    names = {module for module in importers("mmap") if module.startswith("distlog")}
    assert names == {"distlog.core.storage.local_files"}


def test_only_kernels_import_numba() -> None:
    for library in ("numba", "llvmlite"):
        assert {module for module in importers(library) if module != "distlog.core.format.kernels.native"} == set()


def test_kernels_are_only_loops() -> None:
    """No class, no error, no Arrow; `kernels.native` has everything else that numba needs."""
    kernels = [
        module
        for module in modules()
        if module.startswith("distlog.core.format.kernels.") and module != "distlog.core.format.kernels.native"
    ]
    assert len(kernels) >= 5
    faults = [
        f"{module}:{node.lineno}"
        for module in kernels
        for node in nodes(module)
        if isinstance(node, ast.ClassDef | ast.Raise | ast.Try | ast.Assert | ast.With)
        and not (isinstance(node, ast.ClassDef) and [ast.unparse(base) for base in node.bases] == ["NamedTuple"])
    ]
    assert faults == []
    above = {"pyarrow", "numba", "llvmlite", "distlog.core.errors"}
    assert [
        module for module in kernels if above & {*imports(module), *(x.split(".")[0] for x in imports(module))}
    ] == []


def test_only_the_spark_package_and_what_runs_it_import_pyspark() -> None:
    allowed = ("distlog.spark", "distlog.jobs", "jobs", "demo", "benchmarks", "pyspark_distlog")
    assert [module for module in importers("pyspark") if not module.startswith(allowed)] == []


def test_only_the_gateway_imports_kio() -> None:
    assert {
        module for module in importers("kio") if not module.startswith(("distlog.gateway.", "benchmarks."))
    } == set()
    above = ("distlog.gateway", "distlog.cli", "benchmarks")
    named = {module for module in modules() if any(name.startswith("distlog.gateway") for name in imports(module))}
    assert {module for module in named if not module.startswith(above)} == set()


def test_no_module_has_an_empty_name() -> None:
    assert [module for module in modules() if VAGUE_NAMES & set(module.split("."))] == []


def test_no_file_is_too_long() -> None:
    lines = {str(path): lines_without_sections(path.read_text(encoding="utf-8")) for path in modules().values()}
    assert {path: count for path, count in lines.items() if count > MAX_FILE_LINES} == {}


def lines_without_sections(source: str) -> int:
    """Count lines, without the sections of docstrings, which describe parameters, results, errors and examples."""
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    docs = [ast.get_docstring(node) or "" for node in nodes]
    sections = [re.search(r"^(?:Args|Returns|Raises|Examples):\n.*", doc, re.MULTILINE | re.DOTALL) for doc in docs]
    return source.count("\n") - sum(len(section[0].splitlines()) for section in sections if section)


def test_distlog_imports_without_any_optional_library() -> None:
    program = f"""
import importlib.abc, sys

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {OPTIONAL!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
import distlog
names = [getattr(distlog, name) for name in distlog.__all__]  # which imports their modules
print("imported", distlog.__name__, *(name for name in {OPTIONAL!r} if name in sys.modules))
"""
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (run.stdout, run.stderr) == ("imported distlog\n", "")
