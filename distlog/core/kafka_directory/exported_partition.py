"""Writes one partition into a broker's log directory; what an earlier export wrote stays where it is right."""

from __future__ import annotations

import dataclasses
import uuid
from contextlib import suppress
from dataclasses import dataclass

from distlog.core import paths
from distlog.core.commits.format.segment_info import SegmentInfo
from distlog.core.commits.state.snapshot import Snapshot
from distlog.core.errors import CorruptionError
from distlog.core.kafka_directory.checkpoint_files import (
    Epochs,
    joined_epochs,
    read_epochs,
    write_epochs,
    write_topic_id,
)
from distlog.core.kafka_directory.directory_names import (
    PARTITION_METADATA,
    file_name,
)
from distlog.core.kafka_directory.export_folder import known_segments, snapshots
from distlog.core.kafka_directory.export_record import ExportedSegment, empty_segment, write_export
from distlog.core.kafka_directory.exported_files import ExportedFiles, delete_segment, write_empty
from distlog.core.kafka_directory.exported_segment import export_segment
from distlog.core.log.producers.stored_producers import StoredProducers
from distlog.core.paths import LEADER_EPOCHS, SNAPSHOT_SUFFIX
from distlog.core.reading.stable_offset import last_stable_offset
from distlog.core.storage.storage import Storage
from distlog.core.topic_handle import TopicHandle
from distlog.core.transactions.producer_snapshot import read_producer_snapshot
from distlog.core.transactions.producer_states import ProducerStates


@dataclass(frozen=True, slots=True)
class ExportedPartition:
    """A partition in the log directory: its offsets, and what this export wrote.

    The last stable offset is the log end offset, unless a transaction is open there.
    """

    partition: int
    log_start_offset: int
    last_stable_offset: int
    log_end_offset: int
    first_dirty_offset: int
    first_base_offset: int
    segments: int
    segments_written: int
    bytes_written: int


def export_partition(handle: TopicHandle, snapshot: Snapshot, partition: int, log_dir: Storage) -> ExportedPartition:
    """Write the partition into its folder in `log_dir`.

    Raises StorageError for a folder that a broker has written to, and CorruptionError for a damaged segment.
    """
    state, folder = snapshot.partitions[partition], log_dir.child(paths.partition_dir(snapshot.name, partition))
    export = _PartitionExport(handle, snapshot, partition, folder)
    written = export.run()
    if PARTITION_METADATA not in {file.name for file in folder.list()}:
        folder.put(PARTITION_METADATA, write_topic_id(uuid.UUID(snapshot.topic_id)))
    return ExportedPartition(
        partition,
        state.log_start_offset,
        last_stable_offset(handle.reader, state),
        state.log_end_offset,
        state.first_dirty_offset,
        export.present[0].base_offset,
        len(export.present),
        len(written),
        sum(segment.log_bytes for segment in written),
    )


