"""The tasks of one root: retention, vacuum, flushes, Kafka's checkpoint files, compaction and merging."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from distlog.core import paths
from distlog.core.commits.commit_log import CommitLog
from distlog.core.commits.snapshot import Snapshot
from distlog.core.errors import DistlogError, StorageError, TopicNotFoundError
from distlog.core.kafka.partition_folder import (
    LOG_START_OFFSETS,
    META_PROPERTIES,
    RECOVERY_POINTS,
    PartitionName,
    parse_partition_folder,
    write_offsets,
)
from distlog.core.log.partition_log import PartitionLog
from distlog.core.log_manager.broker_config import BrokerConfig
from distlog.core.maintain.compaction import CompactionReport, compact, plan_compaction
from distlog.core.maintain.merge import merge, plan_merge
from distlog.core.maintain.vacuum import VacuumReport, vacuum
from distlog.core.opening import copies_in
from distlog.core.segments.segment_reader import TopicHandle, topic_log
from distlog.core.storage.calls import in_parallel, process_lock
from distlog.core.storage.storage import Storage
from distlog.core.times import monotonic_ms
from distlog.core.topic import Topic

_STOP_CHECK_S = 0.5  # how often a task that waits for the first load checks whether the manager is stopping
_MAX_WAIT_S = 3600.0  # the longest wait of a thread, since the system call has a limit


class LogTasks:
    """The tasks of a root except compaction and merging, named as in Kafka. Several processes may run a task."""

    def __init__(self, directory: LogDirectory) -> None:
        self._directory, self._clock = directory, directory.clock
        self._vacuumed_ms: dict[str, int] = {}

    def clean_up_logs(self, run: TaskRun) -> None:
        """`log-retention`: delete the segments that each topic no longer keeps."""
        for topic in self._directory.topics_until_stop():
            with self._directory.failures_noted(run, topic):
                deleted = topic.retention().to_dict()
                run.add(**{f"deleted_{name}": deleted[name] for name in ("segments", "bytes", "records")})

    def delete_logs(self, run: TaskRun) -> None:
        """`delete-logs`: vacuum each topic when its `file.delete.delay.ms` has passed since the last time."""
        for topic in self._directory.topics_until_stop():
            with self._directory.failures_noted(run, topic):
                self._vacuum_if_due(run, topic, topic.vacuum)
        for dropped in self._directory.dropped.values():
            if self._directory.is_stopping():
                return
            try:
                self._vacuum_if_due(run, dropped, partial(vacuum, dropped.storage, dropped.log))
            except Exception as error:
                run.failed(dropped.storage.url, error)

    def _vacuum_if_due(self, run: TaskRun, topic: Topic | DroppedTopic, work: Callable[[], VacuumReport]) -> None:
        url, delay_ms, now_ms = topic.storage.url, topic.snapshot.config.file_delete_delay_ms, self._clock()
        vacuumed_ms = self._vacuumed_ms.get(url)
        # the difference is negative if the clock was set back, which must not delay the vacuum
        if vacuumed_ms is not None and 0 <= now_ms - vacuumed_ms < delay_ms:
            return
        report = work()
        self._vacuumed_ms[url] = now_ms
        run.add(vacuumed_topics=1, deleted_files=len(report.files), deleted_bytes=report.bytes)

    def flush_dirty_logs(self, run: TaskRun) -> None:
        """`log-flusher`: flush the active segments whose flush policy requires it, whichever process appends."""
        for topic in self._directory.topics_until_stop():
            with self._directory.failures_noted(run, topic):
                for partition in topic.refresh().snapshot.active_partitions:
                    with _open_log(topic, partition) as log:
                        started_ms = monotonic_ms()
                        if log.flush_if_due():
                            run.add(flushes=1, flush_seconds=(monotonic_ms() - started_ms) / 1000)

    def checkpoint_recovery_points(self, run: TaskRun) -> None:
        """`recovery-point-offset-checkpoint`: write durable ends of partitions; at a stop, flush and write again."""
        self._checkpoint(run, RECOVERY_POINTS, _recovery_points)
        if self._directory.is_stopping():
            # the file was written before the flushes, too, since the flushes may take longer than the manager waits
            for topic in self._directory.topics.values():
                with self._directory.failures_noted(run, topic):
                    _flush_active_logs(run, topic)
            self._checkpoint(run, RECOVERY_POINTS, _recovery_points)

    def checkpoint_log_start_offsets(self, run: TaskRun) -> None:
        """`log-start-offset-checkpoint`: write the log start offsets that are not the base offset of a segment."""
        self._checkpoint(run, LOG_START_OFFSETS, _log_start_offsets)

    def _checkpoint(self, run: TaskRun, file: str, offsets_of: Callable[[Topic], dict[int, int]]) -> None:
        directory, offsets = self._directory, dict[PartitionName, int]()
        root = directory.storage.local_path("")
        if not os.path.isdir(root):
            return
        names = set(os.listdir(root)) - directory.topics.keys() - directory.dropped.keys()
        if META_PROPERTIES in names or any(map(parse_partition_folder, names)):
            # the root is the log directory of a broker, which writes these files itself
            return
        for name, topic in directory.topics.items():
            with directory.failures_noted(run, topic):
                for partition, offset in offsets_of(topic.refresh()).items():
                    offsets[PartitionName(name, partition)] = offset
        try:
            directory.storage.put(file, write_offsets(offsets))
        except Exception as error:
            run.failed(directory.url, error)


class DroppedTopic(NamedTuple):
    """A dropped topic below a root, whose files vacuum deletes."""

    storage: Storage
    log: CommitLog
    snapshot: Snapshot


class LogDirectory:
    """The loaded and the dropped topics of a root, by the names of their folders. Safe between threads."""

    def __init__(
        self, storage: Storage, config: BrokerConfig, clock: Callable[[], int], is_stopping: Callable[[], bool]
    ) -> None:
        self.storage, self.clock, self.is_stopping = storage, clock, is_stopping
        self._config = config
        self._lock = process_lock()  # for threads; free in a forked child
        self._topics: dict[str, Topic] = {}
        self._dropped: dict[str, DroppedTopic] = {}
        self.is_offline = False
        self._loaded = threading.Event()

    @property
    def url(self) -> str:
        return self.storage.url

    @property
    def topics(self) -> dict[str, Topic]:
        with self._lock:
            return dict(sorted(self._topics.items()))

    @property
    def dropped(self) -> dict[str, DroppedTopic]:
        with self._lock:
            return dict(sorted(self._dropped.items()))

    def wait_until_loaded(self) -> bool:
        """Wait for the first load. Returns False if the manager stops before it."""
        while not self._loaded.wait(_STOP_CHECK_S):
            if self.is_stopping():
                return False
        return True

    def load_logs(self, run: TaskRun) -> None:
        """Find the topics below the root: load new ones, in parallel, and forget deleted ones."""
        try:
            self._load_logs(run)
        finally:
            self._loaded.set()

    def _load_logs(self, run: TaskRun) -> None:
        try:
            folders = self.storage.list_folders()
        except Exception as error:
            self.is_offline = True
            run.failed(self.url, error)
            return
        self.is_offline = False
        names = {name for name in folders if paths.may_be_topic_folder(name)}
        # links to topics are not loaded, since tasks delete files
        for link in self.storage.links() if self.storage.is_local else ():
            if os.path.isdir(self.storage.local_path(f"{link}/{paths.COMMITS_DIR}")):
                text = "links to topics are not followed: pass the folder that contains the topic as a root"
                run.failed(f"{self.url}/{link}", text)
        if not names and not self.storage.exists():
            run.failed(self.url, "the root does not exist: check the address, or create a topic in it")
        topics = self.topics
        for name in (topics.keys() | self.dropped.keys()) - names:
            self._forget(name)
        in_parallel(partial(self._refresh, run), [topics[name] for name in topics.keys() & names])
        loaded = in_parallel(partial(self._load, run), names - self.topics.keys())
        run.add(loaded_topics=sum(loaded))
        for name, text in copies_in(self.topics.values()).items():  # errors of topics with the id of another topic
            run.failed(f"{self.url}/{name}", text)
        if paths.COMMITS_DIR in folders and not self.topics:
            run.failed(self.url, "the root is a topic, not a folder of topics: pass the folder that contains it")

    def topics_until_stop(self) -> Iterator[Topic]:
        """Yield the loaded topics. Ends early when the manager stops."""
        for topic in self.topics.values():
            if self.is_stopping():
                return
            yield topic

    @contextmanager
    def failures_noted(self, run: TaskRun, topic: Topic) -> Iterator[None]:
        """Note a failure of the block in `run`, or forget the topic if it was dropped."""
        try:
            yield
        except TopicNotFoundError:
            self._forget(paths.last_part(topic.url), topic)
        except Exception as error:
            run.failed(topic.url, error)

    def _refresh(self, run: TaskRun, topic: Topic) -> None:
        with self.failures_noted(run, topic):
            topic.refresh()

    def _load(self, run: TaskRun, name: str) -> bool:
        storage, dropped = self.storage.child(name), self.dropped.get(name)
        try:
            # the commits of a dropped topic are not read again at each scan, since there may be many dropped topics
            if dropped:
                log = dropped.log
            else:
                log = topic_log(storage, self.clock, engine="LogManager", defaults=self._config.topic_defaults)
            snapshot = log.load(include_dropped=True, cached=dropped.snapshot if dropped else None)
        except TopicNotFoundError:
            self._forget(name)
        except Exception as error:
            run.failed(storage.url, error)
        else:
            expiration_ms = self._config.producer_id_expiration_ms
            handle = TopicHandle.of(storage, snapshot.name, log, self.clock, producer_expiration_ms=expiration_ms)
            with self._lock:
                self._dropped.pop(name, None)
                if snapshot.dropped:
                    self._dropped[name] = DroppedTopic(storage, log, snapshot)
                else:
                    self._topics[name] = Topic(handle, snapshot)
            return not snapshot.dropped
        return False

    def _forget(self, name: str, topic: Topic | None = None) -> None:
        """Forget the topic of this name; with `topic`, only if the name still stands for that topic."""
        with self._lock:
            if topic is None or self._topics.get(name) is topic:
                self._topics.pop(name, None)
                self._dropped.pop(name, None)


class _DirtyLog(NamedTuple):
    dirty_ratio: float  # the share of its bytes that compaction has not cleaned yet
    topic: Topic
    partition: int


class _PausedPartition(NamedTuple):
    until_ms: int
    error: str


class LogCleaner:
    """Compacts the partitions of one root, the dirtiest first; a partition that fails is retried after `retry_ms`."""

    def __init__(self, directory: LogDirectory, retry_ms: int) -> None:
        self._directory, self._retry_ms = directory, retry_ms
        self._paused: dict[tuple[str, int], _PausedPartition] = {}  # by the topic's URL and the partition

    def clean_logs(self, run: TaskRun) -> None:
        """`log-cleaner`: compact the logs that are due, in passes, until a pass compacts none."""
        # drop a pause if it has ended, if a clock set back made it too long, or if its topic is no longer compacted
        urls, now_ms = {topic.url for topic in self._compacted_topics()}, self._directory.clock()
        self._paused = {
            log: pause
            for log, pause in self._paused.items()
            if log[0] in urls and 0 < pause.until_ms - now_ms <= self._retry_ms
        }
        while self._clean_pass(run) and not self._directory.is_stopping():
            pass
        # in reverse, to put each error in front of the errors of later partitions, unless these are the same error
        for (url, _), pause in sorted(self._paused.items(), reverse=True):
            error = run.errors.get(url)
            run.errors[url] = pause.error if error in (None, pause.error) else f"{pause.error}; {error}"

    def merge_segments(self, run: TaskRun) -> None:
        """`segment-merge`: merge small segments, in topics that are not compacted."""
        for topic in self._directory.topics_until_stop():
            with self._directory.failures_noted(run, topic):
                if plan_merge(topic.refresh().snapshot):
                    report, after = merge(topic.handle, topic.snapshot)
                    topic.advance(after)
                    if not report.ok:
                        run.failed(topic.url, str(report))
                    summary = report.to_dict()
                    run.add(merged_segments=summary["segments_before"], segments_made=summary["segments_after"])
                    run.add(merged_bytes=summary["bytes"])

    def _clean_pass(self, run: TaskRun) -> bool:
        """Compact each due partition once. Returns whether any was cleaned."""
        is_any_cleaned = False
        for log in self._dirtiest_first(run):
            if self._directory.is_stopping():
                break
            is_any_cleaned |= self._clean(run, log)
        return is_any_cleaned

    def _dirtiest_first(self, run: TaskRun) -> list[_DirtyLog]:
        due: list[_DirtyLog] = []
        for topic in self._compacted_topics():
            with self._directory.failures_noted(run, topic):
                dirty_logs = plan_compaction(topic.refresh().snapshot, self._directory.clock())
                logs = (log for log in dirty_logs if (topic.url, log.partition) not in self._paused)
                due += [_DirtyLog(log.dirty_ratio, topic, log.partition) for log in logs]
        return sorted(due, key=lambda log: -log.dirty_ratio)

    def _clean(self, run: TaskRun, log: _DirtyLog) -> bool:
        topic, is_cleaned = log.topic, False
        # a separate run collects the errors of this partition only
        partition_run = TaskRun(run.task, run.root, run.started_ms)
        with self._directory.failures_noted(partition_run, topic):
            report, after = compact(topic.handle, topic.snapshot, partitions=[log.partition])
            topic.advance(after)
            is_cleaned = _add_report(partition_run, topic, report)
        run.counts += partition_run.counts
        for error in partition_run.errors.values():
            until_ms = self._directory.clock() + self._retry_ms
            self._paused[topic.url, log.partition] = _PausedPartition(until_ms, error)
        return is_cleaned

    def _compacted_topics(self) -> list[Topic]:
        return [topic for topic in self._directory.topics.values() if "compact" in topic.config.cleanup_policy]


def _add_report(run: TaskRun, topic: Topic, report: CompactionReport) -> bool:
    """Add the counts and errors of a compaction to `run`. Returns whether a partition was cleaned."""
    for partition in report.partitions:
        if partition.error is not None:
            run.failed(topic.url, f"cannot clean partition {partition.partition}: {partition.error}")
    summary = report.to_dict()
    cleaned = [partition for partition in report.partitions if partition.rounds and partition.error is None]
    run.add(cleaned_partitions=len(cleaned))
    run.add(deleted_records=summary["records_before"] - summary["records_after"])
    run.add(cleaned_bytes=sum(partition.bytes_before for partition in cleaned))
    run.add(freed_bytes=summary["bytes_before"] - summary["bytes_after"])
    return bool(cleaned)


def _open_log(topic: Topic, partition: int) -> closing[PartitionLog]:
    return closing(PartitionLog(topic.handle, partition, topic.current))


def _flush_active_logs(run: TaskRun, topic: Topic) -> None:
    for partition in topic.refresh().snapshot.active_partitions:
        with _open_log(topic, partition) as log:
            try:
                log.checkpoint()
            except StorageError as error:
                # continue, since other partitions may be on another disk
                run.failed(topic.url, error)


def _recovery_points(topic: Topic) -> dict[int, int]:
    # a sealed segment was synced before its commit
    points = {number: state.log_end_offset for number, state in enumerate(topic.snapshot.partitions)}
    for partition in topic.refresh().snapshot.active_partitions:
        with _open_log(topic, partition) as log:
            points[partition] = log.end().flushed_offset
    return points


def _log_start_offsets(topic: Topic) -> dict[int, int]:
    """Return log start offsets above the first segment's base offset, or above 0 without a segment, as in Kafka."""
    offsets = {}
    for number, state in enumerate(topic.live_snapshot.partitions):  # with active segments
        first = int(state.segments.base_offsets[0]) if len(state.segments) else 0
        if state.log_start_offset > first:
            offsets[number] = state.log_start_offset
    return offsets


