"""Searches key indexes for the batches that may hold some keys, and cuts slices (ranges to read) to these batches."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, islice, pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from distlog.core.arrays import MAX_LONG, Longs
from distlog.core.commits.segment_table import SegmentInfo
from distlog.core.errors import CorruptIndexError, InvalidRecordError, StorageError
from distlog.core.format.key_index import (
    LEAST_LOG_BYTES,
    KeyBatches,
    KeySearch,
    Ranges,
    hashes_of,
    search,
    search_each,
)
from distlog.core.segments.chunks import SegmentSlice
from distlog.core.segments.segment_reader import INDEX_WORTH_BYTES, SegmentReader
from distlog.core.storage.backend import Part

Keys = bytes | str | Iterable[bytes | str]
"""A key, or some keys; a str stands for its UTF-8."""

_log = logging.getLogger("distlog")
_AT_ONCE = 256  # segments whose indexes are searched at once


def key_array(keys: Keys | pa.Array) -> pa.Array:
    """The distinct keys as a binary array. Raises InvalidRecordError for other values."""
    if isinstance(keys, pa.Array):
        try:
            return keys.cast(pa.binary()).drop_null().unique()
        except pa.ArrowNotImplementedError:
            raise InvalidRecordError("a key must be bytes or str", type=str(keys.type)) from None
    listed = list(keys) if isinstance(keys, Iterable) and not isinstance(keys, bytes | str) else [keys]
    return pa.array(dict.fromkeys(map(_key_bytes, listed)).keys(), pa.binary())


def _key_bytes(key: object) -> bytes:
    if isinstance(key, bytes):
        return key
    if not isinstance(key, str):
        raise InvalidRecordError("a key must be bytes or str", type=type(key).__name__)
    try:
        return key.encode()
    except UnicodeEncodeError as error:
        raise InvalidRecordError(f"a key is not valid Unicode: {error.reason}", key=ascii(key)) from None


def located_slices(reader: SegmentReader, slices: Sequence[SegmentSlice], keys: pa.Array) -> Iterator[SegmentSlice]:
    """Yield slices of the batches that may hold one of `keys`, in order. Without a key index, a slice stays whole."""
    if not len(keys):
        return
    hashes, unindexed = np.unique(hashes_of(keys)), 0
    for start in range(0, len(slices), _AT_ONCE):
        group = slices[start : start + _AT_ONCE]
        for part, batches in zip(group, find_keys(reader, [part.segment for part in group], hashes), strict=True):
            if batches is None:
                unindexed += part.segment.log_bytes > LEAST_LOG_BYTES  # a smaller segment gets no index
                yield part._replace(keys=keys)
            elif len(batches.positions):
                yield from _of_batches(part._replace(keys=keys), batches.positions)
    if unindexed:
        text = "%d of %d segments lack a key index, so they are scanned: set key.index.enable and rebuild the indexes"
        _log.info(text, unindexed, len(slices))


def _of_batches(part: SegmentSlice, positions: Longs) -> Iterator[SegmentSlice]:
    """Yield a slice for each run of `near_rows` in ascending `positions`, from its first to its last batch."""
    inside = positions[(positions >= part.start_position) & (positions < part.end_position)]
    for run in near_rows(inside):
        yield part.located(int(inside[run.start]), int(inside[run.stop - 1]))


def near_rows(positions: Longs) -> list[slice]:
    """Split batches into runs to read at once, as slices of `positions`, at gaps of more than INDEX_WORTH_BYTES."""
    ends = np.flatnonzero(np.diff(positions, append=MAX_LONG) > INDEX_WORTH_BYTES) + 1  # MAX_LONG ends the last run
    return [slice(start, end) for start, end in pairwise([0, *ends.tolist()])]


def find_keys(reader: SegmentReader, segments: Sequence[SegmentInfo], hashes: Longs) -> list[KeyBatches | None]:
    """Return each segment's batches that may hold a key with one of the sorted hashes; None: scan the segment."""
    results = dict[int, KeyBatches | None]()
    indexed = list[int]()
    for row, segment in enumerate(segments):
        if segment.is_active:
            results[row] = reader.tail_keys.find(reader, segment, hashes)
        elif segment.key_index_bytes:
            indexed.append(row)
    # for a single hash, one joined read of a part of each index ends most searches
    if len(hashes) == 1:
        with_keys = [row for row in indexed if segments[row].key_count]  # without keys, there is nothing to read
        results |= _find_in_each(reader, segments, with_keys, int(hashes[0]))
    searches = dict[int, KeySearch]()
    for row in indexed:
        if row not in results:
            segment = segments[row]  # its `first_batch_crc` shows whether the index belongs to its log
            searches[row] = search(segment.key_count, segment.key_index_bytes, segment.first_batch_crc, hashes)
    # each round reads the next blocks of all searches at once; in the first round, None starts each search
    blocks: dict[int, list[memoryview] | None] = dict.fromkeys(searches)
    while blocks:
        ranges = dict[int, Ranges]()
        for row, data in blocks.items():
            step = _step(reader, segments[row], searches[row], data)
            if isinstance(step, list):
                ranges[row] = step
            else:
                results[row] = step
        blocks = _blocks(reader, segments, ranges)
    return [results.get(row) for row in range(len(segments))]


