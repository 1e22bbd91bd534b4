"""Known bugs of stored state other than commits: checkpoints, merged segments, and the index of topics."""

from __future__ import annotations

import dataclasses
from typing import Any
from unittest import mock

import numpy as np

from distlog.core.commits import checkpoint
from distlog.core.maintain import merge_job, vacuum
from distlog.core.maintain.merge_job import BatchJoin
from distlog.gateway.topics import topic_index
from distlog.gateway.topics.topic_index import TopicIndex
from simulation.threads import current


def removed_rows_stay() -> Any:
    """An incremental checkpoint does not name removed rows."""
    real = checkpoint.RowChanges.between

    def between(base: Any, rows: Any, keys: Any) -> Any:
        return dataclasses.replace(real(base, rows, keys), removed_rows=np.empty(0, np.int64))

    return mock.patch.object(checkpoint.RowChanges, "between", between)


def changed_rows_are_the_same() -> Any:
    """An incremental checkpoint lacks rows that changed and have the same key."""
    return mock.patch.object(checkpoint, "_are_alike", lambda rows, _: np.ones(len(rows), np.bool_))


def on_a_stale_base() -> Any:
    """A process bases all incremental checkpoints on its first base."""
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
    """Vacuum deletes the bases of incremental checkpoints."""
    return mock.patch.object(vacuum, "with_bases", set)


def damage_is_not_noticed() -> Any:
    """A reader does not check the checksum of a checkpoint."""
    return mock.patch.object(
        checkpoint, "_read_file", lambda storage, name: storage.read(name, 0, checkpoint.MAX_FILE_BYTES)
    )


def the_index_is_not_checked() -> Any:
    """A gateway does not check the checksum of the index of topics."""
    return mock.patch.object(topic_index, "crc32c", return_value=0)


def the_index_has_no_age() -> Any:
    """A gateway takes the entries of the index for the present state."""
    real = TopicIndex._read_index

    def read(self: TopicIndex, names: Any) -> None:
        earlier = dict(self._checked_ms)
        real(self, names)
        indexed = [name for name, checked_ms in self._checked_ms.items() if earlier.get(name) != checked_ms]
        self._checked_ms |= dict.fromkeys(indexed, self._clock())

    return mock.patch.object(TopicIndex, "_read_index", read)


def merges_store_offsets_of_the_log() -> Any:
    """A merge writes offsets of the log, not those relative to their segment."""
    real = merge_job._SegmentWrites._input_fields

    def input_fields(self: Any, *arguments: Any) -> Any:
        header = real(self, *arguments)
        return {**header, "stored_base_offset": header["base_offset"]}

    return mock.patch.object(merge_job._SegmentWrites, "_input_fields", input_fields)


def merged_groups_are_swapped() -> Any:
    """A merge of several groups swaps their ranges in the bundle."""
    real = merge_job._SegmentWrites._write_files

    def write_files(self: Any, *arguments: Any) -> Any:
        return {name: positions[::-1].copy() for name, positions in real(self, *arguments).items()}

    return mock.patch.object(merge_job._SegmentWrites, "_write_files", write_files)


def joined_batches_have_no_holes() -> Any:
    """A merge joins batches as if there were no offsets between them."""
    real = BatchJoin._joins

    def joins(self: Any, batches: Any, base_offsets: Any) -> Any:
        counts = batches["last_offset_delta"].astype(np.int64) + 1
        return real(self, batches, np.cumsum(counts) - counts)

    return mock.patch.object(BatchJoin, "_joins", joins)
