"""Appends to a topic on an object store: the batches of all connections are gathered, and committed together."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from distlog.core.batches.record_batch import TRANSACTIONAL
from distlog.core.commits.producer_table import KEPT_BATCHES, NONE
from distlog.core.commits.snapshot import Snapshot
from distlog.core.config import TopicConfig
from distlog.core.errors import InvalidRecordError, StorageError, TopicNotFoundError
from distlog.core.log.flush import SEALED, Appended, AppendInfo
from distlog.core.log.log_validator import BatchRun, ValidBatch, validate
from distlog.core.times import NO_TIMESTAMP
from distlog.core.topics.committed_batches import ConcurrentAppendError, ProducerCheck, commit_batches
from distlog.core.transactions.producer_states import FirstBatch
from distlog.gateway.refreshing_topic import RefreshingTopic

#: Raises an error if nothing may be appended behind a snapshot.
Fence = Callable[[Snapshot], None]


@dataclass(slots=True, eq=False)
class GatheredBatch:
    """A batch that waits for its commit; it was validated with `config`, and `fence` may refuse it."""

    partition: int
    valid: ValidBatch
    config: TopicConfig
    fence: Fence | None = None
    result: Future[AppendInfo] = field(default_factory=Future)

    @property
    def sequence(self) -> tuple[int, ...] | None:
        """The key of a producer's batch among its others; None if it is not numbered."""
        row = self.valid.rows[0]
        names = ("producer_id", "producer_epoch", "base_sequence", "last_offset_delta")
        return (self.partition, *(int(row[name]) for name in names)) if row["base_sequence"] >= 0 else None


#: Batches that are committed together, by partition.
Accepted = Mapping[int, Sequence[GatheredBatch]]


def refuse_fenced(accepted: Accepted, current: Snapshot) -> None:
    """Fail the batches that their fences refuse; then raise ConcurrentAppendError, to begin anew without them."""
    errors = dict[Fence, Exception | None]()
    has_refused = False
    for batch in [batch for each in accepted.values() for batch in each]:
        fence = batch.fence
        if fence is None:
            continue
        if fence not in errors:
            errors[fence] = None
            try:
                fence(current)
            except Exception as error:
                errors[fence] = error
        if (refusal := errors[fence]) is not None:
            batch.result.set_exception(refusal)
            has_refused = True
    if has_refused:
        raise ConcurrentAppendError


def _info(snapshot: Snapshot, partition: int, first: int, end: int) -> AppendInfo:
    """The result of a batch at these offsets."""
    state, time_ms = snapshot.partitions[partition], NO_TIMESTAMP
    if snapshot.config.message_timestamp_type == "LogAppendTime":
        row = state.segments.find(first)
        time_ms = state.segments[row].append_time_ms if row < len(state.segments) else NO_TIMESTAMP
    return AppendInfo(Appended(first, end, SEALED, snapshot.version, False, time_ms), state.log_start_offset)


# Each gathering is one bundle and one commit. A batch is acknowledged when its commit is stored. The snapshot knows
# the last batches of each producer: nothing of a log is read (see `committed_batches`).

#: The results of batches, by partition.
Results = dict[int, Future[AppendInfo]]
#: The most batches in a commit: the number of producers in it is bounded.
MOST_BATCHES = 10_000
#: Due at any time.
_AT_ONCE = -math.inf
#: The partitions of a request, and the requests that a client sends together, are one commit also behind a pause.
_TOGETHER_S = 0.01
#: A thread without batches ends after so long: a root may have more topics than a process may have threads.
_IDLE_S = 60.0


class _Gathering:
    """Batches that wait for their commit."""

    def __init__(self, batches: Sequence[GatheredBatch] = ()) -> None:
        self.batches, self.size = list[GatheredBatch](), 0
        # the batches of each numbered producer in each partition, the producers, and the ones that send no more now
        self._numbers, self._producers, self._full = Counter[tuple[int, int]](), set[int](), set[int]()
        self.add(batches)

    def __len__(self) -> int:
        return len(self.batches)

    def add(self, batches: Sequence[GatheredBatch]) -> None:
        """Have batches wait."""
        self.batches += batches
        for batch in batches:
            self.size += batch.valid.data.nbytes
            row = batch.valid.rows[0]
            producer = int(row["producer_id"]) if row["base_sequence"] >= 0 else NONE
            self._producers.add(producer)
            if producer != NONE:
                self._numbers[producer, batch.partition] += 1
                if self._numbers[producer, batch.partition] >= KEPT_BATCHES:
                    self._full.add(producer)

    @property
    def is_complete(self) -> bool:
        """True if no producer sends more before it has an answer, so that nothing is gained by a linger."""
        return len(self._full) == len(self._producers)


