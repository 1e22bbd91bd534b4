"""The threads of simulated processes, and the primitives of `threading` and `queue` that they wait with.

A thread is a fiber (a greenlet). It runs until it waits. Then its world resumes another one.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from greenlet import getcurrent, greenlet

if TYPE_CHECKING:
    from simulation.world import Process, World


class ProcessDiedError(BaseException):
    """Raised in the fibers of a dead process, which have no effect any more."""


class Fiber(greenlet):
    """A thread of a simulated process, and after its end another one."""

    def __init__(self, process: Process) -> None:
        super().__init__(self._serve, process.world.hub)
        self.process, self.world, self.token = process, process.world, 0
        self.daemon = True

    def assign(self, work: Callable[[], object], name: str) -> None:
        # invalidate the waits for the previous thread
        self.token += 1
        self._work, self.name = work, name
        self.is_over = False
        #: The result of `threading.current_thread`, unless that is the fiber.
        self.thread: SimThread | None = None
        #: Whether it waits for work, as a worker does: it may wait forever.
        self.waits_for_work = False

    def _serve(self, *_: object) -> None:
        while not self.is_over:
            self._do()
            if self.process.is_alive:
                self.process.idle.append(self)
                self.world.switch_from(self)

    def _do(self) -> None:
        try:
            if self.process.is_alive:
                self._work()
        except ProcessDiedError:
            pass
        except BaseException as error:
            # errors during the death of a process have no meaning
            if self.process.is_alive:
                self.world.failed(self.process, error)
        finally:
            self.is_over = True
            # a world collects no garbage, so an ended thread must be in no cycle
            self.process.fibers.remove(self)
            del self._work
            self.thread = None

    @property
    def ident(self) -> int:
        return id(self)

    def is_alive(self) -> bool:
        return not self.is_over


def current() -> Fiber | None:
    """Return the running fiber, or None outside of a world."""
    fiber = getcurrent()
    return fiber if fiber.__class__ is Fiber else None


def living() -> Fiber:
    """Return the running fiber; raises ProcessDiedError if its process has died."""
    fiber: Fiber = getcurrent()
    assert fiber.__class__ is Fiber
    if not fiber.process.is_alive:
        raise ProcessDiedError
    return fiber


#: A fiber in a queue, and its token when it joined: with another token it waits for something else.
Waiting = tuple[Fiber, int]


class SimLock:
    def __init__(self, world: World) -> None:
        self.world, self.owner = world, None
        self.waiting: deque[Waiting] | tuple[()] = ()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        world, fiber = self.world, getcurrent()
        if not fiber.process.is_alive:
            raise ProcessDiedError
        # as `maybe_switch`, which would be a tenth of the calls of a history
        if world.switching and world.draw() < world.switching:
            world.pause()
        if self.owner is None:
            self.owner = fiber
            return True
        return self._acquire_later(fiber, blocking, timeout)

    def _acquire_later(self, fiber: Fiber, blocking: bool, timeout: float) -> bool:
        end = self.world.now + timeout if 0 <= timeout < threading.TIMEOUT_MAX / 2 else None
        while self.owner is not None and not (isinstance(self.owner, Fiber) and not self.owner.process.is_alive):
            if not blocking or (end is not None and self.world.now >= end):
                return False
            self.waiting = self.waiting or deque()
            self.waiting.append((fiber, fiber.token))
            if end is not None:
                self.world.resume_at(end, fiber)
            self.world.wait(fiber)
        self.owner = fiber
        return True

    def release(self, *_: object) -> None:
        if self.owner is None:
            raise RuntimeError("release unlocked lock")
        self.owner = None
        if self.waiting:
            self.world.wake_next(self.waiting)

    def locked(self) -> bool:
        return self.owner is not None

    __enter__, __exit__ = acquire, release


class SimRLock(SimLock):
    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.count = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if self.owner is getcurrent() or super().acquire(blocking, timeout):
            self.count += 1
            return True
        return False

    def release(self, *_: object) -> None:
        if self.owner is not getcurrent():
            raise RuntimeError("cannot release un-acquired lock")
        self.count -= 1
        if not self.count:
            super().release()

    __enter__, __exit__ = acquire, release

    def _is_owned(self) -> bool:
        return self.owner is getcurrent()

    def release_all(self) -> int:
        """Release the lock completely; returns how often it was acquired."""
        count, self.count = self.count, 0
        super().release()
        return count

    def acquire_again(self, count: int) -> None:
        """Undo `release_all`."""
        super().acquire()
        self.count = count


@dataclass(eq=False)
class _Waiter:
    waiting: Waiting
    is_notified: bool = False


class SimCondition:
    def __init__(self, world: World, lock: SimRLock | None = None) -> None:
        self.world, self.lock = world, lock or SimRLock(world)
        self.waiting: deque[_Waiter] = deque()
        self.acquire, self.release = self.lock.acquire, self.lock.release

    def __enter__(self) -> bool:
        return self.lock.acquire()

    def __exit__(self, *error: object) -> None:
        if current() is not None and self.lock.owner is getcurrent():
            self.lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        fiber = living()
        waiter = _Waiter((fiber, fiber.token))
        self.waiting.append(waiter)
        count = self.lock.release_all() if isinstance(self.lock, SimRLock) else self.lock.release()
        if timeout is not None and timeout < threading.TIMEOUT_MAX / 2:
            self.world.resume_at(self.world.now + max(timeout, 0), fiber)
        self.world.wait(fiber)
        if not waiter.is_notified:
            self.waiting.remove(waiter)
        if isinstance(self.lock, SimRLock):
            self.lock.acquire_again(count)  # type: ignore[arg-type]
        else:
            self.lock.acquire()
        return waiter.is_notified

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        end = None if timeout is None else self.world.now + timeout
        while not (result := predicate()):
            remaining_s = None if end is None else end - self.world.now
            if remaining_s is not None and remaining_s <= 0:
                break
            self.wait(remaining_s)
        return result

    def notify(self, n: int = 1) -> None:
        while n > 0 and self.waiting:
            waiter = self.waiting.popleft()
            waiter.is_notified = True
            self.world.wake(waiter.waiting)
            n -= 1

    def notify_all(self) -> None:
        self.notify(len(self.waiting))


class SimEvent:
    def __init__(self, world: World) -> None:
        self.world, self.is_set_now = world, False
        self.waiting: list[Waiting] = []

    def is_set(self) -> bool:
        return self.is_set_now

    def set(self) -> None:
        self.is_set_now = True
        for waiting in self.waiting:
            self.world.wake(waiting)
        self.waiting = []

    def clear(self) -> None:
        self.is_set_now = False

    def wait(self, timeout: float | None = None) -> bool:
        if self.is_set_now:
            return True
        fiber = living()
        self.waiting.append((fiber, fiber.token))
        if timeout is not None and timeout < threading.TIMEOUT_MAX / 2:
            self.world.resume_at(self.world.now + max(timeout, 0), fiber)
        self.world.wait(fiber)
        return self.is_set_now


class SimThread:
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
        self.process, self.over = fiber.process, SimEvent(fiber.world)

    def start(self) -> None:
        living()
        self.fiber = self.process.start(self._live, self.name)
        self.fiber.thread = self
        self.process.world.maybe_switch()

    def _live(self) -> None:
        try:
            self.run()
        finally:
            self.over.set()

    def run(self) -> None:
        if self.target is not None:
            self.target(*self.args, **self.kwargs)

    def join(self, timeout: float | None = None) -> None:
        if self.fiber is not None:
            self.over.wait(timeout)

    def is_alive(self) -> bool:
        return self.fiber is not None and not self.over.is_set_now

    @property
    def ident(self) -> int | None:
        return None if self.fiber is None else self.fiber.ident


class SimTimer(SimThread):
    def __init__(
        self, interval: float, function: Callable[..., object], args: Any = None, kwargs: Any = None
    ) -> None:
        super().__init__(target=function, args=tuple(args or ()), kwargs=kwargs, name="timer")
        self.interval, self.finished = interval, SimEvent(self.process.world)

    def run(self) -> None:
        self.fiber.waits_for_work = True
        if not self.finished.wait(self.interval):
            super().run()

    def cancel(self) -> None:
        self.finished.set()


class SimQueue:
    """A queue between fibers, of any of the kinds that the library uses."""

    def __init__(self, world: World, maxsize: int = 0) -> None:
        self.world, self.maxsize = world, maxsize
        self.items: deque[Any] = deque()
        self.getters: deque[Waiting] = deque()
        self.putters: deque[Waiting] = deque()

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
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
            fiber = living()
            fiber.waits_for_work = True
            try:
                self._wait(self.getters, end)
            finally:
                fiber.waits_for_work = False

    def _wait(self, waiters: deque[Waiting], end: float | None) -> None:
        fiber = living()
        waiters.append((fiber, fiber.token))
        if end is not None:
            self.world.resume_at(end, fiber)
        self.world.wait(fiber)

    def get_nowait(self) -> Any:
        return self.get(block=False)

    def put_nowait(self, item: Any) -> None:
        self.put(item, block=False)

    def empty(self) -> bool:
        return not self.items

    def qsize(self) -> int:
        return len(self.items)
