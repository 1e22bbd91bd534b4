"""A gateway loads what requests need before the first one, if it can."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from full_disk import disk as disk
from full_disk import fill

from distlog.gateway.gateway_server import warm_up


def test_a_gateway_begins_where_nothing_temporary_can_be_written(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(disk)
    monkeypatch.setattr(tempfile, "tempdir", str(disk))
    warm_up()
    monkeypatch.setattr(tempfile, "tempdir", str(disk / "missing"))
    warm_up()
