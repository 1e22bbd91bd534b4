"""The records sections of batches: where they are, and the decompressed bytes of compressed ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from distlog.core.batches.compression import MAX_RECORDS_BYTES, NONE, Expander
from distlog.core.batches.legacy_batch import open_wrapper
from distlog.core.batches.record_batch import APPEND_TIME, SHORT_BATCH
from distlog.core.batches.source import Source, of_rows
from distlog.core.buffers import byte_array
from distlog.core.config import MAX_INT, MAX_LONG, MIN_LONG
from distlog.core.errors import CorruptRecordError
from distlog.core.kernels.batch_scan import CODEC_MASK, HEADER_SIZE, LEGACY_ENTRY_SIZES
from distlog.core.kernels.record_scan import CHECKED, NOT_APPEND_TIME, SECTION, SMALLEST_RECORD

_FIRST_GUESS = 4

#: The most bytes of records that are opened at once, since Arrow's `binary` has 32-bit offsets.
MAX_DECODED_BYTES = MAX_INT


@dataclass(frozen=True, slots=True)
class AskedBatches:
    """Batches of one buffer, and which of their records are wanted: one value for all, or an array of one per batch.

    Wanted are records with offsets from `start_offset` (included) to `end_offset` (excluded) and timestamps from
    `oldest` to `newest` (both included). `unchecked` says that nobody has compared their checksums.
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
    def of_any_time(self) -> bool:
        """Whether records of any timestamp are wanted."""
        return (
            isinstance(self.oldest, int)
            and isinstance(self.newest, int)
            and self.oldest == MIN_LONG
            and self.newest == MAX_LONG
        )

    def of_rows(self, rows: np.ndarray) -> AskedBatches:
        """The same for the batches `rows` alone."""
        return AskedBatches(
            self.data,
            self.batches[rows],
            of_rows(self.shift, rows),
            of_rows(self.partition, rows),
            of_rows(self.start_offset, rows),
            of_rows(self.end_offset, rows),
            self.source.of_rows(rows),
            of_rows(self.oldest, rows),
            of_rows(self.newest, rows),
            self.unchecked,
        )

    def corrupt(self, message: str, row: int, **details: Any) -> CorruptRecordError:
        """The error for batch number `row`."""
        return self.source.corrupt(message, row, self.batches[row], **details)


def checked_by_scan(batches: np.ndarray) -> np.ndarray:
    """Of which batches the scan compares the checksums: of short ones of format 2, if none of all is compressed.

    It then goes over their bytes as they are stored. Beside a compressed batch, the records of each are copied.
    """
    if (batches["attributes"] & CODEC_MASK).any():
        return np.zeros(batches.size, np.bool_)
    found: np.ndarray = (batches["magic"] == 2) & (batches["size"] < SHORT_BATCH)
    return found


def open_sections(asked: AskedBatches, enough: int = MAX_DECODED_BYTES) -> tuple[np.ndarray, np.ndarray]:
    """The uncompressed records of batches of one format: a buffer, and SECTION rows in it.

    Without compression the buffer is that of the batches. Compressed batches are decompressed one by one until there
    are `enough` bytes, so there may be fewer sections than batches.
    Raises CorruptRecordError for a section that does not decompress, or is too short for its number of records.
    """
    sections = _stored_sections(asked)
    data = asked.data
    if (asked.batches["attributes"] & CODEC_MASK).any():
        data, count = _expand_sections(asked, sections, enough)
        sections = sections[:count]
    smallest = SMALLEST_RECORD if asked.batches["magic"][0] == 2 else LEGACY_ENTRY_SIZES[0]
    room = sections["end"] - sections["start"]
    too_many = sections["record_count"] * smallest > room
    if too_many.any():
        raise asked.corrupt("a batch is too short for the records that it claims to hold", int(np.argmax(too_many)))
    if room.sum() > MAX_DECODED_BYTES:
        raise asked.corrupt("batches hold more than 2 GiB of records together: read fewer at a time", 0)
    return data, sections


def _stored_sections(asked: AskedBatches) -> np.ndarray:
    # A legacy section is the whole entry, and stores the offset itself instead of a delta to the batch's.
    batches = asked.batches
    current = batches["magic"][0] == 2
    sections = np.zeros(batches.size, SECTION)
    sections["start"] = batches["position"] + (HEADER_SIZE if current else 0)
    sections["end"] = batches["position"] + batches["size"]
    sections["record_count"] = batches["record_count"]
    sections["base_offset"] = batches["base_offset"] + asked.shift if current else asked.shift
    sections["last_offset_delta"] = batches["last_offset_delta"]
    sections["base_timestamp"] = batches["base_timestamp"]
    by_append_time = batches["attributes"] & APPEND_TIME != 0
    sections["append_time"] = np.where(by_append_time, batches["max_timestamp"], NOT_APPEND_TIME)
    sections["crc"] = batches["crc"]
    sections["crc"][~(asked.unchecked & checked_by_scan(batches))] = CHECKED
    sections["start_offset"] = asked.start_offset
    sections["end_offset"] = asked.end_offset
    return sections


def _expand_sections(asked: AskedBatches, sections: np.ndarray, enough: int) -> tuple[np.ndarray, int]:
    """The bytes of the first sections, up to about `enough` bytes, and the number of these sections."""
    expander = Expander(min(_FIRST_GUESS * int((sections["end"] - sections["start"]).sum()), enough + enough // 4))
    for row, section in enumerate(sections):
        if expander.size >= enough:
            return byte_array(expander.array), row
        start, limit = expander.size, MAX_DECODED_BYTES - expander.size
        batch = asked.batches[row]
        codec = int(batch["attributes"]) & CODEC_MASK
        if codec != NONE:
            limit = min(limit, MAX_RECORDS_BYTES)
        data = asked.data[section["start"] : section["end"]]
        try:
            if batch["magic"] != 2 and codec != NONE:
                wrapper = open_wrapper(asked.data, batch, limit=limit)
                section["base_offset"] += wrapper.base_offset
                codec, data = NONE, wrapper.entries
            section["end"] = expander.expand(codec, data, limit=limit)
        except CorruptRecordError as error:
            raise asked.corrupt(error.message, row, **error.details) from error
        section["start"] = start
    return byte_array(expander.array), len(sections)
