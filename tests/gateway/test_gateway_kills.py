"""A short run of the campaign that kills the gateway beneath its clients."""

from __future__ import annotations

from pathlib import Path

import pytest
from soak import gateway_kills

pytest.importorskip("confluent_kafka")

pytestmark = pytest.mark.long


def test_what_was_acknowledged_is_there_once_and_in_order(tmp_path: Path) -> None:
    tally = gateway_kills.run(tmp_path, 1, kills=1, senders=2)
    assert tally["kills"] == 1
    assert tally["records"] > 0


def test_the_same_on_s3(tmp_path: Path) -> None:
    tally = gateway_kills.run_on_s3(tmp_path, 1, kills=1, senders=1)
    assert tally["kills"] == 1
    assert tally["records"] > 0
    assert tally["faults"] > 0
