"""Merge jobs: a job merges many groups of adjacent segments, and processes all groups together in numpy arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c

from distlog.core import paths
from distlog.core.arrays import MAX_LONG, Bytes, Flags, Longs, byte_array, join, new_array, numbers_of
from distlog.core.commits.segment_table import (
    NO_OFFSET,
    OWN_FILE,
    UNDETERMINED_OFFSET,
    UNKNOWN,
    SegmentInfo,
    SegmentTable,
    of_numbers,
)
from distlog.core.config import TopicConfig
from distlog.core.errors import CorruptRecordError, StorageError
from distlog.core.format import record_batch
from distlog.core.format.compression import CODEC_NAMES
from distlog.core.format.indexes import AbortedTransaction, encode_transactions
from distlog.core.format.kernels.batch_scan import RUN, crcs_of_slices, cut_runs, first_misplaced
from distlog.core.format.kernels.record_write import copy_slices
from distlog.core.format.record_batch import CODEC_MASK, HEADER_SIZE
from distlog.core.format.record_decoder import BatchSelection
from distlog.core.format.record_encoder import (
    compression_level,
    header_offsets,
    largest_batch,
    set_append_times,
    usual_batch,
    write_append_times,
    write_base_offsets,
)
from distlog.core.maintain.group_rewrite import (
    FILE_ERRORS,
    FilteredBatches,
    RecordBytes,
    RewriteFailure,
    SegmentGroup,
    lay_out,
    rewrite_group,
)
from distlog.core.maintain.survivors import ScannedRecords, scan_records
from distlog.core.read.lookup import first_in
from distlog.core.segments.chunks import Chunk
from distlog.core.segments.producer_states import transactional_segments
from distlog.core.segments.segment_parts import INDEX_FIELDS
from distlog.core.segments.segment_reader import SegmentReader, TopicHandle, whole_logs
from distlog.core.segments.segment_state import FoldedSegments, UnfitBatchError, fold_all
from distlog.core.segments.segment_writer import LARGEST_BUNDLE, LARGEST_PART, write_bundle, write_files
from distlog.core.storage.backend import MAX_GAP_BYTES, MAX_MERGED_BYTES
from distlog.core.storage.storage import Storage

#: The default log bytes of a job, whose output fits in a PUT of 16 MiB. The output is mostly a bundle: an object with
#: small segments of many partitions.
JOB_BYTES = 15 << 20
JOB_SEGMENTS = 20_000  # the most segments of a job of JOB_BYTES, since each needs half a kilobyte of memory
#: The part size of uploads if a job has the memory, at least eight times this size. An upload holds about 3 parts.
LARGE_UPLOAD_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class MergeJob:
    """Groups of different partitions. `inputs` has their segments, group after group: `counts[i]` are of group i."""

    inputs: SegmentTable
    counts: Longs

    @classmethod
    def of(cls, groups: Sequence[SegmentGroup]) -> MergeJob:
        inputs = SegmentTable.joined([group.segments for group in groups])
        return cls(inputs, np.array([len(group.segments) for group in groups]))

    @property
    def log_bytes(self) -> int:
        return int(self.inputs.log_bytes.sum())

    @property
    def segments(self) -> Sequence[str]:
        """The stems of the objects that the job reads, each once: all segments in a bundle have its stem."""
        return list(pc.unique(self.inputs.columns()["stem"]).to_pylist())

    @property
    def groups(self) -> list[SegmentGroup]:
        counts_and_ends = zip(self.counts.tolist(), np.cumsum(self.counts).tolist(), strict=True)
        return [SegmentGroup(self.inputs.part(end - count, end)) for count, end in counts_and_ends]

    @property
    def firsts(self) -> Longs:
        """The row of the first segment of each group."""
        firsts: Longs = np.cumsum(self.counts) - self.counts
        return firsts

    def part(self, start: int, end: int) -> MergeJob:
        ends = np.append(0, np.cumsum(self.counts)).tolist()
        return MergeJob(self.inputs.part(ends[start], ends[end]), self.counts[start:end])

    def has_any(self, name: str) -> Flags:
        """Whether any segment of each group has the flag in the column `name`."""
        flags: Flags = np.logical_or.reduceat(self.inputs.array(name), self.firsts)
        return flags


def jobs(groups: Iterable[SegmentGroup], job_bytes: int = JOB_BYTES) -> list[MergeJob]:
    """Pack `groups` into jobs of `job_bytes`, or of one larger group. A job has at most one group per partition."""
    # a group's rank is the number of earlier groups of its partition. The groups of a job have the same rank, and so
    # different partitions: a bundle has one segment of each. They are in the order of partitions, as in the inputs'
    # bundles, so few requests read them
    ranks, ranked = dict[int, int](), list[tuple[int, int, SegmentGroup]]()
    for group in groups:
        partition = group.partition
        rank = ranks[partition] = ranks.get(partition, -1) + 1
        ranked.append((rank, partition, group))
    return [MergeJob.of(packed) for packed in _packed(sorted(ranked, key=lambda entry: entry[:2]), job_bytes)]


def _packed(ranked: Iterable[tuple[int, int, SegmentGroup]], job_bytes: int) -> Iterator[list[SegmentGroup]]:
    max_segments = JOB_SEGMENTS * max(1, job_bytes // JOB_BYTES)
    open_job, open_rank, size, segments = list[SegmentGroup](), 0, 0, 0
    for rank, _, group in ranked:
        log_bytes, count = group.log_bytes, len(group.segments)
        if log_bytes > job_bytes:
            yield [group]
            continue
        size, segments = size + log_bytes, segments + count
        if open_job and (rank != open_rank or size > job_bytes or segments > max_segments):
            yield open_job
            open_job, size, segments = [], log_bytes, count
        open_rank = rank
        open_job.append(group)
    if open_job:
        yield open_job


def upload_bytes(job_bytes: int) -> int | None:
    """The part size of a job's uploads; None for the usual size."""
    return LARGE_UPLOAD_BYTES if job_bytes >= 8 * LARGE_UPLOAD_BYTES else None


