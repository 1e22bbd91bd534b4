"""The one way from slices of segments to Arrow, in three stages, of which the prefetcher `in_order` runs ahead."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice

import numpy as np
import pyarrow as pa
from crc32c import crc32c

from distlog.core.commits.segment_info import SegmentInfo
from distlog.core.errors import CorruptRecordError
from distlog.core.segments.chunks import DEPTH, Chunk
from distlog.core.segments.open_transactions import Isolation
from distlog.core.segments.segment_reader import CHUNK_BYTES, INDEX_WORTH_BYTES, SegmentReader
from distlog.core.segments.slices import SegmentSlice
from distlog.core.storage.parallel import in_order, prefetched

#: Segments up to this size are read whole and decoded together.
SMALL_BYTES = 1 << 20
#: The size up to which small segments are put into one chunk.
GROUP_BYTES = CHUNK_BYTES
#: The size of the first local chunk. It is small, since it is decoded before others and may be all that is wanted.
FIRST_BYTES = 1 << 20
#: How many batches of one chunk, of at most about OUTPUT_BYTES each, are decoded before they are asked for.
AHEAD_BATCHES = 4

Group = list[SegmentSlice]
#: Returns a chunk: its bytes are in memory already, or they are local and are read by the call.
ChunkLoader = Callable[[], Chunk]


def read(
    reader: SegmentReader,
    slices: Iterable[SegmentSlice],
    columns: Sequence[str],
    isolation: Isolation,
    max_workers: int,
) -> Iterator[pa.RecordBatch]:
    """The records of `slices`, in order, in batches of some MB if there is that much.

    Three stages: groups of small segments, which are read together; chunks, the bytes of some MB of whole batches,
    fetched ahead if they are remote; record batches, decoded from a chunk. `max_workers` threads, including the
    caller's, decode local files; the caller decodes remote files alone. Memory is bounded by a few chunks for each
    thread.
    """
    is_local = reader.storage.is_local
    # with remote files the requests take the time, and decoding ahead would need more to be fetched ahead
    workers = max_workers if is_local else 1
    chunks = _local_chunks(reader, slices) if is_local else _remote_chunks(reader, groups(slices, GROUP_BYTES))
    # the first chunk may be all that is wanted: it is decoded before more is read
    for chunk in islice(chunks, 1):
        yield from chunk().records(columns, isolation)
    tasks = (partial(_decoded, chunk, columns, isolation, workers) for chunk in chunks)
    for batches in in_order(tasks, workers + 1, workers=workers, joined=True):
        yield from batches


def groups(slices: Iterable[SegmentSlice], room: int) -> Iterator[Group]:
    """Group small segments into runs of a chunk's size, the first of up to `room` bytes; a large segment is alone."""
    group: Group = []
    held = 0
    for part in slices:
        size = part.segment.log_bytes
        if group and (not _small(part) or held + size > room):
            yield group
            group, held, room = [], 0, GROUP_BYTES
        if _small(part):
            group.append(part)
            held += size
        else:
            yield [part]
    if group:
        yield group


def _small(part: SegmentSlice) -> bool:
    size = part.segment.log_bytes
    uncut = (part.start_position, part.end_position) == (0, size)
    return uncut and (size <= INDEX_WORTH_BYTES or (part.covers_segment and size <= SMALL_BYTES))


def _local_chunks(reader: SegmentReader, slices: Iterable[SegmentSlice]) -> Iterator[ChunkLoader]:
    for number, group in enumerate(groups(slices, min(FIRST_BYTES, GROUP_BYTES))):
        if _small(group[0]):
            yield partial(reader.whole_chunk, group)
        else:
            chunks = reader.chunks(group[0])
            yield from _loaders(chunks if number else _growing(chunks))


def _growing(chunks: Iterator[Chunk]) -> Iterator[Chunk]:
    """The chunks of one segment, the first one cut in two after FIRST_BYTES."""
    for chunk in islice(chunks, 1):
        count = int(np.searchsorted(chunk.batches["position"], FIRST_BYTES))
        yield chunk.rows(0, count)
        if count < len(chunk.batches):
            yield chunk.rows(count, len(chunk.batches))
    yield from chunks


def _remote_chunks(reader: SegmentReader, groups: Iterable[Group]) -> Iterator[ChunkLoader]:
    for chunks in in_order((partial(_fetched, reader, group) for group in groups), DEPTH):
        yield from chunks


def _fetched(reader: SegmentReader, group: Group) -> Iterable[ChunkLoader]:
    if _small(group[0]):
        return [partial(_same, reader.whole_chunk(group))]
    chunks = _loaders(reader.chunks(group[0]))
    return chain(list(islice(chunks, 1)), chunks)


def _loaders(chunks: Iterable[Chunk]) -> Iterator[ChunkLoader]:
    return (partial(_same, chunk) for chunk in chunks)


def _same(chunk: Chunk) -> Chunk:
    return chunk


def _decoded(
    load_chunk: ChunkLoader, columns: Sequence[str], isolation: Isolation, workers: int
) -> Iterator[pa.RecordBatch]:
    """The records of one chunk; with several workers AHEAD_BATCHES are decoded now, the rest when they are needed."""
    return prefetched(load_chunk().records(columns, isolation), AHEAD_BATCHES if workers > 1 else 0)


def whole_log(reader: SegmentReader, segment: SegmentInfo) -> Iterator[Chunk]:
    """The segment's chunks, with their checksums compared; the checksum of the whole file is compared at the end.

    Nothing made from the chunks may be committed before the iterator has ended.
    """
    size = checksum = 0
    for chunk in reader.chunks(_full_slice(segment)):
        chunk.check()
        size, checksum = size + len(chunk.data), crc32c(chunk.data, checksum)
        yield chunk
    _compare(reader, segment, size, checksum)


def whole_logs(reader: SegmentReader, segments: Iterable[SegmentInfo]) -> Iterator[Chunk]:
    """`whole_log` of each of `segments`, in their order; small ones are read at once, as one chunk."""
    for group in groups(map(_full_slice, segments), GROUP_BYTES):
        if len(group) == 1:
            yield from whole_log(reader, group[0].segment)
            continue
        yield from whole_groups(reader, [[part.segment for part in group]])


def whole_groups(reader: SegmentReader, groups: Sequence[Sequence[SegmentInfo]]) -> Iterator[Chunk]:
    """A chunk for each of `groups`, whose segments are small: all are read at once, close ranges by one request."""
    chunk = reader.whole_chunk([_full_slice(segment) for group in groups for segment in group])
    chunk.check()
    for log_range in chunk.ranges:
        data = chunk.data[log_range.start : log_range.end]
        _compare(reader, log_range.slice.segment, len(data), crc32c(data))
    ends = list(itertools.accumulate(map(len, groups)))
    return (chunk.part(end - len(group), end) for group, end in zip(groups, ends, strict=True))


def _full_slice(segment: SegmentInfo) -> SegmentSlice:
    return SegmentSlice(segment, segment.base_offset, segment.next_offset, 0, segment.log_bytes)


def _compare(reader: SegmentReader, segment: SegmentInfo, size: int, checksum: int) -> None:
    if (size, checksum) != (segment.log_bytes, segment.crc32c):
        raise CorruptRecordError(
            "the log file is not the one that was committed: verify, then restore it from a copy",
            file=reader.name(segment),
            position=reader.part(segment).begin,
            partition=segment.partition,
        )
