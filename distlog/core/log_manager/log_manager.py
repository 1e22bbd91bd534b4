"""Kafka's `LogManager`, without a broker: loads all topics below its roots, and runs the tasks that maintain them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import TracebackType
from typing import Any

from distlog.core.config import MAX_LONG
from distlog.core.errors import InvalidConfigError, TopicNotFoundError
from distlog.core.log_manager.broker_config import BrokerConfig
from distlog.core.log_manager.log_cleaner import LogCleaner
from distlog.core.log_manager.log_directory import LogDirectory
from distlog.core.log_manager.log_tasks import LogTasks
from distlog.core.log_manager.metrics import Metric, TaskMetrics, log_metrics
from distlog.core.log_manager.scheduler import Scheduler, monotonic_ms
from distlog.core.log_manager.task_run import TaskRun
from distlog.core.storage.storage import Storage
from distlog.core.times import now_ms
from distlog.core.topics.topic import Topic

#: How long the end of a LogManager waits for tasks; what runs longer is abandoned, as a killed process would do.
STOP_TIMEOUT_S = 8.0
LOAD_LOGS = "load-logs"

#: The work of a task on a root. It counts what it does, and what fails.
Work = Callable[[TaskRun], None]

_log = logging.getLogger(__name__)


class LogManager:
    """All topics below one or more roots, and Kafka's tasks on their schedule. Use it in a `with` block.

    Each root has its own tasks, so a root that does not answer holds up no other. A failure in one topic is logged,
    counted and tried again at the task's next run. As a killed process, an abandoned task does no harm: whatever it
    wrote counts only with its commit.

    `config` are Kafka's broker settings (BrokerConfig). `on_run` is called after each run of a task, from the task's
    thread; what it raises is logged. `clock` gives ms since 1970, `scheduler_clock` ms that never go back. While
    `may_run` says no, since another process runs the tasks, the topics are only looked at.
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
        """Raises InvalidConfigError for a setting, StorageError for a root that is no address."""
        self.config = BrokerConfig.parse(config or {})
        self._clock, self._scheduler_clock, self._on_run = clock, scheduler_clock, on_run
        self._may_run = may_run
        self._scheduler = Scheduler(scheduler_clock)
        self._metrics = TaskMetrics()
        self._errors: dict[tuple[str, str], dict[str, str]] = {}
        storages = {one.url: one for one in (Storage(root, storage_options) for root in _listed(roots))}
        if not storages:
            raise InvalidConfigError("a LogManager needs at least one root")
        self._directories = [
            LogDirectory(one, self.config.topic_defaults, clock, lambda: self._scheduler.is_stopping)
            for one in storages.values()
        ]
        for directory in self._directories:
            self._schedule(directory)

    @property
    def roots(self) -> list[str]:
        """The addresses of the roots, without credentials."""
        return [directory.url for directory in self._directories]

    @property
    def topics(self) -> list[Topic]:
        """The loaded topics, by root and name; the broker settings are in effect for what is done with these."""
        return [topic for directory in self._directories for topic in directory.topics.values()]

    def topic(self, name: str) -> Topic:
        """The loaded topic with this name or URL; TopicNotFoundError if there is none, or if two have the name."""
        found = [topic for directory in self._directories for topic in directory.find([name])]
        if len(found) != 1:
            text = "several roots have this topic: give its URL" if found else "no such topic is loaded"
            raise TopicNotFoundError(text, topic=name)
        return found[0]

    @property
    def errors(self) -> dict[str, dict[str, str]]:
        """What fails at present: by task, the reason by the URL of the topic or root."""
        found: dict[str, dict[str, str]] = {}
        for (task, _), errors in sorted(self._errors.items()):
            if errors:
                found.setdefault(task, {}).update(errors)
        return found

    def metrics(self) -> list[Metric]:
        """All counters, and the partitions' state at the last look; no storage is asked."""
        return [*log_metrics(self._directories), *self._metrics.metrics()]

    def load(self) -> LogManager:
        """Load the topics of all roots now, in parallel; returns this manager."""
        self._scheduler.run(LOAD_LOGS)
        return self

    def run_due(self) -> None:
        """Run the tasks that are due by the clock, in this thread; for callers that do not `start`."""
        self._scheduler.run_due()

    def run_once(self) -> bool:
        """Run each task once, in this thread; returns whether all went well."""
        self._scheduler.run_all()
        return not self.errors

    def start(self) -> LogManager:
        """Begin the threads of the tasks; returns at once, before the topics are loaded."""
        self._scheduler.start()
        return self

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> bool:
        """End the threads; returns False if some task still runs after `timeout_s`: it is abandoned."""
        return self._scheduler.stop(timeout_s)

    def __enter__(self) -> LogManager:
        """Load the topics, then begin the threads."""
        return self.load().start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
            points_ms, starts_ms = (
                config.flush_offset_checkpoint_interval_ms,
                config.flush_start_offset_checkpoint_interval_ms,
            )
            if config.flush_scheduler_interval_ms < MAX_LONG:
                task("log-flusher", tasks.flush_dirty_logs, config.flush_scheduler_interval_ms)
            task("transaction-abort", tasks.end_transactions, config.transaction_abort_interval_ms)
            task("recovery-point-offset-checkpoint", tasks.checkpoint_recovery_points, points_ms, at_stop=True)
            task("log-start-offset-checkpoint", tasks.checkpoint_log_start_offsets, starts_ms, at_stop=True)

    def _run(self, task: str, directory: LogDirectory, work: Work) -> None:
        """Run a task on a root. Whatever fails is noted, so that the task runs again."""
        if task != LOAD_LOGS and (not directory.wait_until_loaded() or directory.is_offline or not self._may_run()):
            return
        run, started_ms = TaskRun(task, directory.url, self._clock()), self._scheduler_clock()
        try:
            work(run)
        except Exception as error:
            run.failed(directory.url, error)
        run.seconds = (self._scheduler_clock() - started_ms) / 1000
        self._metrics.note(run, self._clock())
        self._tell(run)

    def _tell(self, run: TaskRun) -> None:
        """Log what fails now, once, whatever other tasks fail for the same reason."""
        known = {item for errors in list(self._errors.values()) for item in errors.items()}
        self._errors[run.task, run.root] = run.errors
        for url, error in run.errors.items():
            if (url, error) not in known:
                _log.warning("%s failed at %s: %s", run.task, url, error)
        try:
            if self._on_run:
                self._on_run(run)
        except Exception as error:
            # such as an output that nobody reads any more: the task goes on
            _log.warning("on_run failed after %s: %s: %s", run.task, type(error).__name__, error)


def _listed(roots: str | Iterable[str]) -> list[str]:
    return [roots] if isinstance(roots, str) else list(roots)
