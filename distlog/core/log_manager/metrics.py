"""What a LogManager measures, as Prometheus has it: counters that only grow, and gauges of the present state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Literal, NamedTuple

from distlog.core import paths
from distlog.core.errors import DistlogError
from distlog.core.locks import ProcessLock
from distlog.core.log.partition.partition_counters import PartitionCounters, counters_in
from distlog.core.log_manager.log_directory import LogDirectory
from distlog.core.log_manager.task_run import TaskRun
from distlog.core.topics.topic import Topic

#: What is counted of each partition on a local disk, whichever process did it.
_DONE = {
    "appends": "appends in place",
    "append_bytes": "bytes of appends in place",
    "append_seconds": "how long appends in place took, with the wait for the lock",
    "flushes": "syncs of active segments",
    "flush_seconds": "how long syncs of active segments took",
}

Labels = Mapping[str, str]
Value = tuple[Labels, float]


class Metric(NamedTuple):
    """One metric: its values by their labels."""

    name: str
    kind: Literal["counter", "gauge"]
    meaning: str
    values: list[Value]


class TaskMetrics:
    """Counts what the tasks do; safe between threads."""

    def __init__(self) -> None:
        self._lock = ProcessLock()
        self._metrics: dict[str, Metric] = {}

    def note(self, run: TaskRun, ended_ms: int) -> None:
        """Count a run that is over."""
        labels = {"task": run.task, "root": run.root}
        with self._lock:
            self._add("task_runs", "runs of a task", labels, 1)
            self._add("task_seconds", "how long the runs of a task took", labels, run.seconds)
            self._add("task_errors", "topics and roots at which a run failed", labels, len(run.errors))
            last = self._metric("task_last_run_timestamp_seconds", "gauge", "when the last run of a task ended")
            _set(last, labels, ended_ms / 1000)
            failing = self._metric("task_failing", "gauge", "topics and roots at which the last run failed")
            _set(failing, labels, len(run.errors))
            for name, count in run.done.items():
                task = run.task.replace("-", "_")
                self._add(f"{task}_{name}", f"{name.replace('_', ' ')} of {run.task}", {"root": run.root}, count)

    def metrics(self) -> list[Metric]:
        """The metrics as they are now."""
        with self._lock:
            return [metric._replace(values=list(metric.values)) for metric in self._metrics.values()]

    def _add(self, name: str, meaning: str, labels: Labels, count: float) -> None:
        metric = self._metric(name, "counter", meaning)
        before = next((value for known, value in metric.values if known == labels), 0.0)
        _set(metric, labels, before + count)

    def _metric(self, name: str, kind: Literal["counter", "gauge"], meaning: str) -> Metric:
        return self._metrics.setdefault(name, Metric(f"distlog_{name}", kind, meaning, []))


def _set(metric: Metric, labels: Labels, value: float) -> None:
    metric.values[:] = [one for one in metric.values if one[0] != labels]
    metric.values.append((labels, value))


def log_metrics(directories: Iterable[LogDirectory]) -> list[Metric]:
    """The state of the roots and of each partition, as they were at the last look; asks no object store."""
    directories = list(directories)
    offline: list[Value] = [({"root": one.url}, float(one.is_offline)) for one in directories]
    topics: list[Value] = [({"root": one.url}, float(len(one.topics))) for one in directories]
    metrics = [
        Metric("distlog_root_offline", "gauge", "1 if the root did not answer at the last look", offline),
        Metric("distlog_topics", "gauge", "loaded topics", topics),
        Metric("distlog_log_start_offset", "gauge", "first readable offset", []),
        Metric("distlog_log_end_offset", "gauge", "next offset to be assigned", []),
        Metric("distlog_log_size_bytes", "gauge", "bytes of the log files", []),
        Metric("distlog_log_segments", "gauge", "live segments", []),
    ]
    done = [Metric(f"distlog_log_{name}", "counter", meaning, []) for name, meaning in _DONE.items()]
    for directory in directories:
        for name, topic in directory.topics.items():
            # a topic that cannot be read is left out; the task that looks at it says why
            with suppress(DistlogError, OSError):
                for labels, numbers in list(_partitions({"root": directory.url, "topic": name}, topic)):
                    for metric, number in zip(metrics[2:], numbers, strict=True):
                        metric.values.append((labels, float(number)))
                for labels, counters in _counted({"root": directory.url, "topic": name}, topic):
                    for metric, total in zip(done, _numbers(counters), strict=True):
                        metric.values.append((labels, total))
    return [*metrics, *done]


def _partitions(of: Labels, topic: Topic) -> Iterator[tuple[Labels, tuple[int, int, int, int]]]:
    for number, state in enumerate(topic.live_snapshot.partitions):
        size = int(state.segments.log_bytes.sum())
        yield (
            {**of, "partition": str(number)},
            (state.log_start_offset, state.log_end_offset, size, len(state.segments)),
        )


def _counted(of: Labels, topic: Topic) -> Iterator[tuple[Labels, PartitionCounters]]:
    """What was done to the partitions that were appended to in place."""
    if not topic.storage.is_local:
        return
    for number in range(len(topic.snapshot.partitions)):
        folder = topic.storage.local_path(paths.partition_dir(topic.snapshot.name, number))
        counters = counters_in(folder)
        if counters is not None:
            yield {**of, "partition": str(number)}, counters


def _numbers(done: PartitionCounters) -> tuple[float, ...]:
    """The numbers of _DONE, in seconds."""
    return done.appends, done.append_bytes, done.append_ns / 1e9, done.flushes, done.flush_ns / 1e9
