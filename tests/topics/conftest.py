"""Fixtures of the tests of topics."""

from __future__ import annotations

from pathlib import Path

import pytest
from addresses import Address


@pytest.fixture
def local_url(tmp_path: Path) -> Address:
    """An empty folder on a local disk."""
    return Address(str(tmp_path / "topic"), {})
