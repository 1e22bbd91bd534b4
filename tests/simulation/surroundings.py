"""Where the names lead, within a world, by which the library waits, and learns of its surroundings.

They are real outside of a world, and for its hub: pytest and others have threads, too.
"""

from __future__ import annotations

# its lock is made by its import, and lives longer than a world
import concurrent.futures.thread  # noqa: F401
import gc
import importlib
import os
import platform
import queue
import random
import resource
import sys
import threading
import time
import uuid
from collections.abc import Callable
from operator import attrgetter
from typing import Any
from weakref import WeakKeyDictionary

from greenlet import getcurrent, greenlet
from numba.core.dispatcher import _DispatcherBase

from distlog.core.format import index_cache
from distlog.core.log import partition_log
from distlog.core.storage import parallel, retry
from distlog.core.write import writer
from simulation.places import Places
from simulation.threads import (
    Fiber,
    ProcessDiedError,
    SimCondition,
    SimEvent,
    SimLock,
    SimQueue,
    SimRLock,
    SimThread,
    SimTimer,
    current,
    living,
)


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


def _aside(real: Callable[..., Any]) -> Callable[..., Any]:
    """The same outside of the world: a history is the same whether a process did this before or not."""

    def do(*args: Any, **kwargs: Any) -> Any:
        return greenlet(real).switch(*args, **kwargs) if current() is not None else real(*args, **kwargs)

    return do


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
    (time, "perf_counter_ns", _choose_bare(time.perf_counter_ns, lambda fiber: int(fiber.world.now * 1e9))),
    (platform, "node", _choose_bare(platform.node, lambda fiber: "node")),
    (resource, "getrlimit", _choose(resource.getrlimit, lambda fiber, kind: (1 << 20, 1 << 20))),
    # kernels that are compiled or loaded, and modules that are imported, when they are used first
    (_DispatcherBase, "_compile_for_args", _aside(_DispatcherBase._compile_for_args)),
    (importlib._bootstrap, "_find_and_load", _aside(importlib._bootstrap._find_and_load)),
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


class Surroundings:
    """The names lead to a world from `lead_here` on, until `lead_back`; a process keeps its copies in `folder`."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._background_pools = dict[int, parallel.WorkerThreads]()

    def lead_here(self) -> None:
        """Have all names lead to the world of the fiber that runs."""
        self._collects = gc.isenabled()
        gc.disable()
        # what is closed when a process is long dead needs no word
        self._hook, sys.unraisablehook = sys.unraisablehook, _say_of_the_living
        own: list[tuple[Any, str, Any]] = [
            # what a process keeps for itself: its threads, and its copies of index files
            (parallel, "_background_pool", self._background_pool),
            (index_cache, "default_folder", self._copies),
            # what others left behind
            (partition_log, "_holders", WeakKeyDictionary()),
        ]
        self._undo: list[tuple[Any, str, Any]] = []
        for owner, name, made in (*_SURROUNDINGS, *own):
            self._undo.append((owner, name, getattr(owner, name)))
            setattr(owner, name, made)
        _places.lead_here()

    def lead_back(self) -> None:
        """Have all names lead to the machine again."""
        # of processes that died
        writer._unclosed.forget_parents()
        for owner, name, real in reversed(self._undo):
            setattr(owner, name, real)
        _places.lead_back()
        sys.unraisablehook = self._hook
        if self._collects:
            gc.enable()

    def _background_pool(self) -> parallel.WorkerThreads:
        process = living().process
        if process.pid not in self._background_pools:
            self._background_pools[process.pid] = parallel.WorkerThreads(4, "background")
        return self._background_pools[process.pid]

    def _copies(self) -> str:
        fiber = current()
        return os.path.join(self._folder, fiber.process.name if fiber else "nobody")


def _say_of_the_living(failure: Any) -> None:
    if failure.exc_type is not ProcessDiedError:
        sys.__unraisablehook__(failure)
