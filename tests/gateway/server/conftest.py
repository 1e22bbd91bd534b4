"""Fixtures of the tests of the gateway's server."""

from __future__ import annotations

from pathlib import Path

import pytest

import distlog


@pytest.fixture
def root(tmp_path: Path) -> Path:
    distlog.create(str(tmp_path / "clicks"))
    return tmp_path
