"""Fixtures of the tests of maintenance."""

from __future__ import annotations

from pathlib import Path

import pytest
from vacuuming import World
from verified_topics import topic_at

from distlog import Topic


@pytest.fixture
def topic(tmp_path: Path) -> Topic:
    return topic_at(str(tmp_path / "log"))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(f"{tmp_path}/log")
