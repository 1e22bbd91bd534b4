"""Runs every schedule of a small scenario: up to two delays and one fault, at any of its points, cheapest first.

Random histories find likely bugs. A bug that needs a pause at one particular request is rare among them, and early in
this order. Points are the requests of an object store, and the calls, locks and page writes of a disk.
"""

from __future__ import annotations

import gc
import heapq
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from simulation.pure import computed_once
from simulation.world import World

if TYPE_CHECKING:
    from simulation.scenario import Scenario
    from simulation.world import Process

#: How long a process is paused at a point, in s, and the cost of the delay.
DELAYS_S = {"30s": (30.0, 0), "week": (604_800.0, 1), "1s": (1.0, 1)}
#: The faults of a request that writes. On a store its response gets lost, it arrives late, or its process dies after
#: it; on a disk its process dies before the call, or the power fails.
FAULTS = {"store": ("lost", "late", "death"), "disk": ("death", "power")}
#: The most delays and faults of a schedule.
MOST_DELAYS, MOST_FAULTS = 2, 1
#: Shared computations are dropped after this number of schedules.
_REMEMBERED = 300


@dataclass(frozen=True, slots=True, order=True)
class Deviation:
    """A delay or a fault at a point of a run, by the point's number."""

    point: int
    kind: str

    @property
    def is_fault(self) -> bool:
        return self.kind not in DELAYS_S

    def __str__(self) -> str:
        return f"{self.point}:{self.kind}"


Deviations = tuple[Deviation, ...]


def parse(text: str) -> Deviations:
    parts = (part.partition(":") for part in text.split(",") if part)
    return tuple(Deviation(int(point), kind) for point, _, kind in parts)


def shown(deviations: Deviations) -> str:
    """Return the deviations in the form of the option `--schedule`."""
    return ",".join(map(str, deviations))


class Schedule:
    """The deviations of one run, and its points; a world calls `meet` at each point."""

    def __init__(self, deviations: Deviations, medium: str) -> None:
        self._kinds = {deviation.point: deviation.kind for deviation in deviations}
        self._medium = medium
        #: For each point, whether it writes.
        self.points: list[bool] = []
        #: A hash of the order of requests.
        self.order = 0

    def meet(self, process: Process, kind: str, target: str, *, writes: bool) -> str:
        """Reach a point: pause the process if the schedule says so, or return the fault at this point."""
        if "/.probe-" in target:
            # each process tests the conditional puts of the store with its own objects
            return ""
        number = len(self.points)
        self.points.append(writes)
        self.order = hash((self.order, process.name, kind, target))
        deviation = self._kinds.get(number, "")
        if process.world.story is not None:
            process.world.note(f"[{number}] {process.name} {kind} {target} {deviation}")
        if deviation in DELAYS_S:
            process.stand_still(DELAYS_S[deviation][0])
            process.world.pause()
            return ""
        return deviation

    def alternatives(self, number: int) -> Iterator[tuple[int, str]]:
        """Yield the deviations of a point with their costs: reads seldom matter, so they cost more."""
        writes = self.points[number]
        for kind, (_, cost) in DELAYS_S.items():
            yield cost if writes else cost + 1, kind
        for kind in FAULTS[self._medium] if writes else ():
            yield 0, kind


@dataclass(slots=True)
class Explored:
    """The explored schedules and requests of a scenario, and the first schedule that broke a promise."""

    name: str
    schedules: int = 0
    requests: int = 0
    cpu_s: float = 0.0
    broken: tuple[str, str] | None = None
    #: Whether no schedule is left.
    is_complete: bool = False

    def __str__(self) -> str:
        rate = self.schedules / self.cpu_s if self.cpu_s else 0.0
        text = f"{self.name}: {self.schedules} schedules, {self.requests} requests, {rate:.0f} a CPU second"
        if self.broken is not None:
            return f"{text}; schedule '{self.broken[0]}' breaks: {self.broken[1]}"
        return f"{text}; all schedules" if self.is_complete else text


@dataclass
class Exploration:
    """The schedules of one scenario, cheapest first: by deviations, then by cost, then in random order.

    A schedule is not extended if another one had the same requests in the same order.
    """

    scenario: type[Scenario]
    most_delays: int = MOST_DELAYS
    most_faults: int = MOST_FAULTS
    _random: Random = field(default_factory=lambda: Random("explorer"))
    _orders: set[int] = field(default_factory=set)
    _pending: list[tuple[int, int, float, Deviations]] = field(default_factory=lambda: [(0, 0, 0.0, ())])

    def run(self, most: float = float("inf"), cpu_s: float = float("inf")) -> Explored:
        """Run up to `most` schedules within `cpu_s` seconds of CPU, until one breaks a promise."""
        explored, start_s = Explored(self.scenario.name), time.process_time()
        while self._pending and explored.schedules < most and explored.cpu_s < cpu_s and explored.broken is None:
            with computed_once():
                for _ in range(_REMEMBERED):
                    if self._pending and explored.schedules < most and explored.cpu_s < cpu_s:
                        self._next(explored)
                    explored.cpu_s = time.process_time() - start_s
                    if explored.broken is not None:
                        break
            gc.collect()
        explored.is_complete = not self._pending
        return explored

    def _next(self, explored: Explored) -> None:
        count, cost, _, deviations = heapq.heappop(self._pending)
        world, schedule, error = happens(self.scenario, deviations)
        explored.schedules += 1
        explored.requests += world.calls
        if error is not None:
            explored.broken = shown(deviations), f"{error}"
        elif schedule.order not in self._orders:
            self._orders.add(schedule.order)
            for more, deviation in self._more(schedule, deviations):
                entry = count + 1, cost + more, self._random.random(), (*deviations, deviation)
                heapq.heappush(self._pending, entry)

    def _more(self, schedule: Schedule, deviations: Deviations) -> Iterator[tuple[int, Deviation]]:
        faults = sum(deviation.is_fault for deviation in deviations)
        delays = len(deviations) - faults
        first = deviations[-1].point + 1 if deviations else 0
        for number in range(first, len(schedule.points)):
            for cost, kind in schedule.alternatives(number):
                deviation = Deviation(number, kind)
                if faults < self.most_faults if deviation.is_fault else delays < self.most_delays:
                    yield cost, deviation


def happens(
    scenario: type[Scenario], deviations: Deviations, *, traced: bool = False
) -> tuple[World, Schedule, Exception | None]:
    """Run a scenario by a schedule; also returns the broken promise."""
    world, schedule = World(0, traced=traced), Schedule(deviations, scenario.medium)
    world.switching = 0.0
    try:
        scenario(world).run(schedule)
    except Exception as error:
        return world, schedule, error
    return world, schedule, None
