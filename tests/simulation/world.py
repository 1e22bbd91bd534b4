"""A world of simulated processes in virtual time, of which one runs at a time; everything random from one seed.

A process is made of fibers (greenlets), which stand for its threads. A fiber runs until it comes to a point where
threads of a machine would wait or could be switched: a request to storage, a sleep, a lock, a queue, the start of a
thread. There it lets the world go on, which resumes the fiber whose time comes next. So the code of the library runs
as it is: within a world, the names that it waits by (`threading`, `time`, `queue`) and by which it learns of its
surroundings (clocks, process ids, random numbers) lead here.

A process may stand still, as one does on a machine that sleeps, and may die at any point: then each of its fibers
gets ProcessDiedError, and whatever its `finally` blocks try then has no effect any more.
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

#: Where files cost no time, if there is such a place.
MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None

#: When every world begins, in ms since 1970.
BEGIN_MS = 1_700_000_000_000
#: A time that does not come.
NEVER = float("inf")


class StuckError(AssertionError):
    """Fibers wait for each other, and nothing can happen any more."""


class Process:
    """A simulated process; `skew_ms` is how far its clock is off, and `drift` how much too fast it goes."""

    def __init__(self, world: World, name: str, number: int, skew_ms: int = 0, drift: float = 0.0) -> None:
        self.world, self.name, self.pid = world, name, 1000 + number
        self.skew_ms, self.drift = skew_ms, drift
        self.random = random.Random(f"{world.seed}/{name}/{number}")
        self.is_alive = True
        self.still_until = 0.0
        self.fibers: list[Fiber] = []
        #: Those that have ended, and may do other work: to make one takes as long as to switch to ten.
        self.idle: list[Fiber] = []

    def start(self, work: Callable[[], object], name: str = "main") -> Fiber:
        """Begin a fiber that does `work`."""
        fiber = self.idle.pop() if self.idle else Fiber(self)
        fiber.take(work, name)
        self.fibers.append(fiber)
        self.world.resume_at(self.world.now, fiber)
        return fiber

    def stand_still(self, seconds: float) -> None:
        """Let no fiber of this process go on for so long, as if the machine slept."""
        self.still_until = max(self.still_until, self.world.now + seconds)
        self.world.note(f"{self.name} stands still for {seconds:.0f} s")

    def die(self) -> None:
        """End at once, as by a kill; the fibers end when the world comes to them."""
        if self.is_alive:
            self.is_alive = False
            self.world.note(f"{self.name} dies")
            for fiber in self.fibers:
                self.world.resume_at(self.world.now, fiber)

    @property
    def is_over(self) -> bool:
        """Whether all of its fibers have ended."""
        return not self.fibers

    def now_ns(self) -> int:
        """The time of day by its own clock."""
        return int(BEGIN_MS * 10**6 + self.world.now * 1e9 * (1 + self.drift)) + self.skew_ms * 10**6


class World:
    """Virtual time, and what happens in it; `now` is in seconds since the world began.

    `with world:` leads the library here; `run` goes on until nothing is left to happen, or until a time.
    """

    def __init__(self, seed: int | str, *, traced: bool = False) -> None:
        self.seed, self.random = seed, random.Random(f"world/{seed}")
        #: A random number below 1.
        self.draw = self.random.random
        self.now = 0.0
        self.hub = getcurrent()
        self.processes: list[Process] = []
        self.calls, self.most_calls = 0, 60_000
        self.story: list[str] | None = [] if traced else None
        self.errors: list[tuple[Process, BaseException]] = []
        self._order = itertools.count()
        #: When, in which order, a fiber or what is called, and how often the fiber was resumed.
        self._line: list[tuple[float, int, Any, int]] = []
        #: Whether nothing happens any more, since what was looked for is found.
        self.is_decided = False
        #: Up to when things happen.
        self._until = NEVER
        #: What the hub is to begin next.
        self._beginning: Fiber | None = None
        #: What happens at which point, in a systematic run.
        self.schedule: Schedule | None = None
        #: How often a fiber that could go on lets others go first, at a lock or a queue.
        self.switching = 0.02

    # --- processes and time

    def process(self, name: str, *, skew_ms: int = 0, drift: float = 0.0) -> Process:
        """A new process."""
        made = Process(self, name, len(self.processes), skew_ms, drift)
        self.processes.append(made)
        return made

    def at(self, when: float, call: Callable[[], None]) -> None:
        """Have `call` called at a time, by nobody's process."""
        heapq.heappush(self._line, (when, next(self._order), call, 0))

    def resume_at(self, when: float, fiber: Fiber) -> None:
        """Have a fiber go on at a time, unless something else resumes it before."""
        heapq.heappush(self._line, (when, next(self._order), fiber, fiber.token))

    def count_call(self) -> None:
        """Count a request to storage; nothing happens any more behind the last one that there may be."""
        self.calls += 1
        if self.calls > self.most_calls:
            self._until = -NEVER

    def decide(self) -> None:
        """Let nothing happen any more: what was looked for is found."""
        self.is_decided, self._until = True, -NEVER

    def run(self, until: float = NEVER) -> None:
        """Go on until nothing is left, or until a time."""
        self._until = -NEVER if self.is_decided else until
        while self._line and self._line[0][0] <= self._until:
            if (fiber := self._next_fiber()) is not None:
                fiber.switch()
                while (fiber := self._beginning) is not None:
                    self._beginning = None
                    fiber.switch()
            elif self._line and not isinstance(self._line[0][2], Fiber) and self._line[0][0] <= self._until:
                when, _, call, _ = heapq.heappop(self._line)
                self.now = max(self.now, when)
                call()
        if self.calls > self.most_calls and not self.is_decided:
            raise StuckError(f"more than {self.most_calls} requests: this has no end")
        if until < NEVER:
            self.now = max(self.now, until)

    def _next_fiber(self) -> Fiber | None:
        """The fiber that goes on next; None if something else comes first, which `run` does."""
        line = self._line
        while line and line[0][2].__class__ is Fiber:
            when, _, fiber, token = line[0]
            if when > self._until:
                return None
            heapq.heappop(line)
            process = fiber.process
            if fiber.is_over or (token != fiber.token and process.is_alive):
                continue
            if process.still_until > when and process.is_alive:
                heapq.heappush(line, (process.still_until, next(self._order), fiber, token))
                continue
            if when > self.now:
                self.now = when
            fiber.token += 1
            return fiber
        return None

    def check_over(self) -> None:
        """Raise StuckError if a fiber of a living process still waits, though nothing can happen any more."""
        if self.is_decided:
            return
        stuck = [
            f"{each.name}/{fiber.name}"
            for each in self.processes
            if each.is_alive
            for fiber in each.fibers
            if fiber.name != "background" and not fiber.waits_for_work
        ]
        if stuck:
            raise StuckError(f"these wait for ever: {', '.join(stuck)}")

    def wake(self, waiting: Waiting) -> bool:
        """Have a fiber go on now, if it still waits as it did when it was put in a line."""
        fiber, token = waiting
        still_waits = fiber.token == token and not fiber.is_over and fiber.process.is_alive
        if still_waits:
            heapq.heappush(self._line, (self.now, next(self._order), fiber, token))
        return still_waits

    def wake_next(self, line: deque[Waiting]) -> None:
        """Have the first fiber of a line go on that still waits."""
        while line and not self.wake(line.popleft()):
            pass

    def pause(self, seconds: float = 0.0) -> None:
        """Let the calling fiber go on after so long."""
        fiber = getcurrent()
        process, line, when = fiber.process, self._line, self.now + seconds
        if not process.is_alive:
            raise ProcessDiedError
        if line and when < line[0][0] and process.still_until <= when <= self._until:
            # nobody comes before it
            self.now = when
            fiber.token += 1
            return
        heapq.heappush(line, (when, next(self._order), fiber, fiber.token))
        self.wait(fiber)

    def wait(self, fiber: Fiber) -> None:
        """Let the others go on until the calling `fiber` is resumed, as long as its process lives."""
        self.go_on(fiber)
        if not fiber.process.is_alive:
            raise ProcessDiedError

    def go_on(self, fiber: Fiber) -> None:
        """Let the others go on until the calling `fiber` is resumed."""
        following = self._next_fiber()
        if following is not fiber:
            if following:
                # from one to the other, and not by way of the hub
                following.switch()
            else:
                # what has not begun would begin as deep in calls as this one is
                self._beginning = following
                self.hub.switch()

    def maybe_switch(self) -> None:
        """Let others go first, now and then."""
        if self.switching and self.draw() < self.switching:
            self.pause()

    # --- the story

    def note(self, text: str) -> None:
        """Add a line to the story."""
        if self.story is not None:
            self.story.append(f"{self.now:14.6f} {text}")

    def digest(self) -> str:
        """The checksum of the story."""
        return hashlib.sha256("\n".join(self.story or ()).encode()).hexdigest()

    def failed(self, process: Process, error: BaseException) -> None:
        """An error ended a fiber."""
        self.note(f"{process.name} ends with {type(error).__name__}")
        self.errors.append((process, error))

    # --- the library's surroundings

    def __enter__(self) -> World:
        self.folder = tempfile.mkdtemp(prefix="simulation-", dir=MEMORY)
        self._surroundings = Surroundings(self.folder)
        self._surroundings.lead_here()
        return self

    def __exit__(self, *error: object) -> None:
        for process in self.processes:
            process.is_alive = False
            for fiber in [*process.fibers, *process.idle]:
                fiber.switch()
        shutil.rmtree(self.folder, ignore_errors=True)
        self._surroundings.lead_back()
