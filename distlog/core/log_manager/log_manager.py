"""Kafka's `LogManager`, without a broker: loads all topics below its roots, and runs the tasks that maintain them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Literal, NamedTuple

from distlog.core import paths
from distlog.core.errors import DistlogError, InvalidConfigError, TopicNotFoundError
from distlog.core.integers import MAX_LONG
from distlog.core.log.partition_lock import PartitionCounters, counters_in
from distlog.core.log_manager.broker_config import BrokerConfig
from distlog.core.log_manager.log_tasks import LogCleaner, LogDirectory, LogTasks, Scheduler, TaskRun, monotonic_ms
from distlog.core.read.fetch import has_late_transaction
from distlog.core.storage.parallel import process_lock
from distlog.core.storage.storage import Storage
from distlog.core.times import now_ms
from distlog.core.topic import Topic

#: How long `stop` waits for tasks; a task that runs longer is abandoned, as in a killed process.
STOP_TIMEOUT_S = 8.0


class LogManager:
    """All topics in one or more roots, and Kafka's tasks on their schedule. Use it in a `with` block.

    Each root has its own tasks, so a root that does not answer does not delay the other roots. A failure in one topic
    is logged, counted and retried at the task's next run. An abandoned task does no harm, like a killed process: what
    it wrote applies only with its commit.

    Args:
        roots: The address of a folder of topics, or several.
        config: Broker settings by Kafka's names.
        storage_options: Options of the storage of all roots.
        on_run: Called after each run of a task, in the task's thread; its errors are logged.
        clock: Returns ms since 1970.
        scheduler_clock: Returns ms that never decrease.
        may_run: While it returns False, since another process runs the tasks, the topics are only loaded.

    Raises:
        InvalidConfigError: A setting is not valid, or no root.
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
            LogDirectory(
                storage,
                self.config.topic_defaults,
                clock,
                lambda: self._scheduler.is_stopping,
                self.config.producer_id_expiration_ms,
            )
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
        topics = [topic for directory in self._directories for topic in directory.find([name])]
        if len(topics) != 1:
            text = "several roots have this topic: give its URL" if topics else "the topic is not loaded"
            raise TopicNotFoundError(text, topic=name)
        return topics[0]

    @property
    def errors(self) -> dict[str, dict[str, str]]:
        """The current failures: by task, the reason by the URL of the topic or root."""
        by_task: dict[str, dict[str, str]] = {}
        for (task, _), errors in sorted(self._errors.items()):
            if errors:
                by_task.setdefault(task, {}).update(errors)
        return by_task

    def metrics(self) -> list[Metric]:
        """Return all counters, and the partitions' state at the last scan; makes no storage request."""
        return [*log_metrics(self._directories), *self._metrics.metrics()]

    def load(self) -> LogManager:
        """Load the topics of all roots now, in parallel; returns this manager."""
        self._scheduler.run(LOAD_LOGS)
        return self

    def run_due(self) -> None:
        """Run the due tasks in this thread, for callers that do not `start`."""
        self._scheduler.run_due()

    def run_once(self) -> bool:
        """Run each task once, in this thread; returns True if none failed."""
        self._scheduler.run_all()
        return not self.errors

    def start(self) -> LogManager:
        """Start the threads of the tasks; returns at once, before the topics are loaded."""
        self._scheduler.start()
        return self

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> bool:
        """Stop the threads of the tasks.

        Args:
            timeout_s: How long to wait for a task, in seconds.

        Returns:
            False if a task still runs, and is abandoned.
        """
        return self._scheduler.stop(timeout_s)

    def __enter__(self) -> LogManager:
        """Load the topics, then start the threads."""
        return self.load().start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _schedule(self, directory: LogDirectory) -> None:
        config, tasks = self.config, LogTasks(directory)
        cleaner = LogCleaner(directory, config.retention_check_interval_ms)
        check_ms = config.retention_check_interval_ms

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
            points_ms = config.flush_offset_checkpoint_interval_ms
            starts_ms = config.flush_start_offset_checkpoint_interval_ms
            if config.flush_scheduler_interval_ms < MAX_LONG:
                task("log-flusher", tasks.flush_dirty_logs, config.flush_scheduler_interval_ms)
            task("recovery-point-offset-checkpoint", tasks.checkpoint_recovery_points, points_ms, at_stop=True)
            task("log-start-offset-checkpoint", tasks.checkpoint_log_start_offsets, starts_ms, at_stop=True)

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
        # a reason is logged once, even if several tasks fail for it
        logged = {item for errors in list(self._errors.values()) for item in errors.items()}
        self._errors[run.task, run.root] = run.errors
        for url, reason in run.errors.items():
            if (url, reason) not in logged:
                _log.warning("%s failed at %s: %s", run.task, url, reason)
        try:
            if self._on_run:
                self._on_run(run)
        except Exception as error:
            # the next runs still happen
            _log.warning("on_run failed after %s: %s: %s", run.task, type(error).__name__, error)


#: The counters of each partition on a local disk, of all processes.
_COUNTERS = {
    "appends": "direct appends",
    "append_bytes": "bytes of direct appends",
    "append_seconds": "how long direct appends took, with the wait for the lock",
    "flushes": "syncs of active segments",
    "flush_seconds": "how long syncs of active segments took",
}

