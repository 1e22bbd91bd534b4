"""The data that tasks exchange when they share the compaction of one partition: keys by bucket, offsets by group.

A record's hash and offset, 24 bytes, go to the task that finds the last record of each key. If the record is
superseded, its offset, 8 bytes, comes back. Both travel as blobs, so there is no row per record.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, sqrt

import numpy as np
import numpy.typing as npt

from distlog.core.kernels.key_exchange import ROW_BYTES, ROW_WORDS, count_keys, place_keys
from distlog.core.maintenance.compaction.offset_map import LOAD_FACTOR, SLOT_BYTES
from distlog.core.maintenance.compaction.record_keys import KeyedRecords

#: A task sends its data when it has this many bytes, so its memory does not grow with what it reads.
BLOBS_BYTES = 8 << 20

#: Hashes do not fill buckets evenly: each has room for this many standard deviations, and keys, above the mean.
_DEVIATIONS, _SPARE_KEYS = 8, 8

Longs = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Blobs:
    """Parts of `words`, back to back: part i goes to `targets[i]` and ends before `ends[i]`; none is empty."""

    targets: npt.NDArray[np.intp]
    ends: Longs
    words: Longs


def map_slots(records: int) -> int:
    """The number of slots of an offset map that surely has room for `records` keys."""
    return int(records / LOAD_FACTOR) + 2


def plan_buckets(records: int, memory_bytes: int, at_least: int) -> tuple[int, int]:
    """The number of buckets for `records` keys, and the slots of each bucket's offset map.

    Each map should fit in `memory_bytes`. There are `at_least` buckets or more, but no more than `records`.
    """
    buckets = max(at_least, ceil(records * SLOT_BYTES / LOAD_FACTOR / max(memory_bytes, 1)))
    while buckets < records and _bucket_slots(records, buckets) * SLOT_BYTES > memory_bytes:
        buckets += buckets // 16 + 1
    buckets = max(min(buckets, records), 1)
    return buckets, _bucket_slots(records, buckets)


def _bucket_slots(records: int, buckets: int) -> int:
    mean = records / buckets
    most = mean if buckets == 1 else mean + _DEVIATIONS * sqrt(mean) + _SPARE_KEYS
    return map_slots(ceil(most))


def keys_by_bucket(parts: Sequence[KeyedRecords], start_offset: int, buckets: int) -> Blobs:
    """The rows of all records with a key, one part per bucket; `words` are in the form that OffsetMap takes.

    Rows with offsets below `start_offset` are in separate parts: the target of these is `buckets` + the bucket.
    """
    counts = np.zeros(2 * buckets, np.int64)
    for part in parts:
        count_keys(part.hashes, part.keyed, part.offsets, start_offset, counts)
    ends = np.cumsum(counts)
    positions, rows = ends - counts, np.empty((int(ends[-1]), ROW_WORDS), np.int64)
    for part in parts:
        place_keys(part.hashes, part.keyed, part.offsets, start_offset, positions, rows)
    targets = np.flatnonzero(counts)
    return Blobs(targets, ends[targets] * ROW_WORDS, rows.ravel())


def key_rows(blob: bytes | memoryview) -> Longs:
    """The rows in a blob of keys."""
    return np.frombuffer(blob, np.int64).reshape(-1, ROW_WORDS)


def offsets_by_group(offsets: Longs, base_offsets: Longs) -> Blobs:
    """The offsets, one part per group. Groups begin at `base_offsets`; no offset is below the first of these."""
    offsets = np.sort(offsets)
    ends = np.append(np.searchsorted(offsets, base_offsets[1:]), len(offsets))
    targets = np.flatnonzero(np.diff(ends, prepend=0))
    return Blobs(targets, ends[targets], offsets)


def blob_offsets(blob: bytes | memoryview) -> Longs:
    """The offsets in a blob of offsets."""
    return np.frombuffer(blob, np.int64)


def exchanged_bytes(part: KeyedRecords) -> int:
    """How many bytes the records take on their way, at most."""
    return len(part.offsets) * ROW_BYTES
