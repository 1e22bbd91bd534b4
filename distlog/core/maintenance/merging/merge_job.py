"""The work of a merge, cut into jobs: the groups of a job are read together, and written as one bundle.

The parts of a bundle that go into one job are neighbours, so one request reads them all. Without that a merge would
cost a request for each part, and files for each partition.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import numpy as np

from distlog.core.commits.format.segment_info import NO_OFFSET, SegmentInfo
from distlog.core.commits.state.segment_table import SegmentTable
from distlog.core.config import TopicConfig
from distlog.core.maintenance.compaction.report import OF_ITS_FILES, Uncleanable, unless_uncleanable
from distlog.core.maintenance.merging.batch_join import BatchJoin, JoinedBatches
from distlog.core.maintenance.merging.merge_plan import MergeGroup
from distlog.core.reading.chunks.chunk import Chunk
from distlog.core.reading.files.segment_reader import SegmentReader
from distlog.core.reading.whole_log import whole_groups, whole_logs
from distlog.core.segments.aborted_transactions import with_aborted
from distlog.core.segments.bundles import LARGEST_PART, Bundles
from distlog.core.segments.segment_file import SegmentFile
from distlog.core.topic_handle import TopicHandle

#: A job of several groups has at most so many log bytes: its bundle, with the indexes, is a single PUT of 16 MiB.
JOB_BYTES = 15 << 20
#: And so many segments, each of which takes a kilobyte or two of memory.
JOB_SEGMENTS = 20_000

Merged = SegmentInfo | Uncleanable


@dataclass(frozen=True, slots=True)
class MergeJob:
    """Groups of different partitions, in the order of these: one large group, or small ones that share a bundle."""

    groups: tuple[MergeGroup, ...]

    @property
    def log_bytes(self) -> int:
        """Bytes of log to read."""
        return sum(group.log_bytes for group in self.groups)

    @property
    def segments(self) -> set[str]:
        """The stems of what is read: that of each object."""
        return {stem for group in self.groups for stem in group.stems}


def jobs(groups: Iterable[MergeGroup]) -> list[MergeJob]:
    """The jobs of `groups`; a partition with several groups has them in different jobs."""
    seen, ranked = Counter[int](), list[tuple[int, int, MergeGroup]]()
    for group in groups:
        ranked.append((seen[group.partition], group.partition, group))
        seen[group.partition] += 1
    return [MergeJob(tuple(packed)) for packed in _packed(sorted(ranked, key=lambda one: one[:2]))]


def _packed(ranked: Iterable[tuple[int, int, MergeGroup]]) -> Iterator[list[MergeGroup]]:
    open_job, rank, size, segments = list[MergeGroup](), 0, 0, 0
    for number, _, group in ranked:
        if group.log_bytes > LARGEST_PART:
            yield [group]
            continue
        size, segments = size + group.log_bytes, segments + len(group.segments)
        if open_job and (number != rank or size > JOB_BYTES or segments > JOB_SEGMENTS):
            yield open_job
            open_job, size, segments = [], group.log_bytes, len(group.segments)
        rank = number
        open_job.append(group)
    if open_job:
        yield open_job


def do_job(handle: TopicHandle, job: MergeJob, *, config: TopicConfig, read_version: int) -> list[Merged]:
    """For each group the segment that replaces it, which no commit names yet, or what is wrong with its files.

    Memory is bounded by a few chunks, or, if there are several groups, by JOB_BYTES read and as many written.
    """
    bundles = Bundles(handle.storage, lambda: handle.new_stem(read_version))
    for group in job.groups:
        bundles.join(group.partition)
    merged = partial(merge_group, handle, config=config, read_version=read_version, bundles=bundles)
    made = [
        unless_uncleanable(group.partition, partial(merged, group, chunks=chunks))
        for group, chunks in zip(job.groups, _chunks(handle.reader, job.groups), strict=True)
    ]
    bundles.close()
    return [one if isinstance(one, Uncleanable) else bundles.placed(one) for one in made]


def _chunks(reader: SegmentReader, groups: Sequence[MergeGroup]) -> list[Iterable[Chunk]]:
    """The chunks of each group; where files are damaged, each group tells by itself what is wrong with its own."""
    if len(groups) > 1:
        with suppress(*OF_ITS_FILES):
            return [[chunk] for chunk in whole_groups(reader, [list(group.segments) for group in groups])]
    return [whole_logs(reader, group.segments) for group in groups]


def merge_group(
    handle: TopicHandle,
    group: MergeGroup,
    *,
    config: TopicConfig,
    read_version: int,
    chunks: Iterable[Chunk] | None = None,
    bundles: Bundles | None = None,
) -> SegmentInfo:
    """Write the segment that replaces the group, at the group's offsets; no commit names it yet.

    `chunks` are the group's, if they are read already. Memory is bounded by a few chunks. Raises CorruptRecordError
    for a batch that is not what was written. After an error there is no partial file and no upload left.
    """
    stem, first = handle.new_stem(read_version), group.segments[0].base_offset
    file = SegmentFile(handle.storage, handle.name, group.partition, stem, config, bundles)
    try:
        join = BatchJoin.of(config)
        for chunk in whole_logs(handle.reader, group.segments) if chunks is None else chunks:
            for part in join.apply(chunk.timed()):
                _append(part, first, file)
        transactional = _transactional(group.segments)
        aborted = [each for segment in transactional for each in handle.reader.aborted_transactions(segment)]
        sealed = file.seal(handle.clock())
    except BaseException:
        file.abort()
        raise
    merged = with_aborted(handle.storage, handle.name, sealed, aborted, first)
    return _in_place_of(group.segments, transactional, merged)


def _transactional(segments: SegmentTable) -> list[SegmentInfo]:
    """Those with transactions; of the others, which may be many, no object is made."""
    return [segments[int(row)] for row in np.flatnonzero(segments.array("has_transactions"))]


def _in_place_of(segments: SegmentTable, transactional: Sequence[SegmentInfo], merged: SegmentInfo) -> SegmentInfo:
    """The segment with what is known of those that it replaces."""
    last, newest = segments[-1], max(segments, key=lambda segment: segment.max_timestamp)
    return dataclasses.replace(
        merged,
        base_offset=segments[0].base_offset,
        next_offset=last.next_offset,
        offset_of_max_timestamp=newest.offset_of_max_timestamp,
        compacted=any(segment.compacted for segment in segments),
        has_transactions=bool(transactional),
        first_unstable_offset=transactional[-1].first_unstable_offset if transactional else NO_OFFSET,
        # Kafka keeps the file's time too: retention counts from it if records have no time
        created_ms=last.created_ms,
    )


def _append(joined: JoinedBatches, base_offset: int, file: SegmentFile) -> None:
    moved = joined.base_offsets - base_offset
    # the offset of the largest timestamp is needed for the segment only, not for each batch
    file.write(joined.data, joined.batches, moved, moved, joined.min_timestamps)