@dataclass(frozen=True, slots=True)
class MergedJob:
    """The segments that replace the groups of a job. `counts[i]` replace group i, or 0 if the group `failed`."""

    segments: SegmentTable
    counts: Longs
    failed: tuple[RewriteFailure, ...] = ()

    @classmethod
    def joined(cls, parts: Sequence[MergedJob]) -> MergedJob:
        segments = SegmentTable.joined([part.segments for part in parts])
        failed = tuple(failure for part in parts for failure in part.failed)
        return cls(segments, np.concatenate([part.counts for part in parts]), failed)


def do_job(
    handle: TopicHandle, job: MergeJob, *, config: TopicConfig, read_version: int, job_bytes: int = JOB_BYTES
) -> MergedJob:
    """Merge a job's groups; split a damaged job, down to single groups with precise errors. Raises StorageError."""
    part_bytes, count = upload_bytes(job_bytes), len(job.counts)
    split_count = 2  # the number of parts into which a damaged job is split
    if job.log_bytes <= job_bytes:
        try:
            # no variable holds the logs that were read, so their memory is free before the batches are written
            batches = _joined(_checked(job, read_logs(handle.storage, handle.name, job.inputs)), BatchJoin.of(config))
        except StorageError:
            # a file is too short, or the storage does not respond: split at once into single groups, not into halves
            split_count = count
        except (*FILE_ERRORS, FileNotFoundError, _UnsoundError):
            pass  # a file is damaged or was deleted
        else:
            with suppress(*FILE_ERRORS, UnfitBatchError):
                segments = _SegmentWrites(handle, job, batches, config, read_version, part_bytes).write()
                return MergedJob(SegmentTable(segments), np.ones(count, np.int64))
    if count == 1:
        return _streamed(handle, job, config, read_version, part_bytes)
    cuts = np.linspace(0, count, split_count + 1).astype(int).tolist()
    do_part = partial(do_job, handle, config=config, read_version=read_version, job_bytes=job_bytes)
    return MergedJob.joined([do_part(job.part(start, end)) for start, end in pairwise(cuts)])


def _streamed(
    handle: TopicHandle, job: MergeJob, config: TopicConfig, read_version: int, part_bytes: int | None
) -> MergedJob:
    """Merge a job of one group chunk by chunk. A damaged group is returned as a failure."""
    group = SegmentGroup(job.inputs)
    try:
        rewritten = rewrite_group(
            handle,
            group,
            BatchJoin.of(config, _aborted_in(handle.reader, group.segments)),
            whole_logs(handle.reader, group.segments),
            config=config,
            read_version=read_version,
            part_bytes=part_bytes,
        )
        outputs = rewritten.outputs
        if len(outputs) > 1:
            outputs = tuple(_with_own_fields(handle.reader, group, output) for output in outputs)
    except FILE_ERRORS as error:
        failure = RewriteFailure(group.partition, str(error), (group.base_offset, group.next_offset))
        return MergedJob(SegmentTable.of([]), np.zeros(1, np.int64), (failure,))
    return MergedJob(SegmentTable.of(outputs), np.array([len(outputs)]))


