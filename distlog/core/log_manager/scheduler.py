"""Runs tasks again and again, each in a thread of its own (Kafka's `KafkaScheduler`), and measures them."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from distlog.core.errors import DistlogError
from distlog.core.storage.parallel import in_parallel

#: The longest wait of a thread, so that no time is too long for the system's call.
_LONGEST_WAIT_S = 3600.0


def monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class _Task:
    def __init__(self, name: str, work: Callable[[], None], due_ms: int, period_ms: int, at_stop: bool) -> None:
        self.name, self.work = name, work
        self.due_ms, self._period_ms, self.at_stop = due_ms, period_ms, at_stop

    def run(self, clock: Callable[[], int]) -> None:
        """Run it, and set when it is due again: a period after this start, or at once if it took longer."""
        started_ms = clock()
        try:
            self.work()
        finally:
            self.due_ms = max(started_ms + self._period_ms, clock())


class Scheduler:
    """Tasks with their periods, each in a thread of its own; a task must not raise.

    `clock` returns ms that never go back. The threads are daemons: a process that ends does not wait for a task that
    `stop` gave up on. Without threads, `run_due` runs what is due by the clock.
    """

    def __init__(self, clock: Callable[[], int] = monotonic_ms) -> None:
        self._clock = clock
        self._tasks: list[_Task] = []
        self._threads: list[threading.Thread] = []
        self._stopping = threading.Event()

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    def schedule(
        self, name: str, work: Callable[[], None], *, delay_ms: int, period_ms: int, at_stop: bool = False
    ) -> None:
        self._tasks.append(_Task(name, work, self._clock() + delay_ms, period_ms, at_stop))

    def run_due(self) -> None:
        now_ms = self._clock()
        for task in [task for task in self._tasks if task.due_ms <= now_ms]:
            task.run(self._clock)

    def run(self, name: str) -> None:
        """Run the tasks of that name now, in parallel; they are due again a period later."""
        in_parallel(lambda task: task.run(self._clock), [task for task in self._tasks if task.name == name])

    def run_all(self) -> None:
        for task in self._tasks:
            task.run(self._clock)

    def start(self) -> None:
        for task in self._tasks:
            thread = threading.Thread(target=self._serve, args=(task,), name=f"distlog-{task.name}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self, timeout_s: float) -> bool:
        self._stopping.set()
        end = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(end - time.monotonic(), 0))
        return not any(thread.is_alive() for thread in self._threads)

    def _serve(self, task: _Task) -> None:
        while not self._stopping.is_set():
            wait_s = (task.due_ms - self._clock()) / 1000
            if wait_s <= 0:
                task.run(self._clock)
            else:
                self._stopping.wait(min(wait_s, _LONGEST_WAIT_S))
        if task.at_stop:
            task.run(self._clock)


@dataclass(slots=True)
class TaskRun:
    """A run of `task` over the topics of `root`: `done` are counts by name, `errors` by a topic's or root's URL."""

    task: str
    root: str
    started_ms: int
    seconds: float = 0.0
    done: Counter[str] = field(default_factory=Counter)
    errors: dict[str, str] = field(default_factory=dict)

    def add(self, **counts: float) -> None:
        for name, count in counts.items():
            self.done[name] += count  # type: ignore[assignment]

    def failed(self, url: str, error: Exception | str) -> None:
        """Note why the work failed at `url`, on one line."""
        self.errors[url] = error if isinstance(error, str) else _reason(error)

    def __str__(self) -> str:
        done = ", ".join(f"{name} {count:,.6g}" for name, count in self.done.items() if count)
        return f"{self.task} {self.root}: {done or 'nothing to do'}"

    def to_dict(self) -> dict[str, object]:
        return {
            "task": self.task,
            "root": self.root,
            "started_ms": self.started_ms,
            "seconds": round(self.seconds, 6),
            "ok": not self.errors,
            "done": dict(self.done),
            "errors": dict(self.errors),
        }


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, DistlogError) and text else f"{type(error).__name__}: {text}"
