"""Short runs of campaigns of gateways: kills, stops, copies in transactions, and hostile frames."""

from __future__ import annotations

from pathlib import Path

import pytest
from addresses import Address
from soak import exactly_once, gateway_kills, hostile_frames, many_gateways

pytest.importorskip("confluent_kafka")

pytestmark = pytest.mark.long


def test_no_committed_offset_moves_back(tmp_path: Path) -> None:
    tally = many_gateways.run(tmp_path, 1, troubles=2, gateways=2, members=2, kinds=["kill", "stop"])
    assert (tally["kills"], tally["stops"]) == (1, 1)
    assert tally["polls"] > 0


@pytest.mark.s3
def test_no_committed_offset_moves_back_on_s3(tmp_path: Path, s3_url: Address) -> None:
    tally = many_gateways.run(
        tmp_path, 1, troubles=1, gateways=2, members=2, kinds=["kill"], address=(s3_url.url, s3_url.options)
    )
    assert tally["kills"] == 1


def test_hostile_frames_end_nothing_and_harm_no_honest_producer(tmp_path: Path) -> None:
    tally = hostile_frames.run(tmp_path, 1, frames=500)
    assert tally["frames"] == 500
    assert min(tally["answered"], tally["refused"], tally["records of the honest producer"]) > 0


def test_acknowledged_records_are_stored_once_in_order(tmp_path: Path) -> None:
    tally = gateway_kills.run(tmp_path, 1, kills=1, senders=2)
    assert tally["kills"] == 1
    assert tally["records"] > 0


def test_acknowledged_records_are_stored_on_s3(tmp_path: Path) -> None:
    tally = gateway_kills.run_on_s3(tmp_path, 1, kills=1, senders=1)
    assert tally["kills"] == 1
    assert tally["records"] > 0
    assert tally["faults"] > 0


def test_each_input_of_transactions_is_copied_once_and_in_order(tmp_path: Path) -> None:
    tally = exactly_once.run(tmp_path, 3, kills=2, workers=1, records=300)
    assert tally["kills"] == 2
    assert tally["records"] == 300
