"""A topic with a million of something: what its checkpoints, an open, an append and the plans take.

    python -m benchmarks.large_state [NAME]

The rows of the state are made up; the rest is the library's own, over a store in memory. Each case is a process of
its own. Time is CPU time. There is no peer: docs/scale.md says how large a topic should be.
"""

from __future__ import annotations

import dataclasses
import json
import random
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

import distlog
from distlog.core import paths
from distlog.core.arrays import booleans, integers, texts
from distlog.core.commits import checkpoint, deduplication, segment_table
from distlog.core.commits.actions import SetTransaction
from distlog.core.commits.checkpoint import CHECKPOINT_COMMITS
from distlog.core.commits.commit_log import CommitRace
from distlog.core.commits.deduplication import TransactionTable
from distlog.core.commits.partition_table import PartitionTable
from distlog.core.commits.snapshot import Snapshot
from distlog.core.commits.snapshot_loader import read_hint
from distlog.core.maintain.merge import plan_merge
from distlog.core.maintain.retention import plan_retention
from distlog.core.read.scan import plan_slices

ROWS, PARTITIONS = 1_000_000, 1000
_NOW = int(time.time() * 1000)
_DRAW = random.Random(1)


def segments(created: Snapshot, rows: int) -> Snapshot:
    """Segments of ten records and a kilobyte, each a part of a bundle that all partitions share."""
    draw = np.random.default_rng(1)
    share = rows // PARTITIONS
    numbers = np.tile(np.arange(share), PARTITIONS)
    partitions = np.repeat(np.arange(PARTITIONS), share)
    times, sizes = _NOW - 1000 * (share - numbers), draw.integers(900, 1100, rows)
    columns = {
        "partition": partitions,
        "base_offset": 10 * numbers,
        "next_offset": 10 * numbers + 10,
        "record_count": np.full(rows, 10),
        "log_bytes": sizes,
        "first_timestamp": times,
        "min_timestamp": times,
        "max_timestamp": times + 999,
        "offset_of_max_timestamp": 10 * numbers + 9,
        "created_ms": times,
        "crc32c": draw.integers(0, 1 << 32, rows),
        "first_batch_crc": draw.integers(0, 1 << 32, rows),
        "last_batch_crc": draw.integers(0, 1 << 32, rows),
        "log_position": 2000 * partitions,
    }
    table = segment_table.of_numbers(columns, paths.new_stem(0, uuid.uuid4().hex), "zstd")
    stems = texts([paths.new_stem(0, uuid.uuid4().hex) for _ in range(share)])
    index = table.schema.get_field_index("stem")
    table = table.set_column(index, table.schema.field(index), stems.take(integers(numbers)))
    zeros = np.zeros(PARTITIONS, np.int64)
    ends = np.full(PARTITIONS, 10 * share)
    return dataclasses.replace(created, partitions=PartitionTable.of_columns(zeros, ends, zeros, table, {}))


