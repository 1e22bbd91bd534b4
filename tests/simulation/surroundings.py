"""The names that the library waits with, and learns of its surroundings from, within a world.

They stay real outside of a world, and for its hub: pytest and other libraries have threads, too.
"""

from __future__ import annotations

# its import creates a lock that must outlive a world
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
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any
from weakref import WeakSet

from greenlet import getcurrent, greenlet
from numba.core.dispatcher import _DispatcherBase

from distlog.core.format import indexes
from distlog.core.log import partition_log
from distlog.core.read.dataset import TopicDataset
from distlog.core.storage import calls
from distlog.core.write import writer
from simulation.rebound_names import ReboundNames
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
    """Like `_choose` for functions without arguments, which a history calls most."""

    def choose() -> Any:
        fiber = getcurrent()
        return simulated(fiber) if fiber.__class__ is Fiber else real()

    choose.__name__ = real.__name__
    return choose


def _pid() -> int:
    # the library calls this several times for each request
    fiber = getcurrent()
    return fiber.process.pid if fiber.__class__ is Fiber else _real_pid()


_real_pid = os.getpid


def _kind(real: type, simulated: type) -> type:
    """Return a class whose objects are simulated within a world and real outside; its subclasses are real."""

    class Switched(real):  # type: ignore[misc]
        def __new__(cls, *args: Any, **kwargs: Any) -> Any:
            if cls is Switched:
                if current() is not None:
                    return simulated(*args, **kwargs)
                return real(*args, **kwargs)
            return super().__new__(cls)

    Switched.__name__ = Switched.__qualname__ = real.__name__
    return Switched


def _sleep(fiber: Fiber, seconds: float) -> None:
    fiber.world.pause(max(seconds, 0.0))


def _uuid4(fiber: Fiber) -> uuid.UUID:
    return uuid.UUID(int=fiber.process.random.getrandbits(128), version=4)


def _outside(real: Callable[..., Any]) -> Callable[..., Any]:
    """Run a function outside of the world, so that a history does not depend on caches of the Python process."""

    def do(*args: Any, **kwargs: Any) -> Any:
        return greenlet(real).switch(*args, **kwargs) if current() is not None else real(*args, **kwargs)

    return do


def _at_once(real: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    return lambda fiber, *args: iter([*real(*args)])


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
    (calls, "cores", _choose_bare(calls.cores, lambda fiber: 2)),
    (os, "getpid", _pid),
    (os, "urandom", _choose(os.urandom, lambda fiber, size: fiber.process.random.randbytes(size))),
    (uuid, "uuid4", _choose_bare(uuid.uuid4, _uuid4)),
    (queue, "Queue", _choose(queue.Queue, lambda fiber, maxsize=0: SimQueue(fiber.world, maxsize))),
    (queue, "SimpleQueue", _choose_bare(queue.SimpleQueue, lambda fiber: SimQueue(fiber.world))),
    (time, "perf_counter_ns", _choose_bare(time.perf_counter_ns, lambda fiber: int(fiber.world.now * 1e9))),
    (platform, "node", _choose_bare(platform.node, lambda fiber: "node")),
    (resource, "getrlimit", _choose(resource.getrlimit, lambda fiber, kind: (1 << 20, 1 << 20))),
    # kernels are compiled or loaded, and modules imported, at their first use
    (_DispatcherBase, "_compile_for_args", _outside(_DispatcherBase._compile_for_args)),
    (importlib._bootstrap, "_find_and_load", _outside(importlib._bootstrap._find_and_load)),
    # Arrow asks for batches in a thread of its own
    (TopicDataset, "_batches", _choose(TopicDataset._batches, _at_once(TopicDataset._batches))),
    (calls, "jitter", _choose_bare(calls.jitter, lambda fiber: fiber.process.random.random())),
    (
        random,
        "SystemRandom",
        _choose(random.SystemRandom, lambda fiber: random.Random(fiber.process.random.random())),
    ),
]
#: The same for names that modules have imported, or have as default arguments.
_rebound_names = ReboundNames({getattr(owner, name): simulated for owner, name, simulated in _SURROUNDINGS})


class Surroundings:
    """The redirection of names from `install` to `restore`; processes keep copies of index files in `folder`."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._background_pools = dict[int, calls.WorkerThreads]()

    def install(self) -> None:
        """Redirect all names to the world of the running fiber."""
        self._collects = gc.isenabled()
        gc.disable()
        # ProcessDiedError in a finalizer needs no report
        self._hook, sys.unraisablehook = sys.unraisablehook, _report_unless_died
        per_process: list[tuple[Any, str, Any]] = [
            # the threads of each process, and its copies of index files
            (calls, "_background_pool", self._background_pool),
            (indexes, "default_folder", self._copies),
            # without the open logs of an earlier world
            (partition_log, "_caches", WeakSet()),
        ]
        self._undo: list[tuple[Any, str, Any]] = []
        for owner, name, simulated in (*_SURROUNDINGS, *per_process):
            self._undo.append((owner, name, getattr(owner, name)))
            setattr(owner, name, simulated)
        _rebound_names.install()

    def restore(self) -> None:
        """Give all names their real values again."""
        # writers of dead processes
        writer._unclosed.reset_in_child()
        for owner, name, real in reversed(self._undo):
            setattr(owner, name, real)
        _rebound_names.restore()
        sys.unraisablehook = self._hook
        if self._collects:
            gc.enable()

    def _background_pool(self) -> calls.WorkerThreads:
        process = living().process
        if process.pid not in self._background_pools:
            self._background_pools[process.pid] = calls.WorkerThreads(4, "background")
        return self._background_pools[process.pid]

    def _copies(self) -> str:
        fiber = current()
        return os.path.join(self._folder, fiber.process.name if fiber else "nobody")


def _report_unless_died(failure: Any) -> None:
    if failure.exc_type is not ProcessDiedError:
        sys.__unraisablehook__(failure)
