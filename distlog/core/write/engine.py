"""Engines append batches to a topic: directly to active segments, which grow on a local disk, or by a commit."""

from __future__ import annotations

import os
import sys
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from distlog.core import paths
from distlog.core.arrays import Longs
from distlog.core.commits.actions import Action, Add, ProducerBatches
from distlog.core.commits.commit_log import CommitRace, CurrentSnapshot
from distlog.core.commits.deduplication import (
    MAX_PRODUCER_PAUSE_MS,
    NONE,
    KnownBatch,
    ProducerBatch,
    ProducerState,
    ProducerTable,
    sufficient_batches,
)
from distlog.core.commits.segment_table import SegmentInfo
from distlog.core.commits.snapshot import PartitionState, Snapshot
from distlog.core.config import DAY_MS, TopicConfig
from distlog.core.errors import (
    CommitStateUnknownError,
    DistlogError,
    InvalidRecordError,
    OffsetOutOfRangeError,
    ProducerFencedError,
    StorageError,
    TopicNotFoundError,
    TransactionTooOldError,
)
from distlog.core.format.indexes import TIME_ENTRY
from distlog.core.format.record_batch import batch_fields
from distlog.core.format.record_encoder import (
    BatchFormat,
    EncodedBatches,
    RecordEncoder,
    RecordInput,
    ValidBatch,
    time_span,
)
from distlog.core.log.active_partition import ActiveSeals
from distlog.core.log.partition_log import Appended, BatchRun, LostRecordsError, OpenLogs, PartitionLog, open_together
from distlog.core.segments.producer_states import (
    FirstBatch,
    OpenTransactions,
    ProducerStates,
    any_first,
    last_stable_offset,
    producer_batches,
)
from distlog.core.segments.segment_reader import TopicHandle, whole_log
from distlog.core.segments.segment_state import RollTime
from distlog.core.segments.segment_writer import Parts, WrittenSegment, effect, write_batches
from distlog.core.storage.calls import Deadline, cores, in_order, in_parallel
from distlog.core.write.append import (
    AppendResult,
    check_not_newly_compacted,
    moved_to_log_ends,
    offsets_of,
    warn_of_times,
)

#: How long a producer's batches are retried, in seconds (Kafka's delivery.timeout.ms).
DELIVERY_TIMEOUT_S = 120.0


class Engine(ABC):
    """Appends batches to one topic. After storage errors, a producer's batches are retried for DELIVERY_TIMEOUT_S."""

    #: True if everything appended is known to be durable.
    is_flushed = True

    @abstractmethod
    def append(self, parts: Sequence[PartitionBatches], fence: Fence | None = None) -> Appends:
        """Append the batches, unless `fence` raises. An error that is raised applies to all parts."""

    def flush(self) -> None:  # noqa: B027 - a commit is durable
        """Return when everything appended is durable."""

    def close(self) -> None:  # noqa: B027
        """Flush, and close files; a later `append` opens them again."""

    def reset_in_child(self) -> None:  # noqa: B027
        """Become usable in a forked child, in any state of the parent's threads."""


class Fence(Protocol):
    """A check of the producer's or the leader's epoch before an append, against the head (the newest snapshot)."""

    def check(self, head: Snapshot, partitions: Collection[int]) -> None:
        """Raise an error if `head` has a newer producer or leader than the one that appends."""


#: About the most bytes that a few records need, with their batches, besides their keys, values and headers.
_OVERHEAD_BYTES = 1 << 12


@dataclass(frozen=True, slots=True, eq=False)
class PartitionBatches:
    """Rows of `source`, of about `record_bytes`, to append to a partition in batches of the format `form`."""

    partition: int
    source: RecordInput
    rows: Longs
    record_bytes: int
    config: TopicConfig
    form: BatchFormat
    now_ms: int

    @property
    def has_producer(self) -> bool:
        return self.form.producer_id >= 0

    def encode(self) -> EncodedBatches:
        """Encode the batches, which takes most of the time of an append."""
        # the room is estimated, so that the buffer seldom grows: a record needs about 8 bytes besides its fields
        room = self.record_bytes + 8 * len(self.rows) + _OVERHEAD_BYTES
        encoder = RecordEncoder(self.form, gather_bytes=sys.maxsize, room=room)
        # without a limit of `gather_bytes`, one step encodes all rows
        next(encoder.append(self.source, self.rows), None)
        return encoder.finish()


