"""docs/tiered.md cannot drift: its examples run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from docs_pages import Reader
from tiered_buckets import Upload, made_log, put

from distlog.core.storage.storage import Storage


@pytest.fixture
def bucket(tmp_path: Path) -> str:
    put(Storage(str(tmp_path / "bucket")), Upload(made_log(tmp_path, 20)[0], 0, 20))
    return str(tmp_path / "bucket")


@pytest.mark.spark
def test_the_examples_run(bucket: str, reader: Reader, spark: Any) -> None:
    reader.pastes("docs/tiered.md")
    assert re.search(r"\|\s*0\|\s*20\|", reader.printed)
