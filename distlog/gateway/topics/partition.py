"""One partition as the gateway serves it (Kafka's Partition)."""

from __future__ import annotations

import os
import struct
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from distlog.core import paths
from distlog.core.commits.snapshot import PartitionState, Snapshot
from distlog.core.errors import OffsetOutOfRangeError, OutOfOrderSequenceError, SnapshotTooOldError
from distlog.core.format.indexes import AbortedTransaction
from distlog.core.format.record_batch import CONTROL, BatchFields, check_crcs, read_headers
from distlog.core.format.record_decoder import decode
from distlog.core.kafka.partition_folder import read_epochs
from distlog.core.log.live_snapshot import with_tail
from distlog.core.log.partition_log import SHORT_WAIT_S, Appended, AppendInfo, BatchRun, OpenLogs, PartitionLog
from distlog.core.maintain.group_rewrite import first_dirty_offset
from distlog.core.read.fetch import FetchedBatches, fetch, fetch_committed, fetch_stored
from distlog.core.segments.chunks import StoredBatches
from distlog.core.segments.producer_states import FirstBatch, aborted_between, last_stable_offset
from distlog.core.storage.locks_and_pages import WatchedPage
from distlog.core.times import monotonic_ms
from distlog.core.topic import Topic
from distlog.core.write.engine import producer_entries

#: Gets the newest snapshot before an append, and raises an error if the append must not happen.
Fence = Callable[[Snapshot], None]


