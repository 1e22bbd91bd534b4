"""Kernels that walk the headers of record batches of all formats, and compute their checksums."""

from __future__ import annotations

from typing import Any

import numpy as np

from distlog.core.arrays import MAX_LONG
from distlog.core.format.kernels.native import (
    COMPILED,
    HAS_CRC_INSTRUCTION,
    called,
    crc_of_word,
    fill_kernel,
    inlined,
    int64_at,
    int_at,
    item_at,
    pointer_to,
    put_at,
    put_int_at,
    read_at,
)

#: LOG_OVERHEAD: the size of offset and length, which the length does not count. HEADER_SIZE: a header of format 2.
LOG_OVERHEAD, HEADER_SIZE = 12, 61
#: Positions of header fields; those with LEGACY are for formats 0 and 1, LAST_DELTA_AT and CRC_AT for format 2.
LENGTH_AT, MAGIC_AT, LAST_DELTA_AT, CRC_AT = 8, 16, 23, 17
LEGACY_ATTRIBUTES_AT, LEGACY_TIMESTAMP_AT = 17, 18
#: The positions of the first bytes that the checksum covers.
CRC_START, LEGACY_CRC_START = 21, 16
SMALLEST_PREFIX = 17  # the size of a header up to its magic, in all formats
SMALLEST_LENGTH = 14  # Kafka's smallest valid length, which does not count LOG_OVERHEAD
#: The sizes of an entry without a key and a value, in format 0 and 1.
LEGACY_ENTRY_SIZES = 26, 34
#: Parts of a batch's attributes: the codec, all bits of formats 0 and 1, and single bits.
CODEC_MASK, LEGACY_ATTRIBUTES_MASK = 0x07, 0x0F
APPEND_TIME, TRANSACTIONAL, CONTROL, DELETE_HORIZON = 0x08, 0x10, 0x20, 0x40

#: The results of a check of headers; `record_batch.py` has a message for each fault.
OK, BAD_LENGTH, BAD_MAGIC, BAD_SIZE, BAD_OFFSETS, BAD_COUNT = range(6)

#: A batch: its position and size, in bytes, in a buffer or file, and the fields of its header.
BATCH = np.dtype(
    [
        ("position", np.int64),
        ("size", np.int64),
        ("base_offset", np.int64),
        ("last_offset_delta", np.int32),
        ("leader_epoch", np.int32),
        ("magic", np.int8),
        ("crc", np.uint32),
        ("attributes", np.int16),
        ("base_timestamp", np.int64),
        ("max_timestamp", np.int64),
        ("producer_id", np.int64),
        ("producer_epoch", np.int16),
        ("base_sequence", np.int32),
        ("record_count", np.int32),
    ]
)


@fill_kernel
def count_batches(data: np.ndarray, start: int, end: int, allows_any_format: bool) -> tuple[int, int, int]:
    """Count the complete batches in [start, end), up to the first bad one.

    Unknown formats are bad unless `allows_any_format`, which a dump sets to list their batches, too.
    Returns (status, position of the end or of the bad batch, number of batches before it).
    """
    position = start
    count = 0
    while end - position >= SMALLEST_PREFIX:
        length = int_at(data, position + LENGTH_AT, 4)
        magic = int_at(data, position + MAGIC_AT, 1)
        if length < SMALLEST_LENGTH:
            return BAD_LENGTH, position, count
        if (magic < 0 or magic > 2) and not allows_any_format:
            return BAD_MAGIC, position, count
        if length > end - position - LOG_OVERHEAD:
            break  # the last batch is incomplete
        smallest_size = HEADER_SIZE if magic >= 2 else LEGACY_ENTRY_SIZES[1 if magic == 1 else 0]
        if LOG_OVERHEAD + length < smallest_size:
            return BAD_SIZE, position, count
        position += LOG_OVERHEAD + length
        count += 1
    return OK, position, count


@fill_kernel
def read_batches(data: np.ndarray, start: int, batches: np.ndarray) -> tuple[int, int]:
    """Fill `batches` (BATCH rows), as many as `count_batches` returned; returns (status, first bad row)."""
    position = start
    status = OK
    first_bad = batches.size
    for index in range(batches.size):
        row = batches[index]
        read_row(data, position, row)
        position += row["size"]
        # int64: without the compiler, numpy 2 cannot subtract an int32 from MAX_LONG
        base_offset, last_offset_delta = np.int64(row["base_offset"]), np.int64(row["last_offset_delta"])
        fault = OK
        if row["record_count"] < (0 if row["magic"] == 2 else -1):
            fault = BAD_COUNT
        elif base_offset < 0 or last_offset_delta < 0 or base_offset > MAX_LONG - last_offset_delta:
            fault = BAD_OFFSETS
        if fault != OK and status == OK:
            status = fault
            first_bad = index
    return status, first_bad


