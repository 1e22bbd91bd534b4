"""One run of a task: what it did, and what failed. A failure in one topic does not stop the run."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from distlog.core.errors import DistlogError


@dataclass(slots=True)
class TaskRun:
    """A run of `task` over the topics of `root`, which began at `started_ms`.

    `done` counts what it did, by a name that says of what. `errors` are by the URL of the topic, or of the root.
    """

    task: str
    root: str
    started_ms: int
    seconds: float = 0.0
    done: Counter[str] = field(default_factory=Counter)
    errors: dict[str, str] = field(default_factory=dict)

    def add(self, **counts: float) -> None:
        """Count what was done."""
        for name, count in counts.items():
            self.done[name] += count  # type: ignore[assignment]

    def failed(self, url: str, error: Exception | str) -> None:
        """Note why the work failed at `url`, on one line."""
        self.errors[url] = error if isinstance(error, str) else _reason(error)

    def __str__(self) -> str:
        done = ", ".join(f"{name} {count:,.6g}" for name, count in self.done.items() if count)
        return f"{self.task} {self.root}: {done or 'nothing to do'}"

    def to_dict(self) -> dict[str, object]:
        """The facts, as JSON has them."""
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
