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

# its lock is made by its import, and lives longer than a world
import concurrent.futures.thread  # noqa: F401
import gc
import heapq
import itertools
import os
import queue
import random
import shutil
import sys
import tempfile
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from greenlet import getcurrent, greenlet

from distlog.core.indexes import index_cache
from distlog.core.storage import parallel, retry
from distlog.core.topics import writer
from simulation.places import Places

#: Where files cost no time, if there is such a place.
MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None

#: When every world begins, in ms since 1970.
BEGIN_MS = 1_700_000_000_000
#: A time that does not come.
NEVER = float("inf")


class ProcessDiedError(BaseException):
    """Raised in the fibers of a process that died: nothing they do has an effect any more."""


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


class Fiber(greenlet):
    """A thread of a simulated process, and when that has ended, another one."""

    def __init__(self, process: Process) -> None:
        super().__init__(self._serve, process.world.hub)
        self.process, self.world, self.token = process, process.world, 0
        self.daemon = True

    def take(self, work: Callable[[], object], name: str) -> None:
        """Be a thread that does `work`, as soon as it is resumed."""
        # whoever waited for the thread before it waits for this one no more
        self.token += 1
        self._work, self.name = work, name
        self.is_over, self.over = False, SimEvent(self.world)
        #: What `threading.current_thread` gives, if that is not the fiber itself.
        self.thread: SimThread | None = None
        #: Whether it waits for work that others may bring, as a worker does: so it may wait for ever.
        self.waits_for_work = False

    def _serve(self, *_: object) -> None:
        while not self.is_over:
            self._do()
            if self.process.is_alive:
                self.process.idle.append(self)
                self.world.go_on(self)

    def _do(self) -> None:
        try:
            if self.process.is_alive:
                self._work()
        except ProcessDiedError:
            pass
        except BaseException as error:
            # what comes of a death on the way out is none of its own
            if self.process.is_alive:
                self.world.failed(self.process, error)
        finally:
            self.is_over = True
            self.over.set()
            # a world collects no garbage, so what has ended must be in no circle
            self.process.fibers.remove(self)
            del self._work
            self.thread = None

    @property
    def ident(self) -> int:
        """What tells it from other threads."""
        return id(self)

    def is_alive(self) -> bool:
        """As of a thread."""
        return not self.is_over


#: A fiber in a line, and how often it was resumed when it went there: else it waits for something else by now.
Waiting = tuple[Fiber, int]


class World:
    """Virtual time, and what happens in it; `now` is in seconds since the world began.

    `with world:` leads the library here; `run` goes on until nothing is left to happen, or until a time.
    """

    def __init__(self, seed: int, *, traced: bool = False) -> None:
        self.seed, self.random = seed, random.Random(f"world/{seed}")
        self._draw = self.random.random
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
        if self.switching and self._draw() < self.switching:
            self.pause()

    def _fiber(self) -> Fiber:
        fiber: Fiber = getcurrent()
        assert fiber.__class__ is Fiber
        if not fiber.process.is_alive:
            raise ProcessDiedError
        return fiber

    # --- the story

    def note(self, text: str) -> None:
        """Add a line to the story."""
        if self.story is not None:
            self.story.append(f"{self.now:14.6f} {text}")

    def failed(self, process: Process, error: BaseException) -> None:
        """An error ended a fiber."""
        self.note(f"{process.name} ends with {type(error).__name__}")
        self.errors.append((process, error))

    # --- the library's surroundings

    def __enter__(self) -> World:
        self._collects = gc.isenabled()
        gc.disable()
        # what is closed when a process is long dead needs no word
        self._hook, sys.unraisablehook = sys.unraisablehook, _say_of_the_living
        self._undo: list[tuple[Any, str, Any]] = []
        for owner, name, made in _SURROUNDINGS:
            self._undo.append((owner, name, getattr(owner, name)))
            setattr(owner, name, made)
        _places.lead_here()
        # what a process keeps for itself: its threads, and its copies of index files
        self._crews = dict[int, parallel.WorkerThreads]()
        self.folder = tempfile.mkdtemp(prefix="simulation-", dir=MEMORY)
        for owner, name, made in ((parallel, "_crew", self._crew), (index_cache, "default_folder", self._copies)):
            self._undo.append((owner, name, getattr(owner, name)))
            setattr(owner, name, made)
        return self

    def _crew(self) -> parallel.WorkerThreads:
        process = self._fiber().process
        if process.pid not in self._crews:
            self._crews[process.pid] = parallel.WorkerThreads(4, "background")
        return self._crews[process.pid]

    def _copies(self) -> str:
        fiber = current()
        return os.path.join(self.folder, fiber.process.name if fiber else "nobody")

    def __exit__(self, *error: object) -> None:
        for process in self.processes:
            process.is_alive = False
            for fiber in [*process.fibers, *process.idle]:
                fiber.switch()
        shutil.rmtree(self.folder, ignore_errors=True)
        # of processes that died
        writer._unclosed.forget_parents()
        for owner, name, real in reversed(self._undo):
            setattr(owner, name, real)
        _places.lead_back()
        sys.unraisablehook = self._hook
        if self._collects:
            gc.enable()