@dataclass(slots=True)
class _Task:
    name: str
    work: Callable[[], None]
    due_ms: int
    period_ms: int
    runs_at_stop: bool

    def run(self, clock: Callable[[], int]) -> None:
        """Run the task. The next run is due one period after this start, or at once if this run takes longer."""
        started_ms = clock()
        try:
            self.work()
        finally:
            self.due_ms = max(started_ms + self.period_ms, clock())


class Scheduler:
    """Runs periodic tasks, each in its own daemon thread. A task must not raise. `run_due` needs no threads."""

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
        """Stop the threads. Returns False if a task still runs after `timeout_s`."""
        self._stopping.set()
        deadline_s = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(deadline_s - time.monotonic(), 0))
        return not any(thread.is_alive() for thread in self._threads)

    def _serve(self, task: _Task) -> None:
        while not self._stopping.is_set():
            wait_s = (task.due_ms - self._clock()) / 1000
            if wait_s <= 0:
                task.run(self._clock)
            else:
                self._stopping.wait(min(wait_s, _MAX_WAIT_S))
        if task.runs_at_stop:
            task.run(self._clock)


@dataclass(slots=True)
class TaskRun:
    """A run of `task` over the topics of `root`: `counts` by name, `errors` by a topic's or root's URL."""

    task: str
    root: str
    started_ms: int
    seconds: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    errors: dict[str, str] = field(default_factory=dict)

    def add(self, **counts: float) -> None:
        for name, count in counts.items():
            self.counts[name] += count  # type: ignore[assignment]

    def failed(self, url: str, error: Exception | str) -> None:
        """Note the error at `url`, on one line."""
        if isinstance(error, Exception):
            text = " ".join(str(error).split())
            error = text if isinstance(error, DistlogError) and text else f"{type(error).__name__}: {text}"
        self.errors[url] = error

    def __str__(self) -> str:
        counts = ", ".join(f"{name} {count:,.6g}" for name, count in self.counts.items() if count)
        return f"{self.task} {self.root}: {counts or 'nothing to do'}"

    def to_dict(self) -> dict[str, object]:
        return {
            "task": self.task,
            "root": self.root,
            "started_ms": self.started_ms,
            "seconds": round(self.seconds, 6),
            "ok": not self.errors,
            "done": dict(self.counts),
            "errors": dict(self.errors),
        }