Item = TypeVar("Item")

_SHARED_BYTES = 1 << 20  # parts of fewer bytes are encoded faster than threads can share them


def encode_in_threads(encodings: Iterable[Callable[[], Item]], parts: Sequence[PartitionBatches]) -> Iterator[Item]:
    """Yield the results of the `encodings` of `parts`, in order. Several threads encode if the parts are large."""
    workers = cores() if sum(part.record_bytes for part in parts) >= _SHARED_BYTES else 1
    return in_order(encodings, buffered=2 * workers if workers > 1 else 0, workers=workers, joined=True)


class Appends(NamedTuple):
    result: AppendResult
    failures: Sequence[Failure] = ()


class Failure(NamedTuple):
    """Records of one partition that were not appended. If `in_doubt`, they may have been appended."""

    partition: int
    record_count: int
    error: BaseException
    in_doubt: bool


_MAX_BACKGROUND_FLUSH_MS = DAY_MS  # if `flush.ms` is longer, no sync runs in the background


class DirectEngine(Engine):
    """Appends to active segments, each partition alone. A flush policy may delay syncs."""

    def __init__(self, handle: TopicHandle, current: CurrentSnapshot, lock_timeout_s: float | None = None) -> None:
        self._handle, self._current = handle, current
        self._lock_timeout_s = lock_timeout_s
        self._logs = OpenLogs[int](lambda partition: PartitionLog(handle, partition, current))
        self.reset_in_child()
        weakref.finalize(self, _close_own_logs, self._logs, os.getpid()).atexit = False

    def reset_in_child(self) -> None:
        """Become usable in a forked child, without the parent's unflushed records."""
        self._lock = threading.RLock()
        # the last records that were acknowledged without a sync, by partition and stem (the segment's file name)
        self._unflushed: dict[tuple[int, str], Appended] = {}
        self._timer: threading.Timer | None = None
        self._lost_records_error: DistlogError | None = None
        self._used_partitions = set[int]()  # the partitions with appends since the last `close`

    def append(self, parts: Sequence[PartitionBatches], fence: Fence | None = None) -> Appends:
        appends = [_PartAppend(part, fence) for part in parts]
        with self._lock:
            try:
                for group in self._in_groups(appends):
                    self._append(group)
                    deadline = Deadline(DELIVERY_TIMEOUT_S)
                    while (retries := [append for append in group if append.is_retriable]) and deadline.pause():
                        for append in retries:
                            append.reset()
                        self._append(retries)
            except BaseException as error:
                for append in appends:
                    append.fail_remaining(error)
            finally:
                self._current.expire_tails()  # the next read finds the new ends of the active segments
        offsets = {
            append.partition: (append.acknowledged[0].first_offset, append.acknowledged[-1].end_offset)
            for append in appends
            if append.acknowledged
        }
        return Appends(AppendResult(None, offsets), [failure for append in appends for failure in append.failures])

    def _append(self, appends: Sequence[_PartAppend]) -> None:
        """Append while threads encode the next partitions; then flush all partitions in parallel."""
        try:
            with ExitStack() as uses:
                partitions = [append.partition for append in appends]
                logs = {partition: uses.enter_context(self._logs.use(partition)) for partition in partitions}
                self._begin_together(logs)
                encodings = (append.encode for append in appends)
                for append in encode_in_threads(encodings, [append.part for append in appends]):
                    append.append(logs[append.partition], self._lock_timeout_s)
                in_parallel(lambda append: append.flush(logs[append.partition], self._lock_timeout_s), appends)
        finally:
            # in `finally`, since an interrupt may come after some records were acknowledged
            self._track_unflushed(appends)
        self._sync_sealed(appends)

    def _in_groups(self, items: Sequence[Item]) -> Iterator[Sequence[Item]]:
        """Yield the items in groups, each of at most as many partitions as may have open logs."""
        size = self._logs.open_limit() if len(items) > 1 else 1
        return (items[start : start + size] for start in range(0, len(items), size))

    def _begin_together(self, logs: Mapping[int, PartitionLog]) -> None:
        """Create all missing active segments in one commit, since each commit costs several syncs."""
        self._used_partitions.update(logs)
        states = self._current.snapshot.partitions
        missing = [log for partition, log in logs.items() if states[partition].active is None]
        if len(missing) > 1:
            # a partition that cannot be opened raises its error in its own append, and fails no other partition
            with suppress(DistlogError):
                open_together(missing)

    def _track_unflushed(self, appends: Sequence[_PartAppend]) -> None:
        for append in appends:
            for appended in append.acknowledged:
                segment = append.partition, appended.stem
                if appended.flush_due:
                    # `_PartAppend.flush` has synced these records, and all before them
                    self._unflushed.pop(segment, None)
                else:
                    self._unflushed[segment] = appended
        self._schedule_sync()

    def _sync_sealed(self, appends: Sequence[_PartAppend]) -> None:
        """Sync sealed segments now: a later sync may need the commits that sealed them, which may be deleted."""
        last_stems = {append.partition: append.acknowledged[-1].stem for append in appends if append.acknowledged}
        for partition, stem in list(self._unflushed):
            if last_stems.get(partition, stem) != stem:
                # an append to a later segment has sealed this one; a later sync tries again if its lock is held
                self._sync_one(partition, stem, timeout_s=0)

    @property
    def is_flushed(self) -> bool:  # type: ignore[override]
        return not self._unflushed

    def flush(self) -> None:
        """Return when all appends are durable. Raises LostRecordsError, once, if acknowledged records are lost."""
        with self._lock:
            failure = self._sync()
            error, self._lost_records_error = self._lost_records_error or failure, None
        if error is not None:
            raise error

    def _sync(self) -> DistlogError | None:
        failure: DistlogError | None = None
        for partition, stem in list(self._unflushed):
            failure = self._sync_one(partition, stem, self._lock_timeout_s) or failure
        return failure

    def _sync_one(self, partition: int, stem: str, timeout_s: float | None) -> DistlogError | None:
        """Sync a segment's acknowledged records. Returns an error after which the next sync tries again."""
        try:
            with self._logs.use(partition) as log:
                log.flush(self._unflushed[partition, stem], timeout_s=timeout_s)
        except (LostRecordsError, TopicNotFoundError, OffsetOutOfRangeError) as error:
            self._lost_records_error = self._lost_records_error or error  # no retry: the records are lost
        except DistlogError as error:
            return error
        # after an interrupt or another error the records stay in `_unflushed`, and the next flush syncs them
        self._unflushed.pop((partition, stem), None)
        return None

    def _schedule_sync(self) -> None:
        flush_ms = self._current.snapshot.config.flush_ms
        if self._timer is None and self._unflushed and flush_ms <= _MAX_BACKGROUND_FLUSH_MS:
            timer = threading.Timer(flush_ms / 1000, self._sync_in_background)
            timer.daemon = True
            with suppress(RuntimeError):  # no more threads are possible, so `close` syncs
                timer.start()
                self._timer = timer

    def _sync_in_background(self) -> None:
        with self._lock:
            self._timer = None
            try:
                self._sync()
            finally:
                self._schedule_sync()

    def close(self) -> None:
        """Flush, write checkpoints, and close the files. With a checkpoint, the next open need not read the log."""
        with self._lock:
            try:
                self.flush()
                partitions = sorted(self._used_partitions)
                self._used_partitions.clear()
                for group in self._in_groups(partitions):
                    with ExitStack() as uses:
                        in_parallel(self._checkpoint, [uses.enter_context(self._logs.use(key)) for key in group])
            finally:
                self._logs.close_flushed()

    def _checkpoint(self, log: PartitionLog) -> None:
        with suppress(DistlogError):  # an error loses nothing, since the records are durable
            log.checkpoint(timeout_s=self._lock_timeout_s)


