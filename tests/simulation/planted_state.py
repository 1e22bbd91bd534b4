"""Known bugs of what the library keeps beside its commits: checkpoints, groups, and the index of topics."""

from __future__ import annotations

import dataclasses
from typing import Any
from unittest import mock

import numpy as np

from distlog.core.commits import checkpoint
from distlog.core.maintain import log_floor, merge_job
from distlog.core.maintain.merge_job import BatchJoin
from distlog.gateway.topics import topic_index
from distlog.gateway.topics.topic_index import TopicIndex
from simulation.threads import current

# ---
# Of checkpoints.


def removed_rows_stay() -> Any:
    """An incremental checkpoint does not say which rows are gone."""
    real = checkpoint.RowChanges.between

    def between(base: Any, rows: Any, keys: Any) -> Any:
        return dataclasses.replace(real(base, rows, keys), removed_rows=np.empty(0, np.int64))

    return mock.patch.object(checkpoint.RowChanges, "between", between)


def changed_rows_are_the_same() -> Any:
    """An incremental checkpoint lacks rows that have changed since, and have the same key."""
    return mock.patch.object(checkpoint, "_alike", lambda left, _: np.ones(len(left), np.bool_))


def on_a_stale_base() -> Any:
    """A process writes incremental checkpoints of what changed since the first full one that it wrote on."""
    real, read = checkpoint.write_incremental, checkpoint._read_file
    first, writing = dict[Any, bytes](), set[Any]()

    def write(*arguments: Any) -> Any:
        writing.add(current())
        try:
            return real(*arguments)
        finally:
            writing.discard(current())

    def read_file(storage: Any, name: str) -> bytes:
        fiber, data = current(), read(storage, name)
        return first.setdefault(fiber.process, data) if fiber is not None and fiber in writing else data

    return mock.patch.multiple(checkpoint, write_incremental=write, _read_file=read_file)


def bases_are_deleted() -> Any:
    """Vacuum deletes full checkpoints that incremental ones need."""
    return mock.patch.object(log_floor, "with_bases", set)


def damage_is_not_noticed() -> Any:
    """A reader does not look at the checksum of a checkpoint."""
    return mock.patch.object(
        checkpoint, "_read_file", lambda storage, name: storage.read(name, 0, checkpoint.MAX_BYTES)
    )


# ---
# Of changes of a group that wait to be taken along.


# ---
# Of the index of a root's topics.


def the_index_is_not_checked() -> Any:
    """A gateway does not look at the checksum of the index of topics."""
    return mock.patch.object(topic_index, "crc32c", return_value=0)


def the_index_has_no_age() -> Any:
    """A gateway takes what the index says for what it has looked at now."""
    real = TopicIndex._read

    def read(self: TopicIndex, names: Any) -> None:
        before = dict(self._looked_ms)
        real(self, names)
        taken = [name for name, looked_ms in self._looked_ms.items() if before.get(name) != looked_ms]
        self._looked_ms |= dict.fromkeys(taken, self._clock())

    return mock.patch.object(TopicIndex, "_read", read)


# ---
# Of the offsets that a merge writes.


def merges_store_offsets_of_the_log() -> Any:
    """A merge says that its batches have the offsets of the log, and not those behind their segment's first one."""
    real = merge_job._Writing._described

    def described(self: Any, start: int, end: int) -> Any:
        facts = real(self, start, end)
        return {**facts, "stored_base_offset": facts["base_offset"]}

    return mock.patch.object(merge_job._Writing, "_described", described)


def merged_groups_are_swapped() -> Any:
    """A merge of several groups says of each that its part of the bundle is where another one's is."""
    real = merge_job._Writing._stored

    def stored(self: Any, *arguments: Any) -> Any:
        return {name: places[::-1].copy() for name, places in real(self, *arguments).items()}

    return mock.patch.object(merge_job._Writing, "_stored", stored)


def joined_batches_have_no_holes() -> Any:
    """A merge joins batches as if there were no offsets between them."""
    real = BatchJoin._joins

    def joins(self: Any, batches: Any, base_offsets: Any) -> Any:
        counts = batches["last_offset_delta"].astype(np.int64) + 1
        return real(self, batches, np.cumsum(counts) - counts)

    return mock.patch.object(BatchJoin, "_joins", joins)
