"""Fixtures of the tests of Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

import distlog


@pytest.fixture
def url(tmp_path: Path) -> str:
    """The address of the tests' topic."""
    return str(tmp_path / "clicks")


@pytest.fixture
def topic(url: str) -> distlog.Topic:
    """An empty topic of two partitions."""
    return distlog.create(url, partitions=2)
