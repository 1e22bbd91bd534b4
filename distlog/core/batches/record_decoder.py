"""Decodes record batches to Arrow, many batches at a time and without a Python object per record.

One kernel pass finds every field and copies the fields of bytes columns. It goes over the records sections, in the
data itself or in the decompressed data.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from distlog.core.arrow_arrays import booleans
from distlog.core.batches.record_batch import (
    APPEND_TIME,
    COLUMNS,
    CONTROL,
    CREATE_TIME,
    LOG_APPEND_TIME,
    NO_TIMESTAMP,
    first_bad_crc,
    wrong_crc,
)
from distlog.core.batches.record_fields import RecordFields, fixed_width, headers_to_arrow, struct_of
from distlog.core.batches.record_sections import MAX_DECODED_BYTES, AskedBatches, checked_by_scan, open_sections
from distlog.core.batches.source import Source
from distlog.core.buffers import byte_array
from distlog.core.config import MAX_LONG
from distlog.core.kernels import record_scan
from distlog.core.kernels.legacy_scan import scan_entries
from distlog.core.kernels.record_scan import scan_records

#: The message of the error for offset deltas that do not increase.
OFFSETS_OUT_OF_ORDER = "a record's offset is not above the one before, or beyond its batch"

_COMPLAINTS = {
    record_scan.BAD_LENGTH: "a record's length does not fit into its batch",
    record_scan.BAD_KEY: "a record's key is longer than the record",
    record_scan.BAD_VALUE: "a record's value is longer than the record",
    record_scan.BAD_HEADERS: "a record has a negative number of headers, or more than fit",
    record_scan.BAD_BODY: "a record's fields do not fill its length",
    record_scan.BAD_OFFSET: OFFSETS_OUT_OF_ORDER,
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
    """The records of `batches`, rows of `read_headers` on `data`, as the given `columns` of SCHEMA, in their order.

    `data` may hold the batches of several segments; every argument after `columns` may be given per batch. `shift` is
    added to stored offsets. The result has the records with start_offset <= offset < end_offset, and never those of
    control batches. In a LogAppendTime batch every record has the batch's largest timestamp; in format 0 it is -1
    (KIP-32). The caller must check checksums before. `file_position` is the position of data[0] in the file.
    Raises CorruptRecordError for a batch that does not decode, and KeyError for a column that SCHEMA does not have.
    """
    source = Source(file, file_position)
    asked = AskedBatches(byte_array(data), batches, shift, partition, start_offset, end_offset, source)
    parts = list(decode_parts(asked, columns, MAX_DECODED_BYTES))
    return parts[0] if len(parts) == 1 else pa.concat_batches(parts)


def decode_parts(asked: AskedBatches, columns: Sequence[str], part_bytes: int) -> Iterator[pa.RecordBatch]:
    """Yield the result of `decode` in parts, at least one.

    Compressed batches go into a part until they decompress to `part_bytes`. So memory is bounded by that, or by the
    largest batch, whatever the decompressed size of all batches is.

    Of batches that are `unchecked`, also of those without a wanted record, the checksums are compared: of some before
    all else, of the others before their part is yielded.
    """
    names = tuple(columns)
    for run in _runs_of_one_format(asked):
        while True:
            opened, records = _decode_run(run, names, part_bytes)
            yield records
            if opened == run.batches.size:
                break
            run = run.of_rows(np.arange(opened, run.batches.size))


def _runs_of_one_format(asked: AskedBatches) -> list[AskedBatches]:
    # At least one run, so that batches without records give an empty batch of the right schema.
    rows = _asked_rows(asked)
    if asked.unchecked:
        _check_unscanned(asked, rows)
    current = asked.batches["magic"][rows] == 2
    changes = np.flatnonzero(current[1:] != current[:-1]) + 1
    if changes.size:
        return [asked.of_rows(part) for part in np.split(rows, changes)]
    return [asked if rows.size == asked.batches.size else asked.of_rows(rows)]


def _check_unscanned(asked: AskedBatches, rows: np.ndarray) -> None:
    """Compare the checksums that the scan of `rows` does not."""
    left = np.ones(asked.batches.size, np.bool_)
    left[rows] = ~checked_by_scan(asked.batches[rows])
    unscanned = np.flatnonzero(left)
    bad = first_bad_crc(asked.data, asked.batches[unscanned])
    if bad >= 0:
        raise wrong_crc(asked.source, int(unscanned[bad]), asked.batches[unscanned[bad]])


def _asked_rows(asked: AskedBatches) -> np.ndarray:
    batches = asked.batches
    ends = batches["position"] + batches["size"]
    if batches.size and (batches["position"].min() < 0 or ends.max() > asked.data.size):
        raise ValueError("these batches are not of this data")
    first = batches["base_offset"] + asked.shift
    last = first + batches["last_offset_delta"]
    beyond = (first < 0) | (last < first)
    if beyond.any():
        raise asked.corrupt("the offsets of a batch, moved to their place, are out of range", int(np.argmax(beyond)))
    overlapping = (last >= asked.start_offset) & (first < asked.end_offset)
    holding_data = (batches["record_count"] > 0) & (batches["attributes"] & CONTROL == 0)
    return np.flatnonzero(overlapping & holding_data & _may_be_in_time(asked))


def _may_be_in_time(asked: AskedBatches) -> np.ndarray | bool:
    """Which batches may have a record in the time range: headers tell the largest time, but not the smallest."""
    if asked.of_any_time:
        return True
    largest = asked.batches["max_timestamp"]
    of_one_time = (asked.batches["attributes"] & APPEND_TIME != 0) | (asked.batches["record_count"] == 1)
    found: np.ndarray = (largest >= asked.oldest) & ((largest <= asked.newest) | ~of_one_time)
    return found


def _decode_run(asked: AskedBatches, names: tuple[str, ...], enough: int) -> tuple[int, pa.RecordBatch]:
    """Returns how many of the batches were opened, and their records."""
    kind = struct_of(names)
    if not asked.batches.size:
        return 0, pa.RecordBatch.from_struct_array(pa.nulls(0, kind))
    data, sections = open_sections(asked, enough)
    if sections.size < asked.batches.size:
        asked = asked.of_rows(np.arange(sections.size))
    room = int((sections["end"] - sections["start"]).sum())
    fields = RecordFields.allocate(int(sections["record_count"].sum()), names, room)
    count = scan_sections(asked, data, sections, fields)
    arrays = []
    for name in names:
        if name == "partition":
            arrays.append(_repeated(name, asked.partition, sections, count))
        elif name == "timestamp_type":
            arrays.append(_repeated(name, _timestamp_types(asked.batches), sections, count))
        elif name == "headers":
            arrays.append(headers_to_arrow(data, fields.headed, count, int(sections["header_count"].sum()), room))
        else:
            arrays.append(fields.to_arrow(name, count))
    # Through a struct, since a record batch without columns must also know its number of records.
    records = pa.StructArray.from_buffers(kind, count, [None], 0, children=arrays)
    if not asked.of_any_time:
        records = records_in_time(asked, sections["emitted"], fields.timestamps[:count], records)
    return sections.size, pa.RecordBatch.from_struct_array(records)


def records_in_time(
    asked: AskedBatches, counts: np.ndarray, timestamps: np.ndarray, records: pa.StructArray
) -> pa.StructArray:
    """Those of the records, `counts` per batch, whose timestamps are in the time range."""
    oldest, newest = (
        bound if isinstance(bound, int) else np.repeat(bound, counts) for bound in (asked.oldest, asked.newest)
    )
    chosen = (timestamps >= oldest) & (timestamps <= newest)
    return records if chosen.all() else records.filter(booleans(chosen))


def scan_sections(asked: AskedBatches, data: np.ndarray, sections: np.ndarray, fields: RecordFields) -> int:
    """Fill `fields` with the records of `sections`, which `open_sections` gave for `asked`; returns their number."""
    found = (fields.offsets, fields.timestamps, fields.key, fields.value)
    if asked.batches["magic"][0] == 2:
        status, row, number = scan_records(data, sections, *found, fields.headed)
    else:
        status, row, number = scan_entries(data, sections, *found)
    if status == record_scan.BAD_CRC:
        raise wrong_crc(asked.source, row, asked.batches[row])
    if status != record_scan.OK:
        raise asked.corrupt(_COMPLAINTS[status], row, record=number)
    return int(number)


def _timestamp_types(batches: np.ndarray) -> np.ndarray:
    kinds = np.where(batches["attributes"] & APPEND_TIME, LOG_APPEND_TIME, CREATE_TIME)
    kinds[batches["magic"] == 0] = NO_TIMESTAMP
    return kinds


def _repeated(name: str, value: int | np.ndarray, sections: np.ndarray, count: int) -> pa.Array:
    if isinstance(value, np.ndarray):
        values = np.repeat(value.astype(np.int32), sections["emitted"])
    else:
        values = np.full(count, value, np.int32)
    return fixed_width(name, values)