def batches(created: Snapshot, rows: int, batch_id: Callable[[int], str | int]) -> Snapshot:
    """Batches of a thousand applications that commit them in no order, all within thirty days."""
    numbers = np.arange(rows)
    ends = integers(numbers + 1)
    ranges = pa.StructArray.from_arrays(
        [integers(numbers % PARTITIONS, pa.int32()), integers(10 * numbers), integers(10 * numbers + 10)],
        names=["partition", "start_offset", "end_offset"],
    )
    columns = {
        "app_id": texts([f"application-{number % 1000}" for number in range(rows)]),
        "batch_id": texts([json.dumps(batch_id(number)) for number in range(rows)]),
        "version": integers(numbers // (rows // created.version)),
        "timestamp_ms": integers(_NOW - 2000 * (rows - numbers)),
        "offsets": pa.ListArray.from_arrays(integers(np.append(0, ends), pa.int32()), ranges),
        "in_order": booleans(np.zeros(rows, bool)),
        "unknown": texts([""] * rows),
    }
    batch = pa.RecordBatch.from_arrays(list(columns.values()), schema=deduplication.BATCH_SCHEMA)
    return dataclasses.replace(created, transactions=TransactionTable(batch))


def producers(created: Snapshot, rows: int) -> Snapshot:
    """Producers, each of which has sent five batches into one partition."""
    per_partition = rows // PARTITIONS
    states = {}
    for number in range(PARTITIONS):
        sent_batches = [
            deduplication.ProducerBatch(
                number * per_partition + producer,
                0,
                10 * batch + 9,
                10 * (per_partition * batch + producer) + 9,
                9,
                _NOW,
                0,
                -1,
            )
            for batch in range(deduplication.KEPT_BATCHES)
            for producer in range(per_partition)
        ]
        state = created.partitions[number]
        states[number] = dataclasses.replace(
            state,
            log_start_offset=10 * per_partition * deduplication.KEPT_BATCHES,
            log_end_offset=10 * per_partition * deduplication.KEPT_BATCHES,
            producers=deduplication.NO_PRODUCERS.updated(sent_batches, 1),
        )
    return dataclasses.replace(created, partitions=created.partitions.with_states(states), passed_ms=1)


CASES: Mapping[str, Callable[[Snapshot, int], Snapshot]] = {
    "live segments": segments,
    "batch ids that are UUIDs": partial(batches, batch_id=lambda _: str(uuid.uuid4())),
    "batch ids that are numbers": partial(batches, batch_id=lambda number: number + _DRAW.randrange(10**6)),
    "producer ids": producers,
}


def measured(name: str, rows: int = ROWS) -> dict[str, Any]:
    """The cost of a topic with this state."""
    topic = distlog.create(f"memory://{uuid.uuid4().hex}/clicks", PARTITIONS)
    checkpointed = dataclasses.replace(topic.snapshot, version=CHECKPOINT_COMMITS - 1, timestamp_ms=_NOW)
    # with this commit the library writes a checkpoint
    with CommitRace(topic.log, CASES[name](checkpointed, rows), "append") as race:
        for _ in race:
            race.put([SetTransaction("another", 0, {}, in_order=True)])
    topic.log.checkpoints.wait()
    base = topic.log.loader.full_checkpoint
    if base is None:
        raise AssertionError("no checkpoint was written")
    full_bytes = topic.storage.size(base)
    open_s, opened_topic = _seconds(lambda: distlog.open(topic.url))
    opened_by = opened_topic.storage.counters.gets + opened_topic.storage.counters.lists
    reader, snapshot = distlog.open(topic.url), opened_topic.snapshot
    records = pa.table({"partition": np.arange(10, dtype=np.int32), "value": pa.array([b"v" * 100] * 10)})
    # with the last one it writes an incremental one
    appends = [
        _seconds(partial(opened_topic.append, records, app_id="writer", batch_id=f"{n}"))[0]
        for n in range(CHECKPOINT_COMMITS)
    ]
    opened_topic.log.checkpoints.wait()
    hint = read_hint(topic.storage)
    if hint is None or paths.base_of_checkpoint(hint) != base:
        raise AssertionError("no incremental checkpoint was written")
    again_s, again = _seconds(lambda: distlog.open(topic.url))
    everything = dict.fromkeys(range(PARTITIONS), (None, None))
    return {
        "of": name,
        "rows": rows,
        "full MB": full_bytes / 1e6,
        "bytes of a row": full_bytes / rows,
        "full s": _seconds(lambda: checkpoint.write(topic.storage, snapshot, is_newest=False))[0],
        "incremental KB": topic.storage.size(hint) / 1e3,
        "incremental s": _seconds(
            lambda: checkpoint.write_incremental(topic.storage, again.snapshot, base, CHECKPOINT_COMMITS)
        )[0],
        "open s": open_s,
        "requests of an open": opened_by,
        "open by both s": again_s,
        "requests of an open by both": again.storage.counters.gets + again.storage.counters.lists,
        "append ms": 1000 * min(appends),
        "refresh by a commit ms": 1000 * _seconds(reader.refresh)[0] / len(appends),
        "plan of a scan ms": 1000 * _seconds(lambda: plan_slices(opened_topic.reader, snapshot, everything))[0],
        "plan of retention ms": 1000 * _seconds(lambda: plan_retention(snapshot, _NOW))[0],
        "plan of merging ms": 1000 * _seconds(lambda: plan_merge(snapshot))[0],
    }


def _seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    """The CPU time of `work`, and its result."""
    began = time.process_time()
    result = work()
    return time.process_time() - began, result


def main() -> None:
    """Measure one case, or each in a process of its own."""
    if len(sys.argv) > 2:
        print(json.dumps(measured(sys.argv[1], int(sys.argv[2]))))
        return
    for name in sys.argv[1:] or CASES:
        subprocess.run([sys.executable, "-m", "benchmarks.large_state", name, str(ROWS)], check=True)


if __name__ == "__main__":
    main()
