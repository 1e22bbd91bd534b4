"""The checks of a cluster's work; `make soak` has the cluster, which takes more than a minute."""

from __future__ import annotations

from pathlib import Path

import pytest
from soak import busy_cluster
from soak.busy_driver import ACKS, ROWS, ROWS_TOPIC, tell
from soak.records import record
from soak.tally import Violation

import distlog


def test_rows_that_are_deleted_when_the_process_beside_it_is_killed_are_checked_all_the_same(tmp_path: Path) -> None:
    """It may die between a deletion and the restore: no check goes by then."""
    topic = distlog.create(str(tmp_path / ROWS_TOPIC), partitions=2, config=busy_cluster.CONFIG)
    for batch in range(2):
        rows = [{"value": record("rows", batch * ROWS + each)["value"]} for each in range(ROWS)]
        offsets = {str(partition): list(span) for partition, span in topic.append(rows).offsets.items()}
        tell(tmp_path / ACKS, {"batch": batch, "offsets": offsets, "replayed": False})
    assert busy_cluster.are_rows_whole(tmp_path)
    # the rows of an append without keys may all be in one partition
    topic.delete_records({0: -1, 1: -1})
    assert not busy_cluster.are_rows_whole(tmp_path)
    busy_cluster.give_back(tmp_path)
    assert busy_cluster.are_rows_whole(tmp_path)
    topic.refresh().append([{"value": record("rows", 7)["value"]}])
    with pytest.raises(Violation, match="append 0 is not there once"):
        busy_cluster.are_rows_whole(tmp_path)