class Partition:
    """One partition of a topic, thread-safe. `check_first` may refuse the first batch of a new producer."""

    def __init__(
        self, hosted: RefreshingTopic, number: int, logs: OpenLogs[Partition], check_first: FirstBatch
    ) -> None:
        self.hosted, self.number, self._logs, self._check_first = hosted, number, logs, check_first
        self._lock = threading.Lock()
        self._page: WatchedPage | None = None
        # two caches: a snapshot's state, with the active segment's newest records; and a state's last stable offset
        self._cached_state: tuple[Snapshot, PartitionState] | None = None
        self._cached_stable_offset: tuple[PartitionState, int] | None = None
        self._epochs = LeaderEpochs()

    def append(
        self, records: bytes, fence: Fence | None = None, *, timeout_s: float | None = None, may_wait: bool = True
    ) -> AppendInfo:
        """Append a batch by `PartitionLog.append_batches`. The caller must `sync` it if `flush_due` is set."""
        with self._logs.use(self, may_open=may_wait) as log:
            info = log.append_batches(records, fence, timeout_s=timeout_s, may_wait=may_wait)
        # only batches of transactions have a fence: these are always flushed before the response
        return info if fence is None else info._replace(appended=info.appended._replace(flush_due=True))

    def is_free(self, *, flush: bool) -> bool:
        """Whether the lock for appends was free at this moment; with `flush`, also the lock for flushes."""
        with self._logs.use(self) as log:
            return log.is_free(flush=flush)

    def append_run(self, run: BatchRun, fence: Fence) -> Appended:
        """Append batches that the gateway made, unless `fence` raises. Raises as `PartitionLog.append_runs`."""
        with self._logs.use(self) as log:
            (appended,) = log.append_runs([run], fence, timeout_s=OWN_WAIT_S)
            return appended

    def end_transaction(self, marker: BatchRun, fence: Fence, *, timeout_s: float | None = None) -> Appended | None:
        """Append the end marker of an open transaction; None if it is not open. Raises as `append_run`."""
        with self._logs.use(self) as log:
            return log.end_transaction(marker, fence, timeout_s=timeout_s)

    def sync(self, appended: Appended | None, *, timeout_s: float | None = None) -> None:
        """Wait until the appended batches are durable, or the whole log for None. Raises StorageError."""
        with self._logs.use(self) as log:
            log.flush(appended, timeout_s=timeout_s)

    def state(self) -> PartitionState:
        """The current state: on a local disk with all appends, on an object store from the last refresh."""
        snapshot = self.hosted.refresh() if self.hosted.is_local else self.hosted.snapshot
        try:
            return self._state(snapshot)
        except SnapshotTooOldError:
            # an active segment was sealed, removed and vacuumed after the version was read
            return self._state(self.hosted.topic.current.refresh())

    def offsets(self, state: PartitionState) -> LogOffsets:
        cached = self._cached_stable_offset
        if cached is None or cached[0] is not state:
            cached = self._cached_stable_offset = state, last_stable_offset(self.hosted.topic.reader, state)
        return LogOffsets(state.log_start_offset, cached[1], state.log_end_offset)

    def fetch(self, offset: int, max_bytes: int, *, committed: bool) -> FetchedData:
        """Return whole unchecked batches, the first with `offset`; if `committed`, up to the last stable offset."""
        state = self.state()
        if not self.hosted.is_local and offset > state.log_end_offset:
            self.hosted.refresh()  # another gateway or job may have appended
            state = self.state()
        offsets = self.offsets(state)
        visible_end = self._visible_end(state, committed)
        if not state.log_start_offset <= offset <= state.log_end_offset:
            raise OffsetOutOfRangeError("the offset is not in the log", offset=offset, partition=self.number)
        if offset >= visible_end.offset or max_bytes <= 0:
            return FetchedData(None, offsets, (), visible_end)
        reader = self.hosted.topic.reader
        # if a local file has the batches as clients get them, they are sent from it (sendfile), and not read here
        if (stored := fetch_stored(reader, state, offset, visible_end.offset, max_bytes)) is not None:
            aborted = tuple(aborted_between(reader, state, offset, stored.next_offset)) if committed else ()
            return FetchedData(stored, offsets, aborted, visible_end)
        read = partial(fetch_committed, stable_offset=visible_end.offset) if committed else fetch
        batches = read(reader, state, self.number, offset, max_bytes, check=False)
        return FetchedData(batches, offsets, batches.aborted, visible_end)

    def visible_end(self, *, committed: bool) -> VisibleEnd:
        return self._visible_end(self.state(), committed)

    def _visible_end(self, state: PartitionState, committed: bool) -> VisibleEnd:
        offsets = self.offsets(state)
        end = offsets.last_stable_offset if committed else offsets.high_watermark
        return VisibleEnd(end, int(state.segments.log_bytes.sum()))

    def leader_epochs(self, state: PartitionState) -> LeaderEpochs:
        """The leader epochs of records imported from a broker; read again for a newer epoch. Raises StorageError."""
        if int(state.segments.array("leader_epoch").max(initial=-1)) > self._epochs.latest:
            topic = self.hosted.topic
            file = f"{paths.partition_dir(topic.handle.name, self.number)}/{paths.LEADER_EPOCHS}"
            with suppress(FileNotFoundError):
                self._epochs = LeaderEpochs(tuple(read_epochs(topic.storage.read(file), file=file)))
        return self._epochs

    def producers(self) -> npt.NDArray[np.void]:
        """The current entry of each producer, as in a producer snapshot (ENTRY rows), by producer id."""
        topic = self.hosted.topic
        if self.hosted.is_local:
            with self._logs.use(self) as log:
                return log.producers(timeout_s=SHORT_WAIT_S)
        return producer_entries(topic.handle, self.hosted.refresh().partitions[self.number])

    def open_log(self) -> PartitionLog:
        topic = self.hosted.topic
        return PartitionLog(topic.handle, self.number, topic.current, check_first=self._check_first)

    def _state(self, snapshot: Snapshot) -> PartitionState:
        if snapshot.partitions[self.number].active is None:
            return snapshot.partitions[self.number]
        with self._lock:
            # check the page before the state is read, so that the next call notices an append during the read
            has_changed = self._page_has_changed()
            if has_changed or self._cached_state is None or self._cached_state[0] is not snapshot:
                self._cached_state = snapshot, with_tail(self.hosted.topic.handle, snapshot, self.number)
            return self._cached_state[1]

    def _page_has_changed(self) -> bool:
        """Whether the page in the partition's lock file has changed since the last call. Each append changes it."""
        if self._page is None:
            topic = self.hosted.topic
            folder = topic.storage.local_path(paths.partition_dir(topic.handle.name, self.number))
            path = os.path.join(folder, paths.LOCK_FILE)
            try:
                self._page = WatchedPage(path)
            except FileNotFoundError:
                return True
        return self._page.changed()


