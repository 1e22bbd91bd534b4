"""The three stages in which tasks share the compaction of large partitions. Each takes blobs and sends blobs.

Each stage first gets an item, which says what it works on. If a file of a partition is damaged or gone, the stage
that finds out gives the partition up, and sends the reason on in place of a result: trying again would not help.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from distlog.core.commits.format.segment_info import SegmentInfo
from distlog.core.maintenance.compaction.batch_verdicts import Verdicts
from distlog.core.maintenance.compaction.cleaning_plan import GroupToRewrite
from distlog.core.maintenance.compaction.group_rewrite import rewrite_group
from distlog.core.maintenance.compaction.key_exchange import (
    BLOBS_BYTES,
    blob_offsets,
    exchanged_bytes,
    key_rows,
    keys_by_bucket,
    offsets_by_group,
)
from distlog.core.maintenance.compaction.offset_map import OffsetMap
from distlog.core.maintenance.compaction.record_keys import KeyedRecords, keyed_records
from distlog.core.maintenance.compaction.report import Uncleanable, unless_uncleanable
from distlog.core.maintenance.compaction.survivors import OffsetSurvivors
from distlog.core.topic_handle import TopicHandle
from distlog.spark.tasks.exchange import blob_rows, rows

#: Kinds of rows, in the order in which a task must get them: it needs the dirty keys to judge clean records.
ITEM, DIRTY, CLEAN, SUPERSEDED, RESULT = range(5)


@dataclass(frozen=True, slots=True)
class KeysItem:
    """Adjacent segments whose keys a task reads. The keys go to `buckets` targets from `first_bucket` on."""

    partition: int
    segments: list[SegmentInfo]
    verdicts: Verdicts
    start_offset: int
    first_bucket: int
    buckets: int


class HashKeys:
    """Sends the hashes and offsets of a KeysItem's records to their buckets. The hashes use the run's secret."""

    def __init__(self, handle: TopicHandle, secret: bytes) -> None:
        self._reader, self._secret = handle.reader, secret

    def take(self, kind: int, data: memoryview) -> Iterator[pa.RecordBatch]:
        """Read all segments, and send their keys whenever there are enough."""
        item: KeysItem = pickle.loads(data)
        parts, size, keyed = list[KeyedRecords](), 0, self._keyed(item)
        while part := unless_uncleanable(item.partition, partial(next, keyed, None)):
            if isinstance(part, Uncleanable):
                yield rows([item.first_bucket], RESULT, [pickle.dumps(part)])
                continue
            parts.append(part)
            size += exchanged_bytes(part)
            if size >= BLOBS_BYTES:
                yield _send_keys(item, parts)
                parts, size = [], 0
        yield _send_keys(item, parts)

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Send nothing: all is sent already."""
        yield from ()

    def _keyed(self, item: KeysItem) -> Iterator[KeyedRecords]:
        for segment in item.segments:
            yield from keyed_records(self._reader, segment, 0, item.verdicts, self._secret)


def _send_keys(item: KeysItem, parts: list[KeyedRecords]) -> pa.RecordBatch:
    blobs = keys_by_bucket(parts, item.start_offset, item.buckets)
    clean, bucket = np.divmod(blobs.targets, item.buckets)
    return blob_rows(blobs, item.first_bucket + bucket, np.where(clean, CLEAN, DIRTY))


@dataclass(frozen=True, slots=True)
class BucketItem:
    """The slots that the keys of a bucket need, and the base offsets of the partition's groups.

    The groups are the targets from `first_group` on.
    """

    slots: int
    first_group: int
    base_offsets: npt.NDArray[np.int64]


class FindSuperseded:
    """Sends the superseded offsets of a bucket to their groups."""

    def __init__(self) -> None:
        self._found: list[npt.NDArray[np.int64]] = []
        self._size = 0

    def take(self, kind: int, data: memoryview) -> Iterator[pa.RecordBatch]:
        """Take the item, or keys; pass on why a partition was given up."""
        if kind == ITEM:
            self._item: BucketItem = pickle.loads(data)
            self._keys = OffsetMap(self._item.slots)
        elif kind == RESULT:
            yield rows([self._item.first_group], RESULT, [bytes(data)])
        else:
            find = self._keys.take if kind == DIRTY else self._keys.superseded
            found = find(key_rows(data))
            self._found.append(found)
            self._size += found.nbytes
            if self._size >= BLOBS_BYTES:
                yield from self.finish()

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Send the superseded offsets found since the last sending."""
        blobs = offsets_by_group(np.concatenate([*self._found, _NONE]), self._item.base_offsets)
        yield blob_rows(blobs, self._item.first_group + blobs.targets, np.full(len(blobs.ends), SUPERSEDED))
        self._found, self._size = [], 0


_NONE = np.zeros(0, np.int64)


class RewriteGroup:
    """Writes the records of a GroupToRewrite that stay. Sends the RewrittenGroup, or why there is none."""

    def __init__(self, handle: TopicHandle) -> None:
        self._handle = handle
        self._has_failed = False

    def take(self, kind: int, data: memoryview) -> Iterator[pa.RecordBatch]:
        """Take the item, or superseded offsets; pass on why a partition was given up."""
        if kind == ITEM:
            group: GroupToRewrite = pickle.loads(data)
            self._group, start = group, group.segments[0].base_offset
            # segments without bytes may span any number of offsets
            end = max((one.next_offset for one in group.segments if one.log_bytes), default=start)
            self._survivors = OffsetSurvivors(start, end, group.end_offset - 1)
        elif kind == SUPERSEDED:
            self._survivors.supersede(blob_offsets(data))
        else:
            self._has_failed = True
            yield rows([0], RESULT, [bytes(data)])

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Rewrite the group."""
        if not self._has_failed:
            work = partial(rewrite_group, self._handle, self._group, self._survivors)
            done = unless_uncleanable(self._group.segments[0].partition, work)
            yield rows([0], RESULT, [pickle.dumps(done)])
