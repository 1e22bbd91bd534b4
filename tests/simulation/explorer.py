"""Runs every schedule of a tiny scenario: up to two delays and one fault, at any of its points, cheapest first.

Random histories find what is likely. A bug that needs a pause at one particular request is rare among them, and near
the top of this list. Points are the requests of an object store, and the calls, locks and page writes of a disk.
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

#: How long a process is paused at a point, in s, and what that costs.
DELAYS_S = {"30s": (30.0, 0), "week": (604_800.0, 1), "1s": (1.0, 1)}
#: What happens to a request that writes, by place: its response gets lost, or the request arrives late, or its
#: process dies after it; on a disk its process dies before the call, or the power fails.
FAULTS = {"store": ("lost", "late", "death"), "disk": ("death", "power")}
#: The most delays and faults of a schedule.
MOST_DELAYS, MOST_FAULTS = 2, 1
#: What was computed once is forgotten after so many schedules.
_REMEMBERED = 300


@dataclass(frozen=True, slots=True, order=True)
class Deviation:
    """What happens at a point of a run, by the point's number: a delay or a fault."""

    point: int
    kind: str

    @property
    def is_fault(self) -> bool:
        """Whether it is a fault, and not a delay."""
        return self.kind not in DELAYS_S

    def __str__(self) -> str:
        return f"{self.point}:{self.kind}"


Deviations = tuple[Deviation, ...]


def parse(text: str) -> Deviations:
    """The deviations that `text` names, as `shown` writes them."""
    parts = (part.partition(":") for part in text.split(",") if part)
    return tuple(Deviation(int(point), kind) for point, _, kind in parts)


def shown(deviations: Deviations) -> str:
    """The deviations as the option `--schedule` takes them."""
    return ",".join(map(str, deviations))


class Schedule:
    """What happens at the points of one run, and the points that it had; a world asks it at each of them."""

    def __init__(self, deviations: Deviations, place: str) -> None:
        self._kinds = {deviation.point: deviation.kind for deviation in deviations}
        self._place = place
        #: For each point, whether it writes.
        self.points: list[bool] = []
        #: The order of requests, as a number.
        self.order = 0

    def meet(self, process: Process, kind: str, target: str, *, writes: bool) -> str:
        """Come to a point: pause the process if the schedule says so, or return the fault that it has here."""
        if "/.probe-" in target:
            # each process looks whether the store has conditional puts: nobody shares these objects
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
        """What else may happen at a point, and what it costs: reads seldom decide, so they cost more."""
        writes = self.points[number]
        for kind, (_, cost) in DELAYS_S.items():
            yield cost if writes else cost + 1, kind
        for kind in FAULTS[self._place] if writes else ():
            yield 0, kind


@dataclass(slots=True)
class Explored:
    """What was explored of a scenario: schedules, requests, and the first schedule that broke a promise, and how."""

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
        return f"{text}; all of them" if self.is_complete else text


@dataclass
class Exploration:
    """The schedules of one scenario, cheapest first: by deviations, then by cost, then in an order of its own.

    A schedule is not extended if another one had the same requests in the same order.
    """

    scenario: type[Scenario]
    most_delays: int = MOST_DELAYS
    most_faults: int = MOST_FAULTS
    _random: Random = field(default_factory=lambda: Random("explorer"))
    _orders: set[int] = field(default_factory=set)
    _left: list[tuple[int, int, float, Deviations]] = field(default_factory=lambda: [(0, 0, 0.0, ())])

    def run(self, most: float = float("inf"), cpu_s: float = float("inf")) -> Explored:
        """Run up to `most` schedules within `cpu_s` seconds of CPU, until one breaks a promise."""
        explored, begun_s = Explored(self.scenario.name), time.process_time()
        while self._left and explored.schedules < most and explored.cpu_s < cpu_s and explored.broken is None:
            with computed_once():
                for _ in range(_REMEMBERED):
                    if self._left and explored.schedules < most and explored.cpu_s < cpu_s:
                        self._next(explored)
                    explored.cpu_s = time.process_time() - begun_s
                    if explored.broken is not None:
                        break
            gc.collect()
        explored.is_complete = not self._left
        return explored

    def _next(self, explored: Explored) -> None:
        count, cost, _, deviations = heapq.heappop(self._left)
        world, schedule, error = happens(self.scenario, deviations)
        explored.schedules += 1
        explored.requests += world.calls
        if error is not None:
            explored.broken = shown(deviations), f"{error}"
        elif schedule.order not in self._orders:
            self._orders.add(schedule.order)
            for more, deviation in self._more(schedule, deviations):
                entry = count + 1, cost + more, self._random.random(), (*deviations, deviation)
                heapq.heappush(self._left, entry)

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
    """Let a scenario happen by a schedule; returns what was broken in it, too."""
    world, schedule = World(0, traced=traced), Schedule(deviations, scenario.place)
    world.switching = 0.0
    try:
        scenario(world).run(schedule)
    except Exception as error:
        return world, schedule, error
    return world, schedule, None
