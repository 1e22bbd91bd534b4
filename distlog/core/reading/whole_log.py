"""Reads every batch of a segment. The log must be the one that was committed."""

from __future__ import annotations

from collections.abc import Iterator

from crc32c import crc32c

from distlog.core.commits.segment_info import SegmentInfo
from distlog.core.errors import CorruptRecordError
from distlog.core.reading.chunk import Chunk
from distlog.core.reading.segment_reader import SegmentReader
from distlog.core.reading.slices import SegmentSlice


def whole_log(reader: SegmentReader, segment: SegmentInfo) -> Iterator[Chunk]:
    """The segment's chunks, with their checksums compared; the checksum of the whole file is compared at the end.

    So nothing that was made from the chunks may be committed before the iterator has ended. Raises
    CorruptRecordError, SnapshotTooOldError.
    """
    size = checksum = 0
    for chunk in reader.chunks(SegmentSlice(segment, segment.base_offset, segment.next_offset, 0, segment.log_bytes)):
        chunk.check()
        size, checksum = size + len(chunk.data), crc32c(chunk.data, checksum)
        yield chunk
    if (size, checksum) != (segment.log_bytes, segment.crc32c):
        raise CorruptRecordError(
            "the log file is not the one that was committed: verify, then restore it from a copy",
            file=reader.name(segment),
            position=reader.part(segment).begin,
            partition=segment.partition,
        )
