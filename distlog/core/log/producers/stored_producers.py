"""What a partition's folder holds of its producers: snapshots in Kafka's format, and the logs of its segments.

<stem>.snapshot          the states where this segment begins
<offset:020d>.snapshot   the states at this offset: where the log begins, since retention deleted what came before, or
                         where the log ended that a broker left
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, suppress

from distlog.core import paths
from distlog.core.commits.format.segment_info import SegmentInfo
from distlog.core.commits.state.snapshot import PartitionState
from distlog.core.errors import CorruptIndexError, CorruptRecordError, StorageError
from distlog.core.log.segment.active_file import ActiveFile
from distlog.core.log.segment.batch_walk import WALK_BYTES, batches_from
from distlog.core.segments.segment_parts import part_of
from distlog.core.storage.storage import Storage
from distlog.core.transactions.open_transactions import OpenTransactions
from distlog.core.transactions.producer_snapshot import read_producer_snapshot
from distlog.core.transactions.producer_states import ProducerStates

#: What is read at the end of the sealed segments for the last batches: five of 1 MiB of each of a dozen producers.
LAST_BYTES = 64 << 20


class StoredProducers:
    """The producers that the files of a partition in `folder` tell of.

    All methods but `keep` raise StorageError, and `behind` CorruptRecordError for a damaged segment.
    """

    def __init__(self, folder: Storage) -> None:
        self._folder = folder

    def before(self, stem: str, offset: int = 0) -> ProducerStates | None:
        """What the snapshot says of the segment's begin, at `offset`; None if there is none, or it is damaged."""
        name = stem + paths.SNAPSHOT_SUFFIX
        with suppress(FileNotFoundError, CorruptIndexError):
            return ProducerStates.of_snapshot(read_producer_snapshot(self._folder.read(name), file=name), offset)
        return None

    def at(self, offset: int) -> ProducerStates:
        """What was stored at `offset`, where the log begins."""
        # nothing was before offset 0
        return (self.before(f"{offset:020d}", offset) if offset else None) or ProducerStates()

    def newest(self, segments: Sequence[SegmentInfo], log_end_offset: int) -> ProducerStates:
        """The states by the newest snapshot of a partition's `segments`, which end at `log_end_offset`.

        They have none if there is no snapshot.
        """
        names = {file.name for file in self._folder.list()}
        for stem, offset in _snapshots(segments, log_end_offset):
            if stem + paths.SNAPSHOT_SUFFIX in names and (states := self.before(stem, offset)) is not None:
                return states
        return ProducerStates()

    def behind(self, segments: Sequence[SegmentInfo], log_end_offset: int) -> ProducerStates:
        """The states behind all of a partition's sealed `segments`, which end at `log_end_offset`."""
        states = self.newest(segments, log_end_offset)
        for sealed in segments:
            if sealed.next_offset > states.offset and sealed.may_have_producers:
                self._see(states, sealed)
        return states

    def last(self, segments: Sequence[SegmentInfo]) -> ProducerStates:
        """What the last of a partition's sealed `segments` say, by their batches alone: LAST_BYTES, or a segment.

        Behind damage, a segment says nothing.
        """
        states, first, size = ProducerStates(), len(segments), 0
        while first and size < LAST_BYTES:
            first -= 1
            size += segments[first].log_bytes
        for sealed in segments[first:]:
            if sealed.may_have_producers:
                with suppress(CorruptRecordError):
                    self._see(states, sealed)
        return states

    def keep(self, stem: str, states: ProducerStates) -> None:
        """Store the states where the segment `stem` begins; what a failing disk does not take is read from logs."""
        data, path = states.snapshot(), self._folder.local_path(stem + paths.SNAPSHOT_SUFFIX)
        # a file that a crash leaves half written is read like none
        with suppress(StorageError), closing(ActiveFile(path)) as file:
            file.write(data, 0)
            file.cut(len(data))

    def _see(self, states: ProducerStates, sealed: SegmentInfo) -> None:
        topic, _, folder = self._folder.local_path("").rstrip("/").rpartition("/")
        # merging puts small segments of many partitions into bundles
        part = part_of(folder.rpartition("-")[0], sealed)
        with closing(ActiveFile(f"{topic}/{part.name}", writable=False)) as file:
            for found in batches_from(file, part.begin, part.begin + part.size, WALK_BYTES):
                states.see(found.data, found.rows, sealed.shift)


def transactions_before(folder: Storage, state: PartitionState) -> OpenTransactions:
    """The transactions that are open where the active segment begins, in the partition of `folder`; see `behind`."""
    stored, active = StoredProducers(folder), state.active
    assert active is not None
    known = stored.before(active.stem)
    if known is None:
        known = stored.behind(state.segments.without_active(), active.base_offset)
    return OpenTransactions(known.opened)


def _snapshots(segments: Sequence[SegmentInfo], log_end_offset: int) -> Iterator[tuple[str, int]]:
    """The stems that snapshots of these segments may have, and their offsets, the newest first."""
    for segment in reversed(segments):
        if paths.stem_read_version(segment.stem) is None:
            # a broker stored it, or who adopted its log
            yield f"{segment.next_offset:020d}", segment.next_offset
        yield segment.stem, segment.base_offset
    first = segments[0].base_offset if len(segments) else log_end_offset
    # nothing was before offset 0
    if first:
        yield f"{first:020d}", first
