"""Engines append batches to a topic: directly to active segments on a local disk, or by a commit."""

from __future__ import annotations

import os
import sys
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from distlog.core import paths
from distlog.core.commits.actions import Action, Add, ProducerBatches
from distlog.core.commits.commit_log import CommitRace, CurrentSnapshot
from distlog.core.commits.deduplication import (
    NONE,
    PRODUCER_PAUSE_MS,
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
from distlog.core.storage.backend import Deadline
from distlog.core.storage.parallel import cores, in_order, in_parallel
from distlog.core.write.append import AppendResult, at_log_ends, check_keyed, offsets_of, warn_of_times

#: How long a producer's batches are retried, in seconds (Kafka's delivery.timeout.ms).
DELIVERY_TIMEOUT_S = 120.0


class Engine(ABC):
    """Appends batches to one topic; a producer's are retried for DELIVERY_TIMEOUT_S after errors of the storage."""

    #: True if everything appended is known to be durable.
    is_flushed = True

    @abstractmethod
    def append(self, parts: Sequence[PartitionBatches], fence: Fence | None = None) -> Appends:
        """Append the batches, unless `fence` raises; an error that is raised applies to all parts."""

    def flush(self) -> None:  # noqa: B027 - a commit is durable
        """Return when everything appended is durable."""

    def close(self) -> None:  # noqa: B027
        """Flush, and close files; a later `append` opens them again."""

    def begin_child(self) -> None:  # noqa: B027
        """Become usable in a forked child, in any state of the parent's threads."""


class Fence(Protocol):
    """A check at the head before an append: of a producer's epoch, or a leader's."""

    def check(self, head: Snapshot, partitions: Collection[int]) -> None:
        """Raise the appender's error if this head has its successor."""


#: Roughly the most bytes of a batch in addition to its few records.
_SPARE_BYTES = 1 << 12


@dataclass(frozen=True, slots=True, eq=False)
class PartitionBatches:
    """The `rows` of `source`, of about `record_bytes`, for `partition`, in batches of this `form`."""

    partition: int
    source: RecordInput
    rows: npt.NDArray[np.int64]
    record_bytes: int
    config: TopicConfig
    form: BatchFormat
    now_ms: int

    @property
    def has_producer(self) -> bool:
        return self.form.producer_id >= 0

    def encode(self) -> EncodedBatches:
        """Encode the batches: most of the time of an append."""
        room = self.record_bytes + 8 * len(self.rows) + _SPARE_BYTES
        encoder = RecordEncoder(self.form, gather_bytes=sys.maxsize, room=room)
        # one step encodes all rows, since `gather_bytes` has no limit
        next(encoder.append(self.source, self.rows), None)
        return encoder.finish()


Item = TypeVar("Item")

#: Parts of fewer bytes are encoded faster than threads can share them.
_SHARED_BYTES = 1 << 20


def encode_in_threads(encodings: Iterable[Callable[[], Item]], parts: Sequence[PartitionBatches]) -> Iterator[Item]:
    """The results of the encodings of `parts`, in order, by several threads if there are many bytes."""
    workers = cores() if sum(part.record_bytes for part in parts) >= _SHARED_BYTES else 1
    return in_order(encodings, 2 * workers if workers > 1 else 0, workers=workers, joined=True)


class Appends(NamedTuple):
    """The appended offsets, by partition, and the failures."""

    result: AppendResult
    failures: Sequence[Failure] = ()


class Failure(NamedTuple):
    """Records of one partition that were not appended, or, if `in_doubt`, may have been."""

    partition: int
    record_count: int
    error: BaseException
    in_doubt: bool


#: With a longer `flush.ms` there is no sync in the background.
_LONGEST_MS = DAY_MS


class DirectEngine(Engine):
    """Appends to the active segments of partitions; then calls `on_append`.

    Each partition succeeds or fails alone. By default, records are acknowledged when they are durable; readers may
    see them earlier. A flush policy may delay syncs, until `flush` or `close` at the latest.
    """

    def __init__(
        self,
        handle: TopicHandle,
        current: CurrentSnapshot,
        on_append: Callable[[], None],
        lock_timeout_s: float | None = None,
    ) -> None:
        self._handle, self._current, self._on_append = handle, current, on_append
        self._lock_timeout_s = lock_timeout_s
        self._logs = OpenLogs[int](lambda partition: PartitionLog(handle, partition, current))
        self.begin_child()
        weakref.finalize(self, _close, self._logs, os.getpid()).atexit = False

    def begin_child(self) -> None:
        """Become usable in a forked child: unflushed records are the parent's."""
        self._lock = threading.RLock()
        # by partition and segment: the last records that were acknowledged without a sync
        self._unflushed: dict[tuple[int, str], Appended] = {}
        self._timer: threading.Timer | None = None
        self._loss: DistlogError | None = None
        # the partitions with appends since the last `close`
        self._used = set[int]()

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
                self._on_append()
        offsets = {
            append.partition: (append.acknowledged[0].first_offset, append.acknowledged[-1].end_offset)
            for append in appends
            if append.acknowledged
        }
        return Appends(AppendResult(None, offsets), [failure for append in appends for failure in append.failures])

    def _append(self, appends: Sequence[_PartAppend]) -> None:
        """Append while threads encode the next partitions; then flush all partitions in parallel."""
        try:
            with self._logs.use_all([append.partition for append in appends]) as logs:
                self._begin_together(logs)
                encodings = (append.encode for append in appends)
                for append in encode_in_threads(encodings, [append.part for append in appends]):
                    append.append(logs[append.partition], self._lock_timeout_s)
                in_parallel(lambda append: append.flush(logs[append.partition], self._lock_timeout_s), appends)
        finally:
            # an interrupt may come when some records are acknowledged already
            self._note_unflushed(appends)
        self._sync_sealed(appends)

    def _in_groups(self, items: Sequence[Item]) -> Iterator[Sequence[Item]]:
        """The items in groups of as many partitions as may have open logs."""
        size = self._logs.most_open()
        return (items[first : first + size] for first in range(0, len(items), size))

    def _begin_together(self, logs: Mapping[int, PartitionLog]) -> None:
        """Create the missing active segments in one commit, since each commit costs several syncs."""
        self._used.update(logs)
        states = self._current.snapshot.partitions
        missing = [log for partition, log in logs.items() if states[partition].active is None]
        if len(missing) > 1:
            # a partition that cannot be opened raises the error later, and does not fail the others
            with suppress(DistlogError):
                open_together(missing)

    def _note_unflushed(self, appends: Sequence[_PartAppend]) -> None:
        for append in appends:
            for appended in append.acknowledged:
                segment = append.partition, appended.stem
                if appended.flush_due:
                    self._unflushed.pop(segment, None)
                else:
                    self._unflushed[segment] = appended
        self._sync_later()

    def _sync_sealed(self, appends: Sequence[_PartAppend]) -> None:
        """Sync earlier segments, which are sealed: later their commits may be deleted."""
        last_stems = {append.partition: append.acknowledged[-1].stem for append in appends if append.acknowledged}
        for partition, stem in list(self._unflushed):
            if last_stems.get(partition, stem) != stem:
                self._sync_one(partition, stem, 0)

    @property
    def is_flushed(self) -> bool:  # type: ignore[override]
        return not self._unflushed

    def flush(self) -> None:
        """Return when all appends are durable; raises LostRecordsError once if acknowledged records are lost."""
        with self._lock:
            failure = self._sync()
            error, self._loss = self._loss or failure, None
        if error is not None:
            raise error

    def _sync(self) -> DistlogError | None:
        failure: DistlogError | None = None
        for partition, stem in list(self._unflushed):
            failure = self._sync_one(partition, stem, self._lock_timeout_s) or failure
        return failure

    def _sync_one(self, partition: int, stem: str, timeout_s: float | None) -> DistlogError | None:
        try:
            with self._logs.use(partition) as log:
                log.flush(self._unflushed[partition, stem], timeout_s=timeout_s)
        except (LostRecordsError, TopicNotFoundError, OffsetOutOfRangeError) as error:
            # a retry would find no more
            self._loss = self._loss or error
        except DistlogError as error:
            return error
        # last: after an interrupt or an error, the next flush needs the records
        self._unflushed.pop((partition, stem), None)
        return None

    def _sync_later(self) -> None:
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
        """Flush, and close the files; a later open reads no log, even after a reboot."""
        with self._lock:
            try:
                self.flush()
                partitions = sorted(self._used)
                self._used.clear()
                for group in self._in_groups(partitions):
                    with self._logs.use_all(group) as logs:
                        in_parallel(self._checkpoint_of, list(logs.values()))
            finally:
                self._logs.close_flushed()

    def _checkpoint_of(self, log: PartitionLog) -> None:
        # the records are durable already
        with suppress(DistlogError):
            log.checkpoint(timeout_s=self._lock_timeout_s)


def _close(logs: OpenLogs[int], process: int) -> None:
    # a forked child must not wait for the locks of its parent
    if process == os.getpid():
        logs.close_flushed()


#: The errors after which a producer's batches are retried.
_RETRIABLE = (StorageError, CommitStateUnknownError, TransactionTooOldError)


class _PartAppend:
    """The append of one partition's batches; an error stops this partition alone."""

    def __init__(self, part: PartitionBatches, fence: Fence | None) -> None:
        self.part, self.partition = part, part.partition
        self._fence = None if fence is None else partial(fence.check, partitions=(part.partition,))
        self._batches: EncodedBatches | None = None
        self._appended: list[Appended] = []
        self._acknowledged = 0
        self._error: BaseException | None = None
        self._is_rest_in_doubt = False

    def encode(self) -> _PartAppend:
        try:
            self._batches = self.part.encode()
        except BaseException as error:
            self._error = error
        return self

    def append(self, log: PartitionLog, timeout_s: float | None) -> None:
        """Append the missing batches, with no other records between them; see `append_runs`."""
        batches, self._batches = self._batches, None
        if batches is None:
            return
        try:
            part = self.part
            every_run = runs(batches, part.config, part.now_ms, in_transaction=part.form.transactional)
            missing = islice(every_run, len(self._appended), None)
            # closed at once, since it holds the partition's lock
            with closing(log.append_runs(missing, self._fence, timeout_s=timeout_s)) as appends:
                for appended in appends:
                    self._appended.append(appended)
        except DistlogError as error:
            self._error = error
        except BaseException as error:
            # only distlog's errors promise that nothing was appended
            self._error, self._is_rest_in_doubt = error, True
            raise

    def flush(self, log: PartitionLog, timeout_s: float | None = None) -> None:
        """Acknowledge the appended records, after a sync if the flush policy requires one."""
        try:
            for appended in self._appended[self._acknowledged :]:
                if appended.flush_due:
                    log.flush(appended, timeout_s=timeout_s)
                self._acknowledged += 1
        except BaseException as error:
            # it may still be flushed by another process
            self._error = self._error or error

    def fail_remaining(self, error: BaseException) -> None:
        if sum(map(_count, self.acknowledged)) < len(self.part.rows):
            self._error = self._error or error

    @property
    def is_retriable(self) -> bool:
        return self.part.has_producer and isinstance(self._error, _RETRIABLE) and not self._is_rest_in_doubt

    def reset(self) -> None:
        if isinstance(self._error, LostRecordsError):
            del self._appended[self._acknowledged :]
        self._error = None

    @property
    def acknowledged(self) -> list[Appended]:
        """The records that were appended, and are as safe as the topic wants it; the offsets follow each other."""
        return self._appended[: self._acknowledged]

    @property
    def failures(self) -> list[Failure]:
        """The records without acknowledgement: the ones that may be in the log, and the ones that are not."""
        if self._error is None:
            return []
        doubtful = sum(map(_count, self._appended[self._acknowledged :]))
        missing = len(self.part.rows) - sum(map(_count, self._appended))
        if self._is_rest_in_doubt:
            doubtful, missing = doubtful + missing, 0
        counts = ((doubtful, True), (missing, False))
        return [Failure(self.partition, count, self._error, in_doubt) for count, in_doubt in counts if count]


def runs(
    batches: EncodedBatches, config: TopicConfig, now_ms: int, *, in_transaction: bool = False
) -> Iterator[BatchRun]:
    """Cut `batches` where a segment must end by size, time or a full index; usually into one run."""
    data, rows = np.frombuffer(batches.data, np.uint8), batches.batches
    first = 0
    while first < len(rows):
        end = first + _room(rows[first:], int(batches.min_timestamps[first]), config, now_ms)
        run = rows[first:end].copy()
        start, base_offset = int(run["position"][0]), int(run["base_offset"][0])
        run["position"] -= start
        run["base_offset"] -= base_offset
        newest = batches.offsets_of_max_timestamp[first:end]
        yield BatchRun(
            data[start : start + int(run["size"].sum())],
            run,
            np.where(newest < 0, newest, newest - base_offset),
            batches.min_timestamps[first:end],
            in_transaction,
        )
        first = end


def _room(rows: npt.NDArray[Any], first_min_timestamp: int, config: TopicConfig, now_ms: int) -> int:
    """The number of batches that fit an empty segment, at least one."""
    roll_time = RollTime(time_span(config))
    roll_time.open(rows[0], first_min_timestamp, now_ms)
    by_size = int(np.searchsorted(np.cumsum(rows["size"], dtype=np.int64), config.segment_size, side="right"))
    # one entry of the time index is for the segment's end
    by_index = config.segment_index_bytes // TIME_ENTRY.itemsize - 1
    return max(1, min(by_size, by_index, roll_time.room(rows, now_ms)))


def _count(appended: Appended) -> int:
    return appended.end_offset - appended.first_offset


class CommitEngine(Engine):
    """Commits the batches of each append together; a commit is durable, so there is nothing to flush or close."""

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
                # the next check shows if they are in the log already, or a newer producer has started
                pass
            except (StorageError, CommitStateUnknownError):
                if not has_producer or not deadline.pause():
                    raise
            snapshot = self._current.refresh()

    def _commit(self, snapshot: Snapshot, batches: Parts, config: TopicConfig, fence: Fence | None) -> AppendResult:
        check = ProducerCheck(self._handle, snapshot)
        try:
            in_log = {number: check.check(number, batch) for number, batch in batches.items()}
        except ProducerFencedError:
            if fence is not None:
                fence.check(snapshot, batches)
            raise
        offsets = dict[int, tuple[int, int]]()
        for number, last in in_log.items():
            if last is not None:
                end = last.last_offset + 1
                offsets[number] = end - sum(batch.offset_count for batch in batches[number]), end
        if offsets:
            # one commit has all batches
            return AppendResult(None, offsets, replayed=True)
        fences = None if fence is None else lambda head: fence.check(head, batches)
        result, after = commit_batches(check, batches, config, fences)
        self._current.advance(after)
        return result


def valid_batches(encoded: EncodedBatches) -> list[ValidBatch]:
    data = np.frombuffer(encoded.data, np.uint8)
    rows, firsts = encoded.batches.copy(), encoded.batches["base_offset"]
    ends = rows["position"] + rows["size"]
    newest = np.where(encoded.offsets_of_max_timestamp < 0, -1, encoded.offsets_of_max_timestamp - firsts)
    parts = [data[start:end] for start, end in zip(rows["position"].tolist(), ends.tolist(), strict=True)]
    rows["position"] = rows["base_offset"] = 0
    times = zip(parts, newest.tolist(), encoded.min_timestamps.tolist(), strict=True)
    return [ValidBatch(part, rows[row : row + 1], *numbers) for row, (part, *numbers) in enumerate(times)]


def commit_batches(
    checked: ProducerCheck, parts: Parts, written_by: TopicConfig, fence: Callable[[Snapshot], None] | None = None
) -> tuple[AppendResult, Snapshot]:
    """Commit the `checked` batches of `parts`, all or none; ConcurrentAppendError if they no longer come next."""
    handle, snapshot = checked.handle, checked.snapshot
    numbered = [number for number, batches in parts.items() if any(batch.has_producer for batch in batches)]
    open_transactions = {number: checked.producers_of(number)[0].open_transactions for number in numbered}
    written = write_batches(handle, snapshot, parts, open_transactions)
    segments = [segment.info for segment in written]
    placed: Sequence[SegmentInfo] = ()
    warn_of_times(handle.storage.name, snapshot, segments, handle.clock())
    if handle.storage.is_local or fence is not None:
        race = CommitRace(handle.log, snapshot, "append", read_version=snapshot.version)
    else:
        is_keyed = "compact" in written_by.cleanup_policy
        race = handle.append_queue.race(snapshot, segments, None, read_version=snapshot.version, is_keyed=is_keyed)
    with race, ActiveSeals(handle, race) as seals:
        for head in race:
            sealed = seals.seal(head, parts)
            if sealed is None:
                continue
            check_keyed(sealed.config, written_by)
            if fence is not None:
                fence(sealed)
            check = checked.after(sealed, {number: parts[number] for number in numbered})
            placed, actions = _with_producers(check, numbered, written, at_log_ends(sealed, segments))
            race.put([*seals.actions, *map(Add, placed), *actions])
    assert race.commit is not None
    return AppendResult(race.commit.version, offsets_of(race.placed(placed))), race.after


def _with_producers(
    check: ProducerCheck, numbered: Sequence[int], written: Sequence[WrittenSegment], placed: Sequence[SegmentInfo]
) -> tuple[list[SegmentInfo], list[Action]]:
    """The segments with their first unstable offsets, and the actions with their producers."""
    transactions, segments = dict[int, OpenTransactions](), list[SegmentInfo]()
    named = {number: list[ProducerBatch]() for number in numbered}
    for result, segment in zip(written, placed, strict=True):
        number, offset = segment.partition, segment.base_offset
        if segment.has_transactions:
            producers = check.producers_of(number)[0]
            open_transactions = transactions.setdefault(number, OpenTransactions(producers.open_transactions))
            aborted, first_unstable = effect(result, offset, open_transactions)
            if aborted != list(result.aborted):
                # the written index has other offsets
                raise ConcurrentAppendError
            segment = replace(segment, first_unstable_offset=first_unstable)
        segments.append(segment)
        for batch in result.batches if number in named else ():
            named[number] += producer_batches(batch.data, batch.rows, offset)
            offset += batch.offset_count
    batches = {
        number: (*check.producers_of(number)[1], *sufficient_batches(new_batches))
        for number, new_batches in sorted(named.items())
        if new_batches
    }
    return segments, [ProducerBatches(batches)] if batches else []


#: The largest age of segments that are read for producers, if no commit names them, as after active segments.
REMEMBERED_MS = 15 * 60_000


def known_producers(
    handle: TopicHandle, state: PartitionState, passed_ms: int = 0
) -> tuple[ProducerTable, Sequence[ProducerBatch]]:
    """The producers that a partition's commits name, and the earlier batches that its next commit must name."""
    if state.producers or not len(state.segments):
        return state.producers, ()
    # no commit has named a producer yet: young segments, and all from the first open transaction on, may have some
    young = np.flatnonzero(state.segments.array("created_ms") >= handle.clock() - REMEMBERED_MS)
    # not the last old one: a job may commit a segment long after it wrote it
    first = int(young[0]) if len(young) else len(state.segments)
    first = min(first, state.segments.find(last_stable_offset(handle.reader, state)))
    batches, numbered = list[ProducerBatch](), set[int]()
    for segment in state.segments[first:]:
        for chunk in whole_log(handle.reader, segment) if segment.may_have_producers else ():
            for batch in producer_batches(chunk.data, chunk.batches, segment.shift):
                # a marker alone has no sequence number of its producer
                if not batch.is_marker or batch.producer_id in numbered:
                    numbered.add(batch.producer_id)
                    batches.append(batch)
    entries = sufficient_batches(batches)
    return ProducerTable().updated(entries, passed_ms), entries


def producer_entries(handle: TopicHandle, state: PartitionState) -> npt.NDArray[np.void]:
    """The state of each producer (ENTRY rows of a producer snapshot)."""
    return ProducerStates(dict(known_producers(handle, state)[0].items())).entries()


class ProducerCheck:
    """Checks batches against the producers at the end of `snapshot`; `first` may refuse a producer's first batch."""

    def __init__(
        self, handle: TopicHandle, snapshot: Snapshot, first: Callable[[int], FirstBatch] = lambda _: any_first
    ) -> None:
        self.handle, self.snapshot, self.first = handle, snapshot, first
        self._producers = dict[int, tuple[ProducerTable, Sequence[ProducerBatch]]]()
        # the states after the checked batches, and their end offsets
        self._states = dict[int, tuple[ProducerStates, int]]()

    def after(self, head: Snapshot, parts: Parts) -> ProducerCheck:
        """The check of `parts`, which were checked here, at a newer `head`; ConcurrentAppendError if one fails."""
        if head is self.snapshot:
            return self
        check = ProducerCheck(self.handle, head, self.first)
        for number, batches in parts.items():
            earlier, later = self.snapshot.partitions[number], head.partitions[number]
            if later is not earlier and (later.producers is not earlier.producers or not earlier.producers):
                _check_again(check, number, batches)
        return check

    def producers_of(self, partition: int) -> tuple[ProducerTable, Sequence[ProducerBatch]]:
        if partition not in self._producers:
            if partition >= len(self.snapshot.partitions):
                raise InvalidRecordError("the topic no longer has this partition", partition=partition)
            self._producers[partition] = known_producers(
                self.handle, self.snapshot.partitions[partition], self.snapshot.passed_ms
            )
        return self._producers[partition]

    def check(self, partition: int, batches: Sequence[ValidBatch]) -> KnownBatch | None:
        """Check the next batches; returns the partition's own last batch if it has them already."""
        if not any(batch.has_producer for batch in batches):
            return None
        table, _ = self.producers_of(partition)
        end = self.snapshot.partitions[partition].log_end_offset
        states, end = self._states.setdefault(partition, (ProducerStates(), end))
        rows = np.concatenate([batch.rows for batch in batches])
        for producer in {*rows["producer_id"].tolist()}:
            state = table.get(producer, self.snapshot.passed_ms)
            if state is not None and not self._has_expired(state):
                states.add_if_missing(producer, state)
        spans = rows["last_offset_delta"].astype(np.int64) + 1
        rows["base_offset"] = np.cumsum(spans) - spans
        duplicate = states.check(batch_fields(rows), self.first(partition))
        if duplicate is None:
            for batch in batches:
                states.observe(batch.data, batch.rows, end)
                end += batch.offset_count
            self._states[partition] = states, end
        else:
            # its commit is visible, and may not be durable yet
            self.handle.storage.sync(paths.COMMITS_DIR)
        return duplicate

    def _has_expired(self, state: ProducerState) -> bool:
        since_ms = min(max(0, self.handle.clock() - self.snapshot.timestamp_ms), PRODUCER_PAUSE_MS)
        silent_ms = self.snapshot.passed_ms + since_ms - state.heard_ms
        return state.transaction_first_offset == NONE and silent_ms >= self.handle.producer_expiration_ms


class ConcurrentAppendError(Exception):
    """The batches cannot be committed as they are: another process has committed concurrently."""


def _check_again(check: ProducerCheck, partition: int, batches: Sequence[ValidBatch]) -> None:
    for batch in batches:
        try:
            duplicate = check.check(partition, [batch])
        except DistlogError as error:
            raise ConcurrentAppendError from error
        if duplicate is not None:
            raise ConcurrentAppendError
