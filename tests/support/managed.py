"""A LogManager whose clock a test sets, over topics that other processes write to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from topics import Clock, topic_on

from distlog.core.log_manager.log_manager import LogManager
from distlog.core.log_manager.log_tasks import TaskRun
from distlog.core.storage.storage import Storage
from distlog.core.topic import Topic

MINUTE = 60_000


class Managed:
    """A manager of `roots` with one clock for everything; `runs` is what its tasks did."""

    def __init__(self, *roots: str | Path, clock: Clock | None = None, **settings: Any) -> None:
        self.clock, self.runs = clock or Clock(), list[TaskRun]()
        self.manager = LogManager(
            [str(root) for root in roots],
            config={name.replace("_", "."): value for name, value in settings.items()},
            on_run=self.runs.append,
            clock=self.clock,
            scheduler_clock=self.clock,
        ).load()

    def after(self, minutes: float) -> list[TaskRun]:
        """Let that time pass, run the due tasks once, and return the runs."""
        self.clock.now_ms += int(minutes * MINUTE)
        self.runs.clear()
        self.manager.run_due()
        return self.runs

    def names(self) -> list[str]:
        return [topic.name for topic in self.manager.topics]


def create(root: str | Path, name: str, partitions: int = 1, clock: Clock | None = None, **settings: Any) -> Topic:
    """A topic below the root, as another process made it."""
    config = {key.replace("_", "."): value for key, value in settings.items()}
    return topic_on(Storage(str(root)).child(name), partitions, config, clock)


def effects(runs: list[TaskRun], task: str) -> dict[str, float]:
    return {name: count for run in runs if run.task == task for name, count in run.counts.items() if count}


def errors(runs: list[TaskRun], task: str) -> dict[str, str]:
    return {url: error for run in runs if run.task == task for url, error in run.errors.items()}