class _PartitionExport:
    """The export of one partition; `present` is what its folder holds at the end."""

    def __init__(self, handle: TopicHandle, snapshot: Snapshot, partition: int, folder: Storage) -> None:
        self._handle, self._topic_id = handle, snapshot.topic_id
        self._interval = snapshot.config.index_interval_bytes
        self._partition, self._state, self._folder = partition, snapshot.partitions[partition], folder
        self._source = handle.storage.child(paths.partition_dir(handle.name, partition))
        self._files = ExportedFiles(folder)
        self.present: list[ExportedSegment] = []

    def run(self) -> list[SegmentInfo]:
        """Write what is new; returns the segments that were written."""
        before = known_segments(self._folder)
        segments = [each for each in self._state.segments if each.next_offset > self._state.log_start_offset]
        kept = {each.base_offset: known for each in segments if (known := _find(before, each))}
        producers = self._producers(segments, kept)
        if producers is None:
            kept, producers = {}, self._producers(segments, {}) or ProducerStates()
        new = [each for each in segments if each.base_offset not in kept]
        if not new and self._holds_all(before, kept):
            self.present = before
            return []
        self._announce(before, kept, new)
        with self._files:
            self.present = [self._segment(each, kept, producers, segments[-1]) for each in segments]
        self._finish(before, producers)
        return new

    def _holds_all(self, before: list[ExportedSegment], kept: dict[int, ExportedSegment]) -> bool:
        """Whether the folder holds what the partition has now, from its log start to its log end, and no more."""
        if not before:
            return False
        filled = [each for each in before if each.stem]
        bounds = before[0].base_offset, before[-1].end_offset
        within = bounds[0] <= self._state.log_start_offset and bounds[1] == self._state.log_end_offset
        return within and filled == list(kept.values()) and all(each.done for each in before)

    def _announce(
        self, before: list[ExportedSegment], kept: dict[int, ExportedSegment], new: list[SegmentInfo]
    ) -> None:
        """Say what the folder will hold, before any of it is changed."""
        offsets = {self._state.log_start_offset, self._state.log_end_offset}
        planned = {offset: empty_segment(offset, done=False) for offset in offsets}
        planned |= {each.base_offset: dataclasses.replace(each, done=False) for each in before}
        planned |= {each.base_offset: ExportedSegment.of(each) for each in new} | kept
        write_export(self._folder, [planned[base] for base in sorted(planned)], self._topic_id)

    def _producers(self, segments: list[SegmentInfo], kept: dict[int, ExportedSegment]) -> ProducerStates | None:
        """The producers before the first batch that will be passed; None if the segments that stay do not let know.

        That is the snapshot of the last export, which is behind all of these, or else the newest that the topic has.
        """
        end = self._state.log_end_offset
        if not kept:
            return StoredProducers(self._handle.storage, self._handle.name, self._partition).newest(segments, end)
        stays_to = max(each.next_offset for each in segments if each.base_offset in kept)
        for offset, name in sorted(snapshots(self._folder).items(), reverse=True):
            if stays_to <= offset <= end:
                with suppress(CorruptionError):
                    return ProducerStates.of_snapshot(read_producer_snapshot(self._folder.read(name)), offset)
        return None

    def _segment(
        self, segment: SegmentInfo, kept: dict[int, ExportedSegment], producers: ProducerStates, last: SegmentInfo
    ) -> ExportedSegment:
        if segment.base_offset in kept:
            return kept[segment.base_offset]
        if segment is last and producers.offset <= segment.base_offset:
            self._put_snapshot(segment.base_offset, producers)
        written = export_segment(self._handle.reader, segment, self._files, producers, self._interval)
        exported = ExportedSegment.of(segment)
        return dataclasses.replace(exported, end_offset=written.end_offset, epochs=written.epochs, done=True)

    def _put_snapshot(self, offset: int, producers: ProducerStates) -> None:
        self._folder.put(file_name(offset, SNAPSHOT_SUFFIX), producers.snapshot())

    def _finish(self, before: list[ExportedSegment], producers: ProducerStates) -> None:
        """Fill in the ends of the log, take away what is no more, and write what is beside the segments."""
        start, end = self._state.log_start_offset, self._state.log_end_offset
        if not self.present or self.present[0].base_offset > start:
            self._put_empty(0, start)
        if self.present[-1].end_offset < end:
            self._put_empty(len(self.present), end)
        bases = {each.base_offset for each in self.present}
        for gone in {each.base_offset for each in before} - bases:
            delete_segment(self._folder, gone)
        self._put_snapshot(end, producers)
        stale = [name for offset, name in snapshots(self._folder).items() if offset not in (end, max(bases))]
        self._folder.delete(stale)
        epochs = joined_epochs([self._adopted_epochs(), *(each.epochs for each in self.present)], start)
        self._folder.put(LEADER_EPOCHS, write_epochs(epochs))
        write_export(self._folder, self.present, self._topic_id)

    def _adopted_epochs(self) -> Epochs:
        """The leader epochs that came with the topic, if a broker wrote its first part."""
        with suppress(FileNotFoundError, CorruptionError):
            return read_epochs(self._source.read(LEADER_EPOCHS))
        return []

    def _put_empty(self, place: int, offset: int) -> None:
        write_empty(self._folder, offset)
        self.present.insert(place, empty_segment(offset, done=True))


def _find(before: list[ExportedSegment], segment: SegmentInfo) -> ExportedSegment | None:
    return next((each for each in before if each.is_of(segment)), None)
