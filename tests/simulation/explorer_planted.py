"""Known bugs that need one delay at one request: random histories missed them, the explorer must find them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any
from unittest import mock

from commits import put_commit

from distlog.core.commits.actions import Action, SetTransaction
from distlog.core.commits.snapshot import Snapshot
from distlog.core.write.engine import DirectEngine
from distlog.gateway import cluster
from distlog.gateway.cluster import Leadership
from simulation.planted import Plant


def _epochs_are_counted_once() -> Any:
    """A leader counts its epoch from the head that it read before it lost a race."""

    def begin(self: Any, partitions: Collection[int], may_lead: Any = None) -> None:
        head = self._current.refresh()
        epochs = {number: cluster._epoch(head, number) + 1 for number in partitions}

        def plan(snapshot: Snapshot) -> list[Action]:
            applications = ((cluster._app_id(number), epoch) for number, epoch in epochs.items())
            return [SetTransaction(app_id, epoch, {}, in_order=True) for app_id, epoch in applications]

        self._current.advance(put_commit(self._handle.log, head, "lead", plan)[1])
        self._epochs = {**self._epochs, **epochs}

    return mock.patch.object(Leadership, "begin", begin)


@dataclass(frozen=True, slots=True)
class ExploredBug:
    plant: Plant
    scenario: str


#: Each bug by what is wrong with it.
EXPLORED_BUGS: Mapping[str, ExploredBug] = {
    "epochs are counted once": ExploredBug(_epochs_are_counted_once, "two leaders of one partition"),
    "flush.ms has no effect": ExploredBug(
        lambda: mock.patch.object(DirectEngine, "_schedule_sync"), "appends that are synced after flush.ms"
    ),
}