def _close_own_logs(logs: OpenLogs[int], process: int) -> None:
    if process == os.getpid():  # not in a forked child, which must not wait for the locks of its parent
        logs.close_flushed()


#: After these errors, a producer's batches are appended again. The log drops those that it already has.
_RETRIABLE = (StorageError, CommitStateUnknownError, TransactionTooOldError)


class _PartAppend:
    """The append of one partition's batches. An error stops only this partition."""

    def __init__(self, part: PartitionBatches, fence: Fence | None) -> None:
        self.part, self.partition = part, part.partition
        self._fence = None if fence is None else partial(fence.check, partitions=(part.partition,))
        self._batches: EncodedBatches | None = None
        self._appended: list[Appended] = []
        self._acknowledged_count = 0
        self._error: BaseException | None = None
        # True after an error that leaves open whether the batches after `_appended` are in the log
        self._are_missing_in_doubt = False

    def encode(self) -> _PartAppend:
        try:
            self._batches = self.part.encode()
        except BaseException as error:
            self._error = error
        return self

    def append(self, log: PartitionLog, timeout_s: float | None) -> None:
        """Append the batches that are not in the log yet, with no other records between them."""
        batches, self._batches = self._batches, None
        if batches is None:
            return
        try:
            part = self.part
            runs = segment_runs(batches, part.config, part.now_ms, in_transaction=part.form.transactional)
            missing_runs = islice(runs, len(self._appended), None)
            # close the generator at once, since it holds the partition's lock
            with closing(log.append_runs(missing_runs, self._fence, timeout_s=timeout_s)) as appends:
                for appended in appends:
                    self._appended.append(appended)
        except DistlogError as error:
            self._error = error
        except BaseException as error:
            # only distlog's errors promise that nothing was appended
            self._error, self._are_missing_in_doubt = error, True
            raise

    def flush(self, log: PartitionLog, timeout_s: float | None = None) -> None:
        """Acknowledge the appended records, after a sync if the flush policy requires one."""
        try:
            for appended in self._appended[self._acknowledged_count :]:
                if appended.flush_due:
                    log.flush(appended, timeout_s=timeout_s)
                self._acknowledged_count += 1
        except BaseException as error:
            # the records stay in doubt, since another process may still flush them
            self._error = self._error or error

    def fail_remaining(self, error: BaseException) -> None:
        if sum(map(_record_count, self.acknowledged)) < len(self.part.rows):
            self._error = self._error or error

    @property
    def is_retriable(self) -> bool:
        return self.part.has_producer and isinstance(self._error, _RETRIABLE) and not self._are_missing_in_doubt

    def reset(self) -> None:
        """Prepare a retry, which appends lost records again."""
        if isinstance(self._error, LostRecordsError):
            del self._appended[self._acknowledged_count :]
        self._error = None

    @property
    def acknowledged(self) -> list[Appended]:
        """The appended records that the topic's flush policy accepts as safe, with consecutive offsets."""
        return self._appended[: self._acknowledged_count]

    @property
    def failures(self) -> list[Failure]:
        """The records without acknowledgement: first those that may be in the log, then those that are not."""
        if self._error is None:
            return []
        in_doubt_count = sum(map(_record_count, self._appended[self._acknowledged_count :]))
        missing_count = len(self.part.rows) - sum(map(_record_count, self._appended))
        if self._are_missing_in_doubt:
            in_doubt_count, missing_count = in_doubt_count + missing_count, 0
        counts = ((in_doubt_count, True), (missing_count, False))
        return [Failure(self.partition, count, self._error, in_doubt) for count, in_doubt in counts if count]


