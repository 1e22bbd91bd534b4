"""Appends, a copy by foreachBatch and compaction on a cluster of Spark, in anger; `make soak` does it for minutes.

1. Two workers run the tasks of one driver: a slow task gets a second attempt, and one append is cancelled.
2. The driver is killed, and begun anew from its checkpoint; a process beside it changes all topics at random.
3. In the end each append is there once and whole, the copy is exact, and vacuum has left no file of a dead task.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from soak import busy_cluster

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
