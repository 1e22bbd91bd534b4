"""Keys: the slices of a topic that may hold them, by its key indexes."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from distlog.core.errors import InvalidRecordError
from distlog.core.format.key_index import LEAST_LOG_BYTES, Longs, hashes_of
from distlog.core.segments.chunks import SegmentSlice
from distlog.core.segments.segment_reader import INDEX_WORTH_BYTES, SegmentReader

Keys = bytes | str | Iterable[bytes | str]
"""A key, or some keys; a str stands for its UTF-8."""

_log = logging.getLogger("distlog")
#: Segments whose indexes are searched at once.
_AT_ONCE = 256


def key_array(keys: Keys | pa.Array) -> pa.Array:
    """The distinct keys as a binary array. Raises InvalidRecordError for other values."""
    if isinstance(keys, pa.Array):
        return keys.cast(pa.binary()).drop_null().unique()
    listed = list(keys) if isinstance(keys, Iterable) and not isinstance(keys, bytes | str) else [keys]
    for key in listed:
        if not isinstance(key, bytes | str):
            raise InvalidRecordError("a key must be bytes or str", type=type(key).__name__)
    return pa.array(
        dict.fromkeys(key.encode() if isinstance(key, str) else key for key in listed).keys(), pa.binary()
    )


def located_slices(reader: SegmentReader, slices: Sequence[SegmentSlice], keys: pa.Array) -> Iterator[SegmentSlice]:
    """The slices of the batches that may hold one of `keys`, in order; a segment without a key index is one slice."""
    if not len(keys):
        return
    hashes, unindexed = np.unique(hashes_of(keys)), 0
    for start in range(0, len(slices), _AT_ONCE):
        group = [part._replace(keys=keys) for part in slices[start : start + _AT_ONCE]]
        for part, batches in zip(group, reader.find_keys([part.segment for part in group], hashes), strict=True):
            if batches is None:
                unindexed += part.segment.log_bytes > LEAST_LOG_BYTES
                yield part
            else:
                yield from _of_batches(part, batches.positions)
    if unindexed:
        _log.info(
            "%d of %d segments have no key index, so they are scanned: set key.index.enable, and rebuild the indexes",
            unindexed,
            len(slices),
        )


def _of_batches(part: SegmentSlice, positions: Longs) -> Iterator[SegmentSlice]:
    """The slices of the batches at ascending `positions`; near batches are one slice."""
    inside = positions[(positions >= part.start_position) & (positions < part.end_position)]
    runs = np.split(inside, np.flatnonzero(np.diff(inside) > INDEX_WORTH_BYTES) + 1) if len(inside) else []
    for run in runs:
        yield part._replace(start_position=int(run[0]), end_position=int(run[-1]) + 1, is_located=True)
