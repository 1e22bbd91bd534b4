"""Checks the records of one batch, format 2, before a log takes them over as they are (Kafka's `LogValidator`)."""

from __future__ import annotations

import numpy as np

from distlog.core.kernel_tuples import CheckedRecords, TimeBounds
from distlog.core.kernels.native.jit import fill_kernel
from distlog.core.kernels.record_scan import BAD_END, BAD_OFFSET, OK, read_record

#: What a log does not take in a record, as the checks tell it for each.
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
    """Check the records in data[start:end], as many as `verdicts` has items, whose offsets must be 0, 1, 2 and so on.

    Fills `verdicts` with one of FINE, NO_KEY and BAD_TIME for each. The status is one of `record_scan`.
    """
    position, refused = start, 0
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
        verdict = FINE
        if needs_keys and record.key_size < 0:
            verdict = NO_KEY
        elif timestamp != -1 and (timestamp < bounds.oldest or timestamp > bounds.newest):
            verdict = BAD_TIME
        verdicts[number] = verdict
        refused += verdict != FINE
        position = record.end
    status = OK if position == end else BAD_END
    return CheckedRecords(status, verdicts.size, newest_record, newest, oldest, refused)
