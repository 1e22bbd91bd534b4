"""The states of producers in a partition's log and folder, as far as one process has read them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from distlog.core import paths
from distlog.core.commits.commit_log import CurrentSnapshot
from distlog.core.commits.producer_table import KnownBatch
from distlog.core.commits.segment_table import SegmentInfo
from distlog.core.commits.snapshot import PartitionState, Snapshot
from distlog.core.errors import (
    CorruptIndexError,
    CorruptRecordError,
    DistlogError,
    OutOfOrderSequenceError,
    StorageError,
)
from distlog.core.format.indexes import AbortedTransaction
from distlog.core.format.record_batch import TRANSACTIONAL, BatchFields, increment_sequence
from distlog.core.log.log_segment import LogSegment
from distlog.core.log.segment_files import WALK_BYTES, ActiveFile, batches_from
from distlog.core.segments.producer_states import (
    EXPIRATION_CHECK_MS,
    FirstBatch,
    OpenTransactions,
    ProducerStates,
    any_first,
    read_producer_snapshot,
)
from distlog.core.segments.segment_parts import part_of
from distlog.core.segments.segment_reader import TopicHandle
from distlog.core.storage.storage import Storage

# <stem>.snapshot          the states where this segment begins
# <offset:020d>.snapshot   the states at this offset: where the log begins, or where a broker's log ended

#: Bytes of sealed segments that are read for the last batches: five of 1 MiB of each of a dozen producers.
LAST_BYTES = 64 << 20


class StoredProducers:
    """The producers in the files of a partition of the topic in `storage`."""

    def __init__(self, storage: Storage, topic: str, partition: int) -> None:
        self._storage, self._topic = storage, topic
        self._folder = storage.child(paths.partition_dir(topic, partition))

    def before_segment(self, stem: str, offset: int = 0) -> ProducerStates | None:
        """The states in the segment's snapshot; None if it is missing or damaged."""
        name = stem + paths.SNAPSHOT_SUFFIX
        with suppress(FileNotFoundError, CorruptIndexError):
            return ProducerStates.of_snapshot(read_producer_snapshot(self._folder.read(name), file=name), offset)
        return None

    def at_log_start(self, offset: int) -> ProducerStates:
        """The states stored at `offset`, where the log begins."""
        return (self.before_segment(f"{offset:020d}", offset) if offset else None) or ProducerStates()

    def newest(self, segments: Sequence[SegmentInfo], log_end_offset: int) -> ProducerStates:
        """The states in the newest snapshot of a partition's `segments`, which end at `log_end_offset`."""
        names = {file.name for file in self._folder.list()}
        for stem, offset in _snapshots(segments, log_end_offset):
            if stem + paths.SNAPSHOT_SUFFIX in names and (states := self.before_segment(stem, offset)) is not None:
                return states
        return ProducerStates()

    def after_segments(self, segments: Sequence[SegmentInfo], log_end_offset: int) -> ProducerStates:
        """The states after all sealed `segments` of a partition, which end at `log_end_offset`."""
        states = self.newest(segments, log_end_offset)
        for sealed in segments:
            if sealed.next_offset > states.offset and sealed.may_have_producers:
                self._update(states, sealed)
        return states

    def last(self, segments: Sequence[SegmentInfo]) -> ProducerStates:
        """The states by the batches of a partition's last sealed `segments`: LAST_BYTES, or a segment."""
        states, first, size = ProducerStates(), len(segments), 0
        while first and size < LAST_BYTES:
            first -= 1
            size += segments[first].log_bytes
        for sealed in segments[first:]:
            if sealed.may_have_producers:
                with suppress(CorruptRecordError):
                    self._update(states, sealed)
        return states

    def store(self, stem: str, states: ProducerStates) -> None:
        """Store the states where the segment `stem` begins; after a disk error they are read from logs."""
        data, path = states.snapshot(), self._folder.local_path(stem + paths.SNAPSHOT_SUFFIX)
        # a torn file is read as a missing one
        with suppress(StorageError), closing(ActiveFile(path)) as file:
            file.write(data, 0)
            file.cut(len(data))

    def _update(self, states: ProducerStates, sealed: SegmentInfo) -> None:
        log = part_of(self._topic, sealed)
        with closing(ActiveFile(self._storage.local_path(log.name), writable=False)) as file:
            for batches in batches_from(file, log.begin, log.begin + log.size, WALK_BYTES):
                states.observe(batches.data, batches.rows, sealed.shift)