# A log accepts any batch as the first one of a new producer. A client has up to five batches in flight. If the first
# batch failed and the second was appended, librdkafka would report the first as delivered. So the second batch also
# fails, until the client sends the first again (as with Kafka's `VerificationStateEntry`).

#: The most pairs of a producer and a partition for which failed batches are remembered.
MAX_FAILED = 10_000
#: The format of a batch's producer id, producer epoch and first sequence number, and their position in the batch.
_PRODUCER_FORMAT, _PRODUCER_POSITION = struct.Struct(">qhi"), 43


def producer_of(records: bytes) -> tuple[int, int, int]:
    """The producer id, the producer epoch and the first sequence number of a batch of format 2."""
    return _PRODUCER_FORMAT.unpack_from(records, _PRODUCER_POSITION)


class FailedBatches:
    """The epoch and the lowest failed sequence number by topic (name or id), partition and producer. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lowest: OrderedDict[tuple[Hashable, int, int], tuple[int, int]] = OrderedDict()

    def add(self, topic: Hashable, partition: int, records: bytes) -> None:
        if len(records) < _PRODUCER_POSITION + _PRODUCER_FORMAT.size:
            return
        producer, epoch, sequence = producer_of(records)
        if producer < 0 or sequence < 0:
            return
        key = topic, partition, producer
        with self._lock:
            noted_epoch, lowest = self._lowest.get(key, (epoch, sequence))
            self._lowest[key] = epoch, (min(lowest, sequence) if noted_epoch == epoch else sequence)
            self._lowest.move_to_end(key)
            if len(self._lowest) > MAX_FAILED:
                self._lowest.popitem(last=False)

    def remove(self, topic: Hashable, partition: int, records: bytes) -> None:
        """Forget the failed batches of a producer whose batch was appended, since the log knows the producer now."""
        if self._lowest:
            producer, _, _ = producer_of(records)
            with self._lock:
                self._lowest.pop((topic, partition, producer), None)

    def check(self, topic: Hashable, partition: int, batch: BatchFields) -> None:
        """Raise OutOfOrderSequenceError if the batch of a new producer follows its failed batch."""
        epoch, lowest = self._lowest.get((topic, partition, batch.producer_id), (-1, -1))
        if epoch == batch.producer_epoch and batch.base_sequence > lowest:
            raise OutOfOrderSequenceError(
                "an earlier batch of the producer failed: send that batch again first",
                producer_id=batch.producer_id,
                producer_epoch=epoch,
                sequence=batch.base_sequence,
                expected=lowest,
            )


#: How long the gateway's own appends wait for a lock, which a stopped process may hold. Then the client must retry.
OWN_WAIT_S = 1.0

#: A PartitionTail reads about this many bytes at once.
READ_BYTES = 1 << 20
RECORD_COLUMNS = ("offset", "key", "value")


class TailBatches(NamedTuple):
    """Whole batches with valid checksums, and their headers, a row each, as `read_headers` returns them."""

    data: bytes
    rows: npt.NDArray[Any]


class PartitionTail:
    """Reads new batches from `offset` on. `read` returns the batches at an offset. Not thread-safe."""

    def __init__(self, read: Callable[[int], FetchedBatches | StoredBatches | None], offset: int = 0) -> None:
        self._read, self.offset = read, offset

    @classmethod
    def of(cls, partition: Partition) -> PartitionTail:
        return cls(lambda offset: partition.fetch(offset, READ_BYTES, committed=False).batches)

    def restart_if_compacted(self, state: PartitionState) -> bool:
        """If unread records were compacted, restart at the log start, and return True."""
        # the compaction may have removed unread tombstones: only the whole log shows which keys exist
        if max(first_dirty_offset(state), state.log_start_offset) <= self.offset:
            return False
        self.offset = state.log_start_offset
        return True

    def records(self) -> Iterator[pa.RecordBatch]:
        for batches in self.batches():
            rows = batches.rows[batches.rows["attributes"] & CONTROL == 0]
            yield decode(batches.data, rows, columns=RECORD_COLUMNS)

    def batches(self) -> Iterator[TailBatches]:
        """The batches since the last call; `offset` advances when the caller asks for the next batches."""
        while (batches := self._read(self.offset)) is not None and len(batches):
            data = bytes(batches)
            rows = read_headers(data)
            check_crcs(memoryview(data), rows)
            yield TailBatches(data, rows)
            self.offset = batches.next_offset


#: No epoch, or no offset.
NONE = -1


class EpochEnd(NamedTuple):
    epoch: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class LeaderEpochs:
    """Epochs and their first offsets, ascending. The latest epoch ends at the log end."""

    entries: Sequence[tuple[int, int]] = ()

    @property
    def latest(self) -> int:
        return self.entries[-1][0] if self.entries else NONE

    def epoch_of(self, state: PartitionState, offset: int) -> int:
        """The epoch of the batch at an offset; NONE for a batch that no broker wrote."""
        row = state.segments.find(offset)
        if row >= len(state.segments) or state.segments[row].leader_epoch < 0:
            return NONE
        index = bisect_right([start for _, start in self.entries], offset)
        return self.entries[index - 1][0] if index else NONE

    def end_of(self, epoch: int, log_end_offset: int) -> EpochEnd:
        """The end of an epoch: the start of the next one, or the log end; without entries always the log end."""
        if not self.entries or epoch == self.latest:
            return EpochEnd(epoch, log_end_offset)
        next_index = bisect_right([entry_epoch for entry_epoch, _ in self.entries], epoch)
        if epoch < 0 or next_index == len(self.entries):  # an epoch past the latest has no end
            return EpochEnd(NONE, NONE)
        _, end_offset = self.entries[next_index]
        # as in Kafka, an unknown epoch gets the epoch before it, if any, and its end
        return EpochEnd(self.entries[next_index - 1][0] if next_index else epoch, end_offset)


class LogOffsets(NamedTuple):
    log_start_offset: int
    last_stable_offset: int
    high_watermark: int


class VisibleEnd(NamedTuple):
    """The offset at which a reader must stop, and the log's size, by which a waiting fetch counts new bytes."""

    offset: int
    log_bytes: int