@inlined
def read_row(data: np.ndarray, position: int, row: np.void) -> None:
    """Fill `row` from the header at `position`, unchecked. A compressed entry of format 0 or 1 has the count -1."""
    magic = int_at(data, position + MAGIC_AT, 1)  # record_batch.py has the layouts of headers
    row["position"] = position
    row["size"] = LOG_OVERHEAD + int_at(data, position + LENGTH_AT, 4)
    row["magic"] = magic
    row["base_offset"] = int_at(data, position, 8)
    if magic >= 2:
        row["last_offset_delta"] = int_at(data, position + 23, 4)
        row["leader_epoch"] = int_at(data, position + 12, 4)
        row["crc"] = int_at(data, position + 17, 4) & 0xFFFFFFFF
        row["attributes"] = int_at(data, position + 21, 2)
        row["base_timestamp"] = int_at(data, position + 27, 8)
        row["max_timestamp"] = int_at(data, position + 35, 8)
        row["producer_id"] = int_at(data, position + 43, 8)
        row["producer_epoch"] = int_at(data, position + 51, 2)
        row["base_sequence"] = int_at(data, position + 53, 4)
        row["record_count"] = int_at(data, position + 57, 4)
    else:
        attributes = int_at(data, position + 17, 1) & LEGACY_ATTRIBUTES_MASK
        timestamp = int_at(data, position + 18, 8) if magic == 1 else -1
        row["last_offset_delta"] = 0
        row["crc"] = int_at(data, position + 12, 4) & 0xFFFFFFFF
        row["attributes"] = attributes
        row["base_timestamp"] = row["max_timestamp"] = timestamp
        row["leader_epoch"] = row["producer_id"] = row["producer_epoch"] = row["base_sequence"] = -1
        row["record_count"] = 1 if attributes & CODEC_MASK == 0 else -1


#: A run: consecutive batches of a segment. `first_offset` is where it starts, or -1 if unknown, or a lower bound if
#: the segment has gaps (not `dense`). The segment ends before `end_offset`, and its log with the run if `ends_file`.
RUN = np.dtype([("first_offset", np.int64), ("end_offset", np.int64), ("dense", np.int64), ("ends_file", np.int64)])


@fill_kernel
def first_misplaced(batches: np.ndarray, run_of_batch: np.ndarray, runs: np.ndarray) -> int:
    """Return the first misplaced row of `batches` (BATCH), or -1; `run_of_batch` has the row in `runs` of each batch.

    The offsets of a run must ascend, must have no gaps in a dense segment, and must not exceed the segment's end.
    Only a run that ends the log may reach the segment's last offset (`end_offset` - 1). In a dense segment it must.
    """
    last_offset = -1
    for row in range(batches.size):
        run = runs[run_of_batch[row]]
        begins_run = row == 0 or run_of_batch[row] != run_of_batch[row - 1]
        ends_run = row + 1 == batches.size or run_of_batch[row] != run_of_batch[row + 1]
        ends_file = run["ends_file"] and ends_run
        # compares the offset before a batch with the last offset of the previous batch, since + 1 could overflow
        offset_before = batches[row]["base_offset"] - 1
        expected_before = run["first_offset"] - 1 if begins_run else last_offset
        last_offset = batches[row]["base_offset"] + batches[row]["last_offset_delta"]
        last_of_segment = run["end_offset"] - 1
        must_follow = run["dense"] and expected_before >= -1  # an unknown first offset gives -2
        if offset_before < expected_before or (must_follow and offset_before != expected_before):
            return row
        if last_offset > last_of_segment or (not ends_file and last_offset == last_of_segment):
            return row
        if ends_file and run["dense"] and last_offset != last_of_segment:
            return row
    return -1


@fill_kernel
def cut_runs(joins: np.ndarray, sizes: np.ndarray, limit: int, firsts: np.ndarray) -> int:
    """Cut batches into runs of at most `limit` bytes, or of one batch; fills `firsts` with the first batch of each.

    `joins` has for each batch whether it may follow the previous one in a run. Returns the number of runs.
    """
    count = run_bytes = 0
    for row in range(sizes.size):
        run_bytes += sizes[row]
        if row == 0 or not joins[row] or run_bytes > limit:
            firsts[count] = row
            count += 1
            run_bytes = sizes[row]
    return count


#: How many bytes one read gets, beginning with a header. If batches are small, it also gets the next headers.
WINDOW_BYTES = 4096
_NO_BATCHES = -1, -1, -1