def _aborted_in(reader: SegmentReader, segments: SegmentTable) -> list[AbortedTransaction]:
    """Read the aborted transactions of the segments, in the order of their last offsets."""
    transactional = transactional_segments(segments)
    return [transaction for segment in transactional for transaction in reader.aborted_transactions(segment)]


def _with_own_fields(reader: SegmentReader, group: SegmentGroup, output: SegmentInfo) -> SegmentInfo:
    """Return an output of a group, one of several, with the fields that depend on its offsets."""
    if output.next_offset < group.next_offset:
        # the inputs have the first unstable offset at the group's end, but not at the end of this earlier output
        output = dataclasses.replace(output, first_unstable_offset=UNDETERMINED_OFFSET)
    return dataclasses.replace(output, offset_of_max_timestamp=_offset_of_max(reader, group.segments, output))


def _offset_of_max(reader: SegmentReader, inputs: SegmentTable, output: SegmentInfo) -> int:
    """Find the offset of the first record with the largest timestamp of `output`; -1 without one."""
    if output.max_timestamp < 0:
        return -1
    overlaps = (inputs.base_offsets < output.next_offset) & (inputs.next_offsets > output.base_offset)
    for row in np.flatnonzero(overlaps & (inputs.max_timestamps >= output.max_timestamp)).tolist():
        segment: SegmentInfo = inputs[row]
        # the metadata name the first record with the segment's largest time. If that is before the output, or has
        # another time, search the segment. If the result is after the output, the segment has none within it
        offset, timestamp = segment.offset_of_max_timestamp, segment.max_timestamp
        if offset < output.base_offset or timestamp != output.max_timestamp:
            start = max(segment.base_offset, output.base_offset)
            offset, _ = first_in(reader, segment, output.max_timestamp, start) or (-1, -1)
        if output.base_offset <= offset < output.next_offset:
            return offset
    return -1


def read_logs(storage: Storage, topic: str, segments: SegmentTable) -> Bytes:
    """Read the logs of `segments`, back to back in their order."""
    positions, sizes = np.maximum(segments.array("log_position"), 0), segments.log_bytes  # 0 for OWN_FILE
    names, objects = _objects(topic, segments)
    # sort by object and position; an empty part has the position of the next part, and precedes it
    order = np.lexsort((sizes, positions, objects))
    starts, ends, objects = (column[order] for column in (positions, positions + sizes, objects))
    overlap = np.flatnonzero((objects[1:] == objects[:-1]) & (starts[1:] < ends[:-1]))
    if len(overlap):
        text = "parts of the bundle overlap: verify the topic, then restore the file from a copy"
        raise CorruptRecordError(text, file=names[objects[overlap[0]]])
    # parts with small gaps between them make a run, which is read as a whole
    begins_run = np.append(True, (objects[1:] != objects[:-1]) | (starts[1:] - ends[:-1] > MAX_GAP_BYTES))
    firsts = np.flatnonzero(begins_run)
    run_starts, run_ends = starts[firsts], ends[np.append(firsts[1:], len(starts)) - 1]
    ranges = [
        (names[number], position, min(position + MAX_MERGED_BYTES, end))
        for number, start, end in zip(objects[firsts].tolist(), run_starts.tolist(), run_ends.tolist(), strict=True)
        for position in range(start, end, MAX_MERGED_BYTES)
    ]
    data = byte_array(storage.read_joined(ranges))
    run_sizes = run_ends - run_starts
    # a part is as far from the start of its run in `data` as in the object
    run_positions, run_of_part = np.cumsum(run_sizes) - run_sizes, np.cumsum(begins_run) - 1
    sources = np.empty(len(order), np.int64)
    sources[order] = run_positions[run_of_part] + (starts - run_starts[run_of_part])
    logs = new_array(int(sizes.sum()), np.uint8)
    copy_slices(logs, np.cumsum(sizes) - sizes, data, sources, np.ascontiguousarray(sizes))
    return logs


