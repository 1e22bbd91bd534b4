"""Dumps an offset index, and compares its entries with the batches of its log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from distlog.core.batches.record_batch import LOG_OVERHEAD
from distlog.core.dump.dumped_file import DumpedFile
from distlog.core.dump.line import Line, Longs, number
from distlog.core.dump.options import DumpOptions
from distlog.core.dump.output import DumpOutput
from distlog.core.errors import CorruptIndexError
from distlog.core.indexes.offset_index import ENTRY

#: How many entries are read at once.
ENTRIES = 1 << 16
#: What is read of a batch: enough for its last offset.
_HEAD_BYTES = 27

OFFSET_ENTRY = Line("entry", (number("offset"), number("position")))
MISMATCH = Line(
    "indexMismatch", (number("indexOffset", "Index offset: "), number("logOffset", ", log offset: ")), begin="  "
)
NO_BATCH = Line(
    "indexedPositionNotFound", (number("offset", "Index offset: "), number("position", ", position: ")), begin="  "
)


def dump_index(file: DumpedFile, options: DumpOptions, output: DumpOutput) -> None:
    """Write what is in an `.index` file, and which entries do not lead to a batch that ends with their offset."""
    if file.size < ENTRY.itemsize:
        output.say(f"{file.address} is empty.", "empty")
        return
    if options.index_sanity_check:
        check_sanity(file, ENTRY, "relative_offset", output)
        return
    log, mismatches, missing = file.sibling(".log"), [], []
    for entries in entries_of(file, ENTRY, "relative_offset"):
        offsets, positions = entries["relative_offset"] + file.base_offset, entries["position"].astype(np.int64)
        if not options.verify_index_only:
            output.lines(OFFSET_ENTRY, {"offset": offsets, "position": positions})
        there, last_offsets = _last_offsets(log, positions)
        differs = last_offsets != offsets[there]
        mismatches.append((offsets[there][differs], last_offsets[differs]))
        missing.append((offsets[~there], positions[~there]))
    offsets, log_offsets = (np.concatenate(column) for column in zip(*mismatches, strict=True))
    columns = {"indexOffset": offsets, "logOffset": log_offsets}
    output.problems(f"Mismatches in :{file.path}", MISMATCH, columns)
    offsets, positions = (np.concatenate(column) for column in zip(*missing, strict=True))
    title = f"The log has no whole batch at these indexed positions, in :{file.path}"
    output.problems(title, NO_BATCH, {"offset": offsets, "position": positions})


def entries_of(file: DumpedFile, entry: np.dtype[Any], field: str) -> Iterator[npt.NDArray[Any]]:
    """The entries of an index file, with `field` (relative offsets) as int64, some thousand at a time.

    After a crash a file may end in zeros: they begin with an entry of the base offset that is not the first, and are
    left out. So is an incomplete last entry.
    """
    wide = np.dtype([(name, np.int64) for name in entry.names or ()])
    count = file.size // entry.itemsize
    for start in range(0, count, ENTRIES):
        end = min(start + ENTRIES, count)
        data = file.storage.read_joined([(file.name, start * entry.itemsize, end * entry.itemsize)])
        entries = np.frombuffer(data, entry).astype(wide)
        zeros = np.flatnonzero(entries[field] == 0)
        zeros = zeros[zeros + start > 0]
        if len(zeros):
            yield entries[: zeros[0]]
            return
        yield entries


def check_sanity(file: DumpedFile, entry: np.dtype[Any], field: str, output: DumpOutput) -> None:
    """Check what Kafka checks when a broker starts (`sanityCheck`), and say that it holds.

    Raises CorruptIndexError.
    """
    size = file.size
    if size % entry.itemsize:
        text = f"the length of the index is not a multiple of {entry.itemsize}: rebuild it"
        raise CorruptIndexError(text, file=file.path, size=size)
    if size:
        ends = [(file.name, 0, entry.itemsize), (file.name, size - entry.itemsize, size)]
        first, last = np.frombuffer(file.storage.read_joined(ends), entry)
        position = size - entry.itemsize
        if last[field] < 0:
            text = "the last entry is below the base offset: rebuild the index"
            raise CorruptIndexError(
                text, file=file.path, position=position, offset=file.base_offset + int(last[field])
            )
        if "timestamp" in (entry.names or ()) and last["timestamp"] < first["timestamp"]:
            text = "the last entry is older than the first: rebuild the index"
            raise CorruptIndexError(text, file=file.path, position=position, timestamp=int(last["timestamp"]))
    output.say(f"{file.address} passed sanity check.", "sane")


def _last_offsets(log: DumpedFile, positions: Longs) -> tuple[npt.NDArray[np.bool_], Longs]:
    """Which of `positions` have a whole batch behind them, and the last offsets of these."""
    size = log.size
    there = (positions >= 0) & (positions + _HEAD_BYTES <= size)
    ranges = [(log.name, position, position + _HEAD_BYTES) for position in positions[there].tolist()]
    heads = np.frombuffer(b"".join(log.storage.read_ranges(ranges)), np.uint8).reshape(-1, _HEAD_BYTES)
    lengths = _integers(heads, 8, 4)
    whole = (lengths >= _HEAD_BYTES - LOG_OVERHEAD - 1) & (positions[there] + LOG_OVERHEAD + lengths <= size)
    there[there] = whole
    heads = heads[whole]
    return there, _integers(heads, 0, 8) + np.where(heads[:, 16] >= 2, _integers(heads, 23, 4), 0)


def _integers(heads: npt.NDArray[np.uint8], start: int, width: int) -> Longs:
    """The big-endian integers of `width` bytes from `start` on in each row."""
    return np.ascontiguousarray(heads[:, start : start + width]).view(f">i{width}")[:, 0].astype(np.int64)
