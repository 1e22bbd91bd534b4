"""docs/schemas.md and docs/tables.md cannot drift: their examples run and print the output on the pages."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
from docs_pages import Reader, examples, read

pytest.importorskip("pandas")


@pytest.mark.spark
@pytest.mark.parametrize("page", ["docs/schemas.md", "docs/tables.md"])
def test_the_examples_run(page: str, reader: Reader, spark: Any) -> None:
    pytest.importorskip("fastavro")
    reader.pastes(page)


def test_the_jobs_parse_their_command_lines() -> None:
    pytest.importorskip("pyspark")
    from distlog.jobs import to_table

    for command in (
        line for example in examples(read("docs/tables.md")) if example.language == "sh" for line in example.commands
    ):
        words = shlex.split(command)
        _, *arguments = words[words.index("jobs/to_table.py") :]
        assert to_table.parser.parse_args(arguments).table
