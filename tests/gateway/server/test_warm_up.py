"""A gateway loads what requests need before the first one, if it can."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from full_disk import disk as disk
from full_disk import fill

from distlog.core.format.kernels.native import COMPILED
from distlog.core.read.fetch import fetch_stored
from distlog.core.segments.chunks import StoredBatches
from distlog.gateway import gateway_server
from distlog.gateway.gateway_server import warm_up


def test_a_gateway_begins_where_nothing_temporary_can_be_written(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(disk)
    monkeypatch.setattr(tempfile, "tempdir", str(disk))
    warm_up()
    monkeypatch.setattr(tempfile, "tempdir", str(disk / "missing"))
    warm_up()


@pytest.mark.skipif(not COMPILED, reason="headers are found by compiled code")
def test_the_kernel_that_finds_what_is_sent_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    actual = list[object]()

    def fetch(*arguments: Any, **bounds: int) -> None:
        actual.append(fetch_stored(*arguments, **bounds))

    monkeypatch.setattr(gateway_server, "fetch_stored", fetch)
    warm_up()
    assert [type(batches) for batches in actual] == [StoredBatches]
