"""Kafka's `LogManager`, without a broker: loads all topics below its roots, and runs the tasks that maintain them."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Literal, NamedTuple

from distlog.core import paths
from distlog.core.arrays import MAX_LONG
from distlog.core.errors import DistlogError, InvalidConfigError, TopicNotFoundError
from distlog.core.log.partition_files import counters_in
from distlog.core.log_manager.broker_config import BrokerConfig
from distlog.core.log_manager.log_tasks import LogCleaner, LogDirectory, LogTasks, Scheduler, TaskRun
from distlog.core.read.fetch import has_late_transaction
from distlog.core.storage.calls import process_lock
from distlog.core.storage.storage import Storage
from distlog.core.times import monotonic_ms, now_ms
from distlog.core.topic import Topic

#: How long `stop` waits for tasks; a task that runs longer is abandoned, as in a killed process.
STOP_TIMEOUT_S = 8.0
#: The task that finds topics. Other tasks of a root wait for its first run.
LOAD_LOGS = "load-logs"
#: The work of a task on a root. It adds its counts and errors to the run.
Work = Callable[[TaskRun], None]
_log = logging.getLogger(__name__)


class LogManager:
    """All topics in one or more roots, and Kafka's tasks on their schedule. Use it in a `with` block.

    Each root has its own tasks, so a root that does not respond does not delay the other roots. A failure in one
    topic is logged, counted and retried at the task's next run. An abandoned task does no harm: as in a killed
    process, what it wrote applies only with its commit.

    Args:
        roots: The address of a folder of topics, or several.
        config: Broker settings by Kafka's names.
        storage_options: Options of the storage of all roots.
        on_run: Called after each run of a task, in the task's thread; its errors are logged.
        clock: Returns ms since 1970.
        scheduler_clock: Returns ms that never decrease.
        may_run: While it returns False, another process runs the tasks, and this manager only loads topics.

    Raises:
        InvalidConfigError: A setting is not valid, or `roots` is empty.
        StorageError: A root is not an address.

    Examples:
        >>> with distlog.LogManager(".") as manager:
        ...     [topic.name for topic in manager.topics]
        ['clicks']
    """

    def __init__(
        self,
        roots: str | Iterable[str],
        *,
        config: Mapping[str, object] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        on_run: Callable[[TaskRun], None] | None = None,
        clock: Callable[[], int] = now_ms,
        scheduler_clock: Callable[[], int] = monotonic_ms,
        may_run: Callable[[], bool] = lambda: True,
    ) -> None:
        self.config = BrokerConfig.parse(config or {})
        self._clock, self._scheduler_clock, self._on_run = clock, scheduler_clock, on_run
        self._may_run = may_run
        self._scheduler = Scheduler(scheduler_clock)
        self._metrics = TaskMetrics()
        self._errors: dict[tuple[str, str], dict[str, str]] = {}
        folders = [Storage(root, storage_options) for root in ([roots] if isinstance(roots, str) else roots)]
        storages = {folder.url: folder for folder in folders}
        if not storages:
            raise InvalidConfigError("a LogManager needs at least one root")
        self._directories = [
            LogDirectory(storage, self.config, clock, lambda: self._scheduler.is_stopping)
            for storage in storages.values()
        ]
        for directory in self._directories:
            self._schedule(directory)

    @property
    def roots(self) -> list[str]:
        """The addresses of the roots, without credentials."""
        return [directory.url for directory in self._directories]

    @property
    def topics(self) -> list[Topic]:
        """The loaded topics, by root and name, with the broker settings as their defaults."""
        return [topic for directory in self._directories for topic in directory.topics.values()]

    def topic(self, name: str) -> Topic:
        """Return a loaded topic.

        Args:
            name: The topic's name or URL.

        Returns:
            The topic.

        Raises:
            TopicNotFoundError: The topic is not loaded, or several roots have a topic of this name.
        """
        topics = [topic for topic in self.topics if name in (paths.last_part(topic.url), topic.url)]
        if len(topics) != 1:
            text = "several roots have this topic: give its URL" if topics else "no root has loaded this topic yet"
            raise TopicNotFoundError(text, topic=name)
        return topics[0]

    @property
    def errors(self) -> dict[str, dict[str, str]]:
        """The current failures: for each task, the reasons by the URL of the topic or root."""
        by_task: dict[str, dict[str, str]] = {}
        for (task, _), errors in sorted(self._errors.items()):
            if errors:
                by_task.setdefault(task, {}).update(errors)
        return by_task

    def metrics(self) -> list[Metric]:
        """Return all counters, and the partitions' state at the last scan. Makes no storage request."""
        return [*log_metrics(self._directories), *self._metrics.metrics()]

    def load(self) -> LogManager:
        """Load the topics of all roots now, in parallel. Returns this manager."""
        self._scheduler.run(LOAD_LOGS)
        return self

    def run_due(self) -> None:
        """Run the due tasks in this thread, for callers that do not `start`."""
        self._scheduler.run_due()

    def run_once(self) -> bool:
        """Run each task once, in this thread. Returns True if none failed."""
        self._scheduler.run_all()
        return not self.errors

    def start(self) -> LogManager:
        """Start the threads of the tasks. Returns at once, before the topics are loaded."""
        self._scheduler.start()
        return self

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> bool:
        """Stop the threads of the tasks.

        Args:
            timeout_s: How long to wait for a task, in seconds.

        Returns:
            Whether all tasks ended. A task that still runs is abandoned.
        """
        return self._scheduler.stop(timeout_s)

    def __enter__(self) -> LogManager:
        """Load the topics, then start the threads."""
        return self.load().start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _schedule(self, directory: LogDirectory) -> None:
        config, tasks = self.config, LogTasks(directory)
        check_ms = config.retention_check_interval_ms
        cleaner = LogCleaner(directory, check_ms)

        def task(
            name: str, work: Work, period_ms: int, delay_ms: int = config.initial_task_delay_ms, at_stop: bool = False
        ) -> None:
            run = partial(self._run, name, directory, work)
            self._scheduler.schedule(name, run, delay_ms=delay_ms, period_ms=period_ms, at_stop=at_stop)

        task(LOAD_LOGS, directory.load_logs, config.scan_interval_ms, delay_ms=0)
        task("log-retention", tasks.clean_up_logs, check_ms)
        if config.cleaner_enable:
            task("log-cleaner", cleaner.clean_logs, config.cleaner_backoff_ms)
            task("segment-merge", cleaner.merge_segments, check_ms)
        task("delete-logs", tasks.delete_logs, check_ms)
        if directory.storage.is_local:
            recovery_ms = config.flush_offset_checkpoint_interval_ms
            starts_period_ms = config.flush_start_offset_checkpoint_interval_ms
            if config.flush_scheduler_interval_ms < MAX_LONG:
                task("log-flusher", tasks.flush_dirty_logs, config.flush_scheduler_interval_ms)
            task("recovery-point-offset-checkpoint", tasks.checkpoint_recovery_points, recovery_ms, at_stop=True)
            task("log-start-offset-checkpoint", tasks.checkpoint_log_start_offsets, starts_period_ms, at_stop=True)

    def _run(self, task: str, directory: LogDirectory, work: Work) -> None:
        if task != LOAD_LOGS and (not directory.wait_until_loaded() or directory.is_offline or not self._may_run()):
            return
        run, started_ms = TaskRun(task, directory.url, self._clock()), self._scheduler_clock()
        try:
            work(run)
        except Exception as error:
            run.failed(directory.url, error)
        run.seconds = (self._scheduler_clock() - started_ms) / 1000
        self._metrics.note(run, self._clock())
        # a reason is logged once, even if several tasks fail for it; `list`, since other threads add items
        logged = {item for errors in list(self._errors.values()) for item in errors.items()}
        self._errors[run.task, run.root] = run.errors
        for url, reason in run.errors.items():
            if (url, reason) not in logged:
                _log.warning("%s failed at %s: %s", run.task, url, reason)
        try:
            if self._on_run:
                self._on_run(run)
        except Exception as error:
            # an error of the caller's function must not end the task
            _log.warning("on_run failed after %s: %s: %s", run.task, type(error).__name__, error)


