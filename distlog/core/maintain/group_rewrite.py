"""Rewrites groups of adjacent segments, and commits what replaces them: for compaction and for merging."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from distlog.core import paths
from distlog.core.arrays import byte_array, new_array
from distlog.core.commits.actions import MOST_ROWS, Action, Add, Cleaned, Remove
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
        stems: list[str] = self.segments.columns()["stem"].to_pylist()
        return stems


@dataclass(frozen=True, slots=True)
class FilteredBatches:
    """Batches (BATCH rows) back to back in `data`, with values that their headers lack; offsets are absolute.

    `newest_offsets` are the offsets of the largest timestamps, -1 where no record has it, as in an emptied batch.
    `min_timestamps` are at most the smallest ones. `unchanged`: they are the input batches. `forgets`: tombstones or
    markers may have been dropped. `unkeyed` is the number of records that were dropped without a key.
    """

    data: Bytes
    batches: np.ndarray
    base_offsets: Longs
    newest_offsets: Longs
    min_timestamps: Longs
    unchanged: bool = False
    forgets: bool = False
    unkeyed: int = 0


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

    def described(self, output: SegmentInfo, inputs: SegmentTable, /) -> SegmentInfo:
        """Return `output` with the fields that come from `inputs`, not from its batches."""


Result = TypeVar("Result")

#: Errors of a partition's own files, which do not concern other partitions.
FILE_ERRORS = (CorruptionError, SnapshotTooOldError, UnsupportedVersionError)


@dataclass(frozen=True, slots=True)
class RewriteFailure:
    """A partition, or its offsets from `offsets[0]` to `offsets[1]`, whose files cannot be rewritten, and why."""

    partition: int
    reason: str
    offsets: tuple[int, int] | None = None

    def __str__(self) -> str:
        part = "" if self.offsets is None else f"offsets {self.offsets[0]:,} to {self.offsets[1]:,} of "
        return f"{part}partition {self.partition}: {self.reason}"


def result_or_failure(partition: int, work: Callable[[], Result]) -> Result | RewriteFailure:
    """The result of `work`, or the failure of the partition's files as a value, which does not end a whole job."""
    try:
        return work()
    except FILE_ERRORS as error:
        return RewriteFailure(partition, str(error))


@dataclass(frozen=True, slots=True)
class RewrittenGroup:
    """A group, and the `outputs` that replace its segments, or its own segments if nothing changes.

    `outputs` cover the offsets of the group, with gaps where records were dropped. `unkeyed` and `forgets` are
    as in `FilteredBatches`. Once tombstones were dropped, no segment before the group may return to an older version,
    which may hold the values that they deleted.
    """

    group: SegmentGroup
    outputs: tuple[SegmentInfo, ...]
    unkeyed: int = 0
    forgets: bool = False

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
    def changed(self) -> bool:
        return [output.stem for output in self.outputs] != self.group.stems

    @property
    def forgets_transactions(self) -> bool:
        """True if a segment of the group may hold transactions but no output does."""
        had = bool(self.group.segments.array("has_transactions").any())
        return had and not any(output.has_transactions for output in self.outputs)


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
    """Write the batches of the group that `batch_filter` keeps as new segments, to be committed.

    `chunks` are the checked chunks of the group, in order. Memory is a few chunks, and three parts of an upload of
    `part_bytes`. Raises CorruptRecordError. An error leaves no partial file and no upload.
    """
    output = _Output(handle, group, batch_filter, config, read_version, part_bytes)
    unchanged, forgets, unkeyed = len(group.segments) == 1, False, 0
    try:
        for chunk in chunks:
            for filtered in batch_filter.apply(chunk.timed()):
                unchanged &= filtered.unchanged
                forgets |= filtered.forgets
                unkeyed += filtered.unkeyed
                output.write(filtered)
        outputs = group.segments if unchanged else output.close()
    finally:
        output.abort()
    return RewrittenGroup(group, tuple(outputs), unkeyed, forgets)


