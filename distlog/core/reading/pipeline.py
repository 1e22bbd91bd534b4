"""The one way from slices of segments to Arrow: four stages, and one prefetcher, `in_order`, that runs ahead of each.

1. slices   become groups: small segments together, a large one alone
2. groups   become chunks: their bytes are fetched, some groups at the same time
3. chunks   follow each other, in the order of the slices
4. chunks   become record batches: checked, expanded and decoded, several at the same time
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from typing import NoReturn

import pyarrow as pa

from distlog.core.reading.chunk import OUTPUT_BYTES, Chunk
from distlog.core.reading.read_ahead import DEPTH
from distlog.core.reading.segment_reader import CHUNK_BYTES, INDEX_WORTH_BYTES, SegmentReader
from distlog.core.reading.slices import SegmentSlice
from distlog.core.storage.parallel import in_order
from distlog.core.transactions.isolation import Isolation

#: Segments up to this size are read whole and decoded together.
SMALL_BYTES = 1 << 20
#: How much of what one chunk expands to is decoded before it is asked for.
AHEAD_BYTES = 4 * OUTPUT_BYTES


def read(
    reader: SegmentReader,
    slices: Iterable[SegmentSlice],
    columns: Sequence[str],
    isolation: Isolation,
    max_workers: int,
) -> Iterator[pa.RecordBatch]:
    """The records of `slices`, in order, in batches of some MB where there is that much.

    `max_workers` threads decode; with 1 it is the caller who does. Memory is bounded by a few chunks for each of them,
    whatever the size of a segment. Raises CorruptRecordError, and SnapshotTooOldError for a file that vacuum has
    removed since the snapshot.
    """
    chunks = _chunks(reader, _groups(slices), max_workers)
    # the first chunk may be all that is wanted: it is decoded by the caller, and before more is read
    for chunk in islice(chunks, 1):
        yield from chunk.records(columns, isolation)
    if max_workers == 1:
        for chunk in chunks:
            yield from chunk.records(columns, isolation)
        return
    tasks = (partial(_decoded, chunk, columns, isolation) for chunk in chunks)
    for batches in in_order(tasks, max_workers + 1, threads=max_workers, joined=reader.storage.is_local):
        yield from batches


def _groups(slices: Iterable[SegmentSlice]) -> Iterator[list[SegmentSlice]]:
    """Runs of small segments worth a chunk; a large one alone."""
    group: list[SegmentSlice] = []
    held = 0
    for piece in slices:
        size = piece.segment.log_bytes
        if group and (not _small(piece) or held + size > CHUNK_BYTES):
            yield group
            group, held = [], 0
        if _small(piece):
            group.append(piece)
            held += size
        else:
            yield [piece]
    if group:
        yield group


def _small(piece: SegmentSlice) -> bool:
    size = piece.segment.log_bytes
    uncut = (piece.start_position, piece.end_position) == (0, size)
    return uncut and (size <= INDEX_WORTH_BYTES or (piece.whole and size <= SMALL_BYTES))


def _chunks(reader: SegmentReader, groups: Iterable[list[SegmentSlice]], max_workers: int) -> Iterator[Chunk]:
    tasks = (partial(_fetched, reader, group) for group in groups)
    # local files answer at once: one group ahead of each who decodes hides what opening them costs
    is_local = reader.storage.is_local
    for chunks in in_order(tasks, min(max_workers, DEPTH) if is_local else DEPTH, joined=is_local):
        yield from chunks


def _fetched(reader: SegmentReader, group: list[SegmentSlice]) -> Iterable[Chunk]:
    """The chunks of `group`, the first of them read."""
    if _small(group[0]):
        return [reader.whole(group)]
    chunks = reader.chunks(group[0])
    return chain(list(islice(chunks, 1)), chunks)


def _decoded(chunk: Chunk, columns: Sequence[str], isolation: Isolation) -> Iterator[pa.RecordBatch]:
    """The records of `chunk`: up to AHEAD_BYTES of them are here, the rest is decoded as it is asked for."""
    batches = chunk.records(columns, isolation)
    made: list[pa.RecordBatch] = []
    size = 0
    try:
        for batch in batches:
            made.append(batch)
            size += batch.nbytes
            if size >= AHEAD_BYTES:
                break
    except Exception as error:
        return chain(made, map(_fail, [error]))
    return chain(made, batches)


def _fail(error: Exception) -> NoReturn:
    raise error
