"""Reads and checks the headers of record batches in format 2 (Kafka's `DefaultRecordBatch`) and the old formats."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from crc32c import crc32c

from distlog.core.arrays import MAX_INT, MAX_LONG, byte_array
from distlog.core.errors import CorruptRecordError
from distlog.core.format import compression
from distlog.core.format.kernels.batch_scan import APPEND_TIME as APPEND_TIME
from distlog.core.format.kernels.batch_scan import (
    BAD_COUNT,
    BAD_LENGTH,
    BAD_MAGIC,
    BAD_OFFSETS,
    BAD_SIZE,
    LEGACY_ENTRY_SIZES,
    OK,
    count_batches,
    first_mismatch,
    read_batches,
)
from distlog.core.format.kernels.batch_scan import BATCH as BATCH
from distlog.core.format.kernels.batch_scan import CODEC_MASK as CODEC_MASK
from distlog.core.format.kernels.batch_scan import CONTROL as CONTROL
from distlog.core.format.kernels.batch_scan import CRC_AT as CRC_AT
from distlog.core.format.kernels.batch_scan import CRC_START as CRC_START
from distlog.core.format.kernels.batch_scan import DELETE_HORIZON as DELETE_HORIZON
from distlog.core.format.kernels.batch_scan import HEADER_SIZE as HEADER_SIZE
from distlog.core.format.kernels.batch_scan import LEGACY_CRC_START as LEGACY_CRC_START
from distlog.core.format.kernels.batch_scan import LOG_OVERHEAD as LOG_OVERHEAD
from distlog.core.format.kernels.batch_scan import TRANSACTIONAL as TRANSACTIONAL
from distlog.core.format.kernels.native import HAS_CRC_INSTRUCTION
from distlog.core.format.kernels.record_scan import count_entries

if TYPE_CHECKING:
    from typing_extensions import Buffer


@dataclass(frozen=True, slots=True)
class Source:
    """The file of a buffer of batches, and the buffer's position in the file; both may be one value per batch."""

    file: str | Sequence[str] = ""
    file_position: int | np.ndarray = 0

    def of_rows(self, rows: np.ndarray) -> Source:
        file = self.file if isinstance(self.file, str) else [self.file[row] for row in rows]
        return Source(file, values_of_rows(self.file_position, rows))

    def corrupt(self, message: str, row: int, batch: Any, **details: Any) -> CorruptRecordError:
        file = self.file if isinstance(self.file, str) else self.file[row]
        position = int(values_of_rows(self.file_position, row)) + int(batch["position"])
        offset = int(batch["base_offset"])
        text = with_remedy(message, file)
        return CorruptRecordError(text, file=file or None, position=position, offset=offset, **details)


def with_remedy(message: str, file: str) -> str:
    """Add a remedy to a message about damaged bytes, if they are in a file."""
    return f"{message}: verify, then restore it from a copy" if file else message


def values_of_rows(value: Any, rows: Any) -> Any:
    """Return the items of `rows` if `value` is an array with an item per batch, else `value`."""
    return value[rows] if isinstance(value, np.ndarray) else value


# Message formats 0 and 1 are read, but not written (Kafka's `AbstractLegacyRecordBatch`, `LegacyRecord`).
#
#     0   int64   offset                      18  int64  timestamp, in format 1 only
#     8   int32   bytes after this field      ..  int32  length of the key, -1: null
#     12  uint32  CRC-32 of the next fields   ..         key
#     16  int8    magic: 0 or 1               ..  int32  length of the value, -1: null
#     17  int8    attributes                  ..         value
#
# An uncompressed entry is a batch of one record. A compressed entry is a wrapper: its value has inner entries, and
# its offset is the last inner entry's. Offsets of inner entries are absolute in format 0, relative in format 1.
@dataclass(frozen=True, slots=True)
class Wrapper:
    """The entries in a wrapper; their stored offsets are relative to `base_offset`."""

    entries: np.ndarray
    record_count: int
    base_offset: int
    first_offset: int
    last_offset: int