class GatheredAppends:
    """The appends of one topic, for many threads; a thread commits them every `linger_ms`, or when they are large.

    Or when all their producers wait for answers. What comes together behind a pause of `linger_ms` is committed soon:
    a producer that sends now and then waits for little but its commit. A burst of many producers may be two commits
    then; there are never more than one for each `linger_ms`. The thread ends when it has been idle for long.
    """

    def __init__(
        self, fresh: RefreshingTopic, linger_ms: int, linger_bytes: int, first: Callable[[int], FirstBatch]
    ) -> None:
        self._fresh, self._linger_s, self._linger_bytes = fresh, linger_ms / 1000, linger_bytes
        self._changed = threading.Condition()
        self._waiting = _Gathering()
        #: When the next commit is due, if batches wait; and from when on the pause is long enough.
        self._due_s = self._paused_s = _AT_ONCE
        self._is_closing = False
        self._first = first
        self._thread: threading.Thread | None = None

    def append(self, partition: int, records: bytes, fence: Fence | None = None) -> Future[AppendInfo]:
        """Append the batch with the next commit, unless `fence` refuses.

        Without a fence, batches of transactions are refused. Raises the errors of `validate`, TopicNotFoundError.
        """
        config = self._fresh.snapshot.config
        valid = validate(records, config, self._fresh.topic.clock())
        if fence is None and valid.rows[0]["attributes"] & TRANSACTIONAL:
            raise InvalidRecordError("a batch of a transaction needs the producer's transactional id")
        batch = GatheredBatch(partition, valid, config, fence)
        self._gather([batch], at_once=False)
        return batch.result

    def append_runs(self, runs: Mapping[int, BatchRun], fence: Fence, *, at_once: bool = True) -> Results:
        """Append a batch of the gateway itself to each of these partitions, in one commit with all that wait."""
        config = self._fresh.snapshot.config
        valid = (
            (number, ValidBatch(run.data, run.rows, int(run.newest_offsets[0]), int(run.min_timestamps[0])))
            for number, run in runs.items()
        )
        batches = [GatheredBatch(number, batch, config, fence) for number, batch in valid]
        self._gather(batches, at_once=at_once)
        return {batch.partition: batch.result for batch in batches}

    def _gather(self, batches: Sequence[GatheredBatch], *, at_once: bool) -> None:
        with self._changed:
            if self._is_closing and at_once:  # the topic may be there still, and need its end marker
                raise StorageError("the topic was dropped, or the gateway is stopping: retry")
            if self._is_closing:
                raise TopicNotFoundError("the topic was dropped, or the gateway is stopping", topic=self._fresh.name)
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="gathered-appends", daemon=True)
                # it may be that there can be no more threads now
                thread.start()
                self._thread = thread
            if at_once:
                self._due_s = _AT_ONCE
            elif not self._waiting:
                now = time.monotonic()
                self._due_s = now + (self._linger_s if now < self._paused_s else min(_TOGETHER_S, self._linger_s))
            self._waiting.add(batches)
            self._changed.notify()

    def hurry(self) -> None:
        """Commit the waiting batches, and later ones, at once."""
        with self._changed:
            self._linger_s, self._due_s = 0.0, _AT_ONCE
            self._changed.notify()

    def close(self) -> None:
        """Commit the waiting batches, and end."""
        with self._changed:
            self._is_closing, thread = True, self._thread
            self._changed.notify()
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        while batches := self._take():
            try:
                self._commit(batches)
            except BaseException as error:
                for batch in batches:
                    if not batch.result.done():
                        batch.result.set_exception(error)
            self._paused_s = time.monotonic() + self._linger_s

    def _take(self) -> list[GatheredBatch]:
        """The batches of the next commit; waits for them. None are left at the end, or came for _IDLE_S."""
        with self._changed:
            while not self._is_closing:
                left_s = self._due_s - time.monotonic() if self._waiting else _IDLE_S
                is_large = self._waiting.size >= self._linger_bytes
                if self._waiting and (left_s <= 0 or is_large or self._waiting.is_complete):
                    break
                if not self._changed.wait(left_s) and not self._waiting:
                    self._thread = None
                    return []
            batches = self._waiting.batches
            self._waiting, self._paused_s = _Gathering(batches[MOST_BATCHES:]), math.inf
            return batches[:MOST_BATCHES]

    def _commit(self, batches: Sequence[GatheredBatch]) -> None:
        left = list(batches)
        while left:
            with suppress(ConcurrentAppendError):
                self._try(left)
            # if other writers were faster, the next try settles at least one batch
            left = [batch for batch in left if not batch.result.done()]

    def _try(self, batches: Sequence[GatheredBatch]) -> None:
        check = ProducerCheck(self._fresh.topic.handle, self._fresh.refresh(), self._first)
        repeats: dict[int, list[GatheredBatch]] = {}
        accepted: dict[int, list[GatheredBatch]] = {}
        first_of = dict[tuple[int, ...], GatheredBatch]()
        for batch in batches:
            first = first_of.setdefault(batch.sequence, batch) if batch.sequence else batch
            if first is not batch:
                # the client sent it again meanwhile
                repeats.setdefault(id(first), []).append(batch)
            elif self._is_next(check, batch):
                accepted.setdefault(batch.partition, []).append(batch)
        if accepted:
            self._commit_accepted(check, accepted)
        for first in first_of.values():
            for batch in repeats.get(id(first), ()):
                if (error := first.result.exception()) is not None:
                    batch.result.set_exception(error)
                else:
                    batch.result.set_result(first.result.result())

    def _commit_accepted(self, check: ProducerCheck, accepted: Accepted) -> None:
        parts = {number: [batch.valid for batch in each] for number, each in accepted.items()}
        configs = [batch.config for each in accepted.values() for batch in each]
        # the least strict one that any of them was validated with: one that demands no keys
        config = next((config for config in configs if "compact" not in config.cleanup_policy), configs[0])
        result, after = commit_batches(check, parts, config, partial(refuse_fenced, accepted))
        self._fresh.topic.advance(after)
        for number, each in accepted.items():
            first = result.offsets[number][0]
            for batch in each:
                batch.result.set_result(_info(after, number, first, first + batch.valid.offset_count))
                first += batch.valid.offset_count

    def _is_next(self, check: ProducerCheck, batch: GatheredBatch) -> bool:
        """True if the batch is to be committed, behind the ones before it; if not, its result is set."""
        try:
            known = check.check(batch.partition, [batch.valid])
        except Exception as error:
            batch.result.set_exception(error)
            return False
        if known is not None:
            batch.result.set_result(_info(check.snapshot, batch.partition, known.first_offset, known.last_offset + 1))
        return known is None
