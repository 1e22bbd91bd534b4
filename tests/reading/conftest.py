"""Fixtures of the tests of reads."""

from __future__ import annotations

from pathlib import Path

import pytest
from logs import Log, appended, log_of


@pytest.fixture
def dense(tmp_path: Path) -> Log:
    return log_of(appended(str(tmp_path / "t"), 60))
