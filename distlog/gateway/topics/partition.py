"""One partition as the gateway serves it: Kafka's Partition, which is the leader of its log."""

from __future__ import annotations

import os
import threading
from contextlib import AbstractContextManager
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from distlog.core import paths
from distlog.core.commits.state.snapshot import PartitionState, Snapshot
from distlog.core.errors import OffsetOutOfRangeError, SnapshotTooOldError
from distlog.core.indexes.transaction_index import AbortedTransaction
from distlog.core.log.partition.appended import Appended, AppendInfo
from distlog.core.log.partition.batch_runs import BatchRun
from distlog.core.log.partition.partition_log import PartitionLog
from distlog.core.log.tails import with_tail
from distlog.core.reading.fetch import FetchedBatches, fetch, fetch_committed
from distlog.core.reading.stable_offset import last_stable_offset
from distlog.core.storage.local.shared_page import WatchedPage
from distlog.core.transactions.producer_states import FirstBatch
from distlog.gateway.commits.commit_log_producers import CommitLogProducers
from distlog.gateway.commits.gathered_batch import Fence
from distlog.gateway.fresh_topic import FreshTopic
from distlog.gateway.topics.open_logs import OpenLogs


class LogOffsets(NamedTuple):
    """The bounds of a log that a client is told."""

    log_start_offset: int
    last_stable_offset: int
    high_watermark: int


class VisibleEnd(NamedTuple):
    """The offset behind the last record that a consumer may see, and the size of the log."""

    offset: int
    log_bytes: int


class FetchedData(NamedTuple):
    """Batches, the log's bounds, the aborted transactions among the batches, and up to where it was looked."""

    batches: FetchedBatches | None
    offsets: LogOffsets
    aborted: tuple[AbortedTransaction, ...]
    visible_end: VisibleEnd


class Partition:
    """Partition `number` of a topic; for many threads. `first` may refuse the first batch of an unknown producer."""

    def __init__(self, fresh: FreshTopic, number: int, logs: OpenLogs, first: FirstBatch) -> None:
        self.fresh, self.number, self._logs, self._first = fresh, number, logs, first
        self._lock = threading.Lock()
        self._page: WatchedPage | None = None
        self._seen: tuple[Snapshot, PartitionState] | None = None
        self._stable: tuple[PartitionState, int] | None = None

    def append(self, records: bytes, fence: Fence | None = None) -> AppendInfo:
        """Append a producer's batch in place: see `PartitionLog.append_batches`."""
        with self._log() as log:
            return log.append_batches(records, fence)

    def append_run(self, run: BatchRun, fence: Fence) -> Appended:
        """Append batches of the gateway in place, unless `fence` refuses. Raises as `PartitionLog.append`, and it."""
        with self._log() as log:
            (appended,) = log.append_runs([run], fence)
            return appended

    def end_transaction(self, marker: BatchRun, fence: Fence) -> Appended | None:
        """Append the end marker of a producer's transaction in place, if it is open here. Raises as `append_run`."""
        with self._log() as log:
            return log.end_transaction(marker, fence)

    def flush(self, appended: Appended) -> None:
        """Return when what was appended is as safe as the topic's flush policy wants it. Raises StorageError."""
        if appended.flush_due:
            self.sync(appended)

    def sync(self, appended: Appended | None) -> None:
        """Return when what was appended, or else all that there is, is on the device. Raises StorageError."""
        with self._log() as log:
            log.flush(appended)

    def state(self) -> PartitionState:
        """The partition as it is now: on a local disk whoever appended, else as of the last refresh."""
        snapshot = self.fresh.refresh() if self.fresh.is_local else self.fresh.snapshot
        try:
            return self._state(snapshot)
        except SnapshotTooOldError:
            # an active segment was sealed, removed and vacuumed after the version was read
            return self._state(self.fresh.topic.current.refresh())

    def offsets(self, state: PartitionState) -> LogOffsets:
        """The bounds of the log in `state`."""
        known = self._stable
        if known is None or known[0] is not state:
            known = self._stable = state, last_stable_offset(self.fresh.topic.reader, state)
        return LogOffsets(state.log_start_offset, known[1], state.log_end_offset)

    def fetch(self, offset: int, max_bytes: int, *, committed: bool) -> FetchedData:
        """Whole batches from the one with `offset` on, up to the last stable offset if only `committed` may be seen.

        Raises OffsetOutOfRangeError, CorruptRecordError, StorageError.
        """
        state = self.state()
        if not self.fresh.is_local and offset > state.log_end_offset:
            # another gateway or job has appended
            self.fresh.refresh()
            state = self.state()
        offsets = self.offsets(state)
        visible_end = self._visible_end(state, committed)
        if not state.log_start_offset <= offset <= state.log_end_offset:
            raise OffsetOutOfRangeError("the offset is not in the log", offset=offset, partition=self.number)
        if offset >= visible_end.offset or max_bytes <= 0:
            return FetchedData(None, offsets, (), visible_end)
        read = partial(fetch_committed, stable_offset=visible_end.offset) if committed else fetch
        batches = read(self.fresh.topic.reader, state, self.number, offset, max_bytes, check=False)
        return FetchedData(batches, offsets, batches.aborted, visible_end)

    def visible_end(self, *, committed: bool) -> VisibleEnd:
        """Up to where a consumer may see records now."""
        return self._visible_end(self.state(), committed)

    def _visible_end(self, state: PartitionState, committed: bool) -> VisibleEnd:
        offsets = self.offsets(state)
        end = offsets.last_stable_offset if committed else offsets.high_watermark
        return VisibleEnd(end, int(state.segments.log_bytes.sum()))

    def producers(self) -> npt.NDArray[np.void]:
        """What the log knows of each producer now, as a producer snapshot has it (ENTRY rows), by producer id.

        On an object store it is read anew, as far as a gateway that begins reads. Raises StorageError,
        CorruptRecordError.
        """
        topic = self.fresh.topic
        if self.fresh.is_local:
            with self._log() as log:
                return log.producers()
        found = CommitLogProducers(topic.reader, topic.clock)
        found.catch_up(self.fresh.refresh().partitions[self.number])
        return found.entries()

    def close(self) -> None:
        """Have all that was appended on the device, and close the files."""
        self._logs.close(self)

    def _log(self) -> AbstractContextManager[PartitionLog]:
        topic = self.fresh.topic
        return self._logs.use(self, lambda: PartitionLog(topic.handle, self.number, topic.current, first=self._first))

    def _state(self, snapshot: Snapshot) -> PartitionState:
        if snapshot.partitions[self.number].active is None:
            return snapshot.partitions[self.number]
        with self._lock:
            # first noted, then read: what comes between is seen the next time
            changed = self._page_changed()
            if changed or self._seen is None or self._seen[0] is not snapshot:
                self._seen = snapshot, with_tail(self.fresh.topic.handle, snapshot, self.number)
            return self._seen[1]

    def _page_changed(self) -> bool:
        if self._page is None:
            topic = self.fresh.topic
            folder = topic.storage.local_path(paths.partition_dir(topic.name, self.number))
            path = os.path.join(folder, paths.LOCK_FILE)
            if not os.path.exists(path):
                return True
            self._page = WatchedPage(path)
        return self._page.changed()
