"""Fixtures of the tests of maintenance."""

from __future__ import annotations

from pathlib import Path

import pytest
from vacuuming import World
from verified_topics import topic_at

from distlog import Topic


@pytest.fixture
def topic(tmp_path: Path) -> Topic:
    """A topic to verify."""
    return topic_at(str(tmp_path / "log"))


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A topic whose time a test lets pass."""
    return World(f"{tmp_path}/log")
