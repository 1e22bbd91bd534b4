"""The kinds of histories, on an object store and on a local disk, and the seeds that find their planted bugs."""

from __future__ import annotations

import gc
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulation import disk_histories, disk_planted, history, planted, short_histories
from simulation.client_scenarios import CLIENT_SCENARIOS
from simulation.disk_scenarios import DISK_SCENARIOS
from simulation.history import Drawn
from simulation.object_store import Flaws
from simulation.planted import Bug
from simulation.store_scenarios import STORE_SCENARIOS
from simulation.world import World

#: The end of a process whose planted bug does not fit the library any more.
_PLANT_FAILED = re.compile(r" ended with (Attribute|Name|Type)Error: ")


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of history; `file` has the seeds that find its planted bugs."""

    name: str
    file: Path
    plan: Callable[[int], Any]
    run: Callable[[World, Flaws, Any], None]
    bugs: Mapping[str, Bug]
    #: The command line arguments of this kind.
    arguments: tuple[str, ...] = ()

    def history(
        self, drawn: Drawn, *, traced: bool = False, flaws: Flaws | None = None
    ) -> tuple[World, Exception | None]:
        """Run a history; returns its world, and the broken promise."""
        world = World(f"{drawn.seed}/{drawn.fate}" if drawn.fate else drawn.seed, traced=traced)
        # a collection visits all objects, so the first one runs when few are left
        gc.disable()
        try:
            self.run(world, flaws or Flaws(), drawn)
        except Exception as error:
            return world, error
        finally:
            gc.enable()
        return world, None

    def first(self, name: str, seeds: Iterable[int]) -> tuple[int | None, Exception | None]:
        """Return the first seed whose history finds a planted bug, and the error."""
        bug = self.bugs[name]
        with bug.plant():
            for drawn in map(self.plan, seeds):
                # no other history can meet it
                error = self.history(drawn)[1] if bug.words <= drawn.words else None
                if error is not None:
                    assert not _PLANT_FAILED.search(str(error)), f"planted bug {name!r} failed itself: {error}"
                    return drawn.seed, error
        return None, None

    def kept_seeds(self) -> dict[str, int | None]:
        """Return the first seed that finds each bug; None if no seed is known."""
        seeds: dict[str, int | None] = json.loads(self.file.read_text())
        return seeds

    def keep(self, seeds: Mapping[str, int | None]) -> None:
        by_name = {name: seeds[name] for name in sorted(seeds) if name in self.bugs}
        self.file.write_text(json.dumps(by_name, indent=1) + "\n")


def _file(name: str) -> Path:
    return Path(__file__).with_name(name)


ON_STORE = Kind("bugs", _file("found.json"), history.plan, history.run, planted.BUGS)
ON_DISK = Kind(
    "bugs on a disk",
    _file("found_on_disk.json"),
    disk_histories.plan,
    lambda world, flaws, drawn: disk_histories.run(world, drawn),
    disk_planted.BUGS,
    ("--disk",),
)
SHORT = Kind(
    "bugs in short histories",
    _file("found_in_short.json"),
    short_histories.plan,
    history.run,
    planted.BUGS,
    ("--short",),
)
KINDS = {kind.name: kind for kind in (ON_STORE, SHORT, ON_DISK)}
#: The scenarios of the explorer by their names.
SCENARIOS = {scenario.name: scenario for scenario in (*STORE_SCENARIOS, *CLIENT_SCENARIOS, *DISK_SCENARIOS)}
