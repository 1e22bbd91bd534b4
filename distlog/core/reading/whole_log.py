"""Reads every batch of segments. Their logs must be those that were committed."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

from crc32c import crc32c

from distlog.core.commits.format.segment_info import SegmentInfo
from distlog.core.errors import CorruptRecordError
from distlog.core.reading.chunks.chunk import Chunk
from distlog.core.reading.files.segment_reader import SegmentReader
from distlog.core.reading.pipeline import GROUP_BYTES, groups
from distlog.core.reading.slices.slices import SegmentSlice


def whole_log(reader: SegmentReader, segment: SegmentInfo) -> Iterator[Chunk]:
    """The segment's chunks, with their checksums compared; the checksum of the whole file is compared at the end.

    So nothing that was made from the chunks may be committed before the iterator has ended. Raises
    CorruptRecordError, SnapshotTooOldError.
    """
    size = checksum = 0
    for chunk in reader.chunks(_whole(segment)):
        chunk.check()
        size, checksum = size + len(chunk.data), crc32c(chunk.data, checksum)
        yield chunk
    _compare(reader, segment, size, checksum)


def whole_logs(reader: SegmentReader, segments: Iterable[SegmentInfo]) -> Iterator[Chunk]:
    """`whole_log` of each of `segments`, in their order; small ones are read at once, and come as one chunk."""
    for group in groups(map(_whole, segments), GROUP_BYTES):
        if len(group) == 1:
            yield from whole_log(reader, group[0].segment)
            continue
        yield from whole_groups(reader, [[one.segment for one in group]])


def whole_groups(reader: SegmentReader, groups: Sequence[Sequence[SegmentInfo]]) -> Iterator[Chunk]:
    """A chunk for each of `groups`, whose segments are small: all are read at once, close ranges by one request.

    All must fit into memory. Raises what `whole_log` raises, for the first error in any of the groups.
    """
    chunk = reader.whole([_whole(segment) for group in groups for segment in group])
    chunk.check()
    for piece in chunk.pieces:
        data = chunk.data[piece.start : piece.end]
        _compare(reader, piece.slice.segment, len(data), crc32c(data))
    ends = list(itertools.accumulate(map(len, groups)))
    return (chunk.part(end - len(group), end) for group, end in zip(groups, ends, strict=True))


def _whole(segment: SegmentInfo) -> SegmentSlice:
    return SegmentSlice(segment, segment.base_offset, segment.next_offset, 0, segment.log_bytes)


def _compare(reader: SegmentReader, segment: SegmentInfo, size: int, checksum: int) -> None:
    if (size, checksum) != (segment.log_bytes, segment.crc32c):
        raise CorruptRecordError(
            "the log file is not the one that was committed: verify, then restore it from a copy",
            file=reader.name(segment),
            position=reader.part(segment).begin,
            partition=segment.partition,
        )
