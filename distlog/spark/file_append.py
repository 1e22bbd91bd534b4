"""Appends files: tasks read runs of splits and write their records, and the driver commits them in order."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession

from distlog.core import paths
from distlog.core.errors import InvalidRecordError
from distlog.core.files.file_reader import (
    FileReader,
    Part,
    RunReport,
    check_fields,
    files_without_records,
    runs_to_repeat,
)
from distlog.core.files.input_files import InputFile
from distlog.core.files.splits import OPEN_BYTES, Run, pack
from distlog.core.segments.segment_writer import codec_of
from distlog.core.write.append import AppendResult, check_room, replayed
from distlog.spark.sink import PlannedTopic, TaskWriter, WriteOptions, WrittenSegments, commit_written
from distlog.spark.spark_session import cores
from distlog.spark.tasks import run_tasks

if TYPE_CHECKING:
    # a worker of Python does not need all that it imports
    from distlog.core.topic import Topic

#: The driver reads files of no more work than this by itself: to start Python workers would take longer.
FEW_BYTES = 4 << 20
#: The work of a task: less is not worth its start, and what failed is done again.
LEAST_TASK, MOST_TASK = 8 << 20, 512 << 20
_TASKS_PER_CORE = 4
#: Splits are smaller than tasks, so that tasks have equal work; but each has the price of a read.
_SPLITS_PER_TASK, _LEAST_SPLIT = 4, 4 << 20
#: The most bytes that a task holds for its bundle.
HELD_BYTES = 32 << 20
#: On an object store a task gets at most this many bytes per partition, since it holds parts of uploads.
_PARTITION_BYTES = 4 << 20
#: How long a task keeps memory that is free.
_DECAY_MS = 100


@dataclass(frozen=True, slots=True)
class FilesResult:
    """The result of the commit, how many bad lines were left out, and the files that have bytes and no records."""

    appended: AppendResult
    skipped: int = 0
    without_records: Sequence[str] = ()


def append_files(
    spark: SparkSession, topic: Topic, reader: FileReader, files: Sequence[InputFile], options: WriteOptions
) -> FilesResult:
    """Append the records of `files` in one commit; within a partition they stand in the order of files and lines."""
    snapshot, app_id, batch_id = topic.snapshot, options.app_id, options.batch_id
    codec_of(topic.config, options.compression)
    check_room(snapshot, app_id, batch_id)
    planned = PlannedTopic.of(snapshot, app_id, batch_id)
    if planned.is_done:
        topic.storage.sync(paths.COMMITS_DIR)
        return FilesResult(replayed(snapshot, app_id, batch_id) or AppendResult(None))
    runs = _planned(reader, files, cores(spark), most_bytes(planned.partitions, is_local=options.storage.is_local))
    work = RunWork(reader, options, planned)
    is_small = sum(map(_work, files)) <= FEW_BYTES
    first = _checked([work(run) for run in runs] if is_small else run_tasks(spark, work, runs))
    finished_runs = _repeated(spark, work, runs, first)
    reports = [finished_run.report for finished_run in finished_runs]
    check_fields(reports)
    written = [finished_run.written for finished_run in finished_runs]
    appended = commit_written(options, planned, written, topic.handle, snapshot)
    without = [
        name
        for finished_run in finished_runs
        for name in files_without_records(finished_run.run, finished_run.report)
    ]
    return FilesResult(appended, sum(report.skipped for report in reports), without)


@dataclass(frozen=True, slots=True)
class RunDone:
    """A run of splits that was read and written."""

    run: Run
    written: WrittenSegments
    report: RunReport


@dataclass(frozen=True, slots=True)
class RunWork:
    """The work of a task: it reads a run of splits and writes the records as segments that wait for a commit."""

    reader: FileReader
    options: WriteOptions
    planned: PlannedTopic

    def __call__(self, run: Run) -> RunDone | InvalidRecordError:
        """An error of the input, which names the file and the line, is returned: to try again would not help."""
        _spare_memory()
        writer = TaskWriter(self.options.storage, self.planned, self.options.compression, "ms", HELD_BYTES)
        reading = self.reader.read(run)
        try:
            for part in reading:
                _append(writer, part)
        except InvalidRecordError as error:
            writer.abort()
            return error
        return RunDone(run, writer.close(), reading.report)


def _spare_memory() -> None:
    """Have Arrow return memory that is free, in a worker of Python: its default pool keeps half as much again."""
    if (
        TaskContext.get() is not None
        and "ARROW_DEFAULT_MEMORY_POOL" not in os.environ
        and "jemalloc" in pa.supported_memory_backends()
    ):
        pa.set_memory_pool(pa.jemalloc_memory_pool())
        pa.jemalloc_set_decay_ms(_DECAY_MS)


def _checked(results: Sequence[RunDone | InvalidRecordError]) -> list[RunDone]:
    """The runs that are done; raises the first error in the order of the input."""
    finished = [result for result in results if isinstance(result, RunDone)]
    if len(finished) < len(results):
        raise next(result for result in results if isinstance(result, InvalidRecordError))
    return finished


def _append(writer: TaskWriter, part: Part) -> None:
    try:
        writer.append(part.records)
    except InvalidRecordError as error:
        raise part.located(error) from None


def most_bytes(partitions: int, *, is_local: bool) -> int:
    """The largest work of a task, which bounds what it holds for uploads, of a part or more for each partition."""
    if is_local or partitions == 1:
        return MOST_TASK
    return min(max(_PARTITION_BYTES * partitions, 2 * HELD_BYTES), MOST_TASK)


def _planned(reader: FileReader, files: Sequence[InputFile], cores: int, most: int) -> list[Run]:
    """Runs of consecutive splits, one for each task, with about equal work, at most `most` bytes."""
    total = max(sum(map(_work, files)), 1)
    task_bytes = min(max(total // (cores * _TASKS_PER_CORE), LEAST_TASK), most)
    splits = reader.splits(files, max(task_bytes // _SPLITS_PER_TASK, _LEAST_SPLIT))
    return pack(splits, -(-total // task_bytes))


def _work(file: InputFile) -> int:
    return file.size + OPEN_BYTES


def _repeated(
    spark: SparkSession, work: RunWork, runs: Sequence[Run], finished: Sequence[RunDone]
) -> Sequence[RunDone]:
    """Return the runs, after a repeat of the runs that began within a quoted field of CSV."""
    repeats = runs_to_repeat(runs, [finished_run.report for finished_run in finished])
    if not repeats:
        return finished
    repeated_runs = _checked(run_tasks(spark, work, [repeat.run for repeat in repeats]))
    all_runs, end = list[RunDone](), 0
    for repeat, repeated_run in zip(repeats, repeated_runs, strict=True):
        all_runs += [*finished[end : repeat.first], repeated_run]
        end = repeat.end
    return [*all_runs, *finished[end:]]