def transactions_before(handle: TopicHandle, state: PartitionState) -> OpenTransactions:
    """The transactions that are open where the partition's active segment begins."""
    active = state.active
    assert active is not None
    stored = StoredProducers(handle.storage, handle.name, active.partition)
    states = stored.before_segment(active.stem)
    if states is None:
        states = stored.after_segments(state.segments.without_active(), active.base_offset)
    return OpenTransactions(states.open_transactions)


def _snapshots(segments: Sequence[SegmentInfo], log_end_offset: int) -> Iterator[tuple[str, int]]:
    """The stems and offsets of the snapshots that may exist, the newest first."""
    for segment in reversed(segments):
        if paths.stem_read_version(segment.stem) is None:
            # a broker stored it, or the import of its log
            yield f"{segment.next_offset:020d}", segment.next_offset
        yield segment.stem, segment.base_offset
    first = segments[0].base_offset if len(segments) else log_end_offset
    if first:
        yield f"{first:020d}", first


class ProducerSnapshots:
    """Stores the states of producers before segments are deleted, so that their retries stay detected, as in Kafka.

    Only a disk of this machine has producers.
    """

    def __init__(self, handle: TopicHandle) -> None:
        self._handle, self._is_needed = handle, handle.storage.is_local_disk
        self._stored_states: set[tuple[int, int]] = set()

    def store(self, snapshot: Snapshot, counts: Mapping[int, int]) -> None:
        """Store the states after the first `counts[partition]` segments, without producers of a damaged segment."""
        missing, without = self._missing(snapshot, counts), []
        for partition, offset in sorted(missing):
            states = self._states(snapshot, partition, counts[partition])
            name = f"{paths.partition_dir(snapshot.name, partition)}/{offset:020d}{paths.SNAPSHOT_SUFFIX}"
            if len(states):
                self._handle.storage.put(name, states.snapshot())
            else:
                without.append(name)
        # files may remain of an earlier topic at this address
        self._handle.storage.delete(without)
        self._stored_states |= missing

    def _missing(self, snapshot: Snapshot, counts: Mapping[int, int]) -> set[tuple[int, int]]:
        """(partition, the offset at which its log will begin) of producers that are not stored."""
        begins = {(number, _begin(snapshot.partitions[number], count)) for number, count in counts.items()}
        return begins - self._stored_states if self._is_needed else set()

    def _states(self, snapshot: Snapshot, partition: int, count: int) -> ProducerStates:
        stored = StoredProducers(self._handle.storage, snapshot.name, partition)
        with suppress(DistlogError):
            state = snapshot.partitions[partition]
            deleted = state.segments[:count]
            if not any(segment.may_have_producers for segment in deleted):
                # without batches of producers, the states do not change
                return stored.at_log_start(deleted[0].base_offset)
            before_next = stored.before_segment(state.segments[count].stem) if count < len(state.segments) else None
            return before_next or stored.after_segments(deleted, _begin(state, count))
        return ProducerStates()


def _begin(state: PartitionState, count: int) -> int:
    return int(state.segments.base_offsets[count]) if count < len(state.segments) else state.log_end_offset


class TransactionEffect(NamedTuple):
    """The transactions that batches abort, and the first unstable offset after them, or None if unchanged."""

    aborted: Sequence[AbortedTransaction]
    first_unstable_offset: int | None


NO_EFFECT = TransactionEffect((), None)


class _ReadPosition(NamedTuple):
    """The end of the part of the log that was read: a position of the segment `stem`, and an offset."""

    stem: str
    position: int
    offset: int


_NOTHING = _ReadPosition("", 0, 0)
#: Bytes of a log that are read within milliseconds.
_FEW_BYTES = 256 << 10