@fill_kernel
def _find_batches(
    file: int, span: tuple[int, int], segment: tuple[int, int, bool], target: tuple[int, int, int], window: np.ndarray
) -> tuple[int, int, int]:
    """Find the batches of a log `file` that are in `target`: (first offset, end offset, most bytes).

    Returns their start and end positions and the next offset. The first batch may have more than the most bytes.
    Returns _NO_BATCHES if there are none, after a bad header, and for formats 0 and 1. The search starts at the batch
    at span[0]; the log ends at span[1]. `segment` is what the headers must match: the offset of the batch at span[0]
    (-1 if unknown: then it must not exceed the first offset), the offset after the segment, and whether it is dense.
    """
    position, log_end = span
    expected_offset, segment_end, is_dense = segment
    first_offset, end_offset, room = target
    begin = end = next_offset = -1
    window_begin = window_end = position
    while position < log_end and (begin < 0 or position - begin < room):
        if window_end - position < HEADER_SIZE:
            window_begin = position
            count = min(window.size, log_end - position)
            window_end = position + read_at(file, pointer_to(window, 0), count, position)
            if window_end - position < HEADER_SIZE:
                return _NO_BATCHES
        header = position - window_begin
        base_offset, last_offset_delta = int_at(window, header, 8), int_at(window, header + LAST_DELTA_AT, 4)
        size, record_count = LOG_OVERHEAD + int_at(window, header + LENGTH_AT, 4), int_at(window, header + 57, 4)
        if int_at(window, header + MAGIC_AT, 1) != 2 or not HEADER_SIZE <= size <= log_end - position:
            return _NO_BATCHES
        if base_offset < max(expected_offset, 0) or last_offset_delta < 0 or record_count < 0:
            return _NO_BATCHES
        if is_dense and expected_offset >= 0 and base_offset != expected_offset:
            return _NO_BATCHES
        if base_offset > segment_end - 1 - last_offset_delta:
            return _NO_BATCHES
        if expected_offset < 0 and base_offset > first_offset:
            return _NO_BATCHES
        expected_offset = base_offset + last_offset_delta + 1
        if base_offset >= end_offset or (begin >= 0 and position + size - begin > room):
            break
        if expected_offset > first_offset:
            begin = position if begin < 0 else begin
            end, next_offset = position + size, expected_offset
        position += size
    return begin, end, next_offset


#: Finds no batches without a compiler: Python cannot call `read_at`.
find_batches: Any = _find_batches if COMPILED else lambda *_: _NO_BATCHES


# CRC-32C uses the instruction of the processor if there is one. It then reads three ranges at a time, since an
# instruction takes three cycles, but one can start in every cycle (Intel's method). Otherwise it uses tables, with
# sixteen bytes per step (Intel's slicing-by-16). That is ten times slower per byte than the library `crc32c`, but a
# call of the library costs as much as some hundred bytes.

_POLYNOMIAL = 0x82F63B78
_ONES = 0xFFFFFFFF
EMPTY_CRC = 0  # the checksum of no bytes: the initial value
_LENGTH_BYTES = 4  # the number of zeros that `_with_zeros` appends is an integer of this many bytes
#: The bytes of a lane, one of the three ranges. The bytes after the last long lanes are read in short lanes.
_LONG_LANE, _SHORT_LANE = 1 << 12, 1 << 9


def crc_tables(polynomial: int) -> np.ndarray:
    """Return a table with the checksum of each byte value followed by k zero bytes in row k, 0 to 15."""
    rows = np.zeros((16, 256), np.int64)
    first = np.arange(256)
    for _ in range(8):
        first = (first >> 1) ^ np.where(first & 1, polynomial, 0)
    rows[0] = first
    for row in range(1, 16):
        rows[row] = (rows[row - 1] >> 8) ^ first[rows[row - 1] & 0xFF]
    return rows


_TABLES = crc_tables(_POLYNOMIAL)


def _product(first: Any, second: Any) -> Any:
    """Multiply two polynomials (highest bit: x^0) modulo the checksum's; in Python both may be arrays."""
    product = 0 * second
    for bit in range(32):
        product ^= second * (first >> (31 - bit) & 1)  # if `first` has x^bit
        second = (second >> 1) ^ (_POLYNOMIAL * (second & 1))  # times x
    return product


