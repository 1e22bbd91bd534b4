"""Known bugs on a local disk, planted one at a time. The simulation must find them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any
from unittest import mock

from distlog.core.errors import StorageError
from distlog.core.log import active_partition, live_snapshot, partition_files, partition_log
from distlog.core.log.active_partition import ActivePartition
from distlog.core.log.log_segment import LogSegment
from distlog.core.log.partition_files import ActiveFile, ActiveIndex, SegmentFiles, StateRecord
from distlog.core.log.partition_log import PartitionFlush
from distlog.core.log.producers import PartitionProducers
from distlog.core.storage import local_files
from distlog.core.storage.local_files import LocalFiles
from distlog.core.storage.locks_and_pages import FileLock
from distlog.core.write import engine
from simulation.local_disk import boot_id
from simulation.planted import Bug, bug, patched


def _without_folder_syncs() -> Any:
    patches = ExitStack()
    for name in ("_sync_above", "sync_folder"):
        patches.enter_context(mock.patch.object(local_files, name, return_value=None))
    return patches


def _commits_are_not_synced() -> Any:
    """A commit gets its name before its bytes are synced."""

    def write(path: str, data: Any) -> str:
        with local_files._temporary(path, data) as (temporary, _):
            return temporary

    return mock.patch.object(local_files, "write_temporary", write)


def _failed_syncs_are_tried_again() -> Any:
    """A failed sync is tried again, and succeeds without the lost pages."""
    real = ActiveFile.sync

    def sync(self: Any) -> None:
        try:
            real(self)
        except StorageError:
            real(self)

    return mock.patch.object(ActiveFile, "sync", sync)


def _other_boots_are_believed() -> Any:
    """The state in a page stays valid after a power loss."""
    real = StateRecord.unpack.__func__  # type: ignore[attr-defined]

    def unpack(kind: Any, data: bytes | None) -> Any:
        if data is not None and len(data) >= 18:
            data = data[:2] + boot_id() + data[18:]
        return real(kind, data)

    return mock.patch.object(StateRecord, "unpack", classmethod(unpack))


def _the_last_batch_is_cut() -> Any:
    """Recovery cuts off the last sound batch."""
    real = partition_files._count_in_order

    def in_order(rows: Any, next_offset: int) -> int:
        return max(real(rows, next_offset) - 1, 0)

    return mock.patch.object(partition_files, "_count_in_order", in_order)


def _flushed_before_the_sync() -> Any:
    """A page has the flushed offset before the sync."""
    real = PartitionFlush._sync

    def sync(self: Any, state: Any, target: Any, timeout_s: Any, *, with_indexes: bool) -> None:
        with self._partition.held(timeout_s):
            self._partition.note_flushed(state, self._partition.handle.clock(), with_indexes=False)
        real(self, state, target, timeout_s, with_indexes=with_indexes)

    return mock.patch.object(PartitionFlush, "_sync", sync)


def _flushes_wait_for_nothing() -> Any:
    """A flush does not sync."""

    def sync(self: Any) -> None:
        self._unflushed.clear()

    return mock.patch.object(engine.DirectEngine, "_sync", sync)


def _indexes_are_trimmed_too_far() -> Any:
    """A seal cuts the last entry off an index."""
    real = ActiveIndex.trim

    def trim(self: Any, size: int) -> None:
        real(self, max(size - self._entry.itemsize, 0))

    return mock.patch.object(ActiveIndex, "trim", trim)


def _rolls_let_go_of_the_lock() -> Any:
    """A roll does not hold the partition's lock."""
    real = active_partition.roll

    def roll(partition: ActivePartition) -> LogSegment:
        partition.lock.release()
        try:
            return real(partition)
        finally:
            partition.lock.acquire(60.0)

    return mock.patch.object(partition_log, "roll", roll)


#: Each bug, by what is wrong with it.
BUGS: Mapping[str, Bug] = {
    "a folder is not synced after a link": bug(patched(LocalFiles, "sync", return_value=None)),
    "folders above are not synced": bug(_without_folder_syncs),
    "a commit is not synced before its link": bug(_commits_are_not_synced),
    "a failed sync is tried again": bug(_failed_syncs_are_tried_again),
    "a page of another boot is believed": bug(_other_boots_are_believed),
    "locks keep nobody out": bug(patched(FileLock, "_try_lock", return_value=True)),
    "a roll lets go of the lock": bug(_rolls_let_go_of_the_lock),
    "recovery cuts a sound batch": bug(_the_last_batch_is_cut),
    "a flush is reported before its sync": bug(_flushed_before_the_sync),
    "a flush waits for nothing": bug(_flushes_wait_for_nothing, "flusher"),
    "flush.ms starts no timer": bug(patched(engine.DirectEngine, "_schedule_sync", return_value=None), "flusher"),
    "indexes are trimmed too far": bug(_indexes_are_trimmed_too_far),
    "a seal is not synced": bug(patched(LogSegment, "_sync", return_value=None)),
    "new segments have no durable names": bug(patched(SegmentFiles, "sync_names", return_value=None)),
    "readers see what failed": bug(
        patched(live_snapshot, "_end_after_failed_sync", return_value=None), "reader", "failing"
    ),
    "a retried direct append is appended again": bug(
        patched(PartitionProducers, "find_duplicate", return_value=None), "window"
    ),
    "a recovery point is not synced": bug(patched(SegmentFiles, "sync_indexes", return_value=None)),
}
