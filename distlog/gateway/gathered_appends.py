"""Appends to a topic on an object store: the batches of all connections are gathered, and committed together.

Each gathering is one bundle and one commit. A batch is acknowledged when its commit is stored.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from distlog.core.commits.snapshot import Snapshot
from distlog.core.config import TopicConfig
from distlog.core.errors import CommitStateUnknownError, DistlogError, InvalidRecordError, TopicNotFoundError
from distlog.core.log.appended import SEALED, Appended, AppendInfo
from distlog.core.log.log_validator import ValidBatch, validate
from distlog.core.times import NO_TIMESTAMP
from distlog.core.topics.append_commit import commit_append
from distlog.core.transactions.producer_state import KnownBatch
from distlog.gateway.bundled_batches import write_bundle
from distlog.gateway.commit_log_producers import CommitLogProducers
from distlog.gateway.fresh_topic import FreshTopic


@dataclass(slots=True, eq=False)
class _Gathered:
    """A batch that waits for its commit, and what its producer is told then; `config` is what it was checked by."""

    partition: int
    valid: ValidBatch
    config: TopicConfig
    told: Future[AppendInfo] = field(default_factory=Future)

    @property
    def count(self) -> int:
        """How many offsets it takes."""
        return int(self.valid.rows[0]["last_offset_delta"]) + 1

    @property
    def sequence(self) -> tuple[int, ...] | None:
        """What tells the batch of a producer from its others; None without a producer."""
        row = self.valid.rows[0]
        names = ("producer_id", "producer_epoch", "base_sequence", "last_offset_delta")
        return (self.partition, *(int(row[name]) for name in names)) if row["producer_id"] >= 0 else None


class _SentElsewhereError(Exception):
    """Another gateway has committed batches of the same producers meanwhile."""


class GatheredAppends:
    """The appends of one topic, for many threads; a thread commits them every `linger_ms`, or when they are large."""

    def __init__(self, fresh: FreshTopic, linger_ms: int, linger_bytes: int) -> None:
        self._fresh, self._linger_s, self._linger_bytes = fresh, linger_ms / 1000, linger_bytes
        self._changed = threading.Condition()
        self._waiting: list[_Gathered] = []
        self._first_s, self._size, self._is_closing = 0.0, 0, False
        self._producers: dict[int, CommitLogProducers] = {}
        self._thread: threading.Thread | None = None

    def append(self, partition: int, records: bytes) -> Future[AppendInfo]:
        """Have the batch appended with the next commit. Raises what `validate` raises, TopicNotFoundError."""
        topic = self._fresh.topic
        config = self._fresh.snapshot.config
        valid = validate(records, config, topic.clock())
        gathered = _Gathered(partition, valid, config)
        with self._changed:
            if self._is_closing:
                raise TopicNotFoundError("the topic was dropped, or the gateway ends", topic=self._fresh.name)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="gathered-appends", daemon=True)
                self._thread.start()
            self._first_s = self._first_s if self._waiting else time.monotonic()
            self._waiting.append(gathered)
            self._size += valid.data.nbytes
            self._changed.notify()
        return gathered.told

    def hurry(self) -> None:
        """Commit what waits, and what comes, at once: the gateway ends."""
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

    def _commit_or_tell(self, batches: Sequence[_Gathered]) -> None:
        try:
            self._commit(batches)
        except BaseException as error:
            if isinstance(error, CommitStateUnknownError):
                # it may be there: the next look reads it
                self._producers.clear()
            for batch in batches:
                if not batch.told.done():
                    batch.told.set_exception(error)

    def _take(self) -> list[_Gathered]:
        """What is committed next; waits for it. Nothing at the end."""
        with self._changed:
            while not self._is_closing:
                left_s = self._first_s + self._linger_s - time.monotonic() if self._waiting else None
                if self._waiting and (self._size >= self._linger_bytes or (left_s is not None and left_s <= 0)):
                    break
                self._changed.wait(left_s)
            batches, self._waiting, self._size = self._waiting, [], 0
            return batches

    def _commit(self, batches: Sequence[_Gathered]) -> None:
        left = list(batches)
        while left:
            with suppress(_SentElsewhereError):
                self._try(left)
            # if others were faster, at least one batch is told so with the next try
            left = [batch for batch in left if not batch.told.done()]

    def _try(self, batches: Sequence[_Gathered]) -> None:
        topic, snapshot = self._fresh.topic, self._fresh.refresh()
        again: dict[int, list[_Gathered]] = {}
        accepted: dict[int, list[_Gathered]] = {}
        known = dict[tuple[int, ...], _Gathered]()
        for batch in batches:
            first = known.setdefault(batch.sequence, batch) if batch.sequence else batch
            if first is not batch:
                # the client sent it again meanwhile
                again.setdefault(id(first), []).append(batch)
            elif self._is_next(snapshot, batch, accepted.get(batch.partition, ())):
                accepted.setdefault(batch.partition, []).append(batch)
        if accepted:
            parts = {number: [batch.valid for batch in each] for number, each in accepted.items()}
            segments = write_bundle(topic.handle, snapshot, parts)
            result, after = commit_append(
                topic.handle,
                snapshot,
                segments,
                read_version=snapshot.version,
                written_by=_checked_by(accepted),
                check=partial(self._check_again, accepted),
            )
            topic.advance(after)
            for number, each in accepted.items():
                self._tell(after, number, each, result.offsets[number][0])
        for first in known.values():
            for batch in again.get(id(first), ()):
                _copy(first.told, batch.told)

    def _is_next(self, snapshot: Snapshot, batch: _Gathered, before: Sequence[_Gathered]) -> bool:
        """Whether the batch is to be committed, behind those `before`; if not, its producer is told why."""
        if batch.sequence is None:
            return True
        producers = self._producers.get(batch.partition)
        try:
            if batch.partition >= len(snapshot.partitions):
                raise InvalidRecordError("the topic has no such partition any more", partition=batch.partition)
            if producers is None:
                producers = CommitLogProducers(self._fresh.topic.reader, self._fresh.topic.clock)
                self._producers[batch.partition] = producers
            if not any(each.sequence for each in before):
                producers.catch_up(snapshot.partitions[batch.partition])
            found = producers.check(_rows([*before, batch]))
        except Exception as error:
            batch.told.set_exception(error)
            return False
        if found is not None:
            batch.told.set_result(_appended_before(snapshot, batch, found))
        return found is None

    def _check_again(self, accepted: Mapping[int, Sequence[_Gathered]], current: Snapshot) -> None:
        """Check the batches behind what others have committed since: a client may have sent them there, too."""
        for number, batches in accepted.items():
            producers, state = self._producers.get(number), current.partitions[number]
            if producers is None or producers.has_read(state) or not any(each.sequence for each in batches):
                continue
            producers.catch_up(state)
            try:
                found = producers.check(_rows(batches))
            except DistlogError as error:
                raise _SentElsewhereError from error
            if found is not None:
                raise _SentElsewhereError

    def _tell(self, after: Snapshot, number: int, batches: Sequence[_Gathered], first: int) -> None:
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


def _checked_by(accepted: Mapping[int, Sequence[_Gathered]]) -> TopicConfig:
    """Settings by which no batch has been checked more strictly: if any was not looked at for keys, those."""
    configs = [batch.config for each in accepted.values() for batch in each]
    return next((config for config in configs if "compact" not in config.cleanup_policy), configs[0])


def _rows(batches: Sequence[_Gathered]) -> npt.NDArray[Any]:
    rows: npt.NDArray[Any] = np.concatenate([batch.valid.rows for batch in batches])
    spans = rows["last_offset_delta"].astype(np.int64) + 1
    rows["base_offset"] = np.cumsum(spans) - spans
    return rows


def _appended_before(snapshot: Snapshot, batch: _Gathered, known: KnownBatch) -> AppendInfo:
    end = known.last_offset + 1
    by_log = snapshot.config.message_timestamp_type == "LogAppendTime"
    time_ms = known.timestamp if by_log else NO_TIMESTAMP
    appended = Appended(end - batch.count, end, SEALED, snapshot.version, False, time_ms)
    return AppendInfo(appended, snapshot.partitions[batch.partition].log_start_offset)


def _copy(told: Future[AppendInfo], to: Future[AppendInfo]) -> None:
    error = told.exception()
    if error is not None:
        to.set_exception(error)
    else:
        to.set_result(told.result())