def _objects(topic: str, segments: SegmentTable) -> tuple[list[str], Longs]:
    """Return names of objects, not all used, and for each segment the number of the object that holds its log."""
    coded = segments.columns()["stem"].dictionary_encode()
    stems, codes = coded.dictionary.to_pylist(), numbers_of(coded.indices).astype(np.int64)
    names, own_files = [paths.bundle_file(stem) for stem in stems], np.flatnonzero(segments.array("log_position") < 0)
    partitions = segments.array("partition")[own_files].tolist()
    names += [
        paths.segment_file(topic, partition, stems[code], ".log")
        for partition, code in zip(partitions, codes[own_files].tolist(), strict=True)
    ]
    codes[own_files] = len(stems) + np.arange(len(own_files))  # these files come after the bundles in `names`
    return names, codes


class _UnsoundError(Exception):
    """A segment of a job is damaged. Merges of single groups find the damaged one."""


@dataclass(frozen=True, slots=True)
class _Batches:
    """Batches, group after group, `counts[i]` of group i. No record is older than its batch's `min_timestamps`."""

    data: Bytes
    rows: np.ndarray  # the headers, as BATCH rows
    counts: Longs
    base_offsets: Longs
    min_timestamps: Longs


def _checked(job: MergeJob, data: Bytes) -> tuple[BatchSelection, _Batches]:
    """Check batches, set append times; return them for scans, and by group. Raises CorruptionError, _UnsoundError."""
    segments = job.inputs
    sizes = segments.log_bytes
    ends = np.cumsum(sizes)
    rows = record_batch.read_headers(data)
    row_segments = np.searchsorted(ends, rows["position"], side="right")  # the row of each batch's segment
    # whether a batch ends where each segment ends; 0 is the end of empty first segments, and [:-1] limits the index
    batch_ends = np.append(0, rows["position"] + rows["size"])
    ends_with_batch = batch_ends[np.searchsorted(batch_ends[:-1], ends)] == ends
    if not len(rows) or len(data) != ends[-1] or not ends_with_batch.all() or batch_ends[-1] != ends[-1]:
        raise _UnsoundError
    shifts = segments.base_offsets - segments.array("stored_base_offset")
    _check_positions(segments, rows, row_segments, shifts)
    checksums = np.empty(len(sizes), np.int64)
    crcs_of_slices(data, ends - sizes, ends, checksums)
    if record_batch.first_bad_crc(data, rows) >= 0 or (checksums != segments.array("crc32c")).any():
        raise _UnsoundError
    times = segments.array("append_time_ms")[row_segments]  # by batch: its LogAppendTime, or -1
    if (times >= 0).any():
        data = data.copy()
        set_append_times(rows, times)
        changed_rows = rows[times >= 0]
        write_append_times(data, changed_rows)  # also puts the new CRCs into this copy of the rows
        rows[times >= 0] = changed_rows
    groups = np.repeat(np.arange(len(job.counts)), job.counts)[row_segments]
    counts = np.bincount(groups, minlength=len(job.counts))
    if not counts.all():
        raise _UnsoundError
    row_shifts, partitions = shifts[row_segments], segments.array("partition")[row_segments]
    # with all offsets, and without file names: after an error, the merge of a single group reports the file
    source = BatchSelection(byte_array(data), rows, row_shifts, partitions, 0, MAX_LONG, record_batch.Source())
    base_offsets, min_timestamps = rows["base_offset"] + row_shifts, segments.min_timestamps[row_segments]
    return source, _Batches(data, rows, counts, base_offsets, min_timestamps)


def _check_positions(segments: SegmentTable, rows: np.ndarray, row_segments: Longs, shifts: Longs) -> None:
    """Raise _UnsoundError if a batch does not belong to its segment, or is not at its offset."""
    runs = np.empty(len(segments), RUN)  # the batches of a segment are a run; a dense one has no gaps
    runs["first_offset"] = segments.array("stored_base_offset")
    runs["end_offset"] = segments.next_offsets - shifts
    spans = segments.next_offsets - segments.base_offsets
    runs["dense"] = (segments.record_counts == spans) & ~segments.array("has_transactions")
    runs["ends_file"] = 1  # a run has the last batch of its segment
    # the first and the last batch of each segment; row -1 is the last row of all
    changes = np.flatnonzero(np.diff(row_segments)) + 1
    first_rows, last_rows = np.append(0, changes), np.append(changes, 0) - 1
    for name, edge_rows in (("first_batch_crc", first_rows), ("last_batch_crc", last_rows)):
        recorded = segments.array(name)[row_segments[edge_rows]]
        if ((recorded != UNKNOWN) & (recorded != rows["crc"][edge_rows])).any():
            raise _UnsoundError
    if first_misplaced(rows, row_segments, runs) >= 0:
        raise _UnsoundError


