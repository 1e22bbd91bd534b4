"""The tasks of one root besides cleaning: retention, deleting files, flushing, and Kafka's checkpoint files.

Their names and rules are those of Kafka's `LogManager`. Several processes may run them over the same root: each of
them may run beside itself, appends and readers.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from functools import partial

from distlog.core.errors import StorageError
from distlog.core.kafka_directory.checkpoint_files import LOG_START_OFFSETS, RECOVERY_POINTS, write_offsets
from distlog.core.kafka_directory.directory_names import PartitionName
from distlog.core.log.partition.partition_log import PartitionLog
from distlog.core.log_manager.log_directory import FoundTopic, LogDirectory
from distlog.core.log_manager.scheduler import monotonic_ms
from distlog.core.log_manager.task_run import TaskRun
from distlog.core.maintenance.vacuuming.vacuum import VacuumReport, vacuum
from distlog.core.topics.topic import Topic


class LogTasks:
    """The tasks of `directory`, with what they must know of their runs before."""

    def __init__(self, directory: LogDirectory) -> None:
        self._directory, self._clock = directory, directory.clock
        self._vacuumed_ms: dict[str, int] = {}

    def clean_up_logs(self, run: TaskRun) -> None:
        """`log-retention`: delete the segments that each topic no longer keeps."""

        def retain(topic: Topic) -> None:
            deleted = topic.retention().to_dict()
            run.add(deleted_segments=deleted["segments"])
            run.add(deleted_bytes=deleted["bytes"], deleted_records=deleted["records"])

        self._directory.each_topic(run, retain)

    def delete_logs(self, run: TaskRun) -> None:
        """`delete-logs`: vacuum each topic when its `file.delete.delay.ms` has passed since the last time."""
        self._directory.each_topic(run, lambda topic: self._vacuum(run, topic, topic.vacuum))
        for dropped in self._directory.dropped.values():
            if self._directory.is_stopping():
                return
            try:
                self._vacuum(run, dropped, partial(vacuum, dropped.storage, dropped.log))
            except Exception as error:
                run.failed(dropped.storage.url, error)

    def _vacuum(self, run: TaskRun, topic: Topic | FoundTopic, work: Callable[[], VacuumReport]) -> None:
        url, delay_ms, now_ms = topic.storage.url, topic.snapshot.config.file_delete_delay_ms, self._clock()
        if now_ms - self._vacuumed_ms.get(url, -delay_ms) < delay_ms:
            return
        report = work()
        self._vacuumed_ms[url] = now_ms
        run.add(vacuumed_topics=1, deleted_files=len(report.files), deleted_bytes=report.bytes)

    def end_transactions(self, run: TaskRun) -> None:
        """`transaction-abort`: abort transactions whose timeout has passed, and finish those that are decided."""
        self._directory.each_topic(run, lambda topic: run.add(ended_transactions=topic.end_transactions()))

    def flush_dirty_logs(self, run: TaskRun) -> None:
        """`log-flusher`: flush the active segments whose flush policy asks for it now, whoever appends to them."""

        def flush(topic: Topic) -> None:
            for partition in _active(topic):
                with _log(topic, partition) as log:
                    started_ms = monotonic_ms()
                    if log.flush_if_due():
                        run.add(flushes=1, flush_seconds=(monotonic_ms() - started_ms) / 1000)

        self._directory.each_topic(run, flush)

    def checkpoint_recovery_points(self, run: TaskRun) -> None:
        """`recovery-point-offset-checkpoint`: write up to where each partition is on the device.

        When the manager stops, all logs are flushed then, so that nothing of them is walked after a restart of the
        machine: Kafka's clean shutdown. Before that, the flush policy says what is flushed.
        """
        self._checkpoint(run, RECOVERY_POINTS, _recovery_points)
        if self._directory.is_stopping():
            # behind the file, since this may take longer than the manager waits
            self._end_cleanly(run)
            self._checkpoint(run, RECOVERY_POINTS, _recovery_points)

    def _end_cleanly(self, run: TaskRun) -> None:
        for name, topic in self._directory.topics.items():
            self._directory.attempt(run, name, topic, partial(_end_cleanly, run))

    def checkpoint_log_start_offsets(self, run: TaskRun) -> None:
        """`log-start-offset-checkpoint`: write the log start offsets that the first segments do not show."""
        self._checkpoint(run, LOG_START_OFFSETS, _log_start_offsets)

    def _checkpoint(self, run: TaskRun, file: str, of_topic: Callable[[Topic], dict[int, int]]) -> None:
        directory, offsets = self._directory, dict[PartitionName, int]()
        if not os.path.isdir(directory.storage.local_path("")):
            return  # the root is not there yet

        def note(name: str, topic: Topic) -> None:
            found = of_topic(topic.refresh())
            offsets.update({PartitionName(name, partition): offset for partition, offset in found.items()})

        for name, topic in directory.topics.items():
            directory.attempt(run, name, topic, partial(note, name))
        try:
            directory.storage.put(file, write_offsets(offsets))
        except Exception as error:
            run.failed(directory.url, error)


def _active(topic: Topic) -> list[int]:
    """The partitions that have an active segment now."""
    return [number for number, state in enumerate(topic.refresh().snapshot.partitions) if state.active]


def _log(topic: Topic, partition: int) -> closing[PartitionLog]:
    return closing(PartitionLog(topic.handle, partition, topic.current))


def _end_cleanly(run: TaskRun, topic: Topic) -> None:
    for partition in _active(topic):
        with _log(topic, partition) as log:
            try:
                log.checkpoint()
            except StorageError as error:
                # the other partitions are on a disk that may do
                run.failed(topic.url, error)


def _recovery_points(topic: Topic) -> dict[int, int]:
    # a sealed segment was synced before its commit
    points = {number: state.log_end_offset for number, state in enumerate(topic.snapshot.partitions)}
    for partition in _active(topic):
        with _log(topic, partition) as log:
            points[partition] = log.end().flushed_offset
    return points


def _log_start_offsets(topic: Topic) -> dict[int, int]:
    """As Kafka, only those above the first segment's base offset; where no segment is left, those above 0."""
    found = {}
    for number, state in enumerate(topic.live_snapshot.partitions):
        first = int(state.segments.base_offsets[0]) if len(state.segments) else 0
        if state.log_start_offset > first:
            found[number] = state.log_start_offset
    return found
