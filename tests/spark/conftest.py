"""Fixtures of the tests of Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

import distlog


@pytest.fixture
def url(tmp_path: Path) -> str:
    return str(tmp_path / "clicks")


@pytest.fixture
def topic(url: str) -> distlog.Topic:
    return distlog.create(url, partitions=2)
