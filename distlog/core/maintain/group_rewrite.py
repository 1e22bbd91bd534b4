"""Rewrites groups of adjacent segments, for compaction and merging, and commits the groups of a compaction."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Protocol, TypeVar

import numpy as np

from distlog.core import paths
from distlog.core.arrays import Bytes, Flags, Longs, byte_array, new_array
from distlog.core.commits.actions import MAX_COMMIT_ROWS, Action, Add, Cleaned, Remove
from distlog.core.commits.commit_log import CommitRace
from distlog.core.commits.segment_table import SegmentInfo, SegmentTable
from distlog.core.commits.snapshot import PartitionState, Snapshot
from distlog.core.config import TopicConfig
from distlog.core.errors import CorruptionError, SnapshotTooOldError, UnsupportedVersionError
from distlog.core.format import compression
from distlog.core.format.indexes import AbortedTransaction
from distlog.core.format.kernels.batch_scan import CODEC_MASK
from distlog.core.format.kernels.record_write import copy_slices
from distlog.core.format.record_batch import HEADER_SIZE
from distlog.core.format.record_encoder import write_headers
from distlog.core.log.producers import ProducerSnapshots
from distlog.core.segments.chunks import Chunk
from distlog.core.segments.segment_reader import TopicHandle
from distlog.core.segments.segment_writer import SegmentFile, with_aborted


@dataclass(frozen=True, slots=True)
class SegmentGroup:
    """Adjacent segments of one partition, at least one, to be rewritten as one segment."""

    segments: SegmentTable

    @property
    def partition(self) -> int:
        return int(self.segments.array("partition")[0])

    @property
    def base_offset(self) -> int:
        return int(self.segments.base_offsets[0])

    @property
    def next_offset(self) -> int:
        return int(self.segments.next_offsets[-1])

    @property
    def log_bytes(self) -> int:
        """The segments' log bytes, which a rewrite never increases."""
        return int(self.segments.log_bytes.sum())

    @property
    def records(self) -> int:
        return int(self.segments.record_counts.sum())

    @property
    def stems(self) -> list[str]:
        return list(self.segments.columns()["stem"].to_pylist())


@dataclass(frozen=True, slots=True)
class FilteredBatches:
    """Batches, back to back in `data`, their headers (BATCH rows), and values that the headers lack.

    Offsets in arrays are absolute. `offsets_of_max_timestamp` has, for each batch, the offset of the first record
    with the largest timestamp, or -1 if no record has it, as in an emptied batch. No record of a batch is older than
    its `min_timestamps`. If `is_unchanged`, these are the input batches. If `drops_deletes`, tombstones or markers
    may have been dropped. `unkeyed_records` is the number of records that were dropped because they have no key.
    """

    data: Bytes
    batches: np.ndarray
    base_offsets: Longs
    offsets_of_max_timestamp: Longs
    min_timestamps: Longs
    is_unchanged: bool = False
    drops_deletes: bool = False
    unkeyed_records: int = 0


class Filter(Protocol):
    """Decides which batches and records of a group stay, and in which batches."""

    @property
    def keeps_all(self) -> bool:
        """True if every record stays."""

    @property
    def aborted(self) -> Sequence[AbortedTransaction]:
        """The aborted transactions whose markers stay, in the order of their last offsets."""

    def apply(self, chunk: Chunk, /) -> Iterator[FilteredBatches]:
        """The batches that stay of a checked chunk, in order. Raises CorruptRecordError."""

    def with_input_fields(self, output: SegmentInfo, inputs: SegmentTable, /) -> SegmentInfo:
        """Return `output` with the fields that come from the segments `inputs`, not from its batches."""


Result = TypeVar("Result")

#: Errors of a partition's own files, which do not concern other partitions.
FILE_ERRORS = (CorruptionError, SnapshotTooOldError, UnsupportedVersionError)


@dataclass(frozen=True, slots=True)
class RewriteFailure:
    """Why a partition, or only its offsets [offsets[0], offsets[1]), cannot be rewritten."""

    partition: int
    reason: str
    offsets: tuple[int, int] | None = None

    def __str__(self) -> str:
        part = "" if self.offsets is None else f"offsets {self.offsets[0]:,} to {self.offsets[1]:,} of "
        return f"{part}partition {self.partition}: {self.reason}"


def result_or_failure(partition: int, work: Callable[[], Result]) -> Result | RewriteFailure:
    """Return the result of `work`, or its FILE_ERRORS as a value, so that a job continues with other partitions."""
    try:
        return work()
    except FILE_ERRORS as error:
        return RewriteFailure(partition, str(error))


