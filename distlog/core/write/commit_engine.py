"""The engine that appends by commits, on object stores and network mounts.

A commit names the producers of the batches that it adds, with their sequence numbers, so a snapshot knows the next
number of each producer, and no log is read for it. The check is made at the newest head: all earlier commits count.

Two values of a segment depend on the log before it: its first undecided record, and the records that an end marker
aborts. The race of the commit sets the first. The second is in a file, which must be written again if another process
appended to the partition concurrently.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from distlog.core.commits.actions import Action, Add, ProducerBatches
from distlog.core.commits.commit_race import CommitRace
from distlog.core.commits.current_snapshot import CurrentSnapshot
from distlog.core.commits.pending_append import pending_append
from distlog.core.commits.pending_queue import segments_of_append
from distlog.core.commits.producer_table import ProducerBatch, sufficient_batches
from distlog.core.commits.segment_info import SegmentInfo
from distlog.core.commits.snapshot import Snapshot
from distlog.core.config import TopicConfig
from distlog.core.errors import CommitStateUnknownError, ProducerFencedError, StorageError
from distlog.core.format.record_encoder import EncodedBatches
from distlog.core.log.active_seals import ActiveSeals
from distlog.core.log.end_marker import WrittenSegment, effect, write_bundle
from distlog.core.log.log_validator import ValidBatch
from distlog.core.segments.open_transactions import OpenTransactions
from distlog.core.segments.producer_states import producer_batches
from distlog.core.segments.topic_handle import TopicHandle
from distlog.core.storage.parallel import in_order
from distlog.core.storage.retry import Deadline
from distlog.core.write.append import AppendResult, check_keyed, offsets_of, place
from distlog.core.write.engine import DELIVERY_TIMEOUT_S, Appends, Fence, PartitionBatches, workers_for
from distlog.core.write.producer_check import ConcurrentAppendError, Parts, ProducerCheck
from distlog.core.write.time_warnings import warn_of_times


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
        batches = {part.partition: valid_batches(each) for part, each in zip(parts, encoded, strict=True)}
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
    opened = {number: checked.known(number)[0].open_transactions for number in numbered}
    written = write_bundle(handle, snapshot, parts, opened)
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
    for each, segment in zip(written, placed, strict=True):
        number, offset = segment.partition, segment.base_offset
        if segment.has_transactions:
            opened = transactions.setdefault(number, OpenTransactions(check.known(number)[0].open_transactions))
            aborted, first_unstable = effect(each, offset, opened)
            if aborted != list(each.aborted):
                # the index that was written is of other offsets
                raise ConcurrentAppendError
            segment = replace(segment, first_unstable_offset=first_unstable)
        segments.append(segment)
        for batch in each.batches if number in named else ():
            named[number] += producer_batches(batch.data, batch.rows, offset)
            offset += batch.offset_count
    batches = {
        number: (*check.known(number)[1], *sufficient_batches(each)) for number, each in sorted(named.items()) if each
    }
    return segments, [ProducerBatches(batches)] if batches else []
