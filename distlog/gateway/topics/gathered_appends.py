"""Appends to a topic on an object store: the batches of all connections are gathered, and committed together.

The gathered batches are one object and one commit; a batch is acknowledged when its commit is stored. The queue of
the commit log (`core.commits.group_commit`) would put an object for each append. It also lacks the fences (checks of
the newest snapshot before an append) that transactions and the gateway's own records need.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from itertools import chain
from weakref import WeakKeyDictionary

from distlog.core.commits.deduplication import KEPT_BATCHES
from distlog.core.commits.snapshot import Snapshot
from distlog.core.config import TopicConfig
from distlog.core.errors import InvalidRecordError, StorageError, TopicNotFoundError
from distlog.core.format.record_batch import TRANSACTIONAL
from distlog.core.format.record_encoder import ValidBatch
from distlog.core.log.partition_log import SEALED, Appended, AppendInfo, BatchRun
from distlog.core.log.producers import validate
from distlog.core.segments.producer_states import FirstBatch
from distlog.core.times import NO_TIMESTAMP
from distlog.core.write.engine import ConcurrentAppendError, ProducerCheck, commit_batches
from distlog.gateway.topics.partition import Fence, RefreshingTopic

Results = dict[int, Future[AppendInfo]]
#: A request's batches by partition, each with the fence that may refuse it.
RequestedBatches = Mapping[int, tuple[bytes, Fence | None]]
#: About the most batches in a commit, which bounds its number of producers.
MAX_BATCHES = 10_000
_PAST, _NEVER = -math.inf, math.inf
#: Requests that clients send together arrive within this time, and share a commit.
_BURST_S = 0.01
#: A client with a backlog sends its next request within this fraction of the linger after a response.
_BACKLOG_FRACTION = 0.25
#: A commit of at least this size need not wait for the end of the linger.
_EARLY_COMMIT_BYTES = 64 << 10
#: A thread without batches ends after this time: a root may have more topics than a process may have threads.
_IDLE_S = 60.0


class GatheredAppends:
    """The appends of one topic, thread-safe. A background thread commits the gathered batches.

    A commit follows `linger_ms` after its first batch. It follows earlier if the batches are large, or if all their
    senders wait for responses. It also follows earlier if the first batch comes after a pause of `linger_ms`, so that
    an occasional batch does not wait. This happens at most once in each `linger_ms`.
    """

    def __init__(
        self, hosted: RefreshingTopic, linger_ms: int, linger_bytes: int, check_of: Callable[[int], FirstBatch]
    ) -> None:
        self._hosted, self._linger_s, self._linger_bytes = hosted, linger_ms / 1000, linger_bytes
        self._changed = threading.Condition()
        # the oldest first; a new request goes to the last one unless it is full
        self._waiting = deque[_PendingCommit]()
        self._senders = WeakKeyDictionary[object, Sender]()
        # senders that were answered together, and the time until which their next requests are expected
        self._expected, self._expected_until_s = set[Sender](), _PAST
        # the latest time of the next commit; a batch at `_pause_from_s` or later comes after a pause
        self._due_s = self._pause_from_s = _PAST
        # returns the check of a partition, which may refuse the first batch of an unknown producer
        self._check_of = check_of
        self._is_closing = False
        self._thread: threading.Thread | None = None

    def append(self, requested: RequestedBatches, connection: object | None = None) -> Results:
        """Append batches with the next commit, each unless its fence refuses. Raises TopicNotFoundError."""
        config, now_ms = self._hosted.snapshot.config, self._hosted.topic.clock()
        results, batches = Results(), list[GatheredBatch]()
        for number, (records, fence) in requested.items():
            try:
                valid = validate(records, config, now_ms)
                if fence is None and valid.rows[0]["attributes"] & TRANSACTIONAL:
                    raise InvalidRecordError("a batch of a transaction needs the producer's transactional id")
            except Exception as error:  # noqa: PERF203 - append the other batches
                results[number] = Future()
                results[number].set_exception(error)
            else:
                batches.append(GatheredBatch(number, valid, config, fence))
                results[number] = batches[-1].result
        if batches:
            self._gather(batches, connection, at_once=False)
        return results

    def append_runs(self, runs: Mapping[int, BatchRun], fence: Fence, *, at_once: bool = True) -> Results:
        """Append batches of the gateway by partition, without a linger if `at_once`. Raises as `append`."""
        config, batches = self._hosted.snapshot.config, list[GatheredBatch]()
        for number, run in runs.items():
            valid = ValidBatch(run.data, run.rows, int(run.offsets_of_max_timestamp[0]), int(run.min_timestamps[0]))
            batches.append(GatheredBatch(number, valid, config, fence))
        self._gather(batches, None, at_once=at_once)
        return {batch.partition: batch.result for batch in batches}

    def _gather(self, batches: Sequence[GatheredBatch], connection: object | None, *, at_once: bool) -> None:
        with self._changed:
            if self._is_closing and at_once:
                # these may be end markers: do not raise TopicNotFoundError, since the topic may exist, and need them
                raise StorageError("the topic was dropped, or the gateway is stopping: retry")
            if self._is_closing:
                raise TopicNotFoundError("the topic was dropped, or the gateway is stopping", topic=self._hosted.name)
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="gathered-appends", daemon=True)
                # set this after the start, which fails if the system has no more threads
                thread.start()
                self._thread = thread
            now_s = time.monotonic()
            if at_once:
                self._due_s = _PAST
            elif not self._waiting:
                comes_after_pause = now_s >= self._pause_from_s
                self._due_s = now_s + (min(_BURST_S, self._linger_s) if comes_after_pause else self._linger_s)
            sender = None
            if connection is not None:
                sender = self._senders.setdefault(connection, Sender())
                sender.send(now_s, _BACKLOG_FRACTION * self._linger_s)
                self._expected.discard(sender)
            if not self._waiting or len(self._waiting[-1].batches) >= MAX_BATCHES:
                self._waiting.append(_PendingCommit())
            self._waiting[-1].add(batches, sender)
            self._changed.notify()

    def commit_now(self) -> None:
        """Commit the waiting batches at once, and later batches without a linger: the gateway is stopping."""
        with self._changed:
            self._linger_s, self._due_s = 0.0, _PAST
            self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._is_closing, thread = True, self._thread
            self._changed.notify()
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        while pending := self._next_pending_commit():
            try:
                self._commit(pending.batches)
            except BaseException as error:
                for batch in pending.batches:
                    batch.outcome = batch.outcome or error
            self._answer(pending)
            self._pause_from_s = time.monotonic() + self._linger_s

    def _next_pending_commit(self) -> _PendingCommit | None:
        """Wait for the batches of the next commit; None after `close`, or after _IDLE_S without a batch."""
        with self._changed:
            while not self._is_closing:
                left_s = self._next_commit_s() - time.monotonic() if self._waiting else _IDLE_S
                if left_s <= 0:
                    break
                if not self._changed.wait(left_s) and not self._waiting:
                    self._thread = None
                    return None
            self._pause_from_s = _NEVER  # batches that come during the commit do not come after a pause
            return self._waiting.popleft() if self._waiting else None

    def _next_commit_s(self) -> float:
        """The time of the next commit: at the latest `_due_s`, and earlier if no sender is expected to send more."""
        pending = self._waiting[0]
        if pending.size >= self._linger_bytes or len(pending.batches) >= MAX_BATCHES:
            return _PAST
        expected_s = self._expected_until_s if self._expected else _PAST
        return min(self._due_s, max(pending.complete_at_s, expected_s))

    def _answer(self, pending: _PendingCommit) -> None:
        with self._changed:
            now_s = time.monotonic()
            for sender, requests in pending.requests.items():
                if sender is not None:
                    sender.answer(requests, now_s)
            # a sender with a known maximum waits for responses, so it may send more now
            self._expected = {sender for sender in pending.requests if sender is not None and sender.max_in_flight}
            self._expected_until_s = now_s + _BURST_S
        for batch in pending.batches:
            if isinstance(batch.outcome, BaseException):
                batch.result.set_exception(batch.outcome)
            else:
                assert batch.outcome is not None
                batch.result.set_result(batch.outcome)

    def _commit(self, batches: Sequence[GatheredBatch]) -> None:
        while batches:
            with suppress(ConcurrentAppendError):
                self._try_commit(batches)
            # after a conflict, the next try commits or refuses at least one batch
            batches = [batch for batch in batches if batch.outcome is None]

    def _try_commit(self, batches: Sequence[GatheredBatch]) -> None:
        check = ProducerCheck(self._hosted.topic.handle, self._hosted.refresh(), self._check_of)
        accepted: dict[int, list[GatheredBatch]] = {}
        # each batch that a client has sent again, and the batch that it repeats
        repeats = list[tuple[GatheredBatch, GatheredBatch]]()
        first_by_sequence = dict[tuple[int, ...], GatheredBatch]()
        for batch in batches:
            sequence = batch.sequence
            first = batch if sequence is None else first_by_sequence.setdefault(sequence, batch)
            if first is not batch:
                repeats.append((batch, first))
            elif self._must_commit(check, batch):
                accepted.setdefault(batch.partition, []).append(batch)
        if accepted:
            self._commit_accepted(check, accepted)
        for batch, first in repeats:
            batch.outcome = first.outcome

    def _commit_accepted(self, check: ProducerCheck, accepted: Accepted) -> None:
        valid = {number: [batch.valid for batch in batches] for number, batches in accepted.items()}
        configs = [batch.config for batches in accepted.values() for batch in batches]
        # each batch was checked with its own config, which may differ: take one that requires no keys, if any
        config = next((config for config in configs if "compact" not in config.cleanup_policy), configs[0])
        result, snapshot = commit_batches(check, valid, config, partial(refuse_fenced, accepted))
        self._hosted.topic.advance(snapshot)
        for number, batches in accepted.items():
            offset, _ = result.offsets[number]
            for batch in batches:
                end_offset = offset + batch.valid.offset_count
                batch.outcome = _append_info(snapshot, number, offset, end_offset)
                offset = end_offset

    def _must_commit(self, check: ProducerCheck, batch: GatheredBatch) -> bool:
        """Whether the batch must be committed. If not, its outcome is set to an error or to its earlier append."""
        try:
            earlier = check.check(batch.partition, [batch.valid])
        except Exception as error:
            batch.outcome = error
            return False
        if earlier is not None:
            first_offset, end_offset = earlier.first_offset, earlier.last_offset + 1
            batch.outcome = _append_info(check.snapshot, batch.partition, first_offset, end_offset)
        return earlier is None


@dataclass(slots=True, eq=False)
class GatheredBatch:
    """A batch that waits for its commit. It was validated with `config`; `fence` may refuse it."""

    partition: int
    valid: ValidBatch
    config: TopicConfig
    fence: Fence | None = None
    #: The offsets of the batch, or its error, which `result` gets after the commit.
    outcome: AppendInfo | BaseException | None = None
    result: Future[AppendInfo] = field(default_factory=Future)

    @property
    def sequence(self) -> tuple[int, ...] | None:
        """The partition, producer and sequence numbers of the batch; None if it has no sequence numbers."""
        row = self.valid.rows[0]
        names = ("producer_id", "producer_epoch", "base_sequence", "last_offset_delta")
        return (self.partition, *(int(row[name]) for name in names)) if row["base_sequence"] >= 0 else None


Accepted = Mapping[int, Sequence[GatheredBatch]]


def refuse_fenced(accepted: Accepted, current: Snapshot) -> None:
    """Fail batches that their fences refuse. Raises ConcurrentAppendError if there are any, to retry without them."""
    refusals = dict[Fence, Exception | None]()
    for batch in chain.from_iterable(accepted.values()):
        if batch.fence is not None:
            if batch.fence not in refusals:
                refusals[batch.fence] = _refusal(batch.fence, current)
            batch.outcome = refusals[batch.fence]
    if any(refusals.values()):
        raise ConcurrentAppendError


def _refusal(fence: Fence, current: Snapshot) -> Exception | None:
    try:
        fence(current)
    except Exception as error:
        return error
    return None


def _append_info(snapshot: Snapshot, partition: int, first_offset: int, end_offset: int) -> AppendInfo:
    state, time_ms = snapshot.partitions[partition], NO_TIMESTAMP
    if snapshot.config.message_timestamp_type == "LogAppendTime":
        row = state.segments.find(first_offset)
        time_ms = state.segments[row].append_time_ms if row < len(state.segments) else NO_TIMESTAMP
    appended = Appended(first_offset, end_offset, SEALED, snapshot.version, flush_due=False, append_time_ms=time_ms)
    return AppendInfo(appended, state.log_start_offset)


class Completeness(Enum):
    """Whether a sender will send more requests before its next response."""

    UNKNOWN = auto()
    #: The sender has fewer than `max_in_flight` requests in flight: it sends more soon, or has nothing more to send.
    SENDING = auto()
    #: The sender has `max_in_flight` requests in flight, and waits for a response.
    WAITING = auto()
    #: The sender is idempotent, and has KEPT_BATCHES requests in flight, the most that it may have.
    FULL = auto()


@dataclass(slots=True, eq=False)
class Sender:
    """A connection. It sends `max_in_flight` requests, None if unknown, before it waits for a response."""

    in_flight: int = 0
    max_in_flight: int | None = None
    sent_s: float = _PAST
    answered_s: float = _PAST
    #: Whether the first request in flight came soon after a response.
    has_backlog: bool = False

    def send(self, now_s: float, soon_s: float) -> None:
        if not self.in_flight:
            self.has_backlog = now_s - self.answered_s <= soon_s
        self.in_flight += 1
        self.sent_s = now_s
        if self.max_in_flight is not None and self.in_flight > self.max_in_flight:
            self.max_in_flight = None  # the assumed maximum was too low

    def answer(self, requests: int, now_s: float) -> None:
        self.in_flight -= requests
        self.answered_s = now_s
        if not self.in_flight and now_s - self.sent_s >= _BURST_S:
            # the sender sent no more requests before the response, so this is its maximum
            self.max_in_flight = requests

    def completeness(self, requests: int, *, is_idempotent: bool) -> Completeness:
        if is_idempotent and requests >= KEPT_BATCHES:
            return Completeness.FULL
        if self.max_in_flight is None or not self.has_backlog:
            return Completeness.UNKNOWN
        return Completeness.SENDING if requests < self.max_in_flight else Completeness.WAITING


class _PendingCommit:
    """The batches of one commit, and the number of requests of each sender; None is the gateway itself."""

    def __init__(self) -> None:
        self.batches, self.size, self.sent_s = list[GatheredBatch](), 0, _PAST
        self.requests = Counter[Sender | None]()
        self._completeness = dict[Sender | None, Completeness]()
        self._sender_counts = Counter[Completeness]()

    def add(self, batches: Sequence[GatheredBatch], sender: Sender | None) -> None:
        self.batches += batches
        self.size += sum(batch.valid.data.nbytes for batch in batches)
        self.requests[sender] += 1
        completeness = Completeness.UNKNOWN
        if sender is not None:
            is_idempotent = any(batch.sequence for batch in batches)
            completeness = sender.completeness(self.requests[sender], is_idempotent=is_idempotent)
            self.sent_s = sender.sent_s
        if sender in self._completeness:
            self._sender_counts[self._completeness[sender]] -= 1
        self._completeness[sender] = completeness
        self._sender_counts[completeness] += 1

    @property
    def complete_at_s(self) -> float:
        """When no sender will send more before a response. Never if the commit is small, unless all are FULL."""
        counts = self._sender_counts
        if counts[Completeness.UNKNOWN]:
            return _NEVER
        if self.size < _EARLY_COMMIT_BYTES and (counts[Completeness.SENDING] or counts[Completeness.WAITING]):
            return _NEVER
        return self.sent_s + _BURST_S if counts[Completeness.SENDING] else _PAST
