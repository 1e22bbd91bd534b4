"""docs/schemas.md and docs/tables.md cannot drift: their examples run and print what the pages say."""

from __future__ import annotations

import json
import runpy
import shlex
from pathlib import Path
from typing import Any

import pytest
from docs_pages import ROOT, examples, read

import distlog

pytest.importorskip("pandas")


def run(page: str, names: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    """Run the examples of a page; what one prints is what the page says behind it."""
    printed = ""
    for example in examples(read(page)):
        if example.why:
            continue
        if example.language == "python":
            capsys.readouterr()
            exec(example.text, names)
            printed = capsys.readouterr().out
        elif example.language == "text":
            assert printed == example.text
        else:
            for command in example.commands:
                words = shlex.split(command)
                job, *arguments = words[words.index("jobs/to_table.py") :]
                assert runpy.run_path(str(ROOT / job))["parser"].parse_args(arguments).table


@pytest.mark.spark
def test_the_lines_of_schemas_run(tmp_path: Path, spark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("fastavro")
    topic = distlog.create(f"{tmp_path}/clicks")
    names = {"topic": topic, "root": str(tmp_path), "spark": spark, "distlog": distlog, "json": json}
    run("docs/schemas.md", names, capsys)


@pytest.mark.spark
def test_the_lines_of_tables_run(tmp_path: Path, spark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    topic = distlog.create(f"{tmp_path}/clicks")
    names = {"topic": topic, "folder": str(tmp_path), "table": f"{tmp_path}/table", "spark": spark}
    run("docs/tables.md", {**names, "distlog": distlog}, capsys)