Labels = Mapping[str, str]
Value = tuple[Labels, float]
Kind = Literal["counter", "gauge"]


class Metric(NamedTuple):
    """A metric, with a value for each set of labels."""

    name: str
    kind: Kind
    meaning: str
    values: list[Value]


class TaskMetrics:
    """The metrics of the runs of tasks; safe between threads."""

    def __init__(self) -> None:
        self._lock = process_lock()
        #: By name, kind and meaning, and then by labels.
        self._values: dict[tuple[str, Kind, str], dict[tuple[tuple[str, str], ...], float]] = {}

    def note(self, run: TaskRun, ended_ms: int) -> None:
        root = ("root", run.root)
        labels = ("task", run.task), root
        with self._lock:
            self._stat("task_runs", "counter", "runs of a task")[labels] += 1
            self._stat("task_seconds", "counter", "how long the runs of a task took")[labels] += run.seconds
            self._stat("task_errors", "counter", "topics and roots at which a run failed")[labels] += len(run.errors)
            last = self._stat("task_last_run_timestamp_seconds", "gauge", "when the last run of a task ended")
            last[labels] = ended_ms / 1000
            failing = self._stat("task_failing", "gauge", "topics and roots at which the last run failed")
            failing[labels] = len(run.errors)
            for name, count in run.counts.items():
                metric = f"{run.task.replace('-', '_')}_{name}"
                self._stat(metric, "counter", f"{name.replace('_', ' ')} of {run.task}")[(root,)] += count

    def metrics(self) -> list[Metric]:
        with self._lock:
            return [
                Metric(f"distlog_{name}", kind, meaning, [(dict(labels), value) for labels, value in values.items()])
                for (name, kind, meaning), values in self._values.items()
            ]

    def _stat(self, name: str, kind: Kind, meaning: str) -> dict[tuple[tuple[str, str], ...], float]:
        return self._values.setdefault((name, kind, meaning), defaultdict(float))


