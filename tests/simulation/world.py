"""A world of simulated processes in virtual time: one runs at a time, and one seed determines everything random.

A process consists of fibers (greenlets), which stand for its threads. A fiber runs until it comes to a point where
threads of a machine would wait or could be switched: a request to storage, a sleep, a lock, a queue, the start of a
thread. There it yields to the world, which resumes the fiber whose time comes next. So the library's code runs
unchanged: within a world, the names that it waits with (`threading`, `time`, `queue`) and the sources of its
surroundings (clocks, process ids, random numbers) are redirected.

A process may be paused, like one on a machine that sleeps, and may die at any point: then each of its fibers gets
ProcessDiedError, and its `finally` blocks have no effect any more.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
import os
import random
import shutil
import tempfile
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from greenlet import getcurrent

from simulation.surroundings import Surroundings
from simulation.threads import Fiber, ProcessDiedError, Waiting

if TYPE_CHECKING:
    from simulation.explorer import Schedule

#: A folder in memory, if there is one.
MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None

#: The start of every world, in ms since 1970.
BEGIN_MS = 1_700_000_000_000
#: A time that does not come.
NEVER = float("inf")


class StuckError(AssertionError):
    """Fibers wait for each other, and no event is left."""


class Process:
    """A simulated process; `skew_ms` is the error of its clock, and `drift` the error of the clock's rate."""

    def __init__(self, world: World, name: str, number: int, skew_ms: int = 0, drift: float = 0.0) -> None:
        self.world, self.name, self.pid = world, name, 1000 + number
        self.skew_ms, self.drift = skew_ms, drift
        self.random = random.Random(f"{world.seed}/{name}/{number}")
        self.is_alive = True
        self.still_until = 0.0
        self.fibers: list[Fiber] = []
        #: Ended fibers for new work: a new fiber costs as much as ten switches.
        self.idle: list[Fiber] = []

    def start(self, work: Callable[[], object], name: str = "main") -> Fiber:
        fiber = self.idle.pop() if self.idle else Fiber(self)
        fiber.assign(work, name)
        self.fibers.append(fiber)
        self.world.resume_at(self.world.now, fiber)
        return fiber

    def stand_still(self, seconds: float) -> None:
        """Pause all fibers of this process, as if the machine slept."""
        self.still_until = max(self.still_until, self.world.now + seconds)
        self.world.note(f"{self.name} is paused for {seconds:.0f} s")

    def die(self) -> None:
        """End at once, as by a kill; the fibers end when the world resumes them."""
        if self.is_alive:
            self.is_alive = False
            self.world.note(f"{self.name} dies")
            for fiber in self.fibers:
                self.world.resume_at(self.world.now, fiber)

    @property
    def is_over(self) -> bool:
        return not self.fibers

    def now_ns(self) -> int:
        """Return the time of day by its own clock."""
        return int(BEGIN_MS * 10**6 + self.world.now * 1e9 * (1 + self.drift)) + self.skew_ms * 10**6


