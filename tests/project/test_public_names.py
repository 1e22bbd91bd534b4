"""The public API is `distlog.__all__`; each new name is a deliberate change there."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import distlog


def test_the_public_names_are_exact() -> None:
    assert sorted(distlog.__all__) == sorted([*{name for name, _ in imported()}, "__version__"])
    assert len(set(distlog.__all__)) == len(distlog.__all__)
    assert dir(distlog) == sorted(distlog.__all__)
    with pytest.raises(AttributeError, match="module 'distlog' has no attribute 'nothing'"):
        _ = distlog.nothing


@pytest.mark.long
def test_the_import_loads_no_library_until_a_name_is_used() -> None:
    program = "import sys, distlog; print(*{'numba', 'numpy', 'pyarrow', 'fsspec'} & {*sys.modules}); distlog.open"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == "\n"


def imported() -> set[tuple[str, str]]:
    source = (Path(distlog.__file__)).read_text(encoding="utf-8")
    branch = next(node for node in ast.parse(source).body if isinstance(node, ast.If))
    nodes = [node for node in branch.body if isinstance(node, ast.ImportFrom)]
    return {(name.name, str(node.module)) for node in nodes for name in node.names}


def test_type_checkers_see_the_same_objects_as_python() -> None:
    for name, module in imported():
        assert getattr(importlib.import_module(module), name) is getattr(distlog, name)