_LATE = "1 if a transaction is open for longer than any coordinator allows"

Labels = Mapping[str, str]
Value = tuple[Labels, float]


class Metric(NamedTuple):
    """A metric, with a value for each set of labels."""

    name: str
    kind: Literal["counter", "gauge"]
    meaning: str
    values: list[Value]


class TaskMetrics:
    def __init__(self) -> None:
        self._lock = process_lock()
        self._metrics: dict[str, Metric] = {}

    def note(self, run: TaskRun, ended_ms: int) -> None:
        labels = {"task": run.task, "root": run.root}
        with self._lock:
            self._add("task_runs", "runs of a task", labels, 1)
            self._add("task_seconds", "how long the runs of a task took", labels, run.seconds)
            self._add("task_errors", "topics and roots at which a run failed", labels, len(run.errors))
            last = self._metric("task_last_run_timestamp_seconds", "gauge", "when the last run of a task ended")
            _set(last, labels, ended_ms / 1000)
            failing = self._metric("task_failing", "gauge", "topics and roots at which the last run failed")
            _set(failing, labels, len(run.errors))
            for name, count in run.counts.items():
                task = run.task.replace("-", "_")
                self._add(f"{task}_{name}", f"{name.replace('_', ' ')} of {run.task}", {"root": run.root}, count)

    def metrics(self) -> list[Metric]:
        with self._lock:
            return [metric._replace(values=list(metric.values)) for metric in self._metrics.values()]

    def _add(self, name: str, meaning: str, labels: Labels, count: float) -> None:
        metric = self._metric(name, "counter", meaning)
        previous = next((value for value_labels, value in metric.values if value_labels == labels), 0.0)
        _set(metric, labels, previous + count)

    def _metric(self, name: str, kind: Literal["counter", "gauge"], meaning: str) -> Metric:
        return self._metrics.setdefault(name, Metric(f"distlog_{name}", kind, meaning, []))


def _set(metric: Metric, labels: Labels, value: float) -> None:
    metric.values[:] = [labelled for labelled in metric.values if labelled[0] != labels]
    metric.values.append((labels, value))


def log_metrics(directories: Iterable[LogDirectory]) -> list[Metric]:
    """The state of the roots and of each partition at the last scan; makes no request to an object store."""
    directories = list(directories)
    offline: list[Value] = [({"root": directory.url}, float(directory.is_offline)) for directory in directories]
    topics: list[Value] = [({"root": directory.url}, float(len(directory.topics))) for directory in directories]
    metrics = [
        Metric("distlog_root_offline", "gauge", "1 if the root did not answer at the last look", offline),
        Metric("distlog_topics", "gauge", "loaded topics", topics),
        Metric("distlog_log_start_offset", "gauge", "first readable offset", []),
        Metric("distlog_log_end_offset", "gauge", "next offset to be assigned", []),
        Metric("distlog_log_size_bytes", "gauge", "bytes of the log files", []),
        Metric("distlog_log_segments", "gauge", "live segments", []),
        Metric("distlog_log_late_transaction", "gauge", _LATE, []),
    ]
    counter_metrics = [Metric(f"distlog_log_{name}", "counter", meaning, []) for name, meaning in _COUNTERS.items()]
    for directory in directories:
        for name, topic in directory.topics.items():
            # a topic that cannot be read is left out; the failed task reports it
            with suppress(DistlogError, OSError):
                for labels, numbers in list(_partitions({"root": directory.url, "topic": name}, topic)):
                    for metric, number in zip(metrics[2:], numbers, strict=True):
                        metric.values.append((labels, float(number)))
                for labels, counters in _counted({"root": directory.url, "topic": name}, topic):
                    for metric, total in zip(counter_metrics, _numbers(counters), strict=True):
                        metric.values.append((labels, total))
    return [*metrics, *counter_metrics]


def _partitions(of: Labels, topic: Topic) -> Iterator[tuple[Labels, tuple[int, ...]]]:
    now_ms = topic.clock()
    for number, state in enumerate(topic.live_snapshot.partitions):
        size, is_late = int(state.segments.log_bytes.sum()), False
        # readers report a batch that cannot be read; it hides no other metric
        with suppress(DistlogError):
            is_late = has_late_transaction(topic.reader, state, number, now_ms)
        yield (
            {**of, "partition": str(number)},
            (state.log_start_offset, state.log_end_offset, size, len(state.segments), is_late),
        )


def _counted(of: Labels, topic: Topic) -> Iterator[tuple[Labels, PartitionCounters]]:
    if not topic.storage.is_local:
        return
    for number in range(len(topic.snapshot.partitions)):
        folder = topic.storage.local_path(paths.partition_dir(topic.snapshot.name, number))
        counters = counters_in(folder)
        if counters is not None:
            yield {**of, "partition": str(number)}, counters


def _numbers(counters: PartitionCounters) -> tuple[float, ...]:
    append_s, flush_s = counters.append_ns / 1e9, counters.flush_ns / 1e9
    return counters.appends, counters.append_bytes, append_s, counters.flushes, flush_s


LOAD_LOGS = "load-logs"

#: The work of a task on a root, which fills in the counts and errors of its run.
Work = Callable[[TaskRun], None]

_log = logging.getLogger(__name__)