def _say_of_the_living(failure: Any) -> None:
    if failure.exc_type is not ProcessDiedError:
        sys.__unraisablehook__(failure)


def current() -> Fiber | None:
    """The fiber that runs, or None outside of any world."""
    fiber = getcurrent()
    return fiber if fiber.__class__ is Fiber else None


# ---
# What threads wait by. Each is real outside of a world: pytest and others have threads, too.


class SimLock:
    """A lock between fibers."""

    def __init__(self, world: World) -> None:
        self.world, self.owner = world, None
        self.waiting: deque[Waiting] | tuple[()] = ()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """As `threading.Lock.acquire`."""
        world, fiber = self.world, getcurrent()
        if not fiber.process.is_alive:
            raise ProcessDiedError
        # as `maybe_switch`, which would be a tenth of the calls of a history
        if world.switching and world._draw() < world.switching:
            world.pause()
        if self.owner is None:
            self.owner = fiber
            return True
        return self._acquire_later(fiber, blocking, timeout)

    def _acquire_later(self, fiber: Fiber, blocking: bool, timeout: float) -> bool:
        end = self.world.now + timeout if 0 <= timeout < threading.TIMEOUT_MAX / 2 else None
        while self.owner is not None and not self.owner_is_gone():
            if not blocking or (end is not None and self.world.now >= end):
                return False
            self.waiting = self.waiting or deque()
            self.waiting.append((fiber, fiber.token))
            if end is not None:
                self.world.resume_at(end, fiber)
            self.world.wait(fiber)
        self.owner = fiber
        return True

    def owner_is_gone(self) -> bool:
        """Whether the owner's process died."""
        return isinstance(self.owner, Fiber) and not self.owner.process.is_alive

    def release(self) -> None:
        """As `threading.Lock.release`."""
        if self.owner is None:
            raise RuntimeError("release unlocked lock")
        self.owner = None
        if self.waiting:
            self.world.wake_next(self.waiting)

    def locked(self) -> bool:
        """As `threading.Lock.locked`."""
        return self.owner is not None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()


