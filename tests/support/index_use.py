"""Lookups in segments by their indexes, which small segments are not worth, and without."""

from __future__ import annotations

import pytest

from distlog.core.segments import segment_reader

WAYS = {"by-index": 0, "without-index": 1 << 40}


@pytest.fixture(params=WAYS)
def either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every segment is looked up by its index, then none."""
    monkeypatch.setattr(segment_reader, "INDEX_WORTH_BYTES", WAYS[request.param])


@pytest.fixture
def by_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_reader, "INDEX_WORTH_BYTES", 0)