def open_wrapper(data: np.ndarray, batch: Any, *, limit: int = compression.MAX_RECORDS_BYTES) -> Wrapper:
    """Decompress the wrapper of `batch`, a BATCH row, in `data`; errors have no file and position."""
    magic, wrapper_offset = int(batch["magic"]), int(batch["base_offset"]) + int(batch["last_offset_delta"])
    entry = data.data[batch["position"] : batch["position"] + batch["size"]]
    # the lengths of the key and the value have 4 bytes each, and are the last bytes of the smallest entry
    key_at = LEGACY_ENTRY_SIZES[magic] - 4
    key_size = int.from_bytes(entry[key_at - 4 : key_at], "big", signed=True)
    value_at = key_at + max(key_size, 0) + 4
    value_size = int.from_bytes(entry[value_at - 4 : value_at], "big", signed=True)
    if value_size < 0 or value_at + value_size != len(entry):
        raise CorruptRecordError("a compressed message has no value, or its value does not fill it")
    value = entry[value_at:]
    codec = int(batch["attributes"]) & CODEC_MASK
    if codec == compression.ZSTD:
        raise CorruptRecordError("zstd does not exist in message formats 0 and 1")
    entries = byte_array(compression.decompress(codec, value, limit=limit, magic=magic))
    status, count, first, last = count_entries(entries, 0, entries.size)
    if status or count == 0:
        raise CorruptRecordError("a compressed message has no record, or a malformed record")
    # old versions of librdkafka left the wrapper's offset at 0; in this case Kafka uses the inner offsets
    has_relative_offsets = magic > 0 and wrapper_offset != 0
    base_offset = wrapper_offset - last if has_relative_offsets else 0
    if base_offset < 0:
        raise CorruptRecordError("the offset of a compressed message is less than the offset of its last record")
    if not 0 <= last - first <= MAX_INT or base_offset + first < 0:
        raise CorruptRecordError("the offsets in a compressed message do not increase")
    return Wrapper(entries, count, base_offset, base_offset + first, base_offset + last)


def resolve_wrappers(data: np.ndarray, batches: np.ndarray, source: Source) -> None:
    """Fill in the first offset, last offset delta and record count of wrappers, since their headers lack these."""
    for row in np.flatnonzero(batches["record_count"] < 0).tolist():
        batch = batches[row]
        try:
            wrapper = open_wrapper(data, batch)
        except CorruptRecordError as error:
            raise source.corrupt(error.message, row, batch, **error.details) from error
        batch["base_offset"] = wrapper.first_offset
        batch["last_offset_delta"] = wrapper.last_offset - wrapper.first_offset
        batch["record_count"] = wrapper.record_count


# The header of format 2 (Kafka's `DefaultRecordBatch`).
#
#     0   int64   base offset              21  int16   attributes              43  int64   producer id
#     8   int32   bytes after this field   23  int32   last offset delta       51  int16   producer epoch
#     12  int32   partition leader epoch   27  int64   base timestamp          53  int32   base sequence
#     16  int8    magic: 2                 35  int64   largest timestamp       57  int32   number of records
#     17  uint32  CRC-32C of the next fields                                   61  ...     records, compressed as one
#
# The checksum does not cover base offset and leader epoch, since they may be assigned later. If the attributes have
# the bit DELETE_HORIZON (KIP-534), the base timestamp is the time when compaction may delete the batch's tombstones.
# Timestamp deltas count from the base timestamp in any case. All formats have their magic at byte 16.
HEADER = struct.Struct(">qiibIhiqqqhii")
ATTRIBUTES_AT = 21
#: A kernel computes the checksums of batches under this size. A library computes the larger ones, one by one.
#: If the processor has a CRC instruction, the kernel is as fast as the library for any size.
SHORT_BATCH = MAX_LONG if HAS_CRC_INSTRUCTION else 1024
_MANY_BATCHES = 16  # fewer batches are checked without a kernel, so that a small first read compiles no kernel

#: Types of control records, the second int16 of their key.
ABORT, COMMIT, LEADER_CHANGE, SNAPSHOT_HEADER, SNAPSHOT_FOOTER, KRAFT_VERSION, KRAFT_VOTERS = range(7)

#: Values of the column `timestamp_type`.
NO_TIMESTAMP, CREATE_TIME, LOG_APPEND_TIME = -1, 0, 1

HEADERS_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
SCHEMA = pa.schema(
    [
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("ms", "UTC")),
        ("timestamp_type", pa.int32()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS_TYPE),
    ]
)
COLUMNS = tuple(SCHEMA.names)

_COMPLAINTS = {
    BAD_LENGTH: "a record batch is shorter than any batch can be",
    BAD_MAGIC: "a record batch has an unknown format; a newer Kafka may have written it",
    BAD_SIZE: "a record batch is shorter than its header",
    BAD_OFFSETS: "a record batch has a negative offset, or its last offset is less than its first",
    BAD_COUNT: "a record batch has a negative number of records",
}


class BatchFields(NamedTuple):
    """The fields of a BATCH row as Python numbers, which are faster to read."""

    position: int
    size: int
    base_offset: int
    last_offset_delta: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int