def segment_runs(
    batches: EncodedBatches, config: TopicConfig, now_ms: int, *, in_transaction: bool = False
) -> Iterator[BatchRun]:
    """Cut `batches` into runs that each fit an empty segment by size, time and index; usually one run has all."""
    data, rows = np.frombuffer(batches.data, np.uint8), batches.batches
    first = 0
    while first < len(rows):
        end = first + _fitting_batches(rows[first:], int(batches.min_timestamps[first]), config, now_ms)
        # within a run, positions and offsets count from 0
        run = rows[first:end].copy()
        start, base_offset = int(run["position"][0]), int(run["base_offset"][0])
        run["position"] -= start
        run["base_offset"] -= base_offset
        offsets_of_max = batches.offsets_of_max_timestamp[first:end]
        yield BatchRun(
            data[start : start + int(run["size"].sum())],
            run,
            # a negative offset stays: the batch has no timestamps
            np.where(offsets_of_max < 0, offsets_of_max, offsets_of_max - base_offset),
            batches.min_timestamps[first:end],
            in_transaction,
        )
        first = end


def _fitting_batches(rows: npt.NDArray[Any], first_min_timestamp: int, config: TopicConfig, now_ms: int) -> int:
    """Return the number of leading batches that fit an empty segment, at least one."""
    roll_time = RollTime(time_span(config))
    roll_time.open(rows[0], first_min_timestamp, now_ms)
    by_size = int(np.searchsorted(np.cumsum(rows["size"], dtype=np.int64), config.segment_size, side="right"))
    # one entry of the time index is for the segment's end
    by_index = config.segment_index_bytes // TIME_ENTRY.itemsize - 1
    return max(1, min(by_size, by_index, roll_time.room(rows, now_ms)))