@dataclass(slots=True)
class _Output:
    """The segments that replace a group; a second one only if the first cannot grow."""

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
        batches, first = filtered.batches, 0
        while first < len(batches):
            file = self._file = self._file or self._open()
            moved = filtered.base_offsets[first:] - self._base_offset
            end = first + file.room(batches[first:], moved)
            if end == first and file.next_offset > 0:
                self._seal(int(filtered.base_offsets[first]))
                continue
            # a batch that is too large for any segment was so before, and gets a segment alone
            end = max(end, first + 1)
            rows = batches[first:end].copy()
            start = int(rows["position"][0])
            rows["position"] -= start
            newest = filtered.newest_offsets[first:end]
            newest = np.where(newest < 0, -1, newest - self._base_offset)
            part = filtered.data[start : start + int(rows["size"].sum())]
            file.write(part, rows, moved[: end - first], newest, filtered.min_timestamps[first:end])
            first = end

    def close(self) -> list[SegmentInfo]:
        """Make everything durable; returns the segments, none if nothing was written and a filter may drop all."""
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
        aborted = [
            transaction for transaction in self.batch_filter.aborted if base <= transaction.last_offset < next_offset
        ]
        sealed = with_aborted(handle.storage, handle.name, sealed, aborted, base)
        # as Kafka keeps the file's time, from which retention counts for records without times
        created_ms = int(inputs.array("created_ms")[-1])
        output = dataclasses.replace(sealed.moved_to(base), next_offset=next_offset, created_ms=created_ms)
        self.sealed.append(self.batch_filter.described(output, inputs))


#: Segments that a commit replaces, since it has a row for each old and each new one.
MOST_SEGMENTS = MOST_ROWS // 2


@dataclass(frozen=True, slots=True)
class RewrittenPartition:
    """The rewritten groups of a partition, all at one version.

    Superseded records of the keys of [start_offset, end_offset) were dropped, so the partition is clean below
    `end_offset`. Both are 0 if it was not cleaned.
    """

    partition: int
    groups: tuple[RewrittenGroup, ...]
    start_offset: int = 0
    end_offset: int = 0


def commit_rewrite(
    handle: TopicHandle, snapshot: Snapshot, rewritten: Sequence[RewrittenPartition]
) -> tuple[dict[int, int], Snapshot]:
    """Replace the segments of groups that were rewritten at `snapshot`, in one commit, or several of whole
    partitions.

    Returns the number of groups that were left out, by partition, and the new state. A group is left out if one of
    its segments was removed; a cleaned partition stays dirty from there. It does not change if the topic is no longer
    compacted.
    """
    left_out, after, producers = dict[int, int](), snapshot, ProducerSnapshots(handle)
    for partitions in _in_commits(rewritten):
        with CommitRace(handle.log, after, "compact", read_version=snapshot.version) as race:
            for head in race:
                actions, emptied = _replacement(partitions, left_out, head)
                if not actions:
                    break
                # before the commit, after which logs without their first segments start later
                producers.store(head, emptied)
                race.put(actions)
        after = race.after
    return left_out, after


def _in_commits(rewritten: Sequence[RewrittenPartition]) -> Iterator[list[RewrittenPartition]]:
    run, count = list[RewrittenPartition](), 0
    for group in rewritten:
        segments = sum(len(group.group.segments) for group in group.groups)
        if run and count + segments > MOST_SEGMENTS:
            yield run
            run, count = [], 0
        run.append(group)
        count += segments
    yield run


def _replacement(
    rewritten: Sequence[RewrittenPartition], left_out: dict[int, int], current: Snapshot
) -> tuple[list[Action], dict[int, int]]:
    """The actions that replace groups in `current`, and the number of emptied first segments by partition."""
    replaced, emptied = list[RewrittenGroup](), dict[int, int]()
    is_compacted, cleaned = "compact" in current.config.cleanup_policy, list[Cleaned]()
    for partition in rewritten:
        if partition.end_offset and not is_compacted:
            left_out[partition.partition] = len(partition.groups)
            continue
        state = current.partitions[partition.partition]
        groups, left_out[partition.partition], clean = _replaceable(state, partition)
        replaced += groups
        if count := _emptied(state, groups):
            emptied[partition.partition] = count
        if clean > first_dirty_offset(state):
            cleaned.append(Cleaned(partition.partition, clean))
    # removals and additions are adjacent, since a commit packs runs of one kind
    removals = [Remove(group.partition, stem) for group in replaced for stem in group.group.stems]
    return [*removals, *(Add(segment) for group in replaced for segment in group.outputs), *cleaned], emptied