def attributes_of(batch: Buffer) -> int:
    """Return the attributes of a batch of format 2, or 0 if it is shorter than a header."""
    header = bytes(memoryview(batch)[:HEADER_SIZE])
    return int.from_bytes(header[ATTRIBUTES_AT : ATTRIBUTES_AT + 2], "big") if len(header) == HEADER_SIZE else 0


def batch_fields(rows: np.ndarray) -> list[BatchFields]:
    return [BatchFields._make(row) for row in rows.tolist()]


def read_headers(
    data: Any, *, start: int = 0, end: int | None = None, file: str = "", file_position: int = 0
) -> np.ndarray:
    """Return the headers of the complete batches in data[start:end] as BATCH rows; the checksums are not compared.

    Decompresses wrappers of formats 0 and 1, since their headers lack fields. data[0] is at `file_position`.
    """
    array = byte_array(data)
    if start < 0:
        raise ValueError("start must be a position in data")
    source, stop = Source(file, file_position), (array.size if end is None else min(end, array.size))
    status, position, count = count_batches(array, start, stop, False)
    if status != OK:
        text = with_remedy(_COMPLAINTS[status], file)
        raise CorruptRecordError(text, file=file or None, position=file_position + position)
    batches = np.zeros(count, BATCH)
    status, index = read_batches(array, start, batches)
    if status != OK:
        raise source.corrupt(_COMPLAINTS[status], index, batches[index])
    if count and batches["record_count"].min() < 0:
        resolve_wrappers(array, batches, source)
    return batches


def check_crcs(data: Any, batches: np.ndarray, *, file: Any = "", file_position: Any = 0) -> None:
    """Raise CorruptRecordError for the first batch with a wrong checksum; `file` and position as in Source."""
    bad = first_bad_crc(data, batches)
    if bad >= 0:
        raise wrong_crc(Source(file, file_position), bad, batches[bad])


def wrong_crc(source: Source, row: int, batch: Any) -> CorruptRecordError:
    return source.corrupt("a record batch fails its checksum", row, batch)


def first_bad_crc(data: Any, batches: np.ndarray) -> int:
    """Return the row of the first of `batches` with a wrong checksum, or -1."""
    ends = batches["position"] + batches["size"]
    array = byte_array(data)
    if len(batches) and (batches["position"].min() < 0 or ends.max() > array.size):
        raise ValueError("these batches are not of this data")
    if len(batches) < _MANY_BATCHES:
        return _first_bad(data, batches, np.ones(len(batches), np.bool_))
    is_unchecked = (batches["size"] >= SHORT_BATCH) | (batches["magic"] != 2)
    bad = (first_mismatch(array, batches, SHORT_BATCH, CRC_START), _first_bad(data, batches, is_unchecked))
    return min((row for row in bad if row >= 0), default=-1)


def _first_bad(data: Any, batches: np.ndarray, is_selected: np.ndarray) -> int:
    view, rows = memoryview(data), np.flatnonzero(is_selected)
    fields = (batches[name][rows].tolist() for name in ("position", "size", "magic", "crc"))
    for row, position, size, magic, stored in zip(rows.tolist(), *fields, strict=True):
        if magic == 2:
            computed = crc32c(view[position + CRC_START : position + size])
        else:
            computed = zlib.crc32(view[position + LEGACY_CRC_START : position + size])
        if computed != stored:
            return int(row)
    return -1


def increment_sequence(sequence: int, count: Any) -> Any:
    """Return the sequence number `count` records after `sequence`, or before it; 0 comes after 2^31 - 1."""
    return (sequence + count) & MAX_INT


class Batches(NamedTuple):
    """Complete batches at `position` of the log, with their bytes and BATCH rows; positions in rows are in `data`."""

    position: int
    data: memoryview
    rows: npt.NDArray[Any]

    @property
    def end(self) -> int:
        return self.position + self.data.nbytes

    def first(self, count: int) -> Batches:
        size = int(self.rows["size"][:count].sum())
        return Batches(self.position, self.data[:size], self.rows[:count])


#: The rows of the complete batches before the first damage, and the error, if any.
Headers = tuple[npt.NDArray[Any], CorruptRecordError | None]