def _record_count(appended: Appended) -> int:
    return appended.end_offset - appended.first_offset


class CommitEngine(Engine):
    """Commits the batches of each append together. A commit is durable, so nothing needs a flush."""

    def __init__(self, handle: TopicHandle, current: CurrentSnapshot) -> None:
        self._handle, self._current = handle, current

    def append(self, parts: Sequence[PartitionBatches], fence: Fence | None = None) -> Appends:
        encoded = encode_in_threads((part.encode for part in parts), parts)
        batches = {part.partition: valid_batches(data) for part, data in zip(parts, encoded, strict=True)}
        config, has_producer = parts[0].config, any(part.has_producer for part in parts)
        snapshot, deadline = self._current.snapshot, Deadline(DELIVERY_TIMEOUT_S)
        while True:
            try:
                return Appends(self._commit(snapshot, batches, config, fence))
            except ConcurrentAppendError:
                pass  # the next check shows whether the batches are in the log, or a newer producer has started
            except (StorageError, CommitStateUnknownError):
                if not has_producer or not deadline.pause():
                    raise
            snapshot = self._current.refresh()

    def _commit(self, snapshot: Snapshot, batches: Parts, config: TopicConfig, fence: Fence | None) -> AppendResult:
        check = ProducerCheck(self._handle, snapshot)
        try:
            known_batches = {partition: check.check(partition, new) for partition, new in batches.items()}
        except ProducerFencedError:
            # if the fence raises an error, this error explains more
            if fence is not None:
                fence.check(snapshot, batches)
            raise
        # the offsets of the batches that the log already has
        offsets = dict[int, tuple[int, int]]()
        for partition, last_batch in known_batches.items():
            if last_batch is not None:
                end = last_batch.last_offset + 1
                offsets[partition] = end - sum(batch.offset_count for batch in batches[partition]), end
        if offsets:
            # one commit adds all batches, so all are in the log if one is
            return AppendResult(None, offsets, replayed=True)
        check_fence = None if fence is None else lambda head: fence.check(head, batches)
        result, head = commit_batches(check, batches, config, check_fence)
        self._current.advance(head)
        return result


def valid_batches(encoded: EncodedBatches) -> list[ValidBatch]:
    """Return each batch by itself, with positions and offsets from 0 on."""
    data = np.frombuffer(encoded.data, np.uint8)
    rows, base_offsets = encoded.batches.copy(), encoded.batches["base_offset"]
    ends = rows["position"] + rows["size"]
    offsets_of_max = encoded.offsets_of_max_timestamp
    deltas = np.where(offsets_of_max < 0, -1, offsets_of_max - base_offsets)
    parts = [data[start:end] for start, end in zip(rows["position"].tolist(), ends.tolist(), strict=True)]
    rows["position"] = rows["base_offset"] = 0
    fields = zip(parts, deltas.tolist(), encoded.min_timestamps.tolist(), strict=True)
    return [ValidBatch(part, rows[row : row + 1], delta, oldest) for row, (part, delta, oldest) in enumerate(fields)]