def _joined(checked: tuple[BatchSelection, _Batches], join_batches: BatchJoin) -> _Batches:
    """Join small batches of the same group."""
    source, batches = checked
    begins_group, firsts = np.zeros(len(batches.rows), bool), np.cumsum(batches.counts) - batches.counts
    begins_group[firsts] = True
    parts = list(join_batches.joined(source, batches.base_offsets, batches.min_timestamps, begins_group))
    input_rows = np.concatenate([rows for _, rows in parts])  # where each output batch begins
    counts = np.diff(np.searchsorted(input_rows, np.append(firsts, len(batches.rows))))  # output batches by group
    if len(parts) == 1:
        filtered = parts[0][0]
        return _Batches(filtered.data, filtered.batches, counts, filtered.base_offsets, filtered.min_timestamps)
    rows = np.concatenate([filtered.batches for filtered, _ in parts])
    rows["position"] = np.cumsum(rows["size"]) - rows["size"]
    data = np.concatenate([filtered.data for filtered, _ in parts])
    base_offsets = np.concatenate([filtered.base_offsets for filtered, _ in parts])
    min_timestamps = np.concatenate([filtered.min_timestamps for filtered, _ in parts])
    return _Batches(data, rows, counts, base_offsets, min_timestamps)


@dataclass(frozen=True, slots=True)
class _SegmentWrites:
    """Writes the merged batches of each group as a segment, with offsets from 0 on in its file."""

    handle: TopicHandle
    job: MergeJob
    batches: _Batches
    config: TopicConfig
    read_version: int
    part_bytes: int | None

    def write(self) -> pa.RecordBatch:
        """Write a durable segment for each group. Returns their rows. Raises StorageError, UnfitBatchError."""
        sizes = np.add.reduceat(self.batches.rows["size"], np.cumsum(self.batches.counts) - self.batches.counts)
        return join([self._write_groups(start, end) for start, end in self._ranges(sizes)])

    def _ranges(self, sizes: Longs) -> Iterator[tuple[int, int]]:
        """Yield ranges of groups: each large group alone, and small groups that make one bundle."""
        start = bundle_bytes = 0
        for number, size in enumerate(sizes.tolist()):
            if size > LARGEST_PART or bundle_bytes + size > LARGEST_BUNDLE:
                if start < number:
                    yield start, number
                start, bundle_bytes = number, 0
            if size > LARGEST_PART:
                yield number, number + 1
                start = number + 1
                continue
            bundle_bytes += size
        if start < len(sizes):
            yield start, len(sizes)

    def _write_groups(self, start: int, end: int) -> pa.RecordBatch:
        ends = np.cumsum(self.batches.counts)
        first_row, end_row = int(ends[start] - self.batches.counts[start]), int(ends[end - 1])
        rows, counts = self.batches.rows[first_row:end_row].copy(), self.batches.counts[start:end]
        data_start = int(rows["position"][0])
        data = self.batches.data[data_start : int(rows["position"][-1] + rows["size"][-1])]
        rows["position"] -= data_start
        bases = self.job.inputs.base_offsets[self.job.firsts[start:end]]
        stored_offsets = self.batches.base_offsets[first_row:end_row] - np.repeat(bases, counts)
        # a header begins with the base offset, but in formats 0 and 1 with the last offset
        write_base_offsets(data, rows["position"], header_offsets(rows, stored_offsets))
        rows["base_offset"] = stored_offsets
        min_timestamps = np.ascontiguousarray(self.batches.min_timestamps[first_row:end_row])
        config = self.config
        folded = fold_all(
            data, rows, counts, min_timestamps, config.index_interval_bytes, key_index=config.key_index_enable
        )
        index_bytes = max(int(folded.fields[name].max()) for name in ("offset_index_bytes", "time_index_bytes"))
        if index_bytes > config.segment_index_bytes:
            raise UnfitBatchError("a group has more index entries than one segment takes", start)
        stem = paths.new_stem(self.read_version, self.handle.new_id())
        positions = self._write_files(stem, data, folded, start)
        fields = {
            **folded.fields,
            **positions,
            **self._input_fields(start, end, folded.fields["max_timestamp"]),
            **self._write_aborted(stem, start, end),
        }
        return of_numbers(fields, stem, folded.compression)

    def _write_files(self, stem: str, data: Bytes, folded: FoldedSegments, group: int) -> dict[str, Longs]:
        """Write a bundle, or the files of a large segment. Returns the position fields of logs and indexes."""
        storage, fields = self.handle.storage, folded.fields
        sizes = [fields[INDEX_FIELDS[suffix].size] for suffix in folded.indexes]
        # one group (each has a size in `sizes[0]`) gets its own files if its log is large, or if the job has no other
        has_own_files = len(sizes[0]) == 1 and (fields["log_bytes"][0] > LARGEST_PART or len(self.job.counts) == 1)
        if has_own_files:
            partition = int(self.job.inputs.array("partition")[self.job.firsts[group]])
            write_files(storage, self.handle.name, partition, stem, data, folded.indexes, self.part_bytes)
            positions = [np.full(1, OWN_FILE)] * (1 + len(sizes))
        else:
            indexes = list(zip(folded.indexes.values(), sizes, strict=True))
            positions = write_bundle(storage, stem, data, fields["log_bytes"], indexes, self.part_bytes)
        names = ("log_position", "offset_index_position", "time_index_position", "key_index_position")
        return dict(zip(names, positions, strict=True))

    def _input_fields(self, start: int, end: int, max_timestamps: Longs) -> dict[str, Longs]:
        """Return the fields of the segments of groups [start, end) that come from the inputs, not from batches."""
        inputs, ends = self.job.inputs, np.cumsum(self.job.counts)
        firsts, lasts = self.job.firsts[start:end], ends[start:end] - 1
        group_max = np.repeat(np.maximum.reduceat(inputs.max_timestamps, self.job.firsts), self.job.counts)
        rows = np.flatnonzero(inputs.max_timestamps == group_max)
        # the first segment of each group that has the largest time
        newest_rows = rows[np.searchsorted(rows, firsts)]
        newest_offsets = inputs.array("offset_of_max_timestamp")[newest_rows]
        has_group_max = inputs.max_timestamps[newest_rows] == max_timestamps  # see `BatchJoin.with_input_fields`
        transactional_rows = np.flatnonzero(inputs.array("has_transactions"))
        # the last segment with transactions before the end of each group, or -1
        last_transactional = np.append(-1, transactional_rows)[np.searchsorted(transactional_rows, ends[start:end])]
        unstable = inputs.array("first_unstable_offset")[last_transactional]
        has_transactions = last_transactional >= firsts
        return {
            "partition": inputs.array("partition")[firsts],
            "base_offset": inputs.base_offsets[firsts],
            "stored_base_offset": np.zeros(end - start, np.int64),
            "next_offset": inputs.next_offsets[lasts],
            "offset_of_max_timestamp": np.where(has_group_max, newest_offsets, -1),
            "created_ms": inputs.array("created_ms")[lasts],
            "compacted": self.job.has_any("compacted")[start:end],
            "has_transactions": has_transactions,
            "first_unstable_offset": np.where(has_transactions, unstable, NO_OFFSET),
        }

    def _write_aborted(self, stem: str, start: int, end: int) -> dict[str, Longs]:
        """Write the transaction indexes of groups [start, end) as files. Returns their sizes and checksums."""
        handle, sizes, checksums = self.handle, np.zeros(end - start, np.int64), np.zeros(end - start, np.int64)
        has_transactions = self.job.has_any("has_transactions")[start:end]
        for number in np.flatnonzero(has_transactions).tolist():
            group = SegmentGroup(self.job.part(start + number, start + number + 1).inputs)
            aborted = _aborted_in(handle.reader, group.segments)
            if data := encode_transactions(transaction.moved(-group.base_offset) for transaction in aborted):
                handle.storage.put(paths.segment_file(handle.name, group.partition, stem, ".txnindex"), data)
            sizes[number], checksums[number] = len(data), crc32c(data)
        return {"txn_index_bytes": sizes, "txn_index_crc32c": checksums}


