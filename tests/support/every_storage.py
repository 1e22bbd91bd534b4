"""A fixture `storage` for what holds on every kind of storage alike: a local folder, memory and S3."""

from __future__ import annotations

from typing import Any

import pytest

from distlog.core.storage.storage import Storage

MIB = 1024 * 1024


@pytest.fixture
def storage(storage_url: tuple[str, dict[str, Any]]) -> Storage:
    """An empty folder on each kind of storage in turn."""
    return Storage(*storage_url)
