"""Fixtures of the tests of topics."""

from __future__ import annotations

from pathlib import Path

import pytest
from addresses import Address

import distlog


@pytest.fixture
def local_url(tmp_path: Path) -> Address:
    return Address(str(tmp_path / "topic"), {})


@pytest.fixture
def topic(storage_url: Address) -> distlog.Topic:
    return distlog.create(storage_url.url, partitions=2, storage_options=storage_url.options)
