"""The engine that appends by commits, on object stores and network mounts.

A commit names the producers of the batches that it adds, with their sequence numbers, so a snapshot knows the next
number of each producer, and no log is read for it. The check is made at the newest head: all earlier commits count.

Two values of a segment depend on the log before it: its first undecided record, and the records that an end marker
aborts. The race of the commit sets the first. The second is in a file, which must be written again if another process
appended to the partition concurrently.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from distlog.core import paths
from distlog.core.commits.actions import Action, Add, ProducerBatches
from distlog.core.commits.commit_log import CurrentSnapshot
from distlog.core.commits.commit_race import CommitRace
from distlog.core.commits.pending_queue import pending_append, segments_of_append
from distlog.core.commits.producer_table import (
    NONE,
    PAUSE_MS,
    KnownBatch,
    ProducerBatch,
    ProducerState,
    ProducerTable,
    sufficient_batches,
)
from distlog.core.commits.segment_table import SegmentInfo
from distlog.core.commits.snapshot import PartitionState, Snapshot
from distlog.core.config import TopicConfig
from distlog.core.errors import (
    CommitStateUnknownError,
    DistlogError,
    InvalidRecordError,
    ProducerFencedError,
    StorageError,
)
from distlog.core.format.record_batch import batch_fields
from distlog.core.format.record_encoder import EncodedBatches
from distlog.core.log.active_seals import ActiveSeals
from distlog.core.log.end_marker import WrittenSegment, effect, write_bundle
from distlog.core.log.log_validator import ValidBatch
from distlog.core.segments.producer_states import FirstBatch, ProducerStates, any_first, producer_batches
from distlog.core.segments.segment_reader import whole_log
from distlog.core.segments.topic_handle import TopicHandle
from distlog.core.segments.transactions import OpenTransactions, last_stable_offset
from distlog.core.storage.parallel import in_order
from distlog.core.storage.retry import Deadline
from distlog.core.write.append import AppendResult, check_keyed, offsets_of, place, warn_of_times
from distlog.core.write.engine import DELIVERY_TIMEOUT_S, Appends, Fence, PartitionBatches, workers_for


class CommitEngine:
    """Commits the batches of each append together. A commit is durable, so there is nothing to flush."""

    is_flushed = True

    def __init__(self, handle: TopicHandle, current: CurrentSnapshot) -> None:
        self._handle, self._current = handle, current

    def append(self, parts: Sequence[PartitionBatches], fence: Fence | None = None) -> Appends:
        """Commit the batches, all or none."""
        workers = workers_for(parts)
        encodings = (part.encode for part in parts)
        encoded = in_order(encodings, 2 * workers if workers > 1 else 0, workers=workers, joined=True)
        batches = {part.partition: valid_batches(data) for part, data in zip(parts, encoded, strict=True)}
        config, has_producer = parts[0].config, any(part.has_producer for part in parts)
        snapshot, deadline = self._current.snapshot, Deadline(DELIVERY_TIMEOUT_S)
        while True:
            try:
                return Appends(self._commit(snapshot, batches, config, fence))
            except ConcurrentAppendError:
                # they are in the log already, or a newer producer has started: the next check shows which
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
            # one commit has all of them
            return AppendResult(None, offsets, replayed=True)
        fences = None if fence is None else lambda head: fence.check(head, batches)
        result, after = commit_batches(check, batches, config, fences)
        self._current.advance(after)
        return result

    def flush(self) -> None:
        """There is nothing to flush."""

    def close(self) -> None:
        """There is nothing to close."""

    def begin_child(self) -> None:
        """There is nothing that a fork could harm."""


def valid_batches(encoded: EncodedBatches) -> list[ValidBatch]:
    """Each batch by itself."""
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
    """Commit the batches of `parts`, which were `checked`, all or none.

    `fence` may refuse each head after which they would be committed; then nothing is. Raises ConcurrentAppendError
    if the batches do not come next any more.
    """
    handle, snapshot = checked.handle, checked.snapshot
    numbered = [number for number, batches in parts.items() if any(batch.has_producer for batch in batches)]
    open_transactions = {number: checked.producers_of(number)[0].open_transactions for number in numbered}
    written = write_bundle(handle, snapshot, parts, open_transactions)
    segments, placed = [segment.info for segment in written], list[SegmentInfo]()
    warn_of_times(handle.storage.name, snapshot, segments, handle.clock())
    pending = None
    if fence is None:
        is_keyed = "compact" in written_by.cleanup_policy
        pending = pending_append(handle.storage, snapshot, segments, None, is_keyed=is_keyed)
    ticket = handle.log.queue.ticket(pending, snapshot)
    race = CommitRace(handle.log, snapshot, "append", read_version=snapshot.version, ticket=ticket)
    with race, ActiveSeals(handle, race) as seals:
        for head in race:
            sealed = seals.seal(head, parts)
            if sealed is None:
                continue
            check_keyed(sealed.config, written_by)
            if fence is not None:
                fence(sealed)
            check = checked.after(sealed, {number: parts[number] for number in numbered})
            placed, actions = _with_producers(check, numbered, written, place(sealed, segments))
            race.put([*seals.actions, *map(Add, placed), *actions])
    assert race.commit is not None
    if ticket is not None and ticket.group_commit is not None:
        placed = segments_of_append(ticket.group_commit, segments)
    return AppendResult(race.commit.version, offsets_of(placed)), race.after


def _with_producers(
    check: ProducerCheck, numbered: Sequence[int], written: Sequence[WrittenSegment], placed: Sequence[SegmentInfo]
) -> tuple[list[SegmentInfo], list[Action]]:
    """The segments with their first unstable offsets, and the actions that name their producers."""
    transactions, segments = dict[int, OpenTransactions](), list[SegmentInfo]()
    named = {number: list[ProducerBatch]() for number in numbered}
    for result, segment in zip(written, placed, strict=True):
        number, offset = segment.partition, segment.base_offset
        if segment.has_transactions:
            producers = check.producers_of(number)[0]
            open_transactions = transactions.setdefault(number, OpenTransactions(producers.open_transactions))
            aborted, first_unstable = effect(result, offset, open_transactions)
            if aborted != list(result.aborted):
                # the index that was written is of other offsets
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


#: Batches by partition.
Parts = Mapping[int, Sequence[ValidBatch]]

#: The age up to which segments are read that no commit names producers of, as active segments leave them.
REMEMBERED_MS = 15 * 60_000


def known_producers(
    handle: TopicHandle, state: PartitionState, passed_ms: int = 0
) -> tuple[ProducerTable, Sequence[ProducerBatch]]:
    """The producers that a partition's commits name; and the earlier batches that its next commit must name.

    The second is empty, unless no commit has named a producer yet: then young segments that may have some are read,
    and all from the first open transaction on.
    """
    if state.producers or not len(state.segments):
        return state.producers, ()
    young = np.flatnonzero(state.segments.array("created_ms") >= handle.clock() - REMEMBERED_MS)
    # not the last old one: a job may have committed now a segment that it wrote long ago
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
    """The state of each producer, as a producer snapshot has it (ENTRY rows)."""
    return ProducerStates(dict(known_producers(handle, state)[0].items())).entries()


class ProducerCheck:
    """Checks batches against the producers at the end of `snapshot`; `first` may refuse a producer's first batch."""

    def __init__(
        self, handle: TopicHandle, snapshot: Snapshot, first: Callable[[int], FirstBatch] = lambda _: any_first
    ) -> None:
        self.handle, self.snapshot, self.first = handle, snapshot, first
        self._producers = dict[int, tuple[ProducerTable, Sequence[ProducerBatch]]]()
        # the states after the batches that were checked, and their end offsets
        self._states = dict[int, tuple[ProducerStates, int]]()

    def after(self, head: Snapshot, parts: Parts) -> ProducerCheck:
        """The check of the batches of `parts`, which were checked here, at a newer `head`.

        Raises ConcurrentAppendError if a batch does not come next there.
        """
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
        """Check batches that come together, after the batches that were checked before.

        Returns the last batch as the partition has it, if it has it already; then the log has all.
        """
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
        since_ms = min(max(0, self.handle.clock() - self.snapshot.timestamp_ms), PAUSE_MS)
        silent_ms = self.snapshot.passed_ms + since_ms - state.heard_ms
        return state.transaction_first_offset == NONE and silent_ms >= self.handle.producer_expiration_ms


class ConcurrentAppendError(Exception):
    """The batches cannot be committed, or not like this: another process has committed concurrently."""


def _check_again(check: ProducerCheck, partition: int, batches: Sequence[ValidBatch]) -> None:
    for batch in batches:
        try:
            duplicate = check.check(partition, [batch])
        except DistlogError as error:
            raise ConcurrentAppendError from error
        if duplicate is not None:
            raise ConcurrentAppendError
