"""Java's producer with many batches under way while gateways are killed, and the leaders of partitions move."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from kafka_broker import java, needs_kafka
from soak import gateway_kills
from soak.tally import Tally

pytest.importorskip("confluent_kafka")

pytestmark = [*needs_kafka, pytest.mark.long]


@pytest.mark.parametrize("run", [gateway_kills.run, pytest.param(gateway_kills.run_on_s3, marks=pytest.mark.s3)])
def test_acknowledged_records_are_stored_once_in_order(tmp_path: Path, run: Callable[..., Tally]) -> None:
    program = java(str(Path(__file__).with_name("Sender.java")))
    tally = run(tmp_path, 1, kills=3, senders=1, gateways=2, program=program)
    assert (tally["kills"], tally["clients"]) == (3, 1)
    assert tally["records"] > 0