# A read takes time per batch, so small batches are joined. Records keep their offsets, times, keys, values and
# headers, and batches their codec. Only batches of plain records are joined: no transactions, producer ids, control
# batches, delete horizons, or LogAppendTime, which is one time per batch.

#: A batch is small if its records have at most one half of `batch.bytes`. Larger ones, also joined ones, are copied.
_SMALL_DIVISOR = 2
_EXPANSION = 4  # the assumed expansion of compressed records


@dataclass(frozen=True, slots=True)
class BatchJoin:
    """The filter that keeps all records, and joins batches to about `usual_bytes` of uncompressed records."""

    usual_bytes: int
    max_bytes: int
    levels: Mapping[int, int | None]
    aborted: Sequence[AbortedTransaction] = ()
    keeps_all: ClassVar[bool] = True

    @classmethod
    def of(cls, config: TopicConfig, aborted: Sequence[AbortedTransaction] = ()) -> BatchJoin:
        """Return a filter with the topic's `batch.bytes`, `max.message.bytes` and levels of compression."""
        levels = {codec: compression_level(config, name) for codec, name in enumerate(CODEC_NAMES)}
        return cls(usual_batch(config), largest_batch(config), levels, aborted)

    def with_input_fields(self, output: SegmentInfo, inputs: SegmentTable) -> SegmentInfo:
        transactional, newest = transactional_segments(inputs), int(np.argmax(inputs.max_timestamps))
        # an input's largest time may leave out the end markers of transactions, which the output's includes
        is_of_input = inputs.max_timestamps[newest] == output.max_timestamp
        return dataclasses.replace(
            output,
            offset_of_max_timestamp=int(inputs.array("offset_of_max_timestamp")[newest]) if is_of_input else -1,
            compacted=bool(inputs.array("compacted").any()),
            has_transactions=bool(transactional),
            first_unstable_offset=transactional[-1].first_unstable_offset if transactional else NO_OFFSET,
        )

    def apply(self, chunk: Chunk) -> Iterator[FilteredBatches]:
        """Yield all batches of a checked chunk, with small ones joined, in one part per scan of records."""
        segments = [part.slice.segment for part in chunk.ranges]
        # `per_batch` returns an array, or one number if all segments have the same
        shifts = np.full(len(chunk.batches), chunk.per_batch(segment.shift for segment in segments))
        min_timestamps = np.full(len(shifts), chunk.per_batch(segment.min_timestamp for segment in segments))
        for filtered, _ in self.joined(chunk.selection(), chunk.batches["base_offset"] + shifts, min_timestamps):
            yield filtered

    def joined(
        self, source: BatchSelection, base_offsets: Longs, min_timestamps: Longs, begins_group: Flags | None = None
    ) -> Iterator[tuple[FilteredBatches, Longs]]:
        """Yield parts of `source` with small batches of a group joined, and each output batch's first input row."""
        batches, start = source.batches, 0
        joins = self._joins(batches, base_offsets)
        if begins_group is not None:
            joins &= ~begins_group
        rows = np.flatnonzero(joins | np.append(joins[1:], False))  # those joined to the batch before or after
        while start < len(batches):
            # the offsets and times of the first of `rows`, maybe not of all; () stands for no keys and values
            scanned = scan_records(source, rows, ()) if len(rows) else None
            scanned_rows, rows = np.split(rows, [len(scanned.sections) if scanned else 0])
            end = int(rows[0]) if len(rows) else len(batches)
            part = _Part(batches[start:end], base_offsets[start:end], min_timestamps[start:end])
            runs = self._runs(part, scanned_rows - start, joins[scanned_rows], scanned) if scanned else None
            filtered, rows_in_part = part.lay_out(source.data, runs)
            yield filtered, start + rows_in_part
            start = end

    def _joins(self, batches: np.ndarray, base_offsets: Longs) -> Flags:
        """Whether each batch can be joined to the batch before it."""
        compressed = batches["attributes"] & CODEC_MASK != 0
        small_bytes = np.where(compressed, self.usual_bytes // _EXPANSION, self.usual_bytes) // _SMALL_DIVISOR
        is_plain = (batches["magic"] == 2) & (batches["attributes"] & ~CODEC_MASK == 0) & (batches["producer_id"] < 0)
        ends = base_offsets + batches["last_offset_delta"] + 1
        # a joined batch numbers its records without gaps
        is_plain &= (batches["record_count"] > 0) & (base_offsets + batches["record_count"] == ends)
        is_small = is_plain & (batches["size"] - HEADER_SIZE <= small_bytes)
        joins = np.zeros(len(batches), bool)
        joins[1:] = is_small[1:] & is_small[:-1] & (base_offsets[1:] == ends[:-1])
        for name in ("attributes", "leader_epoch"):
            joins[1:] &= batches[name][1:] == batches[name][:-1]
        return joins

    def _runs(self, part: _Part, rows: Longs, joins: Flags, scanned: ScannedRecords) -> _Runs | None:
        """Return the runs of the batches `rows` of the part that become one batch each; None without any."""
        sizes = scanned.sections["end"] - scanned.sections["start"]
        edges = np.empty(len(rows), np.int64)  # filled by `cut_runs`, which returns the number of runs
        edges = edges[: cut_runs(joins, sizes, self.usual_bytes, edges)]
        counts = np.diff(edges, append=len(rows))
        is_joined = counts > 1
        if not is_joined.any():
            return None
        runs = _Runs.of(part, rows, edges, counts, is_joined, scanned, self.levels)
        # a run is not joined if that makes it larger, as for times that are far apart
        old_sizes = np.add.reduceat(part.batches["size"][rows], edges)[is_joined]
        return runs.only(HEADER_SIZE + runs.records.sizes <= np.minimum(old_sizes, self.max_bytes))


@dataclass(frozen=True, slots=True)
class _Runs:
    """Runs of a part's batches [first, first + count), each with its new header, records and smallest time."""

    firsts: Longs
    counts: Longs
    headers: np.ndarray
    records: RecordBytes
    min_timestamps: Longs

    @classmethod
    def of(
        cls,
        part: _Part,
        rows: Longs,
        edges: Longs,
        counts: Longs,
        is_joined: Flags,
        scanned: ScannedRecords,
        levels: Mapping[int, int | None],
    ) -> _Runs:
        """Return the runs that `is_joined` flags. Run i has `counts[i]` scanned `rows`, from index `edges[i]` on."""
        first_records = np.cumsum(scanned.sections["emitted"]) - scanned.sections["emitted"]  # of each batch
        starts, ends = first_records[edges], np.append(first_records[edges[1:]], scanned.count)  # record numbers
        headers = part.batches[rows[edges]]
        headers["record_count"] = ends - starts
        headers["last_offset_delta"] = ends - starts - 1
        headers["base_timestamp"] = scanned.timestamps[starts]
        headers["max_timestamp"] = np.maximum.reduceat(scanned.timestamps, starts)
        min_timestamps = np.minimum.reduceat(scanned.timestamps, starts)
        is_rewritten = np.repeat(is_joined, counts)
        data, section_ends = scanned.rewrite(
            scanned.sections[is_rewritten],
            first_records[is_rewritten],
            np.repeat(part.base_offsets[rows[edges]], counts)[is_rewritten],
            np.repeat(headers["base_timestamp"], counts)[is_rewritten],
            np.ones(scanned.count, bool),
        )
        run_ends = section_ends[np.cumsum(counts[is_joined]) - 1]  # the ends of the last sections of the runs
        run_starts = np.append(0, run_ends[:-1])
        records = RecordBytes(data, run_starts, run_ends - run_starts).compressed(headers[is_joined], levels)
        return cls(rows[edges[is_joined]], counts[is_joined], headers[is_joined], records, min_timestamps[is_joined])

    def only(self, is_chosen: Flags) -> _Runs:
        firsts, counts, headers = self.firsts[is_chosen], self.counts[is_chosen], self.headers[is_chosen]
        return _Runs(firsts, counts, headers, self.records.only(is_chosen), self.min_timestamps[is_chosen])


@dataclass(frozen=True, slots=True)
class _Part:
    """Adjacent batches of a selection."""

    batches: np.ndarray
    base_offsets: Longs
    min_timestamps: Longs

    def lay_out(self, source: Bytes, runs: _Runs | None) -> tuple[FilteredBatches, Longs]:
        """Join the batches of `runs`, and copy all others. Also returns the first input row of each output batch."""
        headers, min_timestamps, records = self.batches.copy(), self.min_timestamps.copy(), RecordBytes()
        is_copied, begins_run = np.ones(len(headers), bool), np.zeros(len(headers), bool)
        if runs is not None:
            row_in_run = np.arange(runs.counts.sum()) - np.repeat(np.cumsum(runs.counts) - runs.counts, runs.counts)
            is_copied[np.repeat(runs.firsts, runs.counts) + row_in_run] = False  # all batches of the runs
            begins_run[runs.firsts] = True
            headers[runs.firsts], min_timestamps[runs.firsts] = runs.headers, runs.min_timestamps
            records = runs.records
        rows = np.flatnonzero(is_copied | begins_run)
        # no batch is emptied; the first batch of a run is rewritten, and its other batches are dropped
        data, batches = lay_out(source, headers, is_copied, np.zeros(len(headers), bool), begins_run, records)
        base_offsets = self.base_offsets[rows]
        # `offsets_of_max_timestamp` may be any offsets: the segment gets its value from the metadata of the inputs
        return FilteredBatches(data, batches, base_offsets, base_offsets, min_timestamps[rows]), rows
