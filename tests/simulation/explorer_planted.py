"""Known bugs that need one delay at one request: random histories missed them, and the explorer must find them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any
from unittest import mock

from distlog.core.commits.actions import Action, SetTransaction
from distlog.core.commits.snapshot import Snapshot
from distlog.core.maintenance import vacuum
from distlog.gateway import leadership
from distlog.gateway.leadership import Leadership
from simulation.planted import Plant
from simulation.threads import current


def _pins_are_read_once() -> Any:
    """Vacuum does not read the pins again after another commit came first."""
    read, known = vacuum.pinned_versions, dict[object, tuple[int, ...]]()

    def pinned_versions(head: Snapshot, now_ms: int) -> tuple[int, ...]:
        return known.setdefault(current(), read(head, now_ms))

    return mock.patch.object(vacuum, "pinned_versions", pinned_versions)


def _epochs_are_counted_once() -> Any:
    """A leader counts its epoch from what it knew before another commit came first."""

    def begin(self: Any, partitions: Collection[int], may_lead: Any = None) -> None:
        head = self._current.refresh()
        epochs = {number: leadership._epoch(head, number) + 1 for number in partitions}

        def plan(snapshot: Snapshot) -> list[Action]:
            applications = ((leadership._app_id(number), epoch) for number, epoch in epochs.items())
            return [SetTransaction(app_id, epoch, {}, in_order=True) for app_id, epoch in applications]

        self._current.advance(self._handle.log.commit(head, "lead", plan)[1])
        self._epochs = {**self._epochs, **epochs}

    return mock.patch.object(Leadership, "begin", begin)


@dataclass(frozen=True, slots=True)
class ExploredBug:
    """How to plant a bug, and the scenario that finds it."""

    plant: Plant
    scenario: str


#: Each bug by what is wrong with it.
EXPLORED_BUGS: Mapping[str, ExploredBug] = {
    "pins are read once": ExploredBug(_pins_are_read_once, "a pin beside vacuum"),
    "epochs are counted once": ExploredBug(_epochs_are_counted_once, "two leaders of one partition"),
}
