"""Finds batches by their headers in an open log, without the interpreter lock."""

from __future__ import annotations

from typing import Any

import numpy as np

from distlog.core.format.kernels.batch_scan import HEADER_SIZE, LOG_OVERHEAD
from distlog.core.format.kernels.native import COMPILED, fill_kernel, int_at, pointer_to, read_at

#: The bytes of one read from a header: it holds several headers of small batches.
WINDOW_BYTES = 4096
_NONE = -1, -1, -1


@fill_kernel
def _find_batches(
    file: int, part: tuple[int, int], segment: tuple[int, int, bool], target: tuple[int, int, int], window: np.ndarray
) -> tuple[int, int, int]:
    position, log_end = part
    following, segment_end, is_dense = segment
    first_offset, end_offset, room = target
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
        header = position - window_begin
        base_offset, last_offset_delta = int_at(window, header, 8), int_at(window, header + 23, 4)
        size, record_count = LOG_OVERHEAD + int_at(window, header + 8, 4), int_at(window, header + 57, 4)
        if int_at(window, header + 16, 1) != 2 or not HEADER_SIZE <= size <= log_end - position:
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
    file: int, part: tuple[int, int], segment: tuple[int, int, bool], target: tuple[int, int, int], window: np.ndarray
) -> tuple[int, int, int]:
    return _NONE


#: `find_batches(file, (position, log_end), (following, segment_end, is_dense), (first_offset, end_offset, room),
#: window)`: the start and end of the batches of an open log with offsets in [`first_offset`, `end_offset`), as many
#: as fit into `room` bytes but at least one; and the next offset. A batch starts at `position`, at the offset
#: `following`, or if that is -1, at most at `first_offset`. The segment ends before the offset `segment_end` and the
#: position `log_end`; if it `is_dense`, its offsets have no gaps. All are -1 if there are no batches, after a bad
#: header, and for batches of formats 0 and 1. `window` has WINDOW_BYTES. Without a compiler it finds none.
find_batches: Any = _find_batches if COMPILED else _find_none