@dataclass(frozen=True, slots=True)
class RewrittenGroup:
    """A group and the segments `outputs` that replace it, which are its own segments if nothing changes.

    `outputs` cover the offsets of the group, with gaps where records were dropped. If `drops_deletes`, tombstones may
    have been dropped. Then the commit skips this group if an earlier unclean segment may have the deleted values.
    """

    group: SegmentGroup
    outputs: tuple[SegmentInfo, ...]
    unkeyed_records: int = 0
    drops_deletes: bool = False

    @property
    def partition(self) -> int:
        return self.group.partition

    @property
    def base_offset(self) -> int:
        return self.group.base_offset

    @property
    def next_offset(self) -> int:
        return self.group.next_offset

    @property
    def is_changed(self) -> bool:
        return [output.stem for output in self.outputs] != self.group.stems

    @property
    def drops_transactions(self) -> bool:
        """True if a segment of the group may hold transactions but no output does."""
        had_transactions = bool(self.group.segments.array("has_transactions").any())
        return had_transactions and not any(output.has_transactions for output in self.outputs)


def rewrite_group(
    handle: TopicHandle,
    group: SegmentGroup,
    batch_filter: Filter,
    chunks: Iterable[Chunk],
    *,
    config: TopicConfig,
    read_version: int,
    part_bytes: int | None = None,
) -> RewrittenGroup:
    """Write what `batch_filter` keeps of the group's checked `chunks` as new segments, to be committed."""
    output = _Output(handle, group, batch_filter, config, read_version, part_bytes)
    is_unchanged = len(group.segments) == 1  # several segments become one, even if their batches do not change
    drops_deletes, unkeyed_records = False, 0
    try:
        for chunk in chunks:
            for filtered in batch_filter.apply(chunk.timed()):  # `timed` writes append times into the batches
                is_unchanged &= filtered.is_unchanged
                drops_deletes |= filtered.drops_deletes
                unkeyed_records += filtered.unkeyed_records
                output.write(filtered)
        outputs = group.segments if is_unchanged else output.close()
    finally:
        output.abort()
    return RewrittenGroup(group, tuple(outputs), unkeyed_records, drops_deletes)


@dataclass(slots=True)
class _Output:
    """The segments that replace a group; more than one only if a segment cannot take all batches."""

    handle: TopicHandle
    group: SegmentGroup
    batch_filter: Filter
    config: TopicConfig
    read_version: int
    part_bytes: int | None
    sealed: list[SegmentInfo] = field(default_factory=list)
    _file: SegmentFile | None = None

    @property
    def _base_offset(self) -> int:
        """The first offset of the open segment, or of the next one."""
        return self.sealed[-1].next_offset if self.sealed else self.group.base_offset

    def write(self, filtered: FilteredBatches) -> None:
        batches, row = filtered.batches, 0
        while row < len(batches):  # the open segment takes the rows up to `end_row`
            file = self._file = self._file or self._open()
            base_offsets = filtered.base_offsets[row:] - self._base_offset  # from 0 on, as files have them
            end_row = row + file.room(batches[row:], base_offsets)
            if end_row == row and file.next_offset > 0:  # the file has batches, and no room for this one
                self._seal(int(filtered.base_offsets[row]))
                continue
            # a batch that is too large for an empty segment was alone in its old segment, and stays alone
            end_row = max(end_row, row + 1)
            rows = batches[row:end_row].copy()
            position = int(rows["position"][0])  # where the rows begin in `filtered.data`
            rows["position"] -= position
            offsets_of_max = filtered.offsets_of_max_timestamp[row:end_row]
            offsets_of_max = np.where(offsets_of_max < 0, -1, offsets_of_max - self._base_offset)
            part = filtered.data[position : position + int(rows["size"].sum())]
            file.write(part, rows, base_offsets[: len(rows)], offsets_of_max, filtered.min_timestamps[row:end_row])
            row = end_row

    def close(self) -> list[SegmentInfo]:
        """Make everything durable. Returns the segments, none if the filter dropped all batches."""
        # a filter that keeps all records must leave no gap: an empty segment covers a group without batches
        if self.batch_filter.keeps_all and not self.sealed:
            self._file = self._file or self._open()
        self._seal(self.group.next_offset)
        return self.sealed

    def abort(self) -> None:
        if self._file is not None:
            self._file.abort()
            self._file = None

    def _open(self) -> SegmentFile:
        handle, stem = self.handle, paths.new_stem(self.read_version, self.handle.new_id())
        partition, part_bytes = self.group.partition, self.part_bytes
        return SegmentFile(handle.storage, handle.name, partition, stem, self.config, part_bytes=part_bytes)

    def _seal(self, next_offset: int) -> None:
        """Seal the open segment, which covers all offsets up to `next_offset`."""
        if self._file is None:
            return
        sealed = self._file.seal(self.handle.clock())
        self._file = None
        handle, inputs, base = self.handle, self.group.segments, self._base_offset
        aborted = [entry for entry in self.batch_filter.aborted if base <= entry.last_offset < next_offset]
        sealed = with_aborted(handle.storage, handle.name, sealed, aborted, base)
        created_ms = int(inputs.array("created_ms")[-1])  # without timestamps, the age counts from here, as in Kafka
        output = dataclasses.replace(sealed.moved_to(base), next_offset=next_offset, created_ms=created_ms)
        self.sealed.append(self.batch_filter.with_input_fields(output, inputs))