@dataclass(slots=True)
class BatchWalk:
    """Iterates over the batches between `position`, the start of a batch, and `end`, about `step` bytes at a time.

    `read` returns the bytes between two positions, or fewer if the log became shorter; it may reuse a buffer. Errors
    have `file`, and the position plus `origin`. With `checked`, all checksums are compared. `headers` may replace the
    check for damage; its arguments are bytes and their position. `likely_end` is a guess of the end of the batches
    that the caller needs: a read ends there unless a batch is across it.

    The sound batches before damage are yielded first. Then `on_damage` "raise" raises the damage, and "stop" ends the
    walk. If `on_damage` is a function, it gets the damage, and the walk continues if the start of the next batch is
    known. As in Kafka, "raise" ignores an incomplete batch at the end, since a writer may be writing it.

    `position` is the current position, `next_size` is the size of the batch there or 0, and `damage` ended the walk.
    """

    read: Callable[[int, int], memoryview]
    position: int
    end: int
    step: int
    on_damage: Literal["raise", "stop"] | Callable[[CorruptRecordError], None]
    file: str = ""
    origin: int = 0
    checked: bool = False
    headers: Callable[[memoryview, int], Headers] | None = None
    likely_end: int = 0
    damage: CorruptRecordError | None = field(default=None, init=False)
    next_size: int = field(default=0, init=False)
    _is_over: bool = field(default=False, init=False)

    def __iter__(self) -> Iterator[Batches]:
        most_bytes, likely_end = self.step, self.likely_end
        while self.position < self.end and not self._is_over:
            read_end = likely_end if self.position < likely_end else self.end
            step_bytes = min(most_bytes, read_end - self.position)
            data = self.read(self.position, self.position + step_bytes)
            rows, damage = (self.headers or self._headers)(data, self.position)
            whole_bytes = 0
            if len(rows):
                whole_bytes = int(rows["position"][-1] + rows["size"][-1])
                batches = Batches(self.position, data[:whole_bytes], rows)
                self.position = batches.end
                self.next_size = size_of_first(data[whole_bytes:]) if whole_bytes < data.nbytes else 0
                yield batches
                most_bytes, likely_end = self.step, self.likely_end
            elif damage is None:
                # the next batch is larger than the read, or the log ends within the batch
                unread = self.end - self.position
                first_size = size_of_first(data)
                # the log became shorter, was read to its end, or is shorter than the batch
                if data.nbytes < step_bytes or step_bytes == unread or first_size > unread:
                    self._is_over = True
                    if self.on_damage != "raise":
                        self._handle(self._error("the file ends within a batch"), data)
                # Read the whole batch next. If its size is within this read, it is wrong, and the read was too short
                # for the check of the header: read more bytes, so that the check reports the damage.
                likely_end = 0
                most_bytes = first_size if first_size > step_bytes else max(self.step, step_bytes + 1)
            if damage is not None and not self._is_over:
                self._handle(damage, data[whole_bytes:])

    def stop(self, batches: Batches, count: int, reason: str | None = None) -> Batches:
        """End the walk after the first `count` of the latest `batches`; `reason` describes damage after them."""
        batches = batches.first(count)
        self.position, self._is_over = batches.end, True
        if reason is not None:
            self.damage = self._error(reason)
        return batches

    def _headers(self, data: memoryview, position: int) -> Headers:
        position += self.origin
        rows, damage = headers_before_damage(data, self.file, position)
        if self.checked:
            try:
                check_crcs(data, rows, file=self.file, file_position=position)
            except CorruptRecordError as error:
                return rows[: np.searchsorted(rows["position"], error.details["position"] - position)], error
        return rows, damage

    def _handle(self, damage: CorruptRecordError, data: memoryview) -> None:
        if self.on_damage == "raise":
            raise damage
        if self.on_damage == "stop":
            self.damage = damage
        else:
            self.on_damage(damage)
            # an error has an offset if the size of the batch is right (`read_headers`), so the batch can be skipped
            if "offset" in damage.details:
                self.position += size_of_first(data)
                return
        self._is_over = True

    def _error(self, reason: str) -> CorruptRecordError:
        return CorruptRecordError(reason, file=self.file, position=self.origin + self.position)


def headers_before_damage(data: memoryview, file: str, file_position: int) -> Headers:
    """Return the batches before the first damaged header, and the error of this header."""
    try:
        return read_headers(data, file=file, file_position=file_position), None
    except CorruptRecordError as error:
        # sizes are checked first: read the batches before the error again, to check their other fields, too
        rows, earlier = headers_before_damage(data[: error.details["position"] - file_position], file, file_position)
        return rows, earlier or error


def size_of_first(data: memoryview) -> int:
    """Return the size of the first batch of `data`, or LOG_OVERHEAD if `data` is shorter than that."""
    if data.nbytes < LOG_OVERHEAD:
        return LOG_OVERHEAD
    return LOG_OVERHEAD + int.from_bytes(data[8:LOG_OVERHEAD], "big", signed=True)
