"""Batches ready to append: a producer's, checked (Kafka's `LogValidator`, errors: KIP-467), and end markers."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from crc32c import crc32c

from distlog.core.arrays import byte_array, column_of, integers, new_array
from distlog.core.commits.segment_table import BY_COMMIT, SegmentInfo
from distlog.core.commits.snapshot import Snapshot
from distlog.core.config import TopicConfig
from distlog.core.errors import (
    CorruptRecordError,
    InvalidRecordError,
    InvalidTimestampError,
    RecordErrors,
    RecordTooLargeError,
    RecordValidationError,
)
from distlog.core.format.compression import CODEC_NAMES, MAX_RECORDS_BYTES, NONE, Expander, compress
from distlog.core.format.indexes import TIME_ENTRY, AbortedTransaction
from distlog.core.format.kernels.batch_scan import ALL_FINE, BAD_FORMAT, NOT_ALL, inspect_batches
from distlog.core.format.kernels.record_scan import (
    BAD_TIME,
    FINE,
    NO_KEY,
    OK,
    SMALLEST_RECORD,
    CheckedRecords,
    TimeBounds,
    check_records,
)
from distlog.core.format.record_batch import (
    ABORT,
    APPEND_TIME,
    CODEC_MASK,
    COMMIT,
    CONTROL,
    CRC_START,
    HEADER_SIZE,
    TRANSACTIONAL,
    BatchFields,
    batch_fields,
    read_headers,
)
from distlog.core.format.record_encoder import EncodedBatches, encode, write_headers
from distlog.core.integers import MAX_LONG, MIN_LONG
from distlog.core.segments.producer_states import OpenTransactions
from distlog.core.segments.segment_reader import TopicHandle
from distlog.core.segments.segment_writer import (
    Bundles,
    RollTime,
    SegmentFile,
    codec_of,
    compression_level,
    time_span,
    with_aborted,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

# A kernel checks the records in the request's buffer, or in the decompressed copy. They do not change, unless the
# topic has another codec. The log sets the base offset and the leader epoch, which the checksum does not cover, and
# the timestamp type and the largest timestamp, after which the checksum is computed again.
#
# Different from Kafka: formats 0 and 1 are refused, as by Kafka's produce requests since 4.0; a batch with an append
# time is refused with any timestamp type of the topic; and so are bytes after the batch, which Kafka drops silently.

#: The expansion of compressed records that is tried first.
_USUAL_EXPANSION = 4
#: A decompressed batch may have this multiple of `max.message.bytes`, or this number of bytes if that is more.
_MOST_EXPANSION, _SMALLEST_LIMIT = 32, 32 << 20
#: The first records that an error lists: a batch of 32 MiB has millions, and a request thousands of batches.
_MOST_ERRORS = 100
_LEADER_EPOCH = slice(12, 16)
_UNBOUNDED = TimeBounds(MIN_LONG, MAX_LONG)
_WRONG = {
    NO_KEY: "a record of a compacted topic needs a key",
    BAD_TIME: "the timestamp is not within message.timestamp.before.max.ms and .after.max.ms of the time now",
}


class ValidBatch(NamedTuple):
    """A checked batch at offset 0, and its BATCH row, as `PartitionLog.append` takes them.

    `newest_offset` is the offset of the first record with the largest timestamp, -1 without a timestamp;
    `min_timestamp` is the smallest. The times are the producer's: the log gives LogAppendTime under its lock.
    """

    data: npt.NDArray[np.uint8]
    rows: npt.NDArray[Any]
    newest_offset: int
    min_timestamp: int

    @property
    def offset_count(self) -> int:
        return int(self.rows[0]["last_offset_delta"]) + 1

    @property
    def has_producer(self) -> bool:
        """True if it is a producer's, or ends a producer's transaction."""
        return bool(self.rows[0]["producer_id"] >= 0)


def validate(data: Buffer, config: TopicConfig, now_ms: int) -> ValidBatch:
    """Check the one batch in `data`, which does not change, against the topic's `config`.

    Raises InvalidRecordError, RecordTooLargeError, RecordValidationError, InvalidTimestampError, CorruptRecordError.
    """
    rows = _one_batch(data)
    (batch,) = batch_fields(rows)
    _check_batch(data, batch, config)
    records = _records(data, batch, config)
    if batch.attributes & APPEND_TIME:
        refused = range(min(batch.record_count, _MOST_ERRORS))
        errors = RecordErrors((number, "a producer set the append time") for number in refused)
        raise InvalidTimestampError("only the log sets the append time", record_errors=errors)
    by_log = config.message_timestamp_type == "LogAppendTime"
    verdicts = np.zeros(batch.record_count, np.uint8)
    checked = check_records(
        records.data,
        records.start,
        records.end,
        batch.base_timestamp,
        _UNBOUNDED if by_log else _bounds(config, now_ms),
        "compact" in config.cleanup_policy,
        verdicts,
    )
    _refuse(checked, verdicts)
    codec = CODEC_NAMES.index(codec_of(config, CODEC_NAMES[records.codec]))
    rows["leader_epoch"] = -1
    if batch.max_timestamp == checked.max_timestamp and codec == records.codec:
        # the checksum stays: it does not cover the leader epoch
        written = new_array(batch.size, np.uint8)
        written[:] = byte_array(data)
        written[_LEADER_EPOCH] = 0xFF
    else:
        rows["max_timestamp"] = checked.max_timestamp
        written = _written(records, rows, codec, config)
    newest = checked.newest_record if checked.max_timestamp >= 0 else -1
    return ValidBatch(written, rows, newest, checked.min_timestamp)


class _Records(NamedTuple):
    """The uncompressed records, [start, end) of `data`; they came as `section`, in `codec`."""

    data: npt.NDArray[np.uint8]
    start: int
    end: int
    section: npt.NDArray[np.uint8]
    codec: int


def _one_batch(data: Buffer) -> npt.NDArray[Any]:
    view = memoryview(data).cast("B")
    if view.nbytes > 16 and view[16] in (0, 1):
        raise InvalidRecordError("batches of format 0 and 1 cannot be appended: use a newer client", magic=view[16])
    rows = read_headers(view)
    if len(rows) != 1 or int(rows[0]["size"]) != view.nbytes:
        raise InvalidRecordError("exactly one whole batch must be appended at once", batches=len(rows))
    return rows


def _check_batch(data: Buffer, batch: BatchFields, config: TopicConfig) -> None:
    if batch.base_offset != 0:
        raise InvalidRecordError("a producer's batch must begin at offset 0", base_offset=batch.base_offset)
    check_size(batch.size, config)
    if crc32c(memoryview(data).cast("B")[CRC_START:]) != batch.crc:
        raise CorruptRecordError("a batch fails its checksum: it was changed in transit, so send it again")
    count, offsets = batch.record_count, batch.last_offset_delta + 1
    if count != offsets:
        raise InvalidRecordError("a batch must have one offset per record", records=count, offsets=offsets)
    if batch.attributes & CONTROL:
        raise InvalidRecordError("a client cannot append control batches")
    if batch.producer_id >= 0 and batch.base_sequence < 0:
        raise InvalidRecordError("a producer id needs a sequence number", producer_id=batch.producer_id)


def check_size(largest: int, config: TopicConfig) -> None:
    """Raise RecordTooLargeError if the largest batch has more bytes than `max.message.bytes`."""
    if largest > config.max_message_bytes:
        raise RecordTooLargeError(
            "a batch is larger than max.message.bytes: make smaller batches",
            size=largest,
            limit=config.max_message_bytes,
        )


def _records(data: Buffer, batch: BatchFields, config: TopicConfig) -> _Records:
    array, codec, count = byte_array(data), batch.attributes & CODEC_MASK, batch.record_count
    section = array[HEADER_SIZE:]
    records = _Records(array, HEADER_SIZE, array.size, section, codec)
    if codec != NONE:
        limit = min(MAX_RECORDS_BYTES, max(_MOST_EXPANSION * config.max_message_bytes, _SMALLEST_LIMIT))
        expander = Expander(min(_USUAL_EXPANSION * section.size, limit))
        try:
            expander.expand(codec, section, limit=limit)
        except CorruptRecordError as error:
            if "limit" not in error.details:
                raise
            raise RecordTooLargeError(
                f"a batch expands to more than {_MOST_EXPANSION} times max.message.bytes: make smaller batches",
                limit=limit,
            ) from None
        records = _Records(byte_array(expander.array), 0, expander.size, section, codec)
    # before an array with an item per record is allocated
    if count * SMALLEST_RECORD > records.end - records.start:
        raise InvalidRecordError("a batch is too short for its number of records", records=count)
    return records


def _bounds(config: TopicConfig, now_ms: int) -> TimeBounds:
    oldest = max(now_ms - config.message_timestamp_before_max_ms, 0)
    return TimeBounds(oldest, min(now_ms + config.message_timestamp_after_max_ms, MAX_LONG))


def _refuse(checked: CheckedRecords, verdicts: npt.NDArray[np.uint8]) -> None:
    if checked.status != OK:
        raise InvalidRecordError(
            "a record does not decode, or its offset is not the next one", record=int(checked.number)
        )
    if not checked.refused:
        return
    errors = RecordErrors(
        (number, _WRONG[int(verdicts[number])]) for number in np.flatnonzero(verdicts != FINE)[:_MOST_ERRORS].tolist()
    )
    kind = InvalidTimestampError if (verdicts == BAD_TIME).any() else RecordValidationError
    raise kind("the topic refuses some records of the batch", record_errors=errors)


def _written(records: _Records, rows: npt.NDArray[Any], codec: int, config: TopicConfig) -> npt.NDArray[np.uint8]:
    """The batch in `codec`, with the header in `rows`, which gets its size, codec and checksum."""
    section: Any = records.section
    if codec != records.codec:
        level = compression_level(config, CODEC_NAMES[codec])
        section = compress(codec, records.data[records.start : records.end], level)
    size = HEADER_SIZE + len(section)
    rows["size"] = size
    rows["attributes"] = rows["attributes"] & ~CODEC_MASK | codec
    check_size(size, config)
    data = new_array(size, np.uint8)
    data[HEADER_SIZE:] = np.frombuffer(section, np.uint8)
    write_headers(data.data, rows)
    return data


Longs = npt.NDArray[np.int64]

_WRONG_RUN = {
    NOT_ALL: "the batches do not fill their bytes without gaps",
    BAD_FORMAT: "direct appends take batches of format 2, without transactions",
}
_BAD_OFFSETS = "batches must have the offsets from 0 on, without a gap"


class BatchRun(NamedTuple):
    """Batches from offset 0 on, as `PartitionLog.append` takes them.

    `in_transaction`: they belong to an open transaction, or are its end marker. A caller that sets it must hold the
    partition's lock since it read the commit log, or keep the transaction unchanged.
    """

    data: npt.NDArray[np.uint8]
    rows: npt.NDArray[Any]
    newest_offsets: Longs
    min_timestamps: Longs
    in_transaction: bool = False


def runs(
    batches: EncodedBatches, config: TopicConfig, now_ms: int, *, in_transaction: bool = False
) -> Iterator[BatchRun]:
    """Cut `batches` where a segment must end by size, time or a full index; usually into one run."""
    data, rows = np.frombuffer(batches.data, np.uint8), batches.batches
    first = 0
    while first < len(rows):
        end = first + _room(rows[first:], int(batches.min_timestamps[first]), config, now_ms)
        run = rows[first:end].copy()
        start, base_offset = int(run["position"][0]), int(run["base_offset"][0])
        run["position"] -= start
        run["base_offset"] -= base_offset
        newest = batches.offsets_of_max_timestamp[first:end]
        yield BatchRun(
            data[start : start + int(run["size"].sum())],
            run,
            np.where(newest < 0, newest, newest - base_offset),
            batches.min_timestamps[first:end],
            in_transaction,
        )
        first = end


def _room(rows: npt.NDArray[Any], smallest: int, config: TopicConfig, now_ms: int) -> int:
    """The number of batches that fit an empty segment, at least one."""
    time = RollTime(time_span(config))
    time.open(rows[0], smallest, now_ms)
    by_size = int(np.searchsorted(np.cumsum(rows["size"], dtype=np.int64), config.segment_size, side="right"))
    # one entry of the time index is for the segment's end
    by_index = config.segment_index_bytes // TIME_ENTRY.itemsize - 1
    return max(1, min(by_size, by_index, time.room(rows, now_ms)))


def check_headers(
    rows: npt.NDArray[Any], config: TopicConfig, size: int, *, in_transaction: bool = False
) -> tuple[int, int, bool]:
    """Check batches before an append; returns their end, largest timestamp, and if a producer has any."""
    if not len(rows):
        raise InvalidRecordError("no batch to append: give at least one")
    verdict, largest, end, newest, of_producers = inspect_batches(
        rows, size, 0 if in_transaction else TRANSACTIONAL | CONTROL
    )
    check_size(largest, config)
    if size > config.segment_size:
        raise RecordTooLargeError(
            "the batches are larger than segment.bytes: append fewer at once", size=size, limit=config.segment_size
        )
    if verdict != ALL_FINE:
        raise InvalidRecordError(_WRONG_RUN.get(verdict, _BAD_OFFSETS))
    return end, newest, of_producers


#: A control record's key is its version and type, its value the version and the coordinator's epoch.
_KEY, _VALUE = struct.Struct(">hh"), struct.Struct(">hi")
_VERSION = 0
#: A coordinator holds a lock, or puts a commit first, so a replaced one can write no marker.
_COORDINATOR_EPOCH = 0


def marker(
    producer_id: int,
    producer_epoch: int,
    now_ms: int,
    *,
    is_committed: bool,
    coordinator_epoch: int = _COORDINATOR_EPOCH,
) -> BatchRun:
    kind = COMMIT if is_committed else ABORT
    record = pa.record_batch(
        {
            "timestamp": integers([now_ms]),
            "key": column_of([_KEY.pack(_VERSION, kind)], pa.binary()),
            "value": column_of([_VALUE.pack(_VERSION, coordinator_epoch)], pa.binary()),
        }
    )
    encoded = encode(record, producer_id=producer_id, producer_epoch=producer_epoch, transactional=True, control=True)
    return BatchRun(
        np.frombuffer(encoded.data, np.uint8),
        encoded.batches,
        encoded.offsets_of_max_timestamp,
        encoded.min_timestamps,
        in_transaction=True,
    )


#: Batches by partition.
Parts = Mapping[int, Sequence[ValidBatch]]


class WrittenSegment(NamedTuple):
    """A segment without a commit, and its batches; valid only if it aborts these transactions."""

    info: SegmentInfo
    batches: Sequence[ValidBatch]
    aborted: Sequence[AbortedTransaction] = ()


def write_bundle(
    handle: TopicHandle, snapshot: Snapshot, batches: Parts, open_transactions: Mapping[int, Mapping[int, int]]
) -> list[WrittenSegment]:
    """Write durable segments of the batches, by partition, in their order; overwrites the batches' base offsets.

    `open_transactions` are open at the ends of the partitions in `snapshot`.
    """
    bundles = Bundles(handle.storage, lambda: handle.new_stem(snapshot.version))
    for partition in batches:
        bundles.join(partition)
    sealed = [
        segment
        for partition, parts in sorted(batches.items())
        for segment in _segments(handle, snapshot, partition, parts, bundles)
    ]
    bundles.close()
    placed = [segment._replace(info=bundles.placed(segment.info)) for segment in sealed]
    ends = {number: snapshot.partitions[number].log_end_offset for number in batches}
    return list(_with_aborted(handle, placed, ends, open_transactions))


def effect(
    written: WrittenSegment, base_offset: int, transactions: OpenTransactions
) -> tuple[list[AbortedTransaction], int]:
    """The `transactions` that a segment at `base_offset` aborts, and the first unstable offset after it."""
    aborted, offset = list[AbortedTransaction](), base_offset
    for batch in written.batches:
        aborted += transactions.observe(batch.data, batch.rows, offset - int(batch.rows[0]["base_offset"]))
        offset += batch.offset_count
    return aborted, transactions.first_offset


def _with_aborted(
    handle: TopicHandle,
    segments: Sequence[WrittenSegment],
    ends: dict[int, int],
    open_transactions: Mapping[int, Mapping[int, int]],
) -> Iterator[WrittenSegment]:
    """The segments with transaction indexes for their final offsets."""
    open_now = {number: OpenTransactions(open_transactions.get(number)) for number in ends}
    for written in segments:
        info, base = written.info, ends[written.info.partition]
        ends[info.partition] += info.next_offset
        aborted, _ = effect(written, base, open_now[info.partition])
        if not aborted:
            yield written
            continue
        info = with_aborted(handle.storage, handle.name, info, aborted, base)
        yield WrittenSegment(info, written.batches, aborted)


def _segments(
    handle: TopicHandle, snapshot: Snapshot, partition: int, batches: Sequence[ValidBatch], bundles: Bundles
) -> Iterator[WrittenSegment]:
    segment: SegmentFile | None = None
    held: list[ValidBatch] = []
    time, now_ms = RollTime(time_span(snapshot.config)), handle.clock()
    for valid in batches:
        if segment is not None and not (
            segment.room(valid.rows, np.array([segment.next_offset])) and time.room(valid.rows, now_ms)
        ):
            yield WrittenSegment(_sealed(handle, snapshot, segment), held)
            segment, held = None, []
        if segment is None:
            stem = handle.new_stem(snapshot.version)
            segment = SegmentFile(handle.storage, handle.name, partition, stem, snapshot.config, bundles)
            time.open(valid.rows[0], valid.min_timestamp, now_ms)
        base = np.array([segment.next_offset])
        newest = base + valid.newest_offset if valid.newest_offset >= 0 else np.array([valid.newest_offset])
        segment.write(valid.data, valid.rows, base, newest, np.array([valid.min_timestamp]))
        held.append(valid)
    if segment is not None:
        yield WrittenSegment(_sealed(handle, snapshot, segment), held)


def _sealed(handle: TopicHandle, snapshot: Snapshot, segment: SegmentFile) -> SegmentInfo:
    sealed = segment.seal(handle.clock())
    waits = snapshot.config.message_timestamp_type == "LogAppendTime"
    return dataclasses.replace(sealed, append_time_ms=BY_COMMIT) if waits else sealed