#: The most segments that a commit replaces, since it has a row for each old and each new one.
MAX_SEGMENTS = MAX_COMMIT_ROWS // 2


@dataclass(frozen=True, slots=True)
class RewrittenPartition:
    """A partition's rewritten groups. Its dirty range [start_offset, end_offset) was cleaned; 0 if none was."""

    partition: int
    groups: tuple[RewrittenGroup, ...]
    start_offset: int = 0
    end_offset: int = 0


def commit_rewrite(
    handle: TopicHandle, snapshot: Snapshot, rewritten: Sequence[RewrittenPartition]
) -> tuple[dict[int, int], Snapshot]:
    """Replace the segments of groups that were rewritten at `snapshot`; no partition is split over two commits.

    Returns the number of skipped groups by partition, and the new state. A group is skipped if one of its segments
    was removed; its partition stays dirty from this group on. A cleaned partition does not change if the topic is no
    longer compacted.
    """
    skipped_groups, after = dict[int, int](), snapshot
    producers = ProducerSnapshots(handle)
    for partitions in _in_commits(rewritten):
        with CommitRace(handle.log, after, "compact", read_version=snapshot.version) as race:
            for head in race:  # again with the newest state if another commit was first
                actions, emptied_counts = _replacement(partitions, skipped_groups, head)
                if not actions:
                    break
                # before the commit, since the states of producers are read from segments that it removes
                producers.store(head, emptied_counts)
                race.put(actions)
        after = race.snapshot
    return skipped_groups, after


def _in_commits(rewritten: Sequence[RewrittenPartition]) -> Iterator[list[RewrittenPartition]]:
    partitions, count = list[RewrittenPartition](), 0
    for partition in rewritten:
        segments = sum(len(group.group.segments) for group in partition.groups)
        if partitions and count + segments > MAX_SEGMENTS:
            yield partitions
            partitions, count = [], 0
        partitions.append(partition)
        count += segments
    yield partitions


def _replacement(
    rewritten: Sequence[RewrittenPartition], skipped_groups: dict[int, int], current: Snapshot
) -> tuple[list[Action], dict[int, int]]:
    """Return the actions, and how many segments they remove at each partition's start. Fills `skipped_groups`."""
    replaced, emptied_counts, cleaned = list[RewrittenGroup](), dict[int, int](), list[Cleaned]()
    is_compacted = "compact" in current.config.cleanup_policy
    for partition in rewritten:
        if partition.end_offset and not is_compacted:
            skipped_groups[partition.partition] = len(partition.groups)
            continue
        state = current.partitions[partition.partition]
        groups, skipped_groups[partition.partition], clean_end = _replaceable(state, partition)
        replaced += groups
        if count := _emptied_segments(state, groups):
            emptied_counts[partition.partition] = count
        if clean_end > first_dirty_offset(state):
            cleaned.append(Cleaned(partition.partition, clean_end))
    # first all removals, then all additions, since a commit stores adjacent actions of one kind in columns
    removals = [Remove(group.partition, stem) for group in replaced for stem in group.group.stems]
    additions = [Add(segment) for group in replaced for segment in group.outputs]
    return [*removals, *additions, *cleaned], emptied_counts