def _find_in_each(
    reader: SegmentReader, segments: Sequence[SegmentInfo], rows: Sequence[int], key_hash: int
) -> dict[int, KeyBatches]:
    """Search the indexes of the segments `rows` for one hash. Returns the results for which one read is enough."""
    if not rows:
        return {}

    def read(starts: Longs, ends: Longs) -> memoryview:
        spans = zip(rows, starts.tolist(), ends.tolist(), strict=True)
        return reader.storage.read_joined([_index_of(reader, segments[row]).range(*span) for row, *span in spans])

    key_counts, index_sizes, first_batch_crcs = (
        np.array([getattr(segments[row], name) for row in rows])
        for name in ("key_count", "key_index_bytes", "first_batch_crc")
    )
    # after an error each index is searched alone, which reports the bad one
    with suppress(FileNotFoundError, StorageError):
        by_number = search_each(key_counts, index_sizes, first_batch_crcs, key_hash, read)
        return {rows[number]: batches for number, batches in by_number.items()}
    return {}


def _step(reader: SegmentReader, segment: SegmentInfo, query: KeySearch, blocks: Any) -> Ranges | KeyBatches | None:
    """Send `blocks` to a search. Return the next ranges that it needs, its result, or None for a damaged index."""
    try:
        return query.send(blocks)
    except StopIteration as result:
        batches: KeyBatches = result.value
        return batches
    except CorruptIndexError as error:
        _warn_of_index(reader, segment, error)
        return None


def _blocks(
    reader: SegmentReader, segments: Sequence[SegmentInfo], ranges: Mapping[int, Ranges]
) -> dict[int, list[memoryview] | None]:
    """Read `ranges` of key indexes, by the row of the segment. Leaves out segments whose index cannot be read."""
    indexes = {row: _index_of(reader, segments[row]) for row in ranges}
    spans = [indexes[row].range(*span) for row, segment_ranges in ranges.items() for span in segment_ranges]
    try:
        blocks = iter(reader.storage.read_ranges(spans))
        return {row: list(islice(blocks, len(segment_ranges))) for row, segment_ranges in ranges.items()}
    except (FileNotFoundError, StorageError) as error:
        if len(ranges) > 1:  # one by one, to find the index that cannot be read
            singles = [_blocks(reader, segments, {row: segment_ranges}) for row, segment_ranges in ranges.items()]
            return dict(chain.from_iterable(single.items() for single in singles))
        for row in ranges:
            _warn_of_index(reader, segments[row], error)
        return {}


def _index_of(reader: SegmentReader, segment: SegmentInfo) -> Part:
    return reader.part(segment, ".keyindex")


def _warn_of_index(reader: SegmentReader, segment: SegmentInfo, error: Exception) -> None:
    name = _index_of(reader, segment).name
    # a CorruptIndexError already has the advice
    advice = "" if isinstance(error, CorruptIndexError) else ": rebuild the index"
    _log.warning("scanning the log instead, since %s%s (file=%s)", error, advice, name)
