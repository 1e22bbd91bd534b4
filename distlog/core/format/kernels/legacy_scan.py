"""Finds the fields of messages of formats 0 and 1 (Kafka's `LegacyRecord`), in the columns of `record_scan`."""

from __future__ import annotations

import numpy as np

from distlog.core.format.kernels.batch_scan import (
    CODEC_MASK,
    LEGACY_ENTRY_SIZES,
    LOG_OVERHEAD,
    SMALLEST_PREFIX,
)
from distlog.core.format.kernels.native import fill_kernel, inlined, int_at
from distlog.core.format.kernels.record_scan import (
    BAD_BODY,
    BAD_KEY,
    BAD_LENGTH,
    BAD_OFFSET,
    BAD_VALUE,
    NOT_APPEND_TIME,
    OK,
    put_slice,
)
from distlog.core.format.kernels.types import Slices


@inlined
def _entry_end(data: np.ndarray, position: int, end: int) -> int:
    """The end of the entry at `position`: 0 if it is malformed or compressed, -1 if `end` cuts it off."""
    if end - position < SMALLEST_PREFIX:
        return -1
    size = LOG_OVERHEAD + int_at(data, position + 8, 4)
    magic = int_at(data, position + 16, 1)
    if magic < 0 or magic > 1 or size < LEGACY_ENTRY_SIZES[magic]:
        return 0
    if size > end - position:
        return -1
    return 0 if int_at(data, position + 17, 1) & CODEC_MASK else position + size


@fill_kernel
def count_entries(data: np.ndarray, start: int, end: int) -> tuple[int, int, int, int]:
    """Walk the uncompressed whole entries in [start, end): (status, how many, first and last offset as stored)."""
    position = start
    count = 0
    first = -1
    last = -1
    while True:
        following = _entry_end(data, position, end)
        if following < 0:
            return OK, count, first, last
        if following == 0:
            return BAD_LENGTH, count, first, last
        last = int_at(data, position, 8)
        if count == 0:
            first = last
        count += 1
        position = following


@fill_kernel
def scan_entries(
    data: np.ndarray,
    sections: np.ndarray,
    offsets: np.ndarray,
    timestamps: np.ndarray,
    key: Slices,
    value: Slices,
) -> tuple[int, int, int]:
    """Scan entries as `scan_records` does; a section's `base_offset` is added to each stored offset."""
    emitted = 0
    key_bytes = 0
    value_bytes = 0
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
            magic = int_at(data, position + 16, 1)
            timestamp = int_at(data, position + 18, 8) if magic == 1 else -1
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