class SimRLock(SimLock):
    """A reentrant lock between fibers."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.count = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """As `threading.RLock.acquire`."""
        if self.owner is getcurrent() or super().acquire(blocking, timeout):
            self.count += 1
            return True
        return False

    def release(self) -> None:
        """As `threading.RLock.release`."""
        if self.owner is not getcurrent():
            raise RuntimeError("cannot release un-acquired lock")
        self.count -= 1
        if not self.count:
            super().release()

    def _is_owned(self) -> bool:
        return self.owner is getcurrent()

    def let_go(self) -> int:
        """Release it however often it was acquired; returns how often."""
        count, self.count = self.count, 0
        super().release()
        return count

    def take_again(self, count: int) -> None:
        """Undo `let_go`."""
        super().acquire()
        self.count = count


@dataclass(eq=False)
class _Place:
    """A fiber that waits for a condition."""

    waiting: Waiting
    is_notified: bool = False


class SimCondition:
    """A condition between fibers."""

    def __init__(self, world: World, lock: SimRLock | None = None) -> None:
        self.world, self.lock = world, lock or SimRLock(world)
        self.waiting: deque[_Place] = deque()
        self.acquire, self.release = self.lock.acquire, self.lock.release

    def __enter__(self) -> bool:
        return self.lock.acquire()

    def __exit__(self, *error: object) -> None:
        if current() is not None and self.lock.owner is getcurrent():
            self.lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        """As `threading.Condition.wait`."""
        fiber = self.world._fiber()
        place = _Place((fiber, fiber.token))
        self.waiting.append(place)
        count = self.lock.let_go() if isinstance(self.lock, SimRLock) else self.lock.release()
        if timeout is not None and timeout < threading.TIMEOUT_MAX / 2:
            self.world.resume_at(self.world.now + max(timeout, 0), fiber)
        self.world.wait(fiber)
        if not place.is_notified:
            self.waiting.remove(place)
        if isinstance(self.lock, SimRLock):
            self.lock.take_again(count)  # type: ignore[arg-type]
        else:
            self.lock.acquire()
        return place.is_notified

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        """As `threading.Condition.wait_for`."""
        end = None if timeout is None else self.world.now + timeout
        while not (result := predicate()):
            left = None if end is None else end - self.world.now
            if left is not None and left <= 0:
                break
            self.wait(left)
        return result

    def notify(self, n: int = 1) -> None:
        """As `threading.Condition.notify`."""
        while n > 0 and self.waiting:
            place = self.waiting.popleft()
            place.is_notified = True
            self.world.wake(place.waiting)
            n -= 1

    def notify_all(self) -> None:
        """As `threading.Condition.notify_all`."""
        self.notify(len(self.waiting))


class SimEvent:
    """An event between fibers."""

    def __init__(self, world: World) -> None:
        self.world, self.is_set_now = world, False
        self.waiting: list[Waiting] = []

    def is_set(self) -> bool:
        """As `threading.Event.is_set`."""
        return self.is_set_now

    def set(self) -> None:
        """As `threading.Event.set`."""
        self.is_set_now = True
        for waiting in self.waiting:
            self.world.wake(waiting)
        self.waiting = []

    def clear(self) -> None:
        """As `threading.Event.clear`."""
        self.is_set_now = False

    def wait(self, timeout: float | None = None) -> bool:
        """As `threading.Event.wait`."""
        if self.is_set_now:
            return True
        fiber = self.world._fiber()
        self.waiting.append((fiber, fiber.token))
        if timeout is not None and timeout < threading.TIMEOUT_MAX / 2:
            self.world.resume_at(self.world.now + max(timeout, 0), fiber)
        self.world.wait(fiber)
        return self.is_set_now


class SimThread:
    """A thread of the process that starts it."""

    def __init__(
        self,
        group: None = None,
        target: Callable[..., object] | None = None,
        name: str | None = None,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        self.target, self.args, self.kwargs, self.daemon = target, args, kwargs or {}, daemon
        self.name, self.fiber = name or "thread", None
        fiber = current()
        assert fiber is not None
        self.process = fiber.process

    def start(self) -> None:
        """As `threading.Thread.start`."""
        self.process.world._fiber()
        self.fiber = self.process.start(self.run, self.name)
        self.fiber.thread, self.over = self, self.fiber.over
        self.process.world.maybe_switch()

    def run(self) -> None:
        """What the thread does."""
        if self.target is not None:
            self.target(*self.args, **self.kwargs)

    def join(self, timeout: float | None = None) -> None:
        """As `threading.Thread.join`."""
        if self.fiber is not None:
            self.over.wait(timeout)

    def is_alive(self) -> bool:
        """As `threading.Thread.is_alive`."""
        return self.fiber is not None and not self.over.is_set_now

    @property
    def ident(self) -> int | None:
        """As of a thread."""
        return None if self.fiber is None else self.fiber.ident


class SimTimer(SimThread):
    """A timer of the process that starts it."""

    def __init__(
        self, interval: float, function: Callable[..., object], args: Any = None, kwargs: Any = None
    ) -> None:
        super().__init__(target=function, args=tuple(args or ()), kwargs=kwargs, name="timer")
        self.interval, self.finished = interval, SimEvent(self.process.world)

    def run(self) -> None:
        """Wait, and then do it."""
        self.fiber.waits_for_work = True
        if not self.finished.wait(self.interval):
            super().run()

    def cancel(self) -> None:
        """As `threading.Timer.cancel`."""
        self.finished.set()


class SimQueue:
    """A queue between fibers, of any of the kinds that the library uses."""

    def __init__(self, world: World, maxsize: int = 0) -> None:
        self.world, self.maxsize = world, maxsize
        self.items: deque[Any] = deque()
        self.getters: deque[Waiting] = deque()
        self.putters: deque[Waiting] = deque()

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """As `queue.Queue.put`."""
        end = None if timeout is None else self.world.now + timeout
        while self.maxsize and len(self.items) >= self.maxsize:
            if not block or (end is not None and self.world.now >= end):
                raise queue.Full
            self._wait(self.putters, end)
        self.items.append(item)
        if self.getters:
            self.world.wake_next(self.getters)
        self.world.maybe_switch()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """As `queue.Queue.get`."""
        if not self.items:
            self._wait_for_items(block, timeout)
        item = self.items.popleft()
        if self.putters:
            self.world.wake_next(self.putters)
        return item

    def _wait_for_items(self, block: bool, timeout: float | None) -> None:
        end = None if timeout is None else self.world.now + timeout
        while not self.items:
            if not block or (end is not None and self.world.now >= end):
                raise queue.Empty
            fiber = self.world._fiber()
            fiber.waits_for_work = True
            try:
                self._wait(self.getters, end)
            finally:
                fiber.waits_for_work = False

    def _wait(self, line: deque[Waiting], end: float | None) -> None:
        fiber = self.world._fiber()
        line.append((fiber, fiber.token))
        if end is not None:
            self.world.resume_at(end, fiber)
        self.world.wait(fiber)

    def get_nowait(self) -> Any:
        """As `queue.Queue.get_nowait`."""
        return self.get(block=False)

    def put_nowait(self, item: Any) -> None:
        """As `queue.Queue.put_nowait`."""
        self.put(item, block=False)

    def empty(self) -> bool:
        """As `queue.Queue.empty`."""
        return not self.items

    def qsize(self) -> int:
        """As `queue.Queue.qsize`."""
        return len(self.items)


# ---
# Where the library's names lead within a world.


def _choose(real: Any, simulated: Callable[..., Any]) -> Any:
    def choose(*args: Any, **kwargs: Any) -> Any:
        fiber = getcurrent()
        return simulated(fiber, *args, **kwargs) if fiber.__class__ is Fiber else real(*args, **kwargs)

    choose.__name__ = getattr(real, "__name__", "choose")
    return choose


def _choose_bare(real: Any, simulated: Callable[[Fiber], Any]) -> Any:
    """The same for what takes no arguments: a history calls these most."""

    def choose() -> Any:
        fiber = getcurrent()
        return simulated(fiber) if fiber.__class__ is Fiber else real()

    choose.__name__ = real.__name__
    return choose


def _pid() -> int:
    # the library asks this several times for each request
    fiber = getcurrent()
    return fiber.process.pid if fiber.__class__ is Fiber else _real_pid()


_real_pid = os.getpid


def _kind(real: type, simulated: type) -> type:
    """A class whose objects are simulated within a world, and real outside; subclasses of it are real."""

    class Chosen(real):  # type: ignore[misc]
        def __new__(cls, *args: Any, **kwargs: Any) -> Any:
            if cls is Chosen:
                if current() is not None:
                    return simulated(*args, **kwargs)
                return real(*args, **kwargs)
            return super().__new__(cls)

    Chosen.__name__ = Chosen.__qualname__ = real.__name__
    return Chosen


def _sleep(fiber: Fiber, seconds: float) -> None:
    fiber.world.pause(max(seconds, 0.0))


def _draw(fiber: Fiber) -> float:
    return fiber.process.random.random()


def _uuid4(fiber: Fiber) -> uuid.UUID:
    return uuid.UUID(int=fiber.process.random.getrandbits(128), version=4)


_now = attrgetter("world.now")

_SURROUNDINGS: list[tuple[Any, str, Any]] = [
    (threading, "Lock", _choose_bare(threading.Lock, lambda fiber: SimLock(fiber.world))),
    (threading, "RLock", _choose_bare(threading.RLock, lambda fiber: SimRLock(fiber.world))),
    (
        threading,
        "Condition",
        _choose(threading.Condition, lambda fiber, lock=None: SimCondition(fiber.world, lock)),
    ),
    (threading, "Event", _choose_bare(threading.Event, lambda fiber: SimEvent(fiber.world))),
    (threading, "Thread", _kind(threading.Thread, SimThread)),
    (threading, "Timer", _kind(threading.Timer, SimTimer)),
    (threading, "current_thread", _choose_bare(threading.current_thread, lambda fiber: fiber.thread or fiber)),
    (threading, "get_ident", _choose_bare(threading.get_ident, id)),
    (time, "sleep", _choose(time.sleep, _sleep)),
    (time, "monotonic", _choose_bare(time.monotonic, _now)),
    (time, "monotonic_ns", _choose_bare(time.monotonic_ns, lambda fiber: int(fiber.world.now * 1e9))),
    (time, "perf_counter", _choose_bare(time.perf_counter, _now)),
    (time, "clock_gettime", _choose(time.clock_gettime, lambda fiber, _: fiber.world.now)),
    (time, "time", _choose_bare(time.time, lambda fiber: fiber.process.now_ns() / 1e9)),
    (time, "time_ns", _choose_bare(time.time_ns, lambda fiber: fiber.process.now_ns())),
    (parallel, "cores", _choose_bare(parallel.cores, lambda fiber: 2)),
    (os, "getpid", _pid),
    (os, "urandom", _choose(os.urandom, lambda fiber, size: fiber.process.random.randbytes(size))),
    (uuid, "uuid4", _choose_bare(uuid.uuid4, _uuid4)),
    (queue, "Queue", _choose(queue.Queue, lambda fiber, maxsize=0: SimQueue(fiber.world, maxsize))),
    (queue, "SimpleQueue", _choose_bare(queue.SimpleQueue, lambda fiber: SimQueue(fiber.world))),
    (retry, "jitter", _choose_bare(retry.jitter, lambda fiber: _draw(fiber))),
    (
        random,
        "SystemRandom",
        _choose(random.SystemRandom, lambda fiber: random.Random(fiber.process.random.random())),
    ),
]
#: The same, for those who have imported the names themselves, or have them as default arguments.
_REBOUND: dict[Any, Any] = {getattr(owner, name): made for owner, name, made in _SURROUNDINGS}


_places = Places(_REBOUND)
