"""docs/tiered.md cannot drift: its examples run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from tiered_buckets import Upload, made_log, put

import distlog
from distlog.core.storage.storage import Storage

TEXT = (Path(__file__).parents[2] / "docs" / "tiered.md").read_text(encoding="utf-8")


@pytest.fixture
def bucket(tmp_path: Path) -> str:
    put(Storage(str(tmp_path / "bucket")), Upload(made_log(tmp_path, 20)[0], 0, 20))
    return str(tmp_path / "bucket")


def example(number: int) -> str:
    """The Python example of that number."""
    return re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)[number]


def test_the_python_example_runs(bucket: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(example(0), {"distlog": distlog, "bucket": bucket})
    assert capsys.readouterr().out == "{0: 0} {0: 20}\n20\n10 {0: (0, 1700000000000)}\n"


@pytest.mark.spark
def test_the_spark_example_runs(bucket: str, spark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    exec(example(1), {"spark": spark, "bucket": bucket})
    assert re.search(r"\|\s*0\|\s*20\|", capsys.readouterr().out)
