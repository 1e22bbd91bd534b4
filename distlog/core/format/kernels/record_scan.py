"""Kernels that scan records (Kafka's `DefaultRecord`) of sections in one pass; a section has a batch's records."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from distlog.core.arrays import MAX_LONG
from distlog.core.format.kernels.batch_scan import (
    CODEC_MASK,
    CRC_START,
    EMPTY_CRC,
    HEADER_SIZE,
    LAST_DELTA_AT,
    LEGACY_ATTRIBUTES_AT,
    LEGACY_ENTRY_SIZES,
    LEGACY_TIMESTAMP_AT,
    LENGTH_AT,
    LOG_OVERHEAD,
    MAGIC_AT,
    SMALLEST_PREFIX,
    crc32c_of,
)
from distlog.core.format.kernels.native import (
    called,
    copy_bytes,
    fill_kernel,
    inlined,
    int64_at,
    int_at,
    item_at,
    put_at,
)


class Slices(NamedTuple):
    """Byte strings in a buffer; `valid` is False for null.

    `offsets` are Arrow's, as if the strings stood back to back. The strings are at `positions` of the buffer, or if
    `positions` is empty, are copied to `copies`, which has room for all bytes of the sections.
    """

    offsets: np.ndarray
    valid: np.ndarray
    copies: np.ndarray
    positions: np.ndarray


class HeaderPositions(NamedTuple):
    """The numbers of the records with headers, and the positions of their header counts."""

    #: After the last number there is an end mark, the count of all records.
    records: np.ndarray
    positions: np.ndarray


class ScannedFields(NamedTuple):
    """The fields of a record and their positions. A negative size means null. The header count is at `headers_at`."""

    end: int
    offset_delta: int
    timestamp_delta: int
    key_at: int
    key_size: int
    value_at: int
    value_size: int
    headers_at: int
    headers: int


class ScanProgress(NamedTuple):
    """The state of a scan before record `number` of the section, which is at `position`.

    `previous` is the offset delta of the record before. The other fields count what was written so far:
    `header_positions` counts records with headers, `section_headers` the headers of this section's records.
    """

    number: int
    position: int
    previous: int
    records: int
    key_bytes: int
    value_bytes: int
    header_positions: int
    section_headers: int


class TimeBounds(NamedTuple):
    """The smallest and the largest allowed timestamp (ms); -1 (no timestamp) is always allowed."""

    oldest: int
    newest: int


class CheckedRecords(NamedTuple):
    """The status of a check, the `number` of the record at which it ended, and a summary of the records before.

    `newest_record` is the first record with the largest timestamp. `refused` counts records that the log refuses.
    """

    status: int
    number: int
    newest_record: int
    max_timestamp: int
    min_timestamp: int
    refused: int


# A record's numbers are variable-length integers of 7 bits a byte, with a zigzag sign, as in Protocol Buffers.
# `read_number` returns `(value, next position)`. If a value is cut off by `end`, or has more than `longest` bytes,
# the next position is after `end`. Later reads keep it there, so a kernel compares it once after several fields.
#
# A `careful` read uses no byte from `end` on. Any other read decodes only values of up to four bytes, but loads eight
# bytes, some of which may be after `end`. So its kernel must ensure SLACK bytes after `end`, and must repeat a read
# that fails as a careful one.

#: More than the 7 * 4 + 8 bytes after `end` that eight reads may load, each of which advances by up to four bytes.
#: Kernels make fewer reads before they compare the position with `end`.
SLACK = 64
#: The most bytes of a 32-bit and of a 64-bit integer. As in Kafka, bits after the 32nd in a fifth byte are dropped.
VARINT, VARLONG = 5, 10


@called
def _read_bytewise(data: np.ndarray, position: int, end: int, longest: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 7 * longest, 7):
        if position >= end:
            break
        byte = item_at(data, position)
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if longest == VARINT:
                value &= 0xFFFFFFFF
            return ((value >> 1) & 0x7FFFFFFFFFFFFFFF) ^ -(value & 1), position
    return 0, end + 1


@inlined
def read_number(data: np.ndarray, position: int, end: int, longest: int, careful: bool) -> tuple[int, int]:
    """Read a number of at most `longest` bytes, VARINT or VARLONG, or of at most four if not `careful`."""
    if careful and position + 8 > end:
        return _read_bytewise(data, position, end, longest)
    word = int64_at(data, position)
    # the first byte without the bit 0x80 is the last one; the value has the low 7 bits of each byte
    if word & 0x80 == 0:
        value, size = word & 0x7F, 1
    elif word & 0x8000 == 0:
        value, size = (word & 0x7F) | (word >> 1 & 0x3F80), 2
    elif word & 0x800000 == 0:
        value, size = (word & 0x7F) | (word >> 1 & 0x3F80) | (word >> 2 & 0x1FC000), 3
    elif word & 0x80000000 == 0:
        value, size = (word & 0x7F) | (word >> 1 & 0x3F80) | (word >> 2 & 0x1FC000) | (word >> 3 & 0xFE00000), 4
    elif careful:
        return _read_bytewise(data, position, end, longest)
    else:
        return 0, end + 1
    return (value >> 1) ^ -(value & 1), position + size


@inlined
def varlong_size(value: int) -> int:
    """Return the number of bytes of `value`, as a varlong or a varint."""
    zigzag = (value << 1) ^ (value >> 63)
    if zigzag & ~0x7F == 0:
        return 1
    if zigzag & ~0x3FFF == 0:
        return 2
    size = 1
    while zigzag & ~0x7F:
        # without the bits that the shift of a negative number fills with ones
        zigzag = zigzag >> 7 & 0x1FFFFFFFFFFFFFF
        size += 1
    return size


@inlined
def write_varlong(target: np.ndarray, position: int, value: int) -> int:
    """Write `value`, which has the same bytes as a varint, and return the next position."""
    zigzag = (value << 1) ^ (value >> 63)
    if zigzag & ~0x7F == 0:
        put_at(target, position, zigzag)
        return position + 1
    if zigzag & ~0x3FFF == 0:
        put_at(target, position, (zigzag & 0x7F) | 0x80)
        put_at(target, position + 1, zigzag >> 7)
        return position + 2
    while zigzag & ~0x7F:
        put_at(target, position, (zigzag & 0x7F) | 0x80)
        zigzag = (zigzag >> 7) & 0x1FFFFFFFFFFFFFF
        position += 1
    put_at(target, position, zigzag)
    return position + 1


_MAX_MILLISECONDS = MAX_LONG // 1000


@fill_kernel
def to_microseconds(milliseconds: np.ndarray, microseconds: np.ndarray) -> bool:
    """Fill `microseconds` with the times; returns whether all fit in 64 bits."""
    all_fit = True
    for index in range(milliseconds.size):
        all_fit &= -_MAX_MILLISECONDS <= milliseconds[index] <= _MAX_MILLISECONDS
        microseconds[index] = milliseconds[index] * 1000
    return all_fit


@inlined
def put_slice(slices: Slices, index: int, total: int, data: np.ndarray, position: int, size: int) -> int:
    """Put a string (null if `size` < 0) into slot `index`, after `total` bytes; returns the new total."""
    length = max(size, 0)
    put_at(slices.offsets, index + 1, total + length)
    put_at(slices.valid, index, size >= 0)
    if slices.positions.size:
        put_at(slices.positions, index, position)
    elif length:
        copy_bytes(slices.copies, total, data, position, length)
    return total + length


# The records of a section are read fast up to the first that fails, and carefully from this record on.

SMALLEST_RECORD = 7  # the bytes of a record without a key, a value and headers

OK, BAD_LENGTH, BAD_KEY, BAD_VALUE, BAD_HEADERS, BAD_BODY, BAD_OFFSET, BAD_END, BAD_CRC = range(9)

#: A section has the records of one batch, bytes [start, end). Records from `start_offset` to `end_offset` are
#: emitted; the scan writes their number `emitted`, and their `header_count`. `append_time` is the timestamp of every
#: record, or NOT_APPEND_TIME if the records have their own. `crc` is the checksum in the batch's header, which is
#: before `start`, or CHECKED if the scan must not compare it.
SECTION = np.dtype(
    [
        ("start", np.int64),
        ("end", np.int64),
        ("record_count", np.int64),
        ("base_offset", np.int64),
        ("last_offset_delta", np.int64),
        ("base_timestamp", np.int64),
        ("append_time", np.int64),
        ("crc", np.int64),
        ("start_offset", np.int64),
        ("end_offset", np.int64),
        ("emitted", np.int64),
        ("header_count", np.int64),
    ]
)
NOT_APPEND_TIME = -(2**63)
CHECKED = -1


@called
def _skip_headers(data: np.ndarray, position: int, end: int, count: int, careful: bool) -> int:
    """Return the position after `count` headers, or `end` + 1 if they are malformed."""
    for _ in range(count):
        key_size, position = read_number(data, position, end, VARINT, careful)
        if key_size < 0 or key_size > end - position:
            return end + 1
        value_size, position = read_number(data, position + key_size, end, VARINT, careful)
        if value_size > end - position:
            return end + 1
        position += max(value_size, 0)
    return position


@inlined
def read_record(data: np.ndarray, position: int, end: int, careful: bool) -> tuple[int, ScannedFields]:
    """Read the record at `position` in a section that ends at `end`; returns its status and fields."""
    no_fields = ScannedFields(0, 0, 0, 0, 0, 0, 0, 0, 0)
    size, body_at = read_number(data, position, end, VARINT, careful)
    if size < 1 or size > end - body_at:
        return BAD_LENGTH, no_fields
    record_end = body_at + size
    timestamp_delta, field_at = read_number(data, body_at + 1, end, VARLONG, careful)  # after a byte of attributes
    offset_delta, field_at = read_number(data, field_at, end, VARINT, careful)
    key_size, key_at = read_number(data, field_at, end, VARINT, careful)
    if key_size > record_end - key_at:
        return BAD_KEY, no_fields
    value_size, value_at = read_number(data, key_at + max(key_size, 0), end, VARINT, careful)
    if value_size > record_end - value_at:
        return BAD_VALUE, no_fields
    headers_at = value_at + max(value_size, 0)
    headers, field_at = read_number(data, headers_at, end, VARINT, careful)
    if headers:
        if headers < 0 or headers > record_end - field_at:
            return BAD_HEADERS, no_fields
        field_at = _skip_headers(data, field_at, record_end, headers, careful)
    record = ScannedFields(
        record_end, offset_delta, timestamp_delta, key_at, key_size, value_at, value_size, headers_at, headers
    )
    return (OK if field_at == record_end else BAD_BODY), record


@inlined
def _scan_section(
    data: np.ndarray,
    section: np.void,
    offsets: np.ndarray,
    timestamps: np.ndarray,
    key: Slices,
    value: Slices,
    header_positions: HeaderPositions,
    progress: ScanProgress,
    careful: bool,
) -> tuple[int, ScanProgress]:
    """Continue the scan of a section, up to its end or a bad record; returns (status, progress)."""
    number, position, previous, emitted, key_bytes, value_bytes, headed_records, headers = progress
    status = OK
    end, count = section["end"], section["record_count"]
    # local variables, since numba reads array items again after each write to another array
    base_offset, last_delta = section["base_offset"], section["last_offset_delta"]
    base_timestamp, append_time = section["base_timestamp"], section["append_time"]
    start_offset, end_offset = section["start_offset"], section["end_offset"]
    while number < count:
        status, record = read_record(data, position, end, careful)
        if status != OK:
            break
        if record.offset_delta <= previous or record.offset_delta > last_delta:
            status = BAD_OFFSET
            break
        number, position, previous = number + 1, record.end, record.offset_delta
        offset = base_offset + record.offset_delta
        if offset < start_offset or offset >= end_offset:
            continue
        put_at(offsets, emitted, offset)
        timestamp = (base_timestamp + record.timestamp_delta) if append_time == NOT_APPEND_TIME else append_time
        put_at(timestamps, emitted, timestamp)
        if key.valid.size:
            key_bytes = put_slice(key, emitted, key_bytes, data, record.key_at, record.key_size)
        if value.valid.size:
            value_bytes = put_slice(value, emitted, value_bytes, data, record.value_at, record.value_size)
        if record.headers:
            headers += record.headers
            if header_positions.records.size:
                header_positions.records[headed_records] = emitted
                header_positions.positions[headed_records] = record.headers_at
                headed_records += 1
        emitted += 1
    if number == count and position != end:
        status = BAD_END
    return status, ScanProgress(number, position, previous, emitted, key_bytes, value_bytes, headed_records, headers)


@fill_kernel
def scan_records(
    data: np.ndarray,
    sections: np.ndarray,
    offsets: np.ndarray,
    timestamps: np.ndarray,
    key: Slices,
    value: Slices,
    header_positions: HeaderPositions,
) -> tuple[int, int, int]:
    """Scan all `sections` (SECTION rows) into arrays with room for their records.

    Returns (OK, number of sections, number of emitted records), or (another status, bad section, bad record in it).
    """
    progress = ScanProgress(0, 0, -1, 0, 0, 0, 0, 0)
    arrays = (offsets, timestamps, key, value, header_positions)
    for index in range(sections.size):
        section, start = sections[index], sections[index]["start"]
        if section["crc"] != CHECKED:
            # just before the scan of the batch, so that the scan finds the bytes in the cache
            crc = crc32c_of(EMPTY_CRC, data, start - HEADER_SIZE + CRC_START, section["end"])
            if crc != section["crc"]:
                return BAD_CRC, index, 0
        first_record = progress.records
        progress = ScanProgress(
            0, start, -1, first_record, progress.key_bytes, progress.value_bytes, progress.header_positions, 0
        )
        # a fast scan needs SLACK bytes after the section; any status but OK leads to a careful scan
        status = BAD_END
        if section["end"] + SLACK <= data.size:
            status, progress = _scan_section(data, section, *arrays, progress, False)
        if status != OK:
            status, progress = _scan_section(data, section, *arrays, progress, True)
        if header_positions.records.size:
            header_positions.records[progress.header_positions] = progress.records  # the end mark
        if status != OK:
            return status, index, progress.number
        section["emitted"], section["header_count"] = progress.records - first_record, progress.section_headers
    return OK, sections.size, progress.records


@fill_kernel
def locate_headers(
    data: np.ndarray,
    header_positions: HeaderPositions,
    count: int,
    header_offsets: np.ndarray,
    key: Slices,
    value: Slices,
) -> None:
    """Find the headers of the first `count` records; `scan_records` checked them and filled `header_positions`."""
    key_bytes = value_bytes = row = first = 0
    for record in range(count):
        header_offsets[record] = first
        if header_positions.records[row] != record:
            continue
        headers, position = read_number(data, header_positions.positions[row], data.size, VARINT, True)
        for header in range(first, first + headers):
            size, position = read_number(data, position, data.size, VARINT, True)
            key_bytes = put_slice(key, header, key_bytes, data, position, size)
            size, position = read_number(data, position + size, data.size, VARINT, True)
            value_bytes = put_slice(value, header, value_bytes, data, position, size)
            position += max(size, 0)
        first += headers
        row += 1
    header_offsets[count] = first


#: The verdict on a record: FINE, or why a log refuses it.
FINE, NO_KEY, BAD_TIME = range(3)


@fill_kernel
def check_records(
    data: np.ndarray,
    start: int,
    end: int,
    base_timestamp: int,
    bounds: TimeBounds,
    needs_keys: bool,
    verdicts: np.ndarray,
) -> CheckedRecords:
    """Check the records in data[start:end], one per item of `verdicts`; their offset deltas must be 0, 1, 2, ...

    The `min_timestamp` of the result is a lower bound, and equals the base timestamp only if the first record does.
    """
    position, refused, first_has_base_time = start, 0, True
    newest_record, newest, oldest = 0, -(2**63), 2**63 - 1
    for number in range(verdicts.size):
        status, record = read_record(data, position, end, True)
        if status == OK and record.offset_delta != number:
            status = BAD_OFFSET
        if status != OK:
            return CheckedRecords(status, number, newest_record, newest, oldest, refused)
        timestamp = base_timestamp + record.timestamp_delta
        if timestamp > newest:
            newest_record, newest = number, timestamp
        oldest = min(oldest, timestamp)
        if number == 0:
            first_has_base_time = timestamp == base_timestamp
        verdict = FINE
        if needs_keys and record.key_size < 0:
            verdict = NO_KEY
        elif timestamp != -1 and (timestamp < bounds.oldest or timestamp > bounds.newest):
            verdict = BAD_TIME
        verdicts[number] = verdict
        refused += verdict != FINE
        position = record.end
    status = OK if position == end else BAD_END
    # where this equals the base timestamp, a lookup by time returns the first record (`_by_metadata` in lookup.py)
    if oldest == base_timestamp and oldest >= 0 and not first_has_base_time:
        oldest -= 1
    return CheckedRecords(status, verdicts.size, newest_record, newest, oldest, refused)


# The kernels of lookups, `find_*`, read only format 2, and describe no errors: a reader of the whole file does that.

#: The result instead of a position or a count if the bytes are damaged, or not of format 2.
UNSURE = -1

#: The location of a record. A negative size means null. `headers_at` is the position of the number of headers.
LOCATION = np.dtype(
    [
        ("offset_delta", np.int64),
        ("timestamp", np.int64),
        ("key_at", np.int64),
        ("key_size", np.int64),
        ("value_at", np.int64),
        ("value_size", np.int64),
        ("headers_at", np.int64),
        ("headers", np.int64),
    ]
)

HEADER_LOCATION = np.dtype(
    [("key_at", np.int64), ("key_size", np.int64), ("value_at", np.int64), ("value_size", np.int64)]
)


@inlined
def _batch_size(data: np.ndarray, position: int, end: int) -> int:
    """Return the size of the batch at `position`, or 0 if there is no complete batch of format 2 before `end`."""
    if end - position < HEADER_SIZE or int_at(data, position + MAGIC_AT, 1) != 2:
        return 0
    size = LOG_OVERHEAD + int_at(data, position + LENGTH_AT, 4)
    return size if HEADER_SIZE <= size <= end - position else 0


@fill_kernel
def find_batch(
    data: np.ndarray, position: int, end: int, expected_offset: int, dense: bool, end_offset: int, offset: int
) -> int:
    """Return the position of the first batch from `position` on whose last offset is `offset` or above, or `end`.

    All offsets are as stored, without the segment's shift. The batch at `position` must start at `expected_offset`;
    at or after it if the segment has gaps (is not `dense`); at or before `offset` if `expected_offset` is -1. The
    file ends at `end_offset`. Returns UNSURE if a batch or the next header is misplaced, as in `first_misplaced`.
    """
    while position < end:
        size = _batch_size(data, position, end)
        if size == 0:
            return UNSURE
        base_offset, delta = int_at(data, position, 8), int_at(data, position + LAST_DELTA_AT, 4)
        if base_offset < 0 or delta < 0 or base_offset > MAX_LONG - delta:
            return UNSURE
        if expected_offset < 0:
            if base_offset > offset:
                return UNSURE
        elif base_offset < expected_offset or (dense and base_offset != expected_offset):
            return UNSURE
        last = base_offset + delta
        is_last = position + size == end
        if last >= end_offset or (last == end_offset - 1 and not is_last):
            return UNSURE
        if is_last:
            if dense and last != end_offset - 1:
                return UNSURE
        elif last >= offset:  # the batch is the result if the next one begins after it
            if _batch_size(data, position + size, end) == 0:
                return UNSURE
            next_offset = int_at(data, position + size, 8)
            if next_offset <= last or (dense and next_offset != last + 1):
                return UNSURE
        if last >= offset:
            return position
        position += size
        expected_offset = last + 1
    return end


@fill_kernel
def find_records(
    data: np.ndarray,
    position: int,
    end: int,
    count: int,
    last_offset_delta: int,
    base_timestamp: int,
    append_time: int,
    start_delta: int,
    oldest: int,
    locations: np.ndarray,
) -> int:
    """Fill `locations` with the first records from `start_delta` and `oldest` on; returns their number, or UNSURE."""
    previous = -1
    records = 0
    for _ in range(count):
        size, body_at = read_number(data, position, end, VARINT, True)
        timestamp_delta, field_at = read_number(data, body_at + 1, end, VARLONG, True)
        delta, field_at = read_number(data, field_at, end, VARINT, True)
        if field_at > body_at + size or delta <= previous or delta > last_offset_delta:
            return UNSURE
        previous = delta
        timestamp = (base_timestamp + timestamp_delta) if append_time == NOT_APPEND_TIME else append_time
        if delta >= start_delta and timestamp >= oldest:
            status, record = read_record(data, position, end, True)
            if status != OK:
                return UNSURE
            row = locations[records]
            row["offset_delta"] = delta
            row["timestamp"] = timestamp
            row["key_at"], row["key_size"] = record.key_at, record.key_size
            row["value_at"], row["value_size"] = record.value_at, record.value_size
            row["headers_at"], row["headers"] = record.headers_at, record.headers
            records += 1
            if records == locations.size:
                return records
        position = body_at + size
    return records if position == end else UNSURE


@fill_kernel
def find_headers(data: np.ndarray, position: int, locations: np.ndarray) -> None:
    """Fill `locations` with the headers whose number is at `position`; a scan has checked them."""
    _, position = read_number(data, position, data.size, VARINT, True)
    for number in range(locations.size):
        row = locations[number]
        size, position = read_number(data, position, data.size, VARINT, True)
        row["key_at"], row["key_size"] = position, size
        size, position = read_number(data, position + size, data.size, VARINT, True)
        row["value_at"], row["value_size"] = position, size
        position += max(size, 0)


# Formats 0 and 1 have no batches. An entry is a record with its offset. The value of a compressed entry has entries,
# which are decompressed before these kernels scan them.
@inlined
def _entry_end(data: np.ndarray, position: int, end: int) -> int:
    """Return the end of the entry at `position`, 0 if it is malformed or compressed, or -1 if `end` cuts it off."""
    if end - position < SMALLEST_PREFIX:
        return -1
    size = LOG_OVERHEAD + int_at(data, position + LENGTH_AT, 4)
    magic = int_at(data, position + MAGIC_AT, 1)
    if magic < 0 or magic > 1 or size < LEGACY_ENTRY_SIZES[magic]:
        return 0
    if size > end - position:
        return -1
    is_compressed = int_at(data, position + LEGACY_ATTRIBUTES_AT, 1) & CODEC_MASK
    return 0 if is_compressed else position + size


@fill_kernel
def count_entries(data: np.ndarray, start: int, end: int) -> tuple[int, int, int, int]:
    """Walk the whole entries in [start, end); returns (status, number of entries, first stored offset, last one)."""
    position = start
    count = 0
    first = last = -1
    while True:
        entry_end = _entry_end(data, position, end)
        if entry_end < 0:
            return OK, count, first, last
        if entry_end == 0:
            return BAD_LENGTH, count, first, last
        last = int_at(data, position, 8)
        if count == 0:
            first = last
        count += 1
        position = entry_end


@fill_kernel
def scan_entries(
    data: np.ndarray, sections: np.ndarray, offsets: np.ndarray, timestamps: np.ndarray, key: Slices, value: Slices
) -> tuple[int, int, int]:
    """Scan entries as `scan_records` does; a section's `base_offset` is added to each stored offset."""
    emitted = key_bytes = value_bytes = 0
    for index in range(sections.size):
        section = sections[index]
        position = section["start"]
        first = emitted
        previous = -1
        for number in range(section["record_count"]):
            end = _entry_end(data, position, section["end"])
            if end <= 0:
                return BAD_LENGTH, index, number
            offset = section["base_offset"] + int_at(data, position, 8)
            if offset <= previous:
                return BAD_OFFSET, index, number
            previous = offset
            magic = int_at(data, position + MAGIC_AT, 1)
            timestamp = int_at(data, position + LEGACY_TIMESTAMP_AT, 8) if magic == 1 else -1
            # an entry ends with the key's size, the key, the value's size and the value; sizes have four bytes
            key_at = position + LEGACY_ENTRY_SIZES[magic] - 4
            key_size = int_at(data, key_at - 4, 4)
            if key_size > end - key_at - 4:
                return BAD_KEY, index, number
            value_at = key_at + max(key_size, 0) + 4
            value_size = int_at(data, value_at - 4, 4)
            if value_size > end - value_at:
                return BAD_VALUE, index, number
            if value_at + max(value_size, 0) != end:
                return BAD_BODY, index, number
            position = end
            if offset < section["start_offset"] or offset >= section["end_offset"]:
                continue
            offsets[emitted] = offset
            append_time = section["append_time"]
            timestamps[emitted] = timestamp if append_time == NOT_APPEND_TIME else append_time
            if key.valid.size:
                key_bytes = put_slice(key, emitted, key_bytes, data, key_at, key_size)
            if value.valid.size:
                value_bytes = put_slice(value, emitted, value_bytes, data, value_at, value_size)
            emitted += 1
        section["emitted"] = emitted - first
    return OK, sections.size, emitted
