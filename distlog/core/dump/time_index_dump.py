"""Dumps a time index, and compares its entries with the records of its log."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from distlog.core.batches.source import Source
from distlog.core.buffers import byte_array
from distlog.core.dump.dumped_file import DumpedFile, Frames
from distlog.core.dump.index_dump import check_sanity, entries_of
from distlog.core.dump.line import Line, Longs, number
from distlog.core.dump.options import DumpOptions
from distlog.core.dump.output import DumpOutput
from distlog.core.dump.scanned import scan
from distlog.core.errors import CorruptRecordError
from distlog.core.indexes.time_index import ENTRY

NOTHING = -1

TIME_ENTRY = Line("entry", (number("timestamp"), number("offset")))
_INDEXED = number("indexTimestamp", "Index timestamp: ")
WRONG_TIME = Line("timestampMismatch", (_INDEXED, number("logTimestamp", ", log timestamp: ")), begin="  ")
OUT_OF_ORDER = Line(
    "outOfOrderTimestamp", (_INDEXED, number("previous", ", Previously indexed timestamp: ")), begin="  "
)
NOT_FOUND = Line(
    "offsetNotFound", (number("offset", "Indexed offset: "), number("logOffset", ", found log offset: "))
)


def dump_time_index(file: DumpedFile, options: DumpOptions, output: DumpOutput) -> None:
    """Write what is in a `.timeindex` file, and which entries no batch of the log ends with, or has the time of."""
    if options.index_sanity_check:
        check_sanity(file, ENTRY, "relative_offset", output)
        return
    previous = NOTHING
    for entries in entries_of(file, ENTRY, "relative_offset"):
        times, offsets = entries["timestamp"], entries["relative_offset"] + file.base_offset
        if not options.verify_index_only:
            output.lines(TIME_ENTRY, {"timestamp": times, "offset": offsets})
        if len(entries):
            _compare(file, times, offsets, previous, output)
            previous = int(times[-1])


def _compare(file: DumpedFile, times: Longs, offsets: Longs, previous: int, output: DumpOutput) -> None:
    log = _LoggedTimes(offsets)
    log.read(file.sibling(".log"), output)
    found = log.last_offsets == offsets
    wrong = found & (log.timestamps != times)
    columns = {"indexTimestamp": times[wrong], "logTimestamp": log.timestamps[wrong]}
    output.problems(f"Found timestamp mismatch in :{file.path}", WRONG_TIME, columns)
    before = np.append(previous, times[:-1])
    unordered = found & (before >= times)
    columns = {"indexTimestamp": times[unordered], "previous": before[unordered]}
    output.problems(f"Found out of order timestamp in :{file.path}", OUT_OF_ORDER, columns)
    columns = {"offset": offsets[~found], "logOffset": log.last_offsets[~found]}
    output.problems("The following indexed offsets are not found in the log.", NOT_FOUND, columns)


@dataclass(slots=True)
class _LoggedTimes:
    """For each of `offsets` the last offset of its batch; if that is equal, also the largest timestamp there."""

    offsets: Longs
    last_offsets: Longs
    timestamps: Longs

    def __init__(self, offsets: Longs) -> None:
        self.offsets = offsets
        self.last_offsets, self.timestamps = np.full(len(offsets), NOTHING), np.full(len(offsets), NOTHING)

    def read(self, log: DumpedFile, output: DumpOutput) -> None:
        order, begin = np.argsort(self.offsets, kind="stable"), 0
        try:
            for frames in log.frames(log.size):
                last = frames.batches["base_offset"] + frames.batches["last_offset_delta"]
                end = int(np.searchsorted(self.offsets[order], last.max(), side="right"))
                entries = order[begin:end]
                rows = np.minimum(np.searchsorted(last, self.offsets[entries]), len(last) - 1)
                self.last_offsets[entries] = last[rows]
                for entry, row in zip(entries.tolist(), rows.tolist(), strict=True):
                    if last[row] == self.offsets[entry]:
                        self.timestamps[entry] = _largest_timestamp(log, frames, row)
                begin = max(begin, end)
                if begin == len(order):
                    return
        except CorruptRecordError as error:
            output.fail(error)


def _largest_timestamp(log: DumpedFile, frames: Frames, row: int) -> int:
    """The largest timestamp of a batch's records; raises CorruptRecordError."""
    batch = frames.batches[row : row + 1]
    found, error = scan(byte_array(frames.data), batch, Source(log.path, frames.position), (), 1)
    if error is not None:
        raise error
    return int(found.timestamps.max(initial=NOTHING))
