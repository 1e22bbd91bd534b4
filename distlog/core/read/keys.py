"""Keys: the slices of a topic that may hold them, by its key indexes."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa

from distlog.core.errors import InvalidRecordError
from distlog.core.format.key_index import LEAST_LOG_BYTES, Longs, hashes_of
from distlog.core.integers import MAX_LONG
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
            elif len(batches.positions):
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
    for run in near_rows(inside):
        yield part.located(int(inside[run.start]), int(inside[run.stop - 1]))


def near_rows(positions: Longs) -> list[slice]:
    """The runs of ascending positions of batches that one read is best for."""
    ends = np.flatnonzero(np.diff(positions, append=MAX_LONG) > INDEX_WORTH_BYTES) + 1
    return [slice(start, end) for start, end in pairwise([0, *ends.tolist()])]