# Any process may append, so a process reads the batches of others before it checks one. The states before the active
# segment are in its `.snapshot`, in Kafka's format, or are read from earlier segments with batches of producers.
#
# A snapshot has only the last batch of each producer, and five may be in flight. So before a process that started
# with a snapshot refuses a batch, it reads the other batches from earlier segments.
class PartitionProducers:
    """The producers of a partition; all methods need its lock, and get the active `segment` at its end."""

    def __init__(
        self, handle: TopicHandle, partition: int, snapshots: CurrentSnapshot, first: FirstBatch = any_first
    ) -> None:
        self._partition, self._snapshots, self._clock, self._first = partition, snapshots, handle.clock, first
        self._expiration_ms = handle.producer_expiration_ms
        self._stored = StoredProducers(handle.storage, handle.name, partition)
        self._states, self._read, self._expired_ms = ProducerStates(), _NOTHING, 0
        # recalling reads many batches, so it must not happen for each refused batch of a client
        self._has_recalled = False

    def check(self, batches: Sequence[BatchFields], segment: LogSegment) -> KnownBatch | None:
        self.catch_up(segment)
        now_ms = self._clock()
        is_time = now_ms - self._expired_ms >= EXPIRATION_CHECK_MS
        named = None if is_time else {batch.producer_id for batch in batches}
        self._states.expire(now_ms, named, after_ms=self._expiration_ms)
        self._expired_ms = now_ms if is_time else self._expired_ms
        try:
            return self._states.check(batches, self._first)
        except OutOfOrderSequenceError:
            if self._has_recalled:
                raise
        # the last batches before the active segment, not only the last one of each producer
        segments = self._snapshots.refresh().partitions[self._partition].segments
        self._states.add_earlier_batches(self._stored.last(segments))
        self._has_recalled = True
        return self._states.check(batches, self._first)

    def is_next(self, batch: BatchFields, segment: LogSegment) -> bool:
        """True if this is surely the next batch of its producer, with little to read."""
        state, (stem, position, _) = self._states.get(batch.producer_id), self._read
        return (
            stem == segment.stem
            and 0 <= segment.size - position <= _FEW_BYTES
            and state is not None
            and batch.producer_epoch == state.epoch
            and batch.base_sequence == increment_sequence(state.last_sequence, 1)
        )

    def entries(self, segment: LogSegment | None) -> npt.NDArray[np.void]:
        """The state of each producer (ENTRY rows); without an active segment, by the sealed ones."""
        if segment is None:
            state = self._snapshots.refresh().partitions[self._partition]
            states = self._stored.after_segments(state.segments, state.log_end_offset)
        else:
            self.catch_up(segment)
            states = self._states
        states.expire(self._clock(), after_ms=self._expiration_ms)
        return states.entries()

    def has_open(self, producer_id: int, epoch: int, segment: LogSegment, start_offset: int | None = None) -> bool:
        """See `ProducerStates.has_open`; with `start_offset`, only for a transaction from there on."""
        self.catch_up(segment)
        starts_there = start_offset is None or self._states.open_transactions.get(producer_id) == start_offset
        return starts_there and self._states.has_open(producer_id, epoch)

    def effect_of(self, data: npt.NDArray[Any], rows: npt.NDArray[Any]) -> TransactionEffect:
        """The effect of the next batches on the open transactions after the read part of the log."""
        if not (rows["attributes"] & TRANSACTIONAL).any():
            return NO_EFFECT
        transactions = OpenTransactions(self._states.open_transactions)
        return TransactionEffect(transactions.observe(data, rows), transactions.first_offset)

    def appended(self, data: npt.NDArray[Any], rows: npt.NDArray[Any], segment: LogSegment) -> None:
        self._states.observe(data, rows, heard_ms=self._clock())
        self._read = _ReadPosition(segment.stem, segment.size, segment.next_offset)

    def catch_up(self, segment: LogSegment) -> None:
        """Read the log after the read part; a new segment gets its snapshot."""
        stem, position, _ = self._read
        if segment.stem != stem or segment.size < position:
            self._begin(segment)
            position = 0
        if segment.has_producers and segment.size > position:
            for batches in segment.batches(position):
                self._states.observe(batches.data, batches.rows, heard_ms=self._clock())
        self._read = _ReadPosition(segment.stem, segment.size, segment.next_offset)

    def _begin(self, segment: LogSegment) -> None:
        """Load the states where the segment begins, and write its snapshot."""
        segments = self._snapshots.refresh().partitions[self._partition].segments
        if not self._ends_at(segments, segment):
            stored = self._stored.before_segment(segment.stem)
            earlier, self._states = self._states, stored or self._stored.after_segments(segments, segment.base_offset)
            self._states.update_heard_times(earlier)
            self._states.expire(self._clock(), after_ms=self._expiration_ms)
            self._has_recalled = False
            if stored is not None:
                return
        if segment.base_offset:
            self._stored.store(segment.stem, self._states)

    def _ends_at(self, segments: Sequence[SegmentInfo], segment: LogSegment) -> bool:
        """True if the read part was sealed where `segment` begins."""
        end = [(segments[-1].stem, segments[-1].next_offset)] if len(segments) else []
        position = self._read
        return end == [(position.stem, position.offset)] and segment.base_offset == position.offset
