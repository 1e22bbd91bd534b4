"""Buffers that are appended in place, on a local disk: each partition's records go into its active segment.

Partitions succeed or fail by themselves. By default, records are acknowledged when they are on the device; readers
may see them before that. A topic's flush policy may leave syncs to later, to `flush` and `close` at the latest.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

import pyarrow as pa

from distlog.core.batches.record_input import RecordInput
from distlog.core.commits.current_snapshot import CurrentSnapshot
from distlog.core.commits.state.snapshot import Snapshot
from distlog.core.config import DAY_MS
from distlog.core.errors import DistlogError, TopicNotFoundError
from distlog.core.log.partition.appended import Appended, LostRecordsError
from distlog.core.log.partition.partition_log import PartitionLog, open_together
from distlog.core.segments.segment_writer import batch_format, codec_of
from distlog.core.storage.parallel import cores, in_order, in_parallel
from distlog.core.topic_handle import TopicHandle
from distlog.core.topics.appending.append_commit import AppendResult
from distlog.core.topics.appending.appendable import normalize
from distlog.core.topics.appending.partitioner import Partitioner
from distlog.core.topics.writing.delivery import delivered
from distlog.core.topics.writing.destination import Sent
from distlog.core.topics.writing.partition_buffer import Encoding, PartitionBuffer

#: How many partitions' files stay open; each partition has about ten.
OPEN_LOGS = 64
#: A buffer of fewer bytes is encoded faster than threads can share it.
_SHARED_BYTES = 1 << 20
#: Nobody waits for a `flush.ms` above a day in the background.
_LONGEST_MS = DAY_MS


class InPlaceDestination:
    """Appends each buffer to the active segments of its partitions. `moved_on` is called after each.

    `current` holds the topic's newest snapshot, which gives the rules for the records.
    """

    def __init__(
        self,
        handle: TopicHandle,
        current: CurrentSnapshot,
        compression: str | None,
        moved_on: Callable[[], None],
    ) -> None:
        self._handle, self._current, self._compression, self._moved_on = handle, current, compression, moved_on
        self._partitioner: tuple[int, Partitioner] | None = None
        self._logs: OrderedDict[int, PartitionLog] = OrderedDict()
        self.begin_child()
        weakref.finalize(self, _close, self._logs, os.getpid()).atexit = False

    def begin_child(self) -> None:
        """Become usable in a forked child: no thread there holds the lock, and what is unflushed is the parent's."""
        self._lock = threading.RLock()
        # by partition and segment: the last of what was acknowledged before it was synced
        self._unflushed: dict[tuple[int, str], Appended] = {}
        self._timer: threading.Timer | None = None
        self._lost: DistlogError | None = None
        # the partitions that were appended to since the last `close`
        self._used = set[int]()

    def send(self, records: pa.RecordBatch) -> Sent:
        """Append the records, each partition's in their order."""
        with self._lock:
            snapshot = self._current.refresh()
            encoding = self._encoding(snapshot)
            parts = self._split(normalize(records, encoding.config, encoding.now_ms), snapshot)
            workers = cores() if records.nbytes >= _SHARED_BYTES else 1
            try:
                for first in range(0, len(parts), OPEN_LOGS):
                    self._append(parts[first : first + OPEN_LOGS], encoding, workers)
            except BaseException as error:
                for part in parts:
                    part.stop(error)
            finally:
                self._moved_on()
        return _sent(parts)

    def _encoding(self, snapshot: Snapshot) -> Encoding:
        config, handle = snapshot.config, self._handle
        form = batch_format(config, codec_of(config, self._compression), handle.clock, handle.random)
        return Encoding(config, form, handle.clock())

    def _split(self, records: pa.RecordBatch, snapshot: Snapshot) -> list[PartitionBuffer]:
        source, count = RecordInput.from_arrow(records), len(snapshot.partitions)
        if self._partitioner is None or self._partitioner[0] != count:
            self._partitioner = count, Partitioner(count, self._handle.random.randrange(count))
        return [
            PartitionBuffer(partition, source, rows, records.nbytes * len(rows) // records.num_rows)
            for partition, rows in self._partitioner[1].split(records)
        ]

    def _append(self, parts: Sequence[PartitionBuffer], encoding: Encoding, workers: int) -> None:
        """Append while threads encode the next partitions; then flush all of them side by side."""
        encodings = (partial(part.encode, self._encoding_of(part.partition, encoding)) for part in parts)
        ahead = 2 * workers if workers > 1 else 0
        try:
            self._open([part.partition for part in parts])
            for part in in_order(encodings, ahead, workers=workers, joined=True):
                part.append(self._log(part.partition), encoding, self._fence_of(part.partition))
            in_parallel(lambda each: each[0].flush(each[1]), [(part, self._log(part.partition)) for part in parts])
        finally:
            # an interrupt may come behind what is acknowledged already
            self._note_unflushed(parts)

    def _encoding_of(self, partition: int, encoding: Encoding) -> Encoding:
        """How the records of a partition are encoded."""
        return encoding

    def _fence_of(self, partition: int) -> Callable[[Snapshot], None] | None:
        """What may refuse to append to a partition; see `PartitionLog.append_runs`."""
        return None

    def _open(self, partitions: Sequence[int]) -> None:
        """Begin the active segments that are missing in one commit, since each commit costs several syncs."""
        self._used.update(partitions)
        states = self._current.snapshot.partitions
        missing = [partition for partition in partitions if states[partition].active is None]
        if len(missing) > 1:
            # a partition that cannot be opened tells that itself, and keeps no other from it
            with suppress(DistlogError):
                open_together([self._log(partition) for partition in missing])

    def _note_unflushed(self, parts: Sequence[PartitionBuffer]) -> None:
        for part in parts:
            for appended in part.acknowledged:
                place = part.partition, appended.stem
                if appended.flush_due:
                    self._unflushed.pop(place, None)
                else:
                    self._unflushed[place] = appended
        self._sync_later()

    def _log(self, partition: int) -> PartitionLog:
        """The partition's log; of the others, the OPEN_LOGS - 1 that were used last stay open."""
        if partition not in self._logs:
            while len(self._logs) >= OPEN_LOGS:
                # it may have what the flush policy left unflushed
                self._logs.popitem(last=False)[1].close(flushed=False)
            self._logs[partition] = PartitionLog(self._handle, partition, self._current)
        self._logs.move_to_end(partition)
        return self._logs[partition]

    @property
    def is_flushed(self) -> bool:
        """Whether all that was sent is known to be on the device."""
        return not self._unflushed

    def flush(self) -> None:
        """Return when all that was sent is on the device, whatever the flush policy left unsynced.

        Raises LostRecordsError if a sync failed, now or in the background, so that acknowledged records are lost;
        this is told once. After other errors, the next flush tries again.
        """
        with self._lock:
            failed = self._sync()
            error, self._lost = self._lost or failed, None
        if error is not None:
            raise error

    def _sync(self) -> DistlogError | None:
        """Sync each partition; returns an error after which a sync may still succeed."""
        failed: DistlogError | None = None
        for (partition, stem), appended in list(self._unflushed.items()):
            try:
                self._log(partition).flush(appended)
            except (LostRecordsError, TopicNotFoundError) as error:
                self._lost = self._lost or error
            except DistlogError as error:
                failed = failed or error
                continue
            # not before: after an interrupt or an error, the next flush must know of them
            self._unflushed.pop((partition, stem), None)
        return failed

    def _sync_later(self) -> None:
        """Sync in the background when `flush.ms` have passed, in case nobody does it before."""
        flush_ms = self._current.snapshot.config.flush_ms
        if self._timer is None and self._unflushed and flush_ms <= _LONGEST_MS:
            timer = threading.Timer(flush_ms / 1000, self._sync_in_background)
            timer.daemon = True
            with suppress(RuntimeError):  # there can be no more threads: `close` syncs
                timer.start()
                self._timer = timer

    def _sync_in_background(self) -> None:
        with self._lock:
            self._timer = None
            try:
                self._sync()
            finally:
                self._sync_later()

    def close(self) -> None:
        """Flush, and close the files; a later `send` opens them again.

        After that, no byte of the logs is walked when they are opened, also after a restart of the machine.
        """
        with self._lock:
            try:
                self.flush()
                self._checkpoint()
            finally:
                _close(self._logs, os.getpid())

    def _checkpoint(self) -> None:
        used = sorted(self._used)
        self._used.clear()
        for first in range(0, len(used), OPEN_LOGS):
            in_parallel(_checkpoint, [self._log(partition) for partition in used[first : first + OPEN_LOGS]])


def _checkpoint(log: PartitionLog) -> None:
    # what was sent is on the device already
    with suppress(DistlogError):
        log.checkpoint()


def _close(logs: OrderedDict[int, PartitionLog], process: int) -> None:
    # a forked child must not wait for the locks of its parent
    while logs and process == os.getpid():
        logs.popitem(last=False)[1].close()


def _sent(parts: Sequence[PartitionBuffer]) -> Sent:
    offsets = {
        part.partition: (part.acknowledged[0].first_offset, part.acknowledged[-1].end_offset)
        for part in parts
        if part.acknowledged
    }
    result = AppendResult(None, offsets)
    return Sent(result, delivered(result), [failure for part in parts for failure in part.failures])