class World:
    """Virtual time and its events; `now` is in seconds since the start of the world.

    `with world:` redirects the library; `run` processes events until none is left, or until a time.
    """

    def __init__(self, seed: int | str, *, traced: bool = False) -> None:
        self.seed, self.random = seed, random.Random(f"world/{seed}")
        #: Returns a random number below 1.
        self.draw = self.random.random
        self.now = 0.0
        self.hub = getcurrent()
        self.processes: list[Process] = []
        self.calls, self.most_calls = 0, 60_000
        self.story: list[str] | None = [] if traced else None
        self.errors: list[tuple[Process, BaseException]] = []
        self._order = itertools.count()
        #: The time, the order, a fiber or callable, and the token of the fiber.
        self._events: list[tuple[float, int, Any, int]] = []
        #: Whether the history has ended, since its result is known.
        self.is_decided = False
        #: The time of the last event of this run.
        self._until = NEVER
        #: The fiber that the hub starts next.
        self._beginning: Fiber | None = None
        #: The faults of a systematic run.
        self.schedule: Schedule | None = None
        #: The probability that a fiber lets others go first at a lock or a queue.
        self.switching = 0.02

    # --- processes and time

    def process(self, name: str, *, skew_ms: int = 0, drift: float = 0.0) -> Process:
        process = Process(self, name, len(self.processes), skew_ms, drift)
        self.processes.append(process)
        return process

    def call_at(self, when: float, call: Callable[[], None]) -> None:
        """Call `call` at a time, outside of any process."""
        heapq.heappush(self._events, (when, next(self._order), call, 0))

    def resume_at(self, when: float, fiber: Fiber) -> None:
        """Resume a fiber at a time, unless something else resumes it earlier."""
        heapq.heappush(self._events, (when, next(self._order), fiber, fiber.token))

    def count_call(self) -> None:
        """Count a request to storage, and end the history after too many."""
        self.calls += 1
        if self.calls > self.most_calls:
            self._until = -NEVER

    def decide(self) -> None:
        """End the history: its result is known."""
        self.is_decided, self._until = True, -NEVER

    def run(self, until: float = NEVER) -> None:
        """Process events until none is left, or until a time."""
        self._until = -NEVER if self.is_decided else until
        while self._events and self._events[0][0] <= self._until:
            if (fiber := self._next_fiber()) is not None:
                fiber.switch()
                while (fiber := self._beginning) is not None:
                    self._beginning = None
                    fiber.switch()
            elif self._events and not isinstance(self._events[0][2], Fiber) and self._events[0][0] <= self._until:
                when, _, call, _ = heapq.heappop(self._events)
                self.now = max(self.now, when)
                call()
        if self.calls > self.most_calls and not self.is_decided:
            raise StuckError(f"more than {self.most_calls} requests: the history does not end")
        if until < NEVER:
            self.now = max(self.now, until)

    def _next_fiber(self) -> Fiber | None:
        """Return the next fiber; None if a callable comes first, which `run` calls."""
        events = self._events
        while events and events[0][2].__class__ is Fiber:
            when, _, fiber, token = events[0]
            if when > self._until:
                return None
            heapq.heappop(events)
            process = fiber.process
            if fiber.is_over or (token != fiber.token and process.is_alive):
                continue
            if process.still_until > when and process.is_alive:
                heapq.heappush(events, (process.still_until, next(self._order), fiber, token))
                continue
            if when > self.now:
                self.now = when
            fiber.token += 1
            return fiber
        return None

    def check_over(self) -> None:
        """Raise StuckError if a fiber of a living process still waits, although no event is left."""
        if self.is_decided:
            return
        stuck = [
            f"{process.name}/{fiber.name}"
            for process in self.processes
            if process.is_alive
            for fiber in process.fibers
            if fiber.name != "background" and not fiber.waits_for_work
        ]
        if stuck:
            raise StuckError(f"these wait forever: {', '.join(stuck)}")

    def wake(self, waiting: Waiting) -> bool:
        """Resume a fiber now, if it still waits in the same way as when it joined the queue."""
        fiber, token = waiting
        still_waits = fiber.token == token and not fiber.is_over and fiber.process.is_alive
        if still_waits:
            heapq.heappush(self._events, (self.now, next(self._order), fiber, token))
        return still_waits

    def wake_next(self, queue: deque[Waiting]) -> None:
        """Resume the first fiber of a queue that still waits."""
        while queue and not self.wake(queue.popleft()):
            pass

    def pause(self, seconds: float = 0.0) -> None:
        fiber = getcurrent()
        process, events, when = fiber.process, self._events, self.now + seconds
        if not process.is_alive:
            raise ProcessDiedError
        if events and when < events[0][0] and process.still_until <= when <= self._until:
            # no event comes before it
            self.now = when
            fiber.token += 1
            return
        heapq.heappush(events, (when, next(self._order), fiber, fiber.token))
        self.wait(fiber)

    def wait(self, fiber: Fiber) -> None:
        """Run other fibers until the calling `fiber` is resumed; raises ProcessDiedError if its process died."""
        self.switch_from(fiber)
        if not fiber.process.is_alive:
            raise ProcessDiedError

    def switch_from(self, fiber: Fiber) -> None:
        """Run other fibers until the calling `fiber` is resumed."""
        following = self._next_fiber()
        if following is not fiber:
            if following:
                # directly, without the hub
                following.switch()
            else:
                # a new fiber would start as deep in calls as this one
                self._beginning = following
                self.hub.switch()

    def maybe_switch(self) -> None:
        """Let others go first, now and then."""
        if self.switching and self.draw() < self.switching:
            self.pause()

    # --- the story

    def note(self, text: str) -> None:
        if self.story is not None:
            self.story.append(f"{self.now:14.6f} {text}")

    def digest(self) -> str:
        return hashlib.sha256("\n".join(self.story or ()).encode()).hexdigest()

    def failed(self, process: Process, error: BaseException) -> None:
        self.note(f"{process.name} ends with {type(error).__name__}")
        self.errors.append((process, error))

    # --- the library's surroundings

    def __enter__(self) -> World:
        self.folder = tempfile.mkdtemp(prefix="simulation-", dir=MEMORY)
        self._surroundings = Surroundings(self.folder)
        self._surroundings.install()
        return self

    def __exit__(self, *error: object) -> None:
        for process in self.processes:
            process.is_alive = False
            for fiber in [*process.fibers, *process.idle]:
                fiber.switch()
        shutil.rmtree(self.folder, ignore_errors=True)
        self._surroundings.restore()
