"""Short runs of the campaign that kills, stops and ends gateways of one root beneath the members of a group."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import Address
from soak import many_gateways

pytest.importorskip("confluent_kafka")


@pytest.mark.parametrize("kind", ["kill", "stop"])
def test_no_position_goes_back_and_the_group_goes_on(tmp_path: Path, kind: str) -> None:
    tally = many_gateways.run(tmp_path, 1, troubles=1, gateways=2, members=2, kinds=[kind])
    assert tally[f"{kind}s"] == 1
    assert tally["looks"] > 0


def test_the_same_on_s3(tmp_path: Path, s3_url: Address) -> None:
    tally = many_gateways.run(
        tmp_path, 1, troubles=1, gateways=2, members=2, kinds=["kill"], address=(s3_url.url, s3_url.options)
    )
    assert tally["kills"] == 1
