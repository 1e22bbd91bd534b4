"""One partition with 90 % of the data, and an append of 200 tasks into 200 partitions: work and memory by Spark.

    python -m benchmarks.spark_skew [--megabytes N] [--tasks N] [--partitions N]

For the first: how even the splits are, the shares of CPU time of the workers, and their resident sets over time (a
sample each tenth of a second). For the second: objects, bytes of the commit, CPU time of the processes of Spark's
driver in Python, and their memory.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import distlog
from benchmarks.keyed_tables import memory_folder
from benchmarks.spark_processes import python_processes, usage
from distlog.spark import SparkExecutor, append, read, session

PARTITIONS, SHARE, PART_RECORDS = 10, 0.9, 200_000
MEGABYTES, TASKS, MANY_PARTITIONS, TASK_ROWS = 1000, 200, 200, 10_000
SAMPLE_S, WORKER = 0.1, "pyspark.worker"
_COMPACTED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0, "segment.bytes": 64 << 20}


def run(megabytes: int = MEGABYTES, tasks: int = TASKS, partitions: int = MANY_PARTITIONS) -> list[dict[str, Any]]:
    """One dict per work item."""
    conf = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.master": "local[2]"}
    spark = session("benchmark", **conf)
    folder = Path(tempfile.mkdtemp(dir=memory_folder(), prefix="distlog-benchmark-"))
    try:
        return [*_skewed(spark, folder, megabytes << 20), _many(spark, folder, tasks, partitions)]
    finally:
        shutil.rmtree(folder)


def _skewed(spark: SparkSession, folder: Path, size: int) -> Iterator[dict[str, Any]]:
    url = str(folder / "skewed")
    topic, random, remaining = distlog.create(url, PARTITIONS, config=_COMPACTED), np.random.default_rng(0), size
    while remaining > 0:
        table = _records(random)
        topic.append(table)
        remaining -= table.nbytes
    splits = _noop(read(spark, url)).rdd.getNumPartitions()
    yield {"case": "distlog.spark.read", "splits": splits, **_watched(lambda: _noop(read(spark, url)))}
    source = spark.read.format("distlog")
    yield {"case": 'format("distlog")', **_watched(lambda: _noop(source.load(url)))}
    copies = iter(range(10))
    for name, keys in (("compact", 128 << 20), ("compact, 16 MiB for keys", 16 << 20)):
        copy = folder / f"copy{next(copies)}"
        shutil.copytree(url, copy, copy_function=os.link)

        def clean(copy: Path = copy, keys: int = keys) -> None:
            topic = distlog.open(copy)
            report = topic.compact(executor=SparkExecutor(spark), dedupe_buffer_bytes=keys).to_dict()
            assert report["ok"], report

        yield {"case": name, **_watched(clean)}
        shutil.rmtree(copy)
    shutil.rmtree(url)


def _records(random: np.random.Generator) -> pa.Table:
    """Records of 100 to 1000 bytes, of which SHARE are in partition 3; each key comes twice, in the mean."""
    count = PART_RECORDS
    partitions = np.where(random.random(count) < SHARE, 3, random.integers(0, PARTITIONS, count)).astype(np.int32)
    ends = np.append(0, np.cumsum(random.integers(100, 1000, count))).astype(np.int32)
    values = pa.Array.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(ends), pa.py_buffer(random.bytes(int(ends[-1])))]
    )
    keys = pa.array(random.integers(0, 1_000_000, count)).cast(pa.string()).cast(pa.binary())
    return pa.table({"partition": partitions, "key": keys, "value": values})


def _many(spark: SparkSession, folder: Path, tasks: int, partitions: int) -> dict[str, Any]:
    url = str(folder / "many")
    topic = distlog.create(url, partitions)
    columns = "cast(id as string) AS key", "repeat('v', 100) AS value", f"int(id % {partitions}) AS partition"
    append(spark.range(0, 2 * partitions, 1, 2).selectExpr(*columns), url)
    rows = spark.range(0, tasks * TASK_ROWS, 1, tasks).selectExpr(*columns)
    files_before = _files(folder / "many")
    watched = _watched(lambda: append(rows, url))
    topic.refresh()
    added = _files(folder / "many") - files_before
    data = [path for path in added if "_commits" not in path.parts]
    begin = time.process_time()
    opened_topic = distlog.open(url)
    open_s = time.process_time() - begin
    assert sum(opened_topic.end_offsets().values()) == tasks * TASK_ROWS + 2 * partitions
    return {
        "case": f"append of {tasks} tasks into {partitions} partitions",
        "objects of data": len(data),
        "segments": opened_topic.segments().num_rows,
        "KB of data": sum(path.stat().st_size for path in data) // 1000,
        "KB of the commit": sum(path.stat().st_size for path in added if "_commits" in path.parts) // 1000,
        "CPU ms of an open": round(open_s * 1000),
        **watched,
    }


def _files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}


def _noop(frame: DataFrame) -> DataFrame:
    frame.write.format("noop").mode("append").save()
    return frame


def _watched(action: Callable[[], object]) -> dict[str, Any]:
    """Seconds of `action`; the CPU time of Spark's Python processes; the memory of task workers over time."""
    samples, is_over = list[int](), threading.Event()

    def sample() -> None:
        while not is_over.wait(SAMPLE_S):
            samples.append(max((usage(pid)[1] for pid in python_processes(WORKER)), default=0))

    thread, files_before = threading.Thread(target=sample), {pid: usage(pid)[0] for pid in python_processes()}
    thread.start()
    begin = time.perf_counter()
    action()
    seconds = time.perf_counter() - begin
    is_over.set()
    thread.join()
    workers, every = list(python_processes(WORKER)), list(python_processes())
    spent = {pid: round(usage(pid)[0] - files_before.get(pid, 0), 2) for pid in every}
    planners = [pid for pid in every if pid not in workers]
    quarters = [int(max(part)) for part in np.array_split(np.array(samples or [0]), 4) if len(part)]
    return {
        "seconds": round(seconds, 2),
        "CPU s by worker": sorted((spent[pid] for pid in workers if spent[pid] > 0.05), reverse=True),
        "MB of the largest worker, by quarter": quarters,
        "CPU s of planners": round(sum(spent[pid] for pid in planners), 2),
        "MB of the largest planner": max((usage(pid)[1] for pid in planners), default=0),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=MEGABYTES)
    parser.add_argument("--tasks", type=int, default=TASKS)
    parser.add_argument("--partitions", type=int, default=MANY_PARTITIONS)
    arguments = parser.parse_args()
    for row in run(arguments.megabytes, arguments.tasks, arguments.partitions):
        print(json.dumps(row))