def _replaceable(state: PartitionState, rewritten: RewrittenPartition) -> tuple[list[RewrittenGroup], int, int]:
    """The groups of a partition to replace, the number left out, and the offset below which it becomes clean."""
    # a group below the log start must not come back, and need not be clean
    groups = [(group, group.group.stems) for group in rewritten.groups if group.next_offset > state.log_start_offset]
    live = state.segments.common_stems({stem for _, stems in groups for stem in stems})
    stale = [group for group, stems in groups if not live.issuperset(stems)]
    # superseded records may remain in the replacement of a stale group, and in segments that were restored before all
    # groups: the partition is dirty from there on
    other = [group.base_offset for group in stale]
    begin = state.segments.base_offsets[state.segments.find(state.log_start_offset) :][:1].tolist()
    other += [offset for offset in begin if rewritten.groups and offset < rewritten.groups[0].base_offset]
    clean = min([rewritten.end_offset, *other])
    dirty = max(clean, first_dirty_offset(state))
    # above the clean part, offsets without a segment would look like a loss
    gaps = [group for group, _ in groups if not group.outputs and group.next_offset > dirty]
    # without its end marker, a transaction would be open again by an earlier segment
    markers = [group for group, _ in groups if group.forgets_transactions and group.base_offset > dirty]
    # a key whose value may be restored must not lose its tombstone
    deletes = [group for group, _ in groups if group.forgets and other and group.base_offset > min(other)]
    left_out = {group.base_offset for group in (*stale, *gaps, *markers, *deletes)}
    replaced = [group for group, _ in groups if group.base_offset not in left_out and group.changed]
    return replaced, len(left_out), clean


def _emptied(state: PartitionState, groups: Sequence[RewrittenGroup]) -> int:
    if all(group.outputs for group in groups):
        return 0
    removed = {stem for group in groups for stem in group.group.stems}
    begin = min((group.base_offset for group in groups if group.outputs), default=state.log_end_offset)
    emptied = takewhile(lambda segment: segment.base_offset < begin and segment.stem in removed, state.segments)
    return sum(1 for _ in emptied)


def first_dirty_offset(state: PartitionState) -> int:
    """The offset from which the partition is dirty; the log start if the noted offset lies outside of the log."""
    if state.log_start_offset <= state.first_dirty_offset <= state.log_end_offset:
        return state.first_dirty_offset
    return state.log_start_offset


Bytes = npt.NDArray[np.uint8]

Longs = npt.NDArray[np.int64]

Flags = npt.NDArray[np.bool_]

_NONE: Longs = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class RecordBytes:
    """The records of batches without the headers: `sizes` bytes of `data` from `starts`."""

    data: Bytes = field(default_factory=lambda: np.zeros(0, np.uint8))
    starts: Longs = field(default_factory=lambda: _NONE)
    sizes: Longs = field(default_factory=lambda: _NONE)

    def compressed(self, batches: np.ndarray, levels: Mapping[int, int | None]) -> RecordBytes:
        """Compress the records by the codecs of BATCH rows; a codec without a level has its default."""
        codecs = batches["attributes"] & CODEC_MASK
        if not codecs.any():
            return self
        rows = zip(codecs.tolist(), self.starts.tolist(), (self.starts + self.sizes).tolist(), strict=True)
        parts = [compression.compress(codec, self.data[start:end], levels.get(codec)) for codec, start, end in rows]
        sizes = np.array([len(part) for part in parts], np.int64)
        return RecordBytes(byte_array(b"".join(parts)), np.cumsum(sizes) - sizes, sizes)

    def of_rows(self, rows: Flags) -> RecordBytes:
        return RecordBytes(self.data, self.starts[rows], self.sizes[rows])


def lay_out(
    source: Bytes, headers: np.ndarray, copied: Flags, emptied: Flags, rewritten: Flags, records: RecordBytes
) -> tuple[Bytes, np.ndarray]:
    """The remaining batches of `source`, back to back, and their BATCH rows; `headers` are all its batches.

    `copied` batches are unchanged, `emptied` batches become a header, `rewritten` batches get the `records`; other
    batches are dropped.
    """
    remains = copied | emptied | rewritten
    batches = headers[remains]
    batches["size"][rewritten[remains]] = HEADER_SIZE + records.sizes
    batches["position"] = np.cumsum(batches["size"]) - batches["size"]
    data = new_array(int(batches["size"].sum()), np.uint8)
    unchanged = batches[copied[remains]]
    copy_slices(data, unchanged["position"].copy(), source, headers["position"][copied], unchanged["size"].copy())
    targets = batches["position"][rewritten[remains]] + HEADER_SIZE
    copy_slices(data, targets, records.data, records.starts, records.sizes)
    changed = batches[~copied[remains]]
    write_headers(data.data, changed)
    batches[~copied[remains]] = changed
    return data, batches