#: The kinds and meanings of metrics, by name. A counter sums up all processes; only local partitions have counters.
_LOG_METRICS: Mapping[str, tuple[Kind, str]] = {
    "root_offline": ("gauge", "1 if the root did not respond at the last scan"),
    "topics": ("gauge", "loaded topics"),
    "log_start_offset": ("gauge", "first readable offset"),
    "log_end_offset": ("gauge", "next offset to be assigned"),
    "log_size_bytes": ("gauge", "bytes of the log files"),
    "log_segments": ("gauge", "live segments"),
    "log_late_transaction": ("gauge", "1 if a transaction is open for longer than any coordinator allows"),
    "log_appends": ("counter", "direct appends"),
    "log_append_bytes": ("counter", "bytes of direct appends"),
    "log_append_seconds": ("counter", "how long direct appends took, with the wait for the lock"),
    "log_flushes": ("counter", "syncs of active segments"),
    "log_flush_seconds": ("counter", "how long syncs of active segments took"),
}


def log_metrics(directories: Iterable[LogDirectory]) -> list[Metric]:
    """Return the state of roots and partitions at the last scan. Makes no request to an object store."""
    values: dict[str, list[Value]] = {name: [] for name in _LOG_METRICS}
    for directory in directories:
        root, topics = {"root": directory.url}, directory.topics
        values["root_offline"].append((root, float(directory.is_offline)))
        values["topics"].append((root, float(len(topics))))
        for topic_name, topic in topics.items():
            # a topic gets metrics of all its partitions, or none if one cannot be read; the failed task reports it
            with suppress(DistlogError, OSError):
                for number, metrics in enumerate(list(_partition_metrics(topic))):
                    labels = {**root, "topic": topic_name, "partition": str(number)}
                    for name, value in metrics.items():
                        values[name].append((labels, float(value)))
    kinds_and_meanings = _LOG_METRICS.items()
    return [Metric(f"distlog_{name}", kind, meaning, values[name]) for name, (kind, meaning) in kinds_and_meanings]


def _partition_metrics(topic: Topic) -> Iterator[dict[str, float]]:
    time_ms = topic.clock()
    for number, state in enumerate(topic.live_snapshot.partitions):
        is_late = False
        # a batch that cannot be read must not hide the other metrics; readers report it
        with suppress(DistlogError):
            is_late = has_late_transaction(topic.reader, state, number, time_ms)
        metrics: dict[str, float] = {
            "log_start_offset": state.log_start_offset,
            "log_end_offset": state.log_end_offset,
            "log_size_bytes": int(state.segments.log_bytes.sum()),
            "log_segments": len(state.segments),
            "log_late_transaction": is_late,
        }
        folder = paths.partition_dir(topic.snapshot.name, number)
        counters = counters_in(topic.storage.local_path(folder)) if topic.storage.is_local else None
        if counters is not None:
            metrics |= {
                "log_appends": counters.appends,
                "log_append_bytes": counters.append_bytes,
                "log_append_seconds": counters.append_ns / 1e9,
                "log_flushes": counters.flushes,
                "log_flush_seconds": counters.flush_ns / 1e9,
            }
        yield metrics