def _replaceable(state: PartitionState, rewritten: RewrittenPartition) -> tuple[list[RewrittenGroup], int, int]:
    """Return the groups to replace, the number of skipped groups, and the end of the partition's clean part."""
    # leave out groups below the log start: they must not come back, and do not make the partition dirty
    groups = [(group, group.group.stems) for group in rewritten.groups if group.next_offset > state.log_start_offset]
    live = state.segments.common_stems({stem for _, stems in groups for stem in stems})
    stale = [group for group, stems in groups if not live.issuperset(stems)]
    # A group is stale if another commit removed one of its segments. Superseded records may be in the segments that
    # replaced it, and in a live segment below all groups, from a restore: the partition is dirty from there on
    unclean_offsets = [group.base_offset for group in stale]
    live_bases = state.segments.base_offsets[state.segments.find(state.log_start_offset) :]
    if rewritten.groups and len(live_bases) and live_bases[0] < rewritten.groups[0].base_offset:
        unclean_offsets.append(int(live_bases[0]))
    clean_end = min([rewritten.end_offset, *unclean_offsets])
    dirty_offset = max(clean_end, first_dirty_offset(state))
    # above the clean part, a gap between segments would look like a loss
    gaps = [group for group, _ in groups if not group.outputs and group.next_offset > dirty_offset]
    # without its end marker, a transaction with data in an earlier, unclean segment would be open again
    without_markers = [group for group, _ in groups if group.drops_transactions and group.base_offset > dirty_offset]
    # a key must not lose its tombstone if an unclean segment before it may have the key's value
    first_unclean = min(unclean_offsets, default=state.log_end_offset)
    without_deletes = [group for group, _ in groups if group.drops_deletes and group.base_offset > first_unclean]
    skipped = {group.base_offset for group in (*stale, *gaps, *without_markers, *without_deletes)}
    replaced = [group for group, _ in groups if group.base_offset not in skipped and group.is_changed]
    return replaced, len(skipped), clean_end


def _emptied_segments(state: PartitionState, groups: Sequence[RewrittenGroup]) -> int:
    """The number of segments at the start of the log that the groups remove without a replacement."""
    if all(group.outputs for group in groups):
        return 0
    removed = {stem for group in groups for stem in group.group.stems}
    # the segments from the first group with outputs on are replaced, so the emptied ones are below it
    end = min((group.base_offset for group in groups if group.outputs), default=state.log_end_offset)
    emptied = takewhile(lambda segment: segment.base_offset < end and segment.stem in removed, state.segments)
    return sum(1 for _ in emptied)


def first_dirty_offset(state: PartitionState) -> int:
    """The offset from which the partition is dirty; the log start if the stored offset is outside of the log."""
    if state.log_start_offset <= state.first_dirty_offset <= state.log_end_offset:
        return state.first_dirty_offset
    return state.log_start_offset


_NO_NUMBERS: Longs = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class RecordBytes:
    """The records of batches, without headers. Batch i has `sizes[i]` bytes of `data` from `starts[i]` on."""

    data: Bytes = field(default_factory=lambda: np.zeros(0, np.uint8))
    starts: Longs = field(default_factory=lambda: _NO_NUMBERS)
    sizes: Longs = field(default_factory=lambda: _NO_NUMBERS)

    def compressed(self, batches: np.ndarray, levels: Mapping[int, int | None]) -> RecordBytes:
        """Compress the records by the codecs of BATCH rows, at the codec's default level if `levels` has none."""
        codecs = batches["attributes"] & CODEC_MASK
        if not codecs.any():
            return self
        rows = zip(codecs.tolist(), self.starts.tolist(), (self.starts + self.sizes).tolist(), strict=True)
        parts = [compression.compress(codec, self.data[start:end], levels.get(codec)) for codec, start, end in rows]
        sizes = np.array([len(part) for part in parts], np.int64)
        return RecordBytes(byte_array(b"".join(parts)), np.cumsum(sizes) - sizes, sizes)

    def only(self, is_chosen: Flags) -> RecordBytes:
        return RecordBytes(self.data, self.starts[is_chosen], self.sizes[is_chosen])


def lay_out(
    source: Bytes, headers: np.ndarray, is_copied: Flags, is_emptied: Flags, is_rewritten: Flags, records: RecordBytes
) -> tuple[Bytes, np.ndarray]:
    """Write the batches of `source` that stay, back to back. Returns the bytes and their BATCH rows.

    `headers` has the new header of each batch of `source`. A copied batch keeps its bytes, an emptied one becomes a
    header, and a rewritten one gets the next entry of `records`. All others are dropped.
    """
    stays = is_copied | is_emptied | is_rewritten
    batches = headers[stays]
    batches["size"][is_rewritten[stays]] = HEADER_SIZE + records.sizes
    batches["position"] = np.cumsum(batches["size"]) - batches["size"]
    data = new_array(int(batches["size"].sum()), np.uint8)
    unchanged = batches[is_copied[stays]]  # its fields are not contiguous, but the copies are
    copy_slices(data, unchanged["position"].copy(), source, headers["position"][is_copied], unchanged["size"].copy())
    targets = batches["position"][is_rewritten[stays]] + HEADER_SIZE  # where the new records begin
    copy_slices(data, targets, records.data, records.starts, records.sizes)
    changed = batches[~is_copied[stays]]  # the batches that get new headers
    write_headers(data.data, changed)  # sets the checksums in `changed`
    batches[~is_copied[stays]] = changed
    return data, batches
