"""Appends to a topic on an object store: the batches of all connections are gathered, and committed together.

Each gathering is one bundle and one commit. A batch is acknowledged when its commit is stored.

What a segment says of transactions depends on what is behind: where the first undecided record is, and which records
an end marker aborts. The first is told by the plan of the commit. The second stands in a file, which must be written
anew if others appended to the partition meanwhile.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from functools import partial

from distlog.core.batches.record_batch import TRANSACTIONAL
from distlog.core.commits.format.segment_info import SegmentInfo
from distlog.core.commits.state.snapshot import Snapshot
from distlog.core.errors import (
    CommitStateUnknownError,
    DistlogError,
    InvalidRecordError,
    StorageError,
    TopicNotFoundError,
)
from distlog.core.log.partition.appended import SEALED, Appended, AppendInfo
from distlog.core.log.partition.batch_runs import BatchRun
from distlog.core.log.partition.log_validator import validate
from distlog.core.times import NO_TIMESTAMP
from distlog.core.topics.appending.append_commit import commit_append
from distlog.core.transactions.open_transactions import OpenTransactions
from distlog.gateway.commits.bundled_batches import WrittenSegment, effect, write_bundle
from distlog.gateway.commits.commit_log_producers import ProducersByPartition
from distlog.gateway.commits.gathered_batch import (
    Accepted,
    Fence,
    GatheredBatch,
    SentElsewhereError,
    appended_before,
    ask_fences,
    checked_by,
    rows_of,
    tell_the_same,
)
from distlog.gateway.fresh_topic import FreshTopic

#: What becomes of the batches, by partition.
Told = dict[int, Future[AppendInfo]]
#: Due at any time.
_AT_ONCE = float("-inf")


class GatheredAppends:
    """The appends of one topic, for many threads; a thread commits them every `linger_ms`, or when they are large."""

    def __init__(self, fresh: FreshTopic, linger_ms: int, linger_bytes: int, producers: ProducersByPartition) -> None:
        self._fresh, self._linger_s, self._linger_bytes = fresh, linger_ms / 1000, linger_bytes
        self._changed = threading.Condition()
        self._waiting: list[GatheredBatch] = []
        self._first_s, self._size, self._is_closing = 0.0, 0, False
        self._producers = producers
        self._thread: threading.Thread | None = None

    def append(self, partition: int, records: bytes, fence: Fence | None = None) -> Future[AppendInfo]:
        """Have the batch appended with the next commit, unless `fence` refuses.

        Without a fence, batches of transactions are refused. Raises what `validate` raises, TopicNotFoundError.
        """
        config = self._fresh.snapshot.config
        valid = validate(records, config, self._fresh.topic.clock())
        if fence is None and valid.rows[0]["attributes"] & TRANSACTIONAL:
            raise InvalidRecordError("a batch of a transaction needs the producer's transactional id")
        batch = GatheredBatch(partition, valid, config, fence)
        self._gather([batch], at_once=False)
        return batch.told

    def append_runs(self, runs: Mapping[int, BatchRun], fence: Fence, *, at_once: bool = True) -> Told:
        """Have a batch of the gateway itself appended to each of these partitions, in one commit with what waits."""
        config = self._fresh.snapshot.config
        batches = [GatheredBatch.of_run(number, run, config, fence) for number, run in runs.items()]
        self._gather(batches, at_once=at_once)
        return {batch.partition: batch.told for batch in batches}

    def _gather(self, batches: Sequence[GatheredBatch], *, at_once: bool) -> None:
        with self._changed:
            if self._is_closing and at_once:  # nobody may take it for dropped, and do without an end marker
                raise StorageError("the topic was closed, since it was dropped, or the gateway ends: look again")
            if self._is_closing:
                raise TopicNotFoundError("the topic was dropped, or the gateway ends", topic=self._fresh.name)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="gathered-appends", daemon=True)
                self._thread.start()
            if at_once or not self._waiting:
                self._first_s = _AT_ONCE if at_once else time.monotonic()
            self._waiting += batches
            self._size += sum(batch.valid.data.nbytes for batch in batches)
            self._changed.notify()

    def hurry(self) -> None:
        """Commit what waits, and what comes, at once."""
        with self._changed:
            self._linger_s = 0.0
            self._changed.notify()

    def close(self) -> None:
        """Commit what waits, and end."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while batches := self._take():
            self._commit_or_tell(batches)

    def _commit_or_tell(self, batches: Sequence[GatheredBatch]) -> None:
        try:
            self._commit(batches)
        except BaseException as error:
            if isinstance(error, CommitStateUnknownError):
                # it may be there: the next look reads it
                self._producers.clear()
            for batch in batches:
                if not batch.told.done():
                    batch.told.set_exception(error)

    def _take(self) -> list[GatheredBatch]:
        """What is committed next; waits for it. Nothing at the end."""
        with self._changed:
            while not self._is_closing:
                left_s = self._first_s + self._linger_s - time.monotonic() if self._waiting else None
                if self._waiting and (self._size >= self._linger_bytes or (left_s is not None and left_s <= 0)):
                    break
                self._changed.wait(left_s)
            batches, self._waiting, self._size = self._waiting, [], 0
            return batches

    def _commit(self, batches: Sequence[GatheredBatch]) -> None:
        left = list(batches)
        while left:
            with suppress(SentElsewhereError):
                self._try(left)
            # if others were faster, at least one batch is told so with the next try
            left = [batch for batch in left if not batch.told.done()]

    def _try(self, batches: Sequence[GatheredBatch]) -> None:
        snapshot = self._fresh.refresh()
        again: dict[int, list[GatheredBatch]] = {}
        accepted: dict[int, list[GatheredBatch]] = {}
        known = dict[tuple[int, ...], GatheredBatch]()
        for batch in batches:
            first = known.setdefault(batch.sequence, batch) if batch.sequence else batch
            if first is not batch:
                # the client sent it again meanwhile
                again.setdefault(id(first), []).append(batch)
            elif self._is_next(snapshot, batch, accepted.get(batch.partition, ())):
                accepted.setdefault(batch.partition, []).append(batch)
        if accepted:
            self._commit_accepted(snapshot, accepted)
        for first in known.values():
            for batch in again.get(id(first), ()):
                tell_the_same(first.told, batch.told)

    def _commit_accepted(self, snapshot: Snapshot, accepted: Accepted) -> None:
        topic = self._fresh.topic
        parts = {number: [batch.valid for batch in each] for number, each in accepted.items()}
        opened = {number: self._producers[number].opened for number in accepted.keys() & self._producers.keys()}
        written = write_bundle(topic.handle, snapshot, parts, opened)
        result, after = commit_append(
            topic.handle,
            snapshot,
            [each.info for each in written],
            read_version=snapshot.version,
            written_by=checked_by(accepted),
            check=partial(self._check_again, accepted),
            settle=partial(self._settled, written),
        )
        topic.advance(after)
        for number, each in accepted.items():
            self._tell(after, number, each, result.offsets[number][0])

    def _is_next(self, snapshot: Snapshot, batch: GatheredBatch, before: Sequence[GatheredBatch]) -> bool:
        """Whether the batch is to be committed, behind those `before`; if not, its producer is told why."""
        if not batch.has_producer:
            return True
        try:
            if batch.partition >= len(snapshot.partitions):
                raise InvalidRecordError("the topic has no such partition any more", partition=batch.partition)
            producers = self._producers[batch.partition]
            if not any(each.has_producer for each in before):
                producers.catch_up(snapshot.partitions[batch.partition])
            found = producers.check(rows_of([*before, batch]))
        except Exception as error:
            batch.told.set_exception(error)
            return False
        if found is not None:
            batch.told.set_result(appended_before(snapshot, batch, found))
        return found is None

    def _check_again(self, accepted: Accepted, current: Snapshot) -> None:
        """Check the batches behind what others have committed since: a client may have sent them there, too."""
        ask_fences(accepted, current)
        for number, batches in accepted.items():
            producers, state = self._producers.get(number), current.partitions[number]
            if producers is None or producers.has_read(state) or not any(each.has_producer for each in batches):
                continue
            producers.catch_up(state)
            try:
                found = producers.check(rows_of(batches))
            except DistlogError as error:
                raise SentElsewhereError from error
            if found is not None:
                raise SentElsewhereError

    def _settled(self, written: Sequence[WrittenSegment], placed: Sequence[SegmentInfo]) -> list[SegmentInfo]:
        """The segments with their first unstable offsets, behind what `_check_again` has read."""
        transactions, settled = dict[int, OpenTransactions](), list[SegmentInfo]()
        for each, segment in zip(written, placed, strict=True):
            if segment.has_transactions:
                number = segment.partition
                opened = transactions.setdefault(number, OpenTransactions(self._producers[number].opened))
                aborted, first_unstable = effect(each, segment.base_offset, opened)
                if aborted != list(each.aborted):
                    # the index that was written is of other offsets
                    raise SentElsewhereError
                segment = replace(segment, first_unstable_offset=first_unstable)
            settled.append(segment)
        return settled

    def _tell(self, after: Snapshot, number: int, batches: Sequence[GatheredBatch], first: int) -> None:
        state = after.partitions[number]
        by_log = after.config.message_timestamp_type == "LogAppendTime"
        row = state.segments.find(first)
        time_ms = state.segments[row].append_time_ms if by_log and row < len(state.segments) else NO_TIMESTAMP
        producers, offset = self._producers.get(number), first
        for batch in batches:
            if producers is not None:
                # the row is at offset 0 of its own
                producers.appended(batch.valid.data, batch.valid.rows, offset)
            appended = Appended(offset, offset + batch.count, SEALED, after.version, False, time_ms)
            batch.told.set_result(AppendInfo(appended, state.log_start_offset))
            offset += batch.count
