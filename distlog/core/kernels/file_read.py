"""Finds batches by their headers in an open log, without the interpreter lock."""

from __future__ import annotations

from typing import Any

import numpy as np

from distlog.core.kernels.batch_scan import HEADER_SIZE, LOG_OVERHEAD
from distlog.core.kernels.native import COMPILED, fill_kernel, int_at, pointer_to, read_at

#: What is read from a header on: the headers of small batches come together.
WINDOW_BYTES = 4096
_NONE = -1, -1, -1


@fill_kernel
def _find_batches(
    file: int, part: tuple[int, int], segment: tuple[int, int, bool], wanted: tuple[int, int, int], window: np.ndarray
) -> tuple[int, int, int]:
    position, log_end = part
    following, segment_end, is_dense = segment
    first_offset, end_offset, room = wanted
    begin = end = next_offset = -1
    window_begin = window_end = position
    while position < log_end and (begin < 0 or position - begin < room):
        if window_end - position < HEADER_SIZE:
            window_begin = position
            window_end = position + read_at(
                file, pointer_to(window, 0), min(window.size, log_end - position), position
            )
            if window_end - position < HEADER_SIZE:
                return _NONE
        at = position - window_begin
        base_offset, last_offset_delta = int_at(window, at, 8), int_at(window, at + 23, 4)
        size, record_count = LOG_OVERHEAD + int_at(window, at + 8, 4), int_at(window, at + 57, 4)
        if int_at(window, at + 16, 1) != 2 or not HEADER_SIZE <= size <= log_end - position:
            return _NONE
        if base_offset < max(following, 0) or last_offset_delta < 0 or record_count < 0:
            return _NONE
        if is_dense and following >= 0 and base_offset != following:
            return _NONE
        if base_offset > segment_end - 1 - last_offset_delta:
            return _NONE
        if following < 0 and base_offset > first_offset:
            return _NONE
        following = base_offset + last_offset_delta + 1
        if base_offset >= end_offset or (begin >= 0 and position + size - begin > room):
            break
        position += size
        if following > first_offset:
            begin = position - size if begin < 0 else begin
            end, next_offset = position, following
    return begin, end, next_offset


def _find_none(
    file: int, part: tuple[int, int], segment: tuple[int, int, bool], wanted: tuple[int, int, int], window: np.ndarray
) -> tuple[int, int, int]:
    return _NONE


#: `find_batches(file, (position, log_end), (following, segment_end, is_dense), (first_offset, end_offset, room),
#: window)`: where the batches of an open log begin and end that hold offsets from `first_offset` on, below
#: `end_offset`: as many as fit into `room` bytes, but at least one; and the offset behind them. A batch begins at
#: `position`, at the offset `following`; if that is -1, not behind `first_offset`. The segment ends below the offset
#: `segment_end`, and before `log_end`; if it `is_dense`, its offsets have no gaps. All are -1 if there are none, if a
#: header is not what it should be, or for batches of formats 0 and 1. `window` has WINDOW_BYTES. Without a compiler
#: it finds none.
find_batches: Any = _find_batches if COMPILED else _find_none
