"""Ready-made batches in commits, each of them there once: producers are checked as by a partition's log.

A commit names the producers of the batches that it adds, with their sequence numbers, so a snapshot knows the next
number of each producer, and no log is read for it. The check is made behind the newest snapshot, when the commit is
planned: all earlier commits count.

Two facts of a segment depend on the log before it: its first undecided record, and the records that an end marker
aborts. The plan of the commit sets the first. The second is in a file, which must be written anew if another process
appended to the partition meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from distlog.core import paths
from distlog.core.commits.producer_table import (
    NONE,
    PAUSE_MS,
    KnownBatch,
    ProducerBatch,
    ProducerState,
    ProducerTable,
    sufficient_batches,
)
from distlog.core.commits.snapshot import PartitionState, Snapshot
from distlog.core.errors import DistlogError, InvalidRecordError
from distlog.core.format.record_batch import batch_fields
from distlog.core.log.log_validator import ValidBatch
from distlog.core.segments.pipeline import whole_log
from distlog.core.segments.producer_states import FirstBatch, ProducerStates, any_first, producer_batches
from distlog.core.segments.stable_offset import last_stable_offset
from distlog.core.segments.topic_handle import TopicHandle

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
        self._known = dict[int, tuple[ProducerTable, Sequence[ProducerBatch]]]()
        # the states behind the batches that were checked, and the ends of these
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

    def known(self, partition: int) -> tuple[ProducerTable, Sequence[ProducerBatch]]:
        if partition not in self._known:
            if partition >= len(self.snapshot.partitions):
                raise InvalidRecordError("the topic has no such partition any more", partition=partition)
            self._known[partition] = known_producers(
                self.handle, self.snapshot.partitions[partition], self.snapshot.passed_ms
            )
        return self._known[partition]

    def check(self, partition: int, batches: Sequence[ValidBatch]) -> KnownBatch | None:
        """Check batches that come together, after the batches that were checked before.

        Returns the last batch as the partition has it, if it has it already; then all of them are there.
        """
        if not any(batch.has_producer for batch in batches):
            return None
        table, _ = self.known(partition)
        end = self.snapshot.partitions[partition].log_end_offset
        states, end = self._states.setdefault(partition, (ProducerStates(), end))
        rows = np.concatenate([batch.rows for batch in batches])
        for producer in {*rows["producer_id"].tolist()}:
            state = table.get(producer, self.snapshot.passed_ms)
            if state is not None and not self._has_expired(state):
                states.add_if_missing(producer, state)
        spans = rows["last_offset_delta"].astype(np.int64) + 1
        rows["base_offset"] = np.cumsum(spans) - spans
        known = states.check(batch_fields(rows), self.first(partition))
        if known is None:
            for batch in batches:
                states.observe(batch.data, batch.rows, end)
                end += batch.offset_count
            self._states[partition] = states, end
        else:
            # its commit is visible, and may not be durable yet
            self.handle.storage.sync(paths.COMMITS_DIR)
        return known

    def _has_expired(self, state: ProducerState) -> bool:
        since_ms = min(max(0, self.handle.clock() - self.snapshot.timestamp_ms), PAUSE_MS)
        silent_ms = self.snapshot.passed_ms + since_ms - state.heard_ms
        return state.transaction_first_offset == NONE and silent_ms >= self.handle.producer_expiration_ms


class ConcurrentAppendError(Exception):
    """The batches cannot be committed, or not like this: another process has committed concurrently."""


def _check_again(check: ProducerCheck, partition: int, batches: Sequence[ValidBatch]) -> None:
    for batch in batches:
        try:
            known = check.check(partition, [batch])
        except DistlogError as error:
            raise ConcurrentAppendError from error
        if known is not None:
            raise ConcurrentAppendError