class FetchedData(NamedTuple):
    """Batches, the log's bounds, the aborted transactions among the batches, and the visible end."""

    batches: FetchedBatches | StoredBatches | None
    offsets: LogOffsets
    aborted: tuple[AbortedTransaction, ...]
    visible_end: VisibleEnd


class RefreshingTopic:
    """The topic in the folder `name`, thread-safe. On a local disk a refresh is cheap, else it makes one request."""

    def __init__(self, name: str, topic: Topic) -> None:
        self.name, self.topic = name, topic
        self.is_local = topic.storage.is_local_disk
        self._lock = threading.Lock()
        self._refreshed_ms = monotonic_ms()
        # a snapshot, and the paths of its commit and of the next one
        self._commit_paths: tuple[Snapshot | None, str, str] = None, "", ""

    @property
    def snapshot(self) -> Snapshot:
        return self.topic.current.snapshot

    def refresh(self, max_age_ms: int = 0) -> Snapshot:
        """Load the newest version; on an object store only if the last refresh is `max_age_ms` old."""
        if self.is_local:
            if not self._has_changed():
                return self.snapshot
            self.topic.reader.forget_deleted()  # vacuum may have deleted files of older versions
            return self.topic.current.refresh()
        called_ms = monotonic_ms()
        if called_ms - self._refreshed_ms >= max_age_ms:
            with self._lock:
                # another thread may have refreshed the topic concurrently
                if self._refreshed_ms <= called_ms:
                    started_ms = monotonic_ms()
                    self.topic.current.refresh()
                    self._refreshed_ms = started_ms
        return self.snapshot

    def _has_changed(self) -> bool:
        """Whether a next commit exists, or the snapshot's own commit was deleted."""
        cached_snapshot, newest_path, next_path = self._commit_paths
        snapshot = self.snapshot
        if cached_snapshot is not snapshot:
            versions = snapshot.version, snapshot.version + 1
            newest_path, next_path = (self.topic.storage.local_path(paths.commit_file(v)) for v in versions)
            self._commit_paths = snapshot, newest_path, next_path
        return os.path.exists(next_path) or not os.path.exists(newest_path)