def commit_batches(
    checked: ProducerCheck, parts: Parts, checked_config: TopicConfig, fence: Callable[[Snapshot], None] | None = None
) -> tuple[AppendResult, Snapshot]:
    """Commit the batches, which passed `checked`. Raises ConcurrentAppendError if one fails at a newer head."""
    handle, snapshot = checked.handle, checked.snapshot
    producer_partitions = [n for n, batches in parts.items() if any(batch.has_producer for batch in batches)]
    open_transactions = {n: checked.producers_of(n).table.open_transactions for n in producer_partitions}
    written = write_batches(handle, snapshot, parts, open_transactions)
    segments = [segment.info for segment in written]
    segments_at_ends: Sequence[SegmentInfo] = ()
    warn_of_times(handle.storage.name, snapshot, segments, handle.clock())
    # as in `commit_append`, no group commit on a local disk, or with a fence, which only this process checks
    if handle.storage.is_local or fence is not None:
        race = CommitRace(handle.log, snapshot, "append", read_version=snapshot.version)
    else:
        is_keyed = "compact" in checked_config.cleanup_policy
        race = handle.append_queue.race(snapshot, segments, None, read_version=snapshot.version, is_keyed=is_keyed)
    with race, ActiveSeals(handle, race) as seals:
        for head in race:  # the snapshot that the commit would follow, a newer one after each lost race
            sealed = seals.seal(head, parts)
            if sealed is None:
                continue  # `seal` has only locked the partitions: the next head includes the commits until then
            check_not_newly_compacted(sealed.config, checked_config)
            if fence is not None:
                fence(sealed)
            check = checked.after(sealed, {partition: parts[partition] for partition in producer_partitions})
            moved_segments = moved_to_log_ends(sealed, segments)
            segments_at_ends, actions = _with_producers(check, producer_partitions, written, moved_segments)
            race.put([*seals.actions, *map(Add, segments_at_ends), *actions])
    assert race.commit is not None
    return AppendResult(race.commit.version, offsets_of(race.as_committed(segments_at_ends))), race.snapshot


def _with_producers(
    check: ProducerCheck,
    producer_partitions: Sequence[int],
    written: Sequence[WrittenSegment],
    segments_at_ends: Sequence[SegmentInfo],
) -> tuple[list[SegmentInfo], list[Action]]:
    """Return the segments with their first unstable offsets (starts of open transactions), and ProducerBatches."""
    transactions, segments = dict[int, OpenTransactions](), list[SegmentInfo]()
    new_batches = {partition: list[ProducerBatch]() for partition in producer_partitions}
    for result, segment in zip(written, segments_at_ends, strict=True):
        partition, offset = segment.partition, segment.base_offset
        if segment.has_transactions:
            producers = check.producers_of(partition).table
            open_transactions = transactions.setdefault(partition, OpenTransactions(producers.open_transactions))
            aborted, first_unstable = effect(result, offset, open_transactions)
            if aborted != list(result.aborted):
                # the transaction index, which is already written, has other offsets: write it again
                raise ConcurrentAppendError
            segment = replace(segment, first_unstable_offset=first_unstable)
        segments.append(segment)
        for batch in result.batches if partition in new_batches else ():
            new_batches[partition] += producer_batches(batch.data, batch.rows, offset)
            offset += batch.offset_count
    named_batches = {  # by which readers of the commit compute the states of producers
        partition: (*check.producers_of(partition).unnamed_batches, *sufficient_batches(batches))
        for partition, batches in sorted(new_batches.items())
        if batches
    }
    return segments, [ProducerBatches(named_batches)] if named_batches else []


#: If no commit names a partition's producers, as when they append directly, segments up to this age are searched.
PRODUCER_SEARCH_AGE_MS = 15 * 60_000


class KnownProducers(NamedTuple):
    """A partition's producers, and their batches that no commit names yet, and that the next commit must name."""

    table: ProducerTable
    unnamed_batches: Sequence[ProducerBatch]


def known_producers(handle: TopicHandle, state: PartitionState, passed_ms: int = 0) -> KnownProducers:
    """Return the producers in `state`. They expire by `passed_ms`, a clock that sums pauses (see Snapshot)."""
    if state.producers or not len(state.segments):
        return KnownProducers(state.producers, ())
    # no commit has named a producer yet: read the young segments, and all segments from the first open transaction on
    young = np.flatnonzero(state.segments.array("created_ms") >= handle.clock() - PRODUCER_SEARCH_AGE_MS)
    # an old segment may follow a young one, since a job may commit a segment long after it wrote the segment
    first = int(young[0]) if len(young) else len(state.segments)
    first = min(first, state.segments.find(last_stable_offset(handle.reader, state)))
    batches, producers_with_batches = list[ProducerBatch](), set[int]()
    for segment in (segment for segment in state.segments[first:] if segment.may_have_producers):
        for chunk in whole_log(handle.reader, segment):
            for batch in producer_batches(chunk.data, chunk.batches, segment.shift):
                # a marker (the end of a transaction) has no sequence number: skip it if no other batch precedes it
                if not batch.is_marker or batch.producer_id in producers_with_batches:
                    producers_with_batches.add(batch.producer_id)
                    batches.append(batch)
    entries = sufficient_batches(batches)
    return KnownProducers(ProducerTable().updated(entries, passed_ms), entries)


