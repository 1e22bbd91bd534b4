"""What tasks that share the compaction of one partition hand to each other: keys by buckets, offsets by groups.

A record is 24 bytes on its way to the task that finds the last one of its key (its hash and its offset), and 8 on the
way back, if it is superseded. Both travel as blobs, so that there is no row per record.
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

#: A task sends what it has when it is this much, so its memory does not grow with what it reads.
BLOBS_BYTES = 8 << 20

#: Hashes do not fill buckets evenly: room for so many standard deviations, and keys, above the mean.
_DEVIATIONS, _SPARE_KEYS = 8, 8

Longs = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Blobs:
    """Parts of `words`, back to back: part i goes to `targets[i]` and ends before `ends[i]`; none is empty."""

    targets: npt.NDArray[np.intp]
    ends: Longs
    words: Longs


def map_slots(records: int) -> int:
    """The slots of an offset map that `records` keys fit into for sure."""
    return int(records / LOAD_FACTOR) + 2


def plan_buckets(records: int, memory_bytes: int, at_least: int) -> tuple[int, int]:
    """How many buckets `records` keys make, and the slots of the offset map of each, which should fit in the memory.

    As many as `at_least`, but no more than there are records.
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
    """The rows of all records with a key, a part for each bucket: `words` as OffsetMap takes them.

    The rows of offsets below `start_offset` are apart from the others: their targets are counted on from `buckets`.
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
    """The rows of a blob of keys."""
    return np.frombuffer(blob, np.int64).reshape(-1, ROW_WORDS)


def offsets_by_group(offsets: Longs, base_offsets: Longs) -> Blobs:
    """Offsets, a part for each group, which begin at `base_offsets`, of which the first is below all offsets."""
    offsets = np.sort(offsets)
    ends = np.append(np.searchsorted(offsets, base_offsets[1:]), len(offsets))
    targets = np.flatnonzero(np.diff(ends, prepend=0))
    return Blobs(targets, ends[targets], offsets)


def blob_offsets(blob: bytes | memoryview) -> Longs:
    """The offsets of a blob of offsets."""
    return np.frombuffer(blob, np.int64)


def exchanged_bytes(part: KeyedRecords) -> int:
    """What the records take on their way, at most."""
    return len(part.offsets) * ROW_BYTES
