"""Decodes record batches to Arrow, many batches at a time and without a Python object per record.

A section is the records of one batch, decompressed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from distlog.core.arrays import MAX_INT, MAX_LONG, MIN_LONG, booleans, byte_array, fitted, java_text, new_array
from distlog.core.errors import CorruptRecordError
from distlog.core.format.compression import MAX_RECORDS_BYTES, NONE, Expander
from distlog.core.format.kernels import record_scan
from distlog.core.format.kernels.batch_scan import CODEC_MASK, HEADER_SIZE, LEGACY_ENTRY_SIZES
from distlog.core.format.kernels.record_scan import (
    CHECKED,
    NOT_APPEND_TIME,
    SECTION,
    SMALLEST_RECORD,
    HeaderPositions,
    Slices,
    locate_headers,
    scan_entries,
    scan_records,
)
from distlog.core.format.record_batch import (
    APPEND_TIME,
    COLUMNS,
    CONTROL,
    CREATE_TIME,
    LOG_APPEND_TIME,
    NO_TIMESTAMP,
    SCHEMA,
    SHORT_BATCH,
    Source,
    first_bad_crc,
    open_wrapper,
    values_of_rows,
    wrong_crc,
)

_HEADERS = SCHEMA.field("headers").type
_NO_HEADERS = pa.nulls(0, _HEADERS.value_type)
#: Columns that repeat one value share memory if their number of rows is in this range. This many values are cached.
_SHARED_ROWS = range(1 << 14, 1 << 17)
_SHARED_VALUES = 8


@dataclass(frozen=True, slots=True)
class RecordFields:
    """Room for the fields of `size` records; a scan fills the first `count` slots."""

    offsets: np.ndarray
    timestamps: np.ndarray
    key: Slices
    value: Slices
    header_positions: HeaderPositions

    @classmethod
    def allocate(cls, size: int, columns: Collection[str], copied_bytes: int = 0) -> RecordFields:
        """Allocate room for `size` records; keys and values are copied if `copied_bytes` (of the sections) is set."""
        slots = size + 1 if "headers" in columns else 0  # one more for the end mark of HeaderPositions
        return cls(
            new_array(size, np.int64),
            new_array(size, np.int64),
            _allocate(size, copied_bytes) if "key" in columns else _allocate(0, 0),
            _allocate(size, copied_bytes) if "value" in columns else _allocate(0, 0),
            HeaderPositions(new_array(slots, np.int64), new_array(slots, np.int64)),
        )

    def to_arrow(self, name: str, count: int) -> pa.Array:
        """Return column `name` of the first `count` records; keys and values must have been copied."""
        if name in ("key", "value"):
            return _strings(self.key if name == "key" else self.value, pa.binary(), count)
        return fixed_width(name, (self.offsets if name == "offset" else self.timestamps)[:count])


def headers_to_arrow(
    data: np.ndarray, positions: HeaderPositions, count: int, header_count: int, section_bytes: int
) -> pa.Array:
    """Return the headers of the first `count` records: at most `header_count` headers of at most `section_bytes`."""
    if not header_count:
        return pa.Array.from_buffers(_HEADERS, count, [None, _repeated(0, count + 1)], 0, children=[_NO_HEADERS])
    offsets = new_array(count + 1, np.int32)
    key, value = _allocate(header_count, section_bytes), _allocate(header_count, section_bytes)
    locate_headers(data, positions, count, offsets, key, value)
    header_count = int(offsets[count])
    children = [_text(key, header_count), _strings(value, pa.binary(), header_count)]
    pairs = pa.StructArray.from_buffers(_HEADERS.value_type, header_count, [None], 0, children=children)
    return pa.Array.from_buffers(_HEADERS, count, [None, pa.py_buffer(offsets)], 0, children=[pairs])


def of_one_value(name: str, value: int, count: int) -> pa.Array:
    """Return column `name` of SCHEMA, an int32, with `count` times `value`; batches share its memory."""
    return pa.Array.from_buffers(SCHEMA.field(name).type, count, [None, _repeated(value, count)], 0)


def fixed_width(name: str, values: np.ndarray) -> pa.Array:
    """Return column `name` of SCHEMA with `values`, without a copy and without nulls."""
    return pa.Array.from_buffers(SCHEMA.field(name).type, values.size, [None, pa.py_buffer(values)], 0)


@lru_cache
def struct_of(columns: tuple[str, ...]) -> pa.DataType:
    """Return a struct type with `columns` of SCHEMA. Raises KeyError for another name."""
    return pa.struct([SCHEMA.field(name) for name in columns])


def _repeated(value: int, count: int) -> pa.Buffer:
    if count in _SHARED_ROWS:
        return _shared(value, _SHARED_ROWS.stop).slice(0, 4 * count)
    return _filled(value, count)


def _filled(value: int, count: int) -> pa.Buffer:
    values = np.full(count, value, np.int32)
    values.flags.writeable = False
    return pa.py_buffer(values)


_shared = lru_cache(_SHARED_VALUES)(_filled)


def _allocate(size: int, copied_bytes: int) -> Slices:
    offsets = new_array(size + 1, np.int32)
    offsets[0] = 0
    copies = new_array(copied_bytes, np.uint8)
    positions = new_array(0 if copied_bytes else size, np.int64)
    return Slices(offsets, new_array(size, np.bool_), copies, positions)


def _strings(slices: Slices, kind: pa.DataType, count: int) -> pa.Array:
    valid = slices.valid[:count]
    nulls = count - int(np.count_nonzero(valid))
    if count and nulls == count:
        return pa.nulls(count, kind)
    copied = fitted(slices.copies, int(slices.offsets[count]))
    bitmap = pa.py_buffer(np.packbits(valid, bitorder="little")) if nulls else None
    offsets = pa.py_buffer(slices.offsets[: count + 1])
    return pa.Array.from_buffers(kind, count, [bitmap, offsets, pa.py_buffer(copied)], nulls)


def _text(slices: Slices, count: int) -> pa.Array:
    text = _strings(slices, pa.string(), count)
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        return pa.array(list(map(java_text, text.view(pa.binary()).to_pylist())), pa.string())
    return text


_ASSUMED_RATIO = 4  # the expansion that is assumed before records are decompressed

#: The most bytes of records that are opened at once, since Arrow's `binary` has 32-bit offsets.
MAX_DECODED_BYTES = MAX_INT


@dataclass(frozen=True, slots=True)
class BatchSelection:
    """Batches of a buffer, and the offsets and times of the records to read.

    The fields from `shift` to `end_offset`, `oldest` and `newest` have one value, or one per batch. `end_offset` is
    excluded, `newest` included. `shift` is added to stored offsets. If `unchecked`, the reader compares checksums.
    """

    data: np.ndarray
    batches: np.ndarray
    shift: int | np.ndarray
    partition: int | np.ndarray
    start_offset: int | np.ndarray
    end_offset: int | np.ndarray
    source: Source
    oldest: int | np.ndarray = MIN_LONG
    newest: int | np.ndarray = MAX_LONG
    unchecked: bool = False

    @property
    def has_any_time(self) -> bool:
        """Whether to read records of all times."""
        bounds = self.oldest, self.newest
        return all(isinstance(bound, int) for bound in bounds) and bounds == (MIN_LONG, MAX_LONG)

    def of_rows(self, rows: np.ndarray) -> BatchSelection:
        names = ("shift", "partition", "start_offset", "end_offset", "oldest", "newest")
        values = {name: values_of_rows(getattr(self, name), rows) for name in names}
        return replace(self, batches=self.batches[rows], source=self.source.of_rows(rows), **values)

    def corrupt(self, message: str, row: int, **details: Any) -> CorruptRecordError:
        return self.source.corrupt(message, row, self.batches[row], **details)


def is_checked_by_scan(batches: np.ndarray) -> np.ndarray:
    """Flag the batches whose checksums the scan compares: short ones (SHORT_BATCH) of format 2."""
    # a scan cannot compare: checksums cover headers, too, and `_expand_sections` moves all sections away from them
    if (batches["attributes"] & CODEC_MASK).any():
        return np.zeros(batches.size, np.bool_)
    is_checked: np.ndarray = (batches["magic"] == 2) & (batches["size"] < SHORT_BATCH)
    return is_checked


def open_sections(selection: BatchSelection, max_bytes: int = MAX_DECODED_BYTES) -> tuple[np.ndarray, np.ndarray]:
    """Decompress about `max_bytes` of the first batches, all of one format; returns a buffer and SECTION rows."""
    sections = _stored_sections(selection)
    data = selection.data
    if (selection.batches["attributes"] & CODEC_MASK).any():
        data, count = _expand_sections(selection, sections, max_bytes)
        sections = sections[:count]
    smallest = SMALLEST_RECORD if selection.batches["magic"][0] == 2 else LEGACY_ENTRY_SIZES[0]
    section_bytes = sections["end"] - sections["start"]
    is_too_short = sections["record_count"] * smallest > section_bytes
    if is_too_short.any():
        raise selection.corrupt("a batch is too short for its number of records", int(np.argmax(is_too_short)))
    if section_bytes.sum() > MAX_DECODED_BYTES:
        raise CorruptRecordError("batches have more than 2 GiB of records together: read fewer at a time")
    return data, sections


def _stored_sections(selection: BatchSelection) -> np.ndarray:
    # in an old format a section is the whole entry, which stores its offset, so `base_offset` is only the shift
    batches = selection.batches
    is_current = batches["magic"][0] == 2
    sections = np.zeros(batches.size, SECTION)
    sections["start"] = batches["position"] + (HEADER_SIZE if is_current else 0)
    sections["end"] = batches["position"] + batches["size"]
    sections["record_count"] = batches["record_count"]
    sections["base_offset"] = batches["base_offset"] + selection.shift if is_current else selection.shift
    sections["last_offset_delta"] = batches["last_offset_delta"]
    sections["base_timestamp"] = batches["base_timestamp"]
    has_append_time = (batches["attributes"] & APPEND_TIME) != 0
    sections["append_time"] = np.where(has_append_time, batches["max_timestamp"], NOT_APPEND_TIME)
    sections["crc"] = batches["crc"]
    sections["crc"][~(selection.unchecked & is_checked_by_scan(batches))] = CHECKED
    sections["start_offset"] = selection.start_offset
    sections["end_offset"] = selection.end_offset
    return sections


def _expand_sections(selection: BatchSelection, sections: np.ndarray, max_bytes: int) -> tuple[np.ndarray, int]:
    """Return the first decompressed sections, about `max_bytes`, and their number."""
    assumed_bytes = _ASSUMED_RATIO * int((sections["end"] - sections["start"]).sum())
    expander = Expander(min(assumed_bytes, max_bytes + max_bytes // 4))  # the last batch may exceed `max_bytes`
    for row, section in enumerate(sections):
        if expander.size >= max_bytes:
            return byte_array(expander.array), row
        start, limit = expander.size, MAX_DECODED_BYTES - expander.size
        batch = selection.batches[row]
        codec = int(batch["attributes"]) & CODEC_MASK
        if codec != NONE:
            limit = min(limit, MAX_RECORDS_BYTES)
        data = selection.data[section["start"] : section["end"]]
        try:
            if batch["magic"] != 2 and codec != NONE:
                wrapper = open_wrapper(selection.data, batch, limit=limit)
                section["base_offset"] += wrapper.base_offset
                codec, data = NONE, wrapper.entries
            section["end"] = expander.expand(codec, data, limit=limit)
        except CorruptRecordError as error:
            raise selection.corrupt(error.message, row, **error.details) from error
        section["start"] = start
    return byte_array(expander.array), len(sections)


class OffsetsOutOfOrderError(CorruptRecordError):
    """The offset deltas of a batch's records do not increase, or are above the batch's last offset delta."""


_FAULTS = {
    record_scan.BAD_LENGTH: "a record's length does not fit into its batch",
    record_scan.BAD_KEY: "a record's key is longer than the record",
    record_scan.BAD_VALUE: "a record's value is longer than the record",
    record_scan.BAD_HEADERS: "a record has a negative number of headers, or more than fit",
    record_scan.BAD_BODY: "a record's fields do not fill its length",
    record_scan.BAD_OFFSET: "a record's offset is not after the previous offset, or is past its batch",
    record_scan.BAD_END: "a batch has bytes after its last record",
}


def decode(
    data: Any,
    batches: np.ndarray,
    *,
    columns: Sequence[str] = COLUMNS,
    shift: int | np.ndarray = 0,
    partition: int | np.ndarray = 0,
    start_offset: int | np.ndarray = 0,
    end_offset: int | np.ndarray = MAX_LONG,
    file: str | Sequence[str] = "",
    file_position: int | np.ndarray = 0,
) -> pa.RecordBatch:
    """Decode the records of `batches`, rows of `read_headers` on `data`, as `columns` of SCHEMA.

    Arguments after `columns` may be arrays with an item per batch. `shift` is added to stored offsets. Excludes
    `end_offset` and control records. With LogAppendTime, the timestamp is the batch's largest (KIP-32); in format 0,
    it is -1. The caller must check the checksums first.
    """
    source = Source(file, file_position)
    selection = BatchSelection(byte_array(data), batches, shift, partition, start_offset, end_offset, source)
    parts = list(decode_parts(selection, columns, MAX_DECODED_BYTES))
    return parts[0] if len(parts) == 1 else pa.concat_batches(parts)


def decode_parts(selection: BatchSelection, columns: Sequence[str], part_bytes: int) -> Iterator[pa.RecordBatch]:
    """Yield the result of `decode` in parts of about `part_bytes`, or one batch.

    If the batches are unchecked, each checksum is compared at the start, or before the part with its batch.
    """
    names = tuple(columns)
    for run in _runs_to_decode(selection):
        while True:
            decoded, records = _decode_run(run, names, part_bytes)
            yield records
            if decoded == run.batches.size:
                break
            run = run.of_rows(np.arange(decoded, run.batches.size))


def _runs_to_decode(selection: BatchSelection) -> list[BatchSelection]:
    """Return the batches that may have selected records, in runs of one format; compares the other checksums."""
    rows = _selected_rows(selection)
    if selection.unchecked:
        # compare the checksums of batches that are not selected or not `is_checked_by_scan`, since no scan does
        is_unscanned = np.ones(selection.batches.size, np.bool_)
        is_unscanned[rows] = ~is_checked_by_scan(selection.batches[rows])
        unscanned = np.flatnonzero(is_unscanned)
        bad = first_bad_crc(selection.data, selection.batches[unscanned])
        if bad >= 0:
            raise wrong_crc(selection.source, int(unscanned[bad]), selection.batches[unscanned[bad]])
    is_current = selection.batches["magic"][rows] == 2
    changes = np.flatnonzero(is_current[1:] != is_current[:-1]) + 1
    if changes.size:
        return [selection.of_rows(part) for part in np.split(rows, changes)]
    # a run without rows yields an empty batch of the right schema
    return [selection if rows.size == selection.batches.size else selection.of_rows(rows)]


def _selected_rows(selection: BatchSelection) -> np.ndarray:
    batches = selection.batches
    ends = batches["position"] + batches["size"]
    if batches.size and (batches["position"].min() < 0 or ends.max() > selection.data.size):
        raise ValueError("the batches are outside of the data")
    first = batches["base_offset"] + selection.shift
    last = first + batches["last_offset_delta"]
    is_out_of_range = (first < 0) | (last < first)
    if is_out_of_range.any():
        raise selection.corrupt("the shifted offsets of a batch are out of range", int(np.argmax(is_out_of_range)))
    overlaps = (last >= selection.start_offset) & (first < selection.end_offset)
    has_data = (batches["record_count"] > 0) & ((batches["attributes"] & CONTROL) == 0)
    return np.flatnonzero(overlaps & has_data & _may_be_in_time(selection))


def _may_be_in_time(selection: BatchSelection) -> np.ndarray | bool:
    """Flag the batches that may have a record in the time range, from the largest times in their headers."""
    if selection.has_any_time:
        return True
    # if its records have several times, a batch with a largest time after the range may have records in the range
    largest = selection.batches["max_timestamp"]
    is_append_time = (selection.batches["attributes"] & APPEND_TIME) != 0
    has_one_time = is_append_time | (selection.batches["record_count"] == 1)
    may_be: np.ndarray = (largest >= selection.oldest) & ((largest <= selection.newest) | ~has_one_time)
    return may_be


def _decode_run(selection: BatchSelection, names: tuple[str, ...], max_bytes: int) -> tuple[int, pa.RecordBatch]:
    """Return the number of decoded batches, and their records."""
    kind = struct_of(names)
    if not selection.batches.size:
        return 0, pa.RecordBatch.from_struct_array(pa.nulls(0, kind))
    data, sections = open_sections(selection, max_bytes)
    if sections.size < selection.batches.size:
        selection = selection.of_rows(np.arange(sections.size))
    section_bytes = int((sections["end"] - sections["start"]).sum())
    fields = RecordFields.allocate(int(sections["record_count"].sum()), names, section_bytes)
    count = scan_sections(selection, data, sections, fields)
    arrays = []
    for name in names:
        if name == "partition":
            arrays.append(_repeated_column(name, selection.partition, sections, count))
        elif name == "timestamp_type":
            arrays.append(_repeated_column(name, _timestamp_types(selection.batches), sections, count))
        elif name == "headers":
            header_count = int(sections["header_count"].sum())
            arrays.append(headers_to_arrow(data, fields.header_positions, count, header_count, section_bytes))
        else:
            arrays.append(fields.to_arrow(name, count))
    # a struct keeps the number of records even without columns
    records = pa.StructArray.from_buffers(kind, count, [None], 0, children=arrays)
    if not selection.has_any_time:
        records = records_in_time(selection, sections["emitted"], fields.timestamps[:count], records)
    return sections.size, pa.RecordBatch.from_struct_array(records)


def records_in_time(
    selection: BatchSelection, counts: np.ndarray, timestamps: np.ndarray, records: pa.StructArray
) -> pa.StructArray:
    """Return the `records` in the time range of the selection; batch i has the next counts[i] records."""
    oldest, newest = (
        bound if isinstance(bound, int) else np.repeat(bound, counts)
        for bound in (selection.oldest, selection.newest)
    )
    is_in_time = (timestamps >= oldest) & (timestamps <= newest)
    return records if is_in_time.all() else records.filter(booleans(is_in_time))


def scan_sections(selection: BatchSelection, data: np.ndarray, sections: np.ndarray, fields: RecordFields) -> int:
    """Fill `fields` with the records of `sections`, the result of `open_sections`; returns their number."""
    slots = (fields.offsets, fields.timestamps, fields.key, fields.value)
    if selection.batches["magic"][0] == 2:
        status, row, record_or_count = scan_records(data, sections, *slots, fields.header_positions)
    else:
        status, row, record_or_count = scan_entries(data, sections, *slots)
    if status == record_scan.BAD_CRC:
        raise wrong_crc(selection.source, row, selection.batches[row])
    if status != record_scan.OK:
        error = selection.corrupt(_FAULTS[status], row, record=record_or_count)
        if status == record_scan.BAD_OFFSET:
            raise OffsetsOutOfOrderError(error.message, **error.details)
        raise error
    return int(record_or_count)


#: Compressed batches are opened until they have expanded to this many bytes.
OPENED_BYTES = 16 << 20


def opened_sections(data: np.ndarray, batches: np.ndarray) -> Iterator[tuple[BatchSelection, np.ndarray, np.ndarray]]:
    """Yield parts of `batches`, which are headers of `data`, without control batches: (part, records, sections)."""
    for run in _runs_to_decode(BatchSelection(data, batches, 0, 0, 0, MAX_LONG, Source("", 0))):
        while run.batches.size:
            records, sections = open_sections(run, OPENED_BYTES)
            yield run.of_rows(np.arange(sections.size)), records, sections
            run = run.of_rows(np.arange(sections.size, run.batches.size))


def _timestamp_types(batches: np.ndarray) -> np.ndarray:
    kinds = np.where(batches["attributes"] & APPEND_TIME, LOG_APPEND_TIME, CREATE_TIME)
    kinds[batches["magic"] == 0] = NO_TIMESTAMP
    return kinds


def _repeated_column(name: str, value: int | np.ndarray, sections: np.ndarray, count: int) -> pa.Array:
    if not isinstance(value, np.ndarray):
        return of_one_value(name, value, count)
    if (value == value[0]).all():
        return of_one_value(name, int(value[0]), count)
    return fixed_width(name, np.repeat(value.astype(np.int32), sections["emitted"]))
