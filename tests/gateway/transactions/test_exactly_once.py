"""A short run of the campaign that kills gateway and clients while these copy in transactions."""

from __future__ import annotations

from pathlib import Path

import pytest
from soak import exactly_once

pytestmark = pytest.mark.long


def test_each_input_is_copied_once_and_in_order(tmp_path: Path) -> None:
    pytest.importorskip("confluent_kafka")
    tally = exactly_once.run(tmp_path, 3, kills=2, workers=1, records=300)
    assert tally["kills"] == 2
    assert tally["records"] == 300
