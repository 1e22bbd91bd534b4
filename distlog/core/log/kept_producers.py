"""Keeps what the first segments of a partition tell of producers, before they are deleted.

Kafka has a producer snapshot where each segment begins, so it knows producers whose records are gone: what they send
again is not appended again.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from distlog.core import paths
from distlog.core.commits.segment_info import SegmentInfo
from distlog.core.commits.snapshot import Snapshot
from distlog.core.errors import DistlogError
from distlog.core.log.stored_producers import StoredProducers
from distlog.core.storage.storage import Storage
from distlog.core.topic_handle import TopicHandle
from distlog.core.transactions.producer_states import ProducerStates


def keep_producers(handle: TopicHandle, snapshot: Snapshot, partition: int, count: int) -> None:
    """Store the producers behind the first `count` segments of the partition, which are to be deleted.

    Only a disk of this machine has any. Damage in what is to be deleted is no error: then they are forgotten. Raises
    StorageError for a disk that does not take the file.
    """
    if not handle.storage.is_local_disk:
        return
    state = snapshot.partitions[partition]
    deleted, left = state.segments[:count], state.segments[count:]
    end = left[0].base_offset if len(left) else state.log_end_offset
    folder = handle.storage.child(paths.partition_dir(snapshot.name, partition))
    _put(folder, _states(StoredProducers(folder), deleted, left, end), end)


def _states(
    stored: StoredProducers, deleted: Sequence[SegmentInfo], left: Sequence[SegmentInfo], end: int
) -> ProducerStates:
    with suppress(DistlogError):
        states = stored.before(left[0].stem) if len(left) else None
        return states or stored.behind(deleted, end)
    return ProducerStates()


def _put(folder: Storage, states: ProducerStates, offset: int) -> None:
    name = f"{offset:020d}{paths.SNAPSHOT_SUFFIX}"
    if len(states):
        folder.put(name, states.snapshot())
    elif any(file.name == name for file in folder.list()):
        # of a topic that was here before
        folder.delete([name])
