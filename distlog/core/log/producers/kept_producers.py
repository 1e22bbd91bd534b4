"""Keeps what the first segments of a partition tell of producers, before they are deleted.

Kafka has a producer snapshot where each segment begins, so it knows producers whose records are gone: what they send
again is not appended again.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from distlog.core import paths
from distlog.core.commits.state.snapshot import PartitionState, Snapshot
from distlog.core.errors import DistlogError
from distlog.core.log.producers.stored_producers import StoredProducers
from distlog.core.topic_handle import TopicHandle
from distlog.core.transactions.producer_states import ProducerStates


class KeptProducers:
    """The producers behind segments that are to be deleted: `keep` stores them, each state once, `has` only looks.

    Both take how many segments are to go from the beginning of each partition. Only a disk of this machine has
    producers, so elsewhere nothing is missing.
    """

    def __init__(self, handle: TopicHandle) -> None:
        self._handle, self._is_needed = handle, handle.storage.is_local_disk
        self._kept: set[tuple[int, int]] = set()

    def has(self, snapshot: Snapshot, counts: Mapping[int, int]) -> bool:
        """Whether all that is needed was stored; it reads nothing."""
        return not self._missing(snapshot, counts)

    def keep(self, snapshot: Snapshot, counts: Mapping[int, int]) -> None:
        """Store what is missing.

        Damage in what is to be deleted is no error: then its producers are forgotten. Raises StorageError for a disk
        that does not take a file.
        """
        missing, without = self._missing(snapshot, counts), []
        for partition, offset in sorted(missing):
            states = self._states(snapshot, partition, counts[partition])
            name = f"{paths.partition_dir(snapshot.name, partition)}/{offset:020d}{paths.SNAPSHOT_SUFFIX}"
            if len(states):
                self._handle.storage.put(name, states.snapshot())
            else:
                without.append(name)
        # there may be files of a topic that was here before
        self._handle.storage.delete(without)
        self._kept |= missing

    def _missing(self, snapshot: Snapshot, counts: Mapping[int, int]) -> set[tuple[int, int]]:
        """The partitions whose producers are not stored, each with the offset at which its log is to begin.

        What is behind a log's first part is known by its end: what comes before an offset never changes.
        """
        begins = {(number, _begin(snapshot.partitions[number], count)) for number, count in counts.items()}
        return begins - self._kept if self._is_needed else set()

    def _states(self, snapshot: Snapshot, partition: int, count: int) -> ProducerStates:
        stored = StoredProducers(self._handle.storage, snapshot.name, partition)
        with suppress(DistlogError):
            return _behind(stored, snapshot.partitions[partition], count)
        return ProducerStates()


def _begin(state: PartitionState, count: int) -> int:
    """Where the log begins without its first `count` segments."""
    return int(state.segments.base_offsets[count]) if count < len(state.segments) else state.log_end_offset


def _behind(stored: StoredProducers, state: PartitionState, count: int) -> ProducerStates:
    """What is known of producers behind the first `count` segments."""
    deleted = state.segments[:count]
    if not any(segment.may_have_producers for segment in deleted):
        # these told nothing, so it is what was known before them
        return stored.at(deleted[0].base_offset)
    before_next = stored.before(state.segments[count].stem) if count < len(state.segments) else None
    return before_next or stored.behind(deleted, _begin(state, count))
