"""Chooses the records that compaction keeps, and makes batches of them (Kafka's `MemoryRecords.filterTo`)."""

from __future__ import annotations

import numpy as np

from distlog.core.kernels.native.jit import fill_kernel
from distlog.core.kernels.native.memory import copy_bytes
from distlog.core.kernels.varint import read_varint, read_varlong, varlong_size, write_varlong

#: How many bytes a record can grow by, when the base timestamp of its delta changes.
RECORD_GROWTH = 13

#: What is kept of a batch: how many records, how many of them tombstones, the first timestamp, the largest timestamp
#: and the first record that has it. `first_record` counts the records of the batches before.
KEPT = np.dtype(
    [
        ("first_record", np.int64),
        ("records", np.int64),
        ("tombstones", np.int64),
        ("first_timestamp", np.int64),
        ("max_timestamp", np.int64),
        ("offset_of_max", np.int64),
    ]
)


@fill_kernel
def choose_records(
    counts: np.ndarray,
    untouched: np.ndarray,
    expired: np.ndarray,
    latest_offset: int,
    current: np.ndarray,
    keyed: np.ndarray,
    valued: np.ndarray,
    offsets: np.ndarray,
    timestamps: np.ndarray,
    keep: np.ndarray,
    kept: np.ndarray,
) -> int:
    """Fill `keep`, per record, and `kept` (KEPT rows), per batch; returns how many records lacked a key.

    A batch is given by its number of records (`counts`), whether all of them stay (`untouched`) and whether its
    tombstones have `expired`. In the other batches a record stays when its offset is above `latest_offset`. It also
    stays when it is `current`, the last of its key, and has a value or is a tombstone that has not expired.
    """
    unkeyed = 0
    record = 0
    for batch in range(counts.size):
        row = kept[batch]
        row["first_record"] = record
        row["records"] = 0
        row["tombstones"] = 0
        for index in range(record, record + counts[batch]):
            stays = untouched[batch] or offsets[index] > latest_offset
            if not stays:
                if not keyed[index]:
                    unkeyed += 1
                else:
                    stays = current[index] and (valued[index] or not expired[batch])
            keep[index] = stays
            if not stays:
                continue
            if row["records"] == 0:
                row["first_timestamp"] = timestamps[index]
            if row["records"] == 0 or timestamps[index] > row["max_timestamp"]:
                row["max_timestamp"] = timestamps[index]
                row["offset_of_max"] = offsets[index]
            row["records"] += 1
            if not valued[index]:
                row["tombstones"] += 1
        record += counts[batch]
    return unkeyed


@fill_kernel
def rewrite_records(
    data: np.ndarray,
    sections: np.ndarray,
    kept: np.ndarray,
    base_timestamps: np.ndarray,
    keep: np.ndarray,
    timestamps: np.ndarray,
    target: np.ndarray,
    ends: np.ndarray,
) -> None:
    """Write the kept records of `sections` to `target`, batch after batch, and where each batch ends to `ends`.

    Their times become relative to `base_timestamps`; all else is copied. The records were scanned before, so their
    bounds are known to be right.
    """
    position = 0
    for batch in range(sections.size):
        at, end = sections[batch]["start"], sections[batch]["end"]
        first = kept[batch]["first_record"]
        for index in range(first, first + sections[batch]["record_count"]):
            size, body = read_varint(data, at, end)
            at = body + size
            if not keep[index]:
                continue
            _, rest = read_varlong(data, body + 1, end)
            delta = timestamps[index] - base_timestamps[batch]
            position = write_varlong(target, position, 1 + varlong_size(delta) + at - rest)
            target[position] = data[body]
            position = write_varlong(target, position + 1, delta)
            copy_bytes(target, position, data, rest, at - rest)
            position += at - rest
        ends[batch] = position


@fill_kernel
def copy_slices(
    target: np.ndarray,
    target_positions: np.ndarray,
    source: np.ndarray,
    source_positions: np.ndarray,
    sizes: np.ndarray,
) -> None:
    """Copy slices of `source` to places in `target`."""
    for index in range(sizes.size):
        copy_bytes(target, target_positions[index], source, source_positions[index], sizes[index])
