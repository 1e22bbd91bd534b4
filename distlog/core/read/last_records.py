"""Finds the last record of each key, for `Topic.get`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np
import pyarrow as pa

from distlog.core.arrays import Longs, booleans, byte_array, integers, numbers_of
from distlog.core.commits.snapshot import Snapshot
from distlog.core.format.kernels.record_write import fill_partitions
from distlog.core.format.key_index import KeyBatches, hashes_of
from distlog.core.format.record_batch import COLUMNS
from distlog.core.read.keys import find_keys, near_rows
from distlog.core.read.lookup import Record, last_with_key
from distlog.core.read.scan import plan_slices, to_records
from distlog.core.segments.chunks import Isolation, IsolationLevel, SegmentSlice
from distlog.core.segments.segment_reader import SegmentReader, read_slices

Records = dict[bytes, Record]
#: How many indexes of the newest segments are searched first. Each further search takes four times as many.
_FIRST_SEGMENTS = 4


def last_records(reader: SegmentReader, snapshot: Snapshot, keys: pa.Array, isolation: IsolationLevel) -> Records:
    """Return the last record of each of the distinct `keys`, a binary array, if there is one.

    The search begins in the partition that the default partitioner chooses. If it has no record of a key, another
    partitioner may have been used: then the result is the newest of the last records in all partitions.
    """
    records, count = Records(), len(snapshot.partitions)
    partitions = _default_partitions(keys, count)
    for partition in np.unique(partitions).tolist():
        slices, visible = plan_slices(reader, snapshot, {partition: (None, None)}, isolation)
        search = _PartitionSearch(reader, visible, keys.filter(booleans(partitions == partition)))
        end, size = len(slices), _FIRST_SEGMENTS
        while end > 0 and len(search.keys):
            search.search_older(slices[max(end - size, 0) : end])
            end, size = end - size, 4 * size
        records |= search.records
    missing = keys.filter(booleans([key not in records for key in keys.to_pylist()]))
    return records | _newest_of_all(reader, snapshot, missing, isolation)


def _newest_of_all(reader: SegmentReader, snapshot: Snapshot, keys: pa.Array, isolation: IsolationLevel) -> Records:
    """Return by key the record with the largest timestamp among the last records in each partition."""
    newest = Records()
    if not len(keys):
        return newest
    bounds = dict.fromkeys(range(len(snapshot.partitions)), (None, None))
    slices, visible = plan_slices(reader, snapshot, bounds, isolation)
    # search the indexes of all partitions at once
    batches = find_keys(reader, [part.segment for part in slices], np.unique(hashes_of(keys)))
    for _, pairs in groupby(zip(slices, batches, strict=True), lambda pair: pair[0].segment.partition):
        search = _PartitionSearch(reader, visible, keys)
        partition_slices, partition_batches = zip(*pairs, strict=True)
        search.search_older(partition_slices, partition_batches)
        for key, record in search.records.items():
            if key not in newest or record.timestamp > newest[key].timestamp:
                newest[key] = record
    return newest


def _default_partitions(keys: pa.Array, count: int) -> Longs:
    offsets = np.frombuffer(keys.buffers()[1], np.int32)[keys.offset : keys.offset + len(keys) + 1]
    data, no_value_offsets = keys.buffers()[2], np.zeros(len(keys) + 1, np.int64)
    partitions = np.empty(len(keys), np.int64)
    key_bytes = byte_array(data) if data else np.empty(0, np.uint8)
    no_validity = np.empty(0, np.uint8)
    # the value offsets and 0, 0, 1 are only used for records without a key
    fill_partitions(offsets, key_bytes, no_validity, 0, no_value_offsets, count, 0, 0, 1, partitions)
    return partitions


class _PartitionSearch:
    """Searches a partition, newest segments first, for the last record of each key; `keys` still lack a record."""

    def __init__(self, reader: SegmentReader, isolation: Isolation, keys: pa.Array) -> None:
        self._reader, self._isolation = reader, isolation
        self.keys = keys
        self.records = Records()

    def search_older(self, slices: Sequence[SegmentSlice], batches: Sequence[KeyBatches | None] = ()) -> None:
        """Search the next older slices, which ascend. `batches` is the result of `find_keys` for them, if known."""
        hashes = np.unique(hashes_of(self.keys))
        batches = batches or find_keys(self._reader, [part.segment for part in slices], hashes)
        for part, part_batches in zip(reversed(slices), reversed(batches), strict=True):
            if part_batches is None:
                self._read([part._replace(keys=self.keys)] if len(self.keys) else [])
            else:
                self._read_last(part, part_batches, hashes)

    def _read_last(self, part: SegmentSlice, batches: KeyBatches, hashes: Longs) -> None:
        """Read the batches of each key, from the last one back, until one has a visible record of the key."""
        # without batches of an active segment past its end in this snapshot, which `TailKeys` may have read
        is_inside = (batches.positions >= part.start_position) & (batches.positions < part.end_position)
        positions, hash_rows = (column[is_inside] for column in batches)  # of batches; the rows are in `hashes`
        # each round reads the last remaining batch of each key without a record
        while len(self.keys) and len(positions):
            # the position of each hash's last batch, or -1; positions ascend, so the last assignment stays
            last_positions = np.full(len(hashes), -1)
            last_positions[hash_rows] = positions
            rows_of_keys = np.searchsorted(hashes, hashes_of(self.keys))  # in `hashes`
            order = np.argsort(last_positions[rows_of_keys], kind="stable")  # keys by the positions of their batches
            order = order[last_positions[rows_of_keys[order]] >= 0]  # without the keys that have no batch
            # by hash, where this round begins to read: earlier batches remain; 0 (none) if all its keys have a record
            read_starts, slices = np.zeros(len(hashes), np.int64), list[SegmentSlice]()
            for run in near_rows(last_positions[rows_of_keys[order]]):
                run_rows, keys = rows_of_keys[order[run]], self.keys.take(integers(order[run]))
                start, last = int(last_positions[run_rows[0]]), int(last_positions[run_rows[-1]])
                read_starts[run_rows] = start
                # only the run's keys: the range may have older records of keys whose last batch is in a later run
                located = part.located(start, last)._replace(keys=keys)
                if len(keys) > 1 or not self._read_point(located):
                    slices.append(located)
            self._read(slices)
            is_before = positions < read_starts[hash_rows]
            positions, hash_rows = positions[is_before], hash_rows[is_before]

    def _read_point(self, part: SegmentSlice) -> bool:
        """Read the last record of the slice's only key in its only batch; False if a scan must read it."""
        partition = part.segment.partition
        if partition in self._isolation.aborted or part.keys is None:
            return False
        (key,) = part.keys.to_pylist()
        records = last_with_key(self._reader, part, part.start_position, key)
        for record in records or ():
            self.records[key] = record
        return records is not None

    def _read(self, slices: Sequence[SegmentSlice]) -> None:
        """Add the last record of each key in the slices, which ascend, and drop the keys that now have a record."""
        for batch in read_slices(self._reader, slices, COLUMNS, self._isolation, max_workers=1):
            # the row of each key's last record, which is its first row in reversed order
            reversed_codes = numbers_of(batch["key"].dictionary_encode().indices)[::-1]
            last_rows = len(reversed_codes) - 1 - np.unique(reversed_codes, return_index=True)[1]
            for record in to_records(batch.take(integers(last_rows))):
                assert record.key is not None
                self.records[record.key] = record
        self.keys = self.keys.filter(booleans([key not in self.records for key in self.keys.to_pylist()]))
