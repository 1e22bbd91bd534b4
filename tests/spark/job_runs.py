"""Jobs that run in the process of their test."""

from __future__ import annotations

import runpy
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from submitted import JOBS, Ran

import distlog


@pytest.fixture
def job(spark: SparkSession, capfd: pytest.CaptureFixture[str]) -> Any:
    assert spark

    def run(name: str, *arguments: object) -> Ran:
        module = runpy.run_path(str(JOBS / f"{name}.py"))
        capfd.readouterr()
        status = module["main"]([str(argument_text) for argument_text in arguments])
        return Ran(status, *capfd.readouterr())

    return run


def lines_file(folder: Path, name: str, lines: list[str]) -> Path:
    path = folder / name
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def records(url: str, **options: Any) -> list[tuple[Any, Any, Any]]:
    """Return (key, value, time in ms) of all records, in order of partition and offset."""
    table = distlog.open(url, **options).scan().to_table()
    times = table["timestamp"].cast(pa.int64()).to_pylist()
    return list(zip(table["key"].to_pylist(), table["value"].to_pylist(), times, strict=True))


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=timezone.utc).timestamp() * 1000)