def producer_entries(handle: TopicHandle, state: PartitionState) -> npt.NDArray[np.void]:
    """Return the state of each producer, as ENTRY rows of a producer snapshot."""
    return ProducerStates(dict(known_producers(handle, state).table.items())).entries()


class ProducerCheck:
    """Checks batches against the producers of `snapshot`; `first_of(partition)` is the check of new producers."""

    def __init__(
        self, handle: TopicHandle, snapshot: Snapshot, first_of: Callable[[int], FirstBatch] = lambda _: any_first
    ) -> None:
        self.handle, self.snapshot, self._first_of = handle, snapshot, first_of
        self._producers = dict[int, KnownProducers]()
        # by partition: the producers' states after the batches checked so far, and the next offset
        self._states = dict[int, tuple[ProducerStates, int]]()

    def after(self, head: Snapshot, parts: Parts) -> ProducerCheck:
        """Return the check of `parts`, which passed here, at a newer `head`. ConcurrentAppendError if one fails."""
        if head is self.snapshot:
            return self
        check = ProducerCheck(self.handle, head, self._first_of)
        for partition, batches in parts.items():
            earlier, later = self.snapshot.partitions[partition], head.partitions[partition]
            # a commit that names producers makes a new table; while none has named any, new segments may have some
            if later is not earlier and (later.producers is not earlier.producers or not earlier.producers):
                _check_again(check, partition, batches)
        return check

    def producers_of(self, partition: int) -> KnownProducers:
        if partition not in self._producers:
            if partition >= len(self.snapshot.partitions):
                text = "the topic no longer has this partition: open the topic again"
                raise InvalidRecordError(text, partition=partition)
            state = self.snapshot.partitions[partition]
            self._producers[partition] = known_producers(self.handle, state, self.snapshot.passed_ms)
        return self._producers[partition]

    def check(self, partition: int, batches: Sequence[ValidBatch]) -> KnownBatch | None:
        """Check the next batches. If they are a retry, return the log's batch that the last one repeats."""
        if not any(batch.has_producer for batch in batches):
            return None
        table = self.producers_of(partition).table
        end = self.snapshot.partitions[partition].log_end_offset
        states, end = self._states.setdefault(partition, (ProducerStates(), end))
        rows = np.concatenate([batch.rows for batch in batches])
        for producer in {*rows["producer_id"].tolist()}:
            state = table.get(producer, self.snapshot.passed_ms)
            if state is not None and not self._has_expired(state):
                states.add_if_missing(producer, state)
        # each batch has the offset 0: number their records as one append would
        spans = rows["last_offset_delta"].astype(np.int64) + 1
        rows["base_offset"] = np.cumsum(spans) - spans
        duplicate = states.check(batch_fields(rows), self._first_of(partition))
        if duplicate is None:
            for batch in batches:
                states.observe(batch.data, batch.rows, end)
                end += batch.offset_count
            self._states[partition] = states, end
        else:
            # the commit that the batches repeat is visible, but may not be durable yet
            self.handle.storage.sync(paths.COMMITS_DIR)
        return duplicate

    def _has_expired(self, state: ProducerState) -> bool:
        """Return whether the producer expires if the time since the last commit is added to `passed_ms`."""
        since_commit_ms = min(max(0, self.handle.clock() - self.snapshot.timestamp_ms), MAX_PRODUCER_PAUSE_MS)
        silent_ms = self.snapshot.passed_ms + since_commit_ms - state.heard_ms
        return state.transaction_first_offset == NONE and silent_ms >= self.handle.producer_expiration_ms


class ConcurrentAppendError(Exception):
    """The batches must be checked and written again: another process has committed concurrently."""


def _check_again(check: ProducerCheck, partition: int, batches: Sequence[ValidBatch]) -> None:
    for batch in batches:
        try:
            duplicate = check.check(partition, [batch])
        except DistlogError as error:
            raise ConcurrentAppendError from error
        if duplicate is not None:
            raise ConcurrentAppendError
