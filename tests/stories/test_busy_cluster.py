"""Appends, a copy by foreachBatch and compaction on a cluster of Spark, in anger; `make soak` does it for minutes.

1. Two workers run the tasks of one driver: a slow task gets a second attempt, and one append is cancelled.
2. The driver is killed, and begun anew from its checkpoint; a process beside it changes all topics at random.
3. In the end each append is there once and whole, the copy is exact, and vacuum has left no file of a dead task.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from soak import busy_cluster
from soak.busy_driver import ACKS, ROWS, ROWS_TOPIC, tell
from soak.records import record
from soak.tally import Violation

import distlog

pytestmark = [pytest.mark.long, pytest.mark.spark]


def test_appends_and_a_copy_on_a_cluster_are_exact_while_its_driver_dies_and_its_topics_change(
    tmp_path: Path,
) -> None:
    counted = busy_cluster.run(tmp_path, seed=0, kills=1)
    assert counted["kills of a driver"] == counted["drivers begun anew"] == 1
    assert counted["appends"] > busy_cluster.CANCELLED
    assert counted["uses cancelled"]
    assert counted["second attempts begun or ended"]
    assert counted["topics vacuumed"] == 5


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