def _powers() -> np.ndarray:
    """Return factors [k, n]. The `_product` of a factor and a checksum is the checksum after n * 256^k zero bytes."""
    # A factor is x^(8 n 256^k) modulo the polynomial. `squares` has those for powers of two of zero bytes: the first
    # one is x^8, and each next one the square of the previous one
    squares = [1 << (31 - 8)]
    while len(squares) < 8 * _LENGTH_BYTES:
        squares.append(_product(squares[-1], squares[-1]))
    powers = np.full((_LENGTH_BYTES, 1), 1 << 31, np.int64)
    # `squares_of_bit` is the column 2^bit. Times each column n below 2^bit, it gives the column n + 2^bit
    for squares_of_bit in np.array(squares).reshape(_LENGTH_BYTES, 8).T:
        powers = np.hstack([powers, _product(squares_of_bit[:, None], powers)])
    return powers


def _tables_after_zeros(exponent: int) -> np.ndarray:
    """Return a table: the XOR of its items [k, byte k of a checksum] is the checksum after 2^exponent zero bytes."""
    power, byte_values = int(_POWERS[exponent // 8, 1 << (exponent % 8)]), np.arange(256)  # 2^exponent = n * 256^k
    return np.stack([_product(power, byte_values << (8 * row)) for row in range(4)])


_POWERS = _powers()
_LONG_ZEROS, _SHORT_ZEROS = _tables_after_zeros(12), _tables_after_zeros(9)  # the lanes have 2^12 and 2^9 bytes
_product_called = called(_product)  # compiled once per kernel, instead of inlined


@inlined
def _with_zeros(crc: int, count: int) -> int:
    """Append `count` zero bytes to a checksum without inverting it (^ _ONES): the caller's XOR cancels inversions."""
    for byte in range(_LENGTH_BYTES):
        digit = (count >> (8 * byte)) & 0xFF
        if digit:
            crc = _product_called(_POWERS[byte, digit], crc)
    return crc


@inlined
def _step(tables: np.ndarray, word: int, row: int) -> int:
    """Return the checksum of the 8 bytes of `word`, followed by `row` zero bytes."""
    crc: int = (
        tables[row + 7, word & 0xFF]
        ^ tables[row + 6, word >> 8 & 0xFF]
        ^ tables[row + 5, word >> 16 & 0xFF]
        ^ tables[row + 4, word >> 24 & 0xFF]
        ^ tables[row + 3, word >> 32 & 0xFF]
        ^ tables[row + 2, word >> 40 & 0xFF]
        ^ tables[row + 1, word >> 48 & 0xFF]
        ^ tables[row, word >> 56 & 0xFF]
    )
    return crc


@inlined
def crc_of_tables(tables: np.ndarray, initial: int, data: np.ndarray, start: int, end: int) -> int:
    """Return the checksum after data[start:end], by tables of `crc_tables`; the bounds are not checked."""
    crc = initial ^ _ONES
    position = start
    while end - position >= 16:
        crc = _step(tables, int64_at(data, position) ^ crc, 8) ^ _step(tables, int64_at(data, position + 8), 0)
        position += 16
    while position < end:
        crc = tables[0, (crc ^ item_at(data, position)) & 0xFF] ^ (crc >> 8)
        position += 1
    return crc ^ _ONES


@called
def crc_by_tables(initial: int, data: np.ndarray, start: int, end: int) -> int:
    return crc_of_tables(_TABLES, initial, data, start, end)


@inlined
def _with_zero_lane(zeros_tables: np.ndarray, crc: int) -> int:
    high: int = zeros_tables[2, crc >> 16 & 0xFF] ^ zeros_tables[3, crc >> 24 & 0xFF]
    low: int = zeros_tables[0, crc & 0xFF] ^ zeros_tables[1, crc >> 8 & 0xFF]
    return low ^ high


@called
def _add_lanes(
    crc: int, data: np.ndarray, position: int, end: int, lane: int, zeros_tables: np.ndarray
) -> tuple[int, int]:
    """Read three ranges of `lane` bytes at a time; returns the checksum, not inverted, and the next position."""
    while end - position >= 3 * lane:
        second = third = 0
        for offset in range(position, position + lane, 8):
            crc = crc_of_word(crc, int64_at(data, offset))
            second = crc_of_word(second, int64_at(data, offset + lane))
            third = crc_of_word(third, int64_at(data, offset + 2 * lane))
        # a lane is appended as zeros; then the checksum of its bytes is added by XOR
        crc = _with_zero_lane(zeros_tables, _with_zero_lane(zeros_tables, crc) ^ second) ^ third
        position += 3 * lane
    return crc, position


@called
def crc_by_instruction(initial: int, data: np.ndarray, start: int, end: int) -> int:
    crc, position = initial ^ _ONES, start
    if end - position >= 3 * _SHORT_LANE:
        crc, position = _add_lanes(crc, data, position, end, _LONG_LANE, _LONG_ZEROS)
        crc, position = _add_lanes(crc, data, position, end, _SHORT_LANE, _SHORT_ZEROS)
    while end - position >= 8:
        crc = crc_of_word(crc, int64_at(data, position))
        position += 8
    while position < end:
        crc = _TABLES[0, (crc ^ item_at(data, position)) & 0xFF] ^ (crc >> 8)
        position += 1
    return crc ^ _ONES


#: `crc32c_of(initial, data, start, end)` is the CRC-32C after data[start:end].
crc32c_of = crc_by_instruction if HAS_CRC_INSTRUCTION else crc_by_tables


@fill_kernel
def first_mismatch(data: np.ndarray, batches: np.ndarray, size_limit: int, checked_from: int) -> int:
    """Return the first batch of format 2, of fewer than `size_limit` bytes, that has a wrong checksum; or -1.

    The checksums are of a batch's bytes from `checked_from` on. `record_batch.SHORT_BATCH` explains the limit.
    """
    for row in range(batches.size):
        batch = batches[row]
        if batch["magic"] == 2 and batch["size"] < size_limit:
            start = batch["position"]
            if crc32c_of(EMPTY_CRC, data, start + checked_from, start + batch["size"]) != batch["crc"]:
                return row
    return -1


@fill_kernel
def crcs_of_slices(data: np.ndarray, starts: np.ndarray, ends: np.ndarray, crcs: np.ndarray) -> None:
    """Put the checksum of each slice [start, end) of `data` into `crcs`; the bounds are not checked."""
    for row in range(starts.size):
        crcs[row] = crc32c_of(EMPTY_CRC, data, starts[row], ends[row])


@fill_kernel
def write_crcs(data: np.ndarray, batches: np.ndarray) -> None:
    """Put the checksum of each of `batches` (format 2, all within `data`) into its row, and into `data`."""
    for row in range(batches.size):
        start = batches[row]["position"]
        crc = crc32c_of(EMPTY_CRC, data, start + CRC_START, start + batches[row]["size"])
        batches[row]["crc"] = crc
        put_int_at(data, start + CRC_AT, 4, crc)


@inlined
def crc_with_batch(initial: int, data: np.ndarray, batch: np.void, checked_from: int, min_combined_size: int) -> int:
    """Return the checksum after `batch` (a BATCH row within `data`), from the checksum `initial` before it.

    The batch's own checksum, which must be right, is of its bytes from `checked_from` on. If the batch has at least
    `min_combined_size` bytes, only those before `checked_from` are read; checksums are combined (`crc32_combine`).
    """
    start = batch["position"]
    if batch["magic"] != 2 or batch["size"] < min_combined_size:
        return crc32c_of(initial, data, start, start + batch["size"])
    crc = crc32c_of(initial, data, start, start + checked_from)
    combined: int = _with_zeros(crc, batch["size"] - checked_from) ^ batch["crc"]
    return combined


_CRC32_TABLES = crc_tables(0xEDB88320)  # for CRC-32, the checksum of formats 0 and 1


@fill_kernel
def find_valid(data: np.ndarray, batches: np.ndarray, valid: np.ndarray) -> None:
    """Write to `valid` whether the checksum of each of `batches` (all within `data`) is right."""
    for row in range(batches.size):
        batch = batches[row]
        start = batch["position"]
        end = start + batch["size"]
        if batch["magic"] < 2:
            crc = crc_of_tables(_CRC32_TABLES, EMPTY_CRC, data, start + LEGACY_CRC_START, end)
        else:
            crc = crc32c_of(EMPTY_CRC, data, start + CRC_START, end)
        put_at(valid, row, crc == batch["crc"])


def crcs_of_rows(rows: np.ndarray) -> np.ndarray:
    """Return the checksum of each row's bytes, as int64; fast only if a row has few bytes."""
    columns = np.ascontiguousarray(rows).view(np.uint8).reshape(len(rows), rows.dtype.itemsize)
    checksums = np.full(len(rows), _ONES)
    for byte in columns.T:
        checksums = _TABLES[0][(checksums ^ byte) & 0xFF] ^ (checksums >> 8)
    result: np.ndarray = checksums ^ _ONES
    return result


def crcs_joined(firsts: np.ndarray, lasts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return the checksums of joined ranges from the checksums of both parts, and the `sizes` of the last parts."""
    joined = firsts
    for row in range(_LENGTH_BYTES):
        digits = (sizes >> (8 * row)) & 0xFF
        if digits.any():
            joined = _product(_POWERS[row][digits], joined)
    result: np.ndarray = joined ^ lasts
    return result
