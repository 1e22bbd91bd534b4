"""Dumps files by their suffixes, as Kafka's `DumpLogSegments` does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from distlog.core import paths
from distlog.core.arrays import byte_array
from distlog.core.errors import (
    CorruptIndexError,
    CorruptMetadataError,
    CorruptRecordError,
    DistlogError,
    InvalidConfigError,
    StorageError,
    UnsupportedVersionError,
)
from distlog.core.format.offset_and_time_index import OFFSET_ENTRY, TIME_ENTRY
from distlog.core.format.record_batch import LOG_OVERHEAD, Source
from distlog.core.format.transaction_index import TRANSACTION_ENTRY, VERSION
from distlog.core.integers import MAX_INT
from distlog.core.kafka.dump_lines import ABSENT, DumpOptions, DumpOutput, Line, Longs, number, optional
from distlog.core.kafka.log_dump import DumpedFile, dump_log, scan
from distlog.core.segments.producer_states import read_producer_snapshot


def dump(files: Iterable[DumpedFile], options: DumpOptions, output: DumpOutput) -> None:
    """Write the contents of `files`; a file that cannot be read is reported and skipped."""
    for file in files:
        output.say(f"Dumping {file.address}", "file", file=file.address)
        try:
            _dump_one(file, options, output)
        except BrokenPipeError:
            # the reader of the output has closed it
            raise
        except DistlogError as error:
            output.fail(error)
        except OSError as error:
            where = error.filename or file.address
            output.fail(StorageError(f"cannot read the file: {error.strerror or error}", file=where))


#: How many entries are read at once.
ENTRIES = 1 << 16
#: The bytes read of a batch: enough for its last offset.
_HEAD_BYTES = 27

OFFSET_ENTRY_LINE = Line("entry", (number("offset"), number("position")))
MISMATCH = Line(
    "indexMismatch", (number("indexOffset", "Index offset: "), number("logOffset", ", log offset: ")), begin="  "
)
NO_BATCH = Line(
    "indexedPositionNotFound", (number("offset", "Index offset: "), number("position", ", position: ")), begin="  "
)


def dump_index(file: DumpedFile, options: DumpOptions, output: DumpOutput) -> None:
    """Write the entries of an `.index` file, and the entries without a batch that ends with their offset."""
    if file.size < OFFSET_ENTRY.itemsize:
        output.say(f"{file.address} is empty.", "empty")
        return
    if options.index_sanity_check:
        check_sanity(file, OFFSET_ENTRY, "relative_offset", output)
        return
    log, mismatches, missing = file.sibling(".log"), [], []
    for entries in entries_of(file, OFFSET_ENTRY, "relative_offset"):
        offsets, positions = entries["relative_offset"] + file.base_offset, entries["position"].astype(np.int64)
        if not options.verify_index_only:
            output.lines(OFFSET_ENTRY_LINE, {"offset": offsets, "position": positions})
        has_batch, last_offsets = _last_offsets(log, positions)
        differs = last_offsets != offsets[has_batch]
        mismatches.append((offsets[has_batch][differs], last_offsets[differs]))
        missing.append((offsets[~has_batch], positions[~has_batch]))
    offsets, log_offsets = (np.concatenate(column) for column in zip(*mismatches, strict=True))
    columns = {"indexOffset": offsets, "logOffset": log_offsets}
    output.problems(f"Mismatches in :{file.path}", MISMATCH, columns)
    offsets, positions = (np.concatenate(column) for column in zip(*missing, strict=True))
    title = f"The log has no whole batch at these indexed positions, in :{file.path}"
    output.problems(title, NO_BATCH, {"offset": offsets, "position": positions})


def entries_of(file: DumpedFile, entry: np.dtype[Any], field: str) -> Iterator[npt.NDArray[Any]]:
    """Yield the entries of an index file as int64, some thousand at a time, up to the zeros after a crash."""
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
    """Check an index as a broker does at startup (`sanityCheck`), and write that it passed."""
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
    """Flag the `positions` of complete batches, and return their last offsets."""
    size = log.size
    has_batch = (positions >= 0) & (positions + _HEAD_BYTES <= size)
    ranges = [(log.name, position, position + _HEAD_BYTES) for position in positions[has_batch].tolist()]
    heads = np.frombuffer(b"".join(log.storage.read_ranges(ranges)), np.uint8).reshape(-1, _HEAD_BYTES)
    lengths = _integers(heads, 8, 4)
    is_complete = (lengths >= _HEAD_BYTES - LOG_OVERHEAD - 1) & (
        positions[has_batch] + LOG_OVERHEAD + lengths <= size
    )
    has_batch[has_batch] = is_complete
    heads = heads[is_complete]
    return has_batch, _integers(heads, 0, 8) + np.where(heads[:, 16] >= 2, _integers(heads, 23, 4), 0)


def _integers(heads: npt.NDArray[np.uint8], start: int, width: int) -> Longs:
    """Return the big-endian integers of `width` bytes at `start` in the rows."""
    return np.ascontiguousarray(heads[:, start : start + width]).view(f">i{width}")[:, 0].astype(np.int64)


NOTHING = -1

TIME_ENTRY_LINE = Line("entry", (number("timestamp"), number("offset")))
_INDEXED = number("indexTimestamp", "Index timestamp: ")
WRONG_TIME = Line("timestampMismatch", (_INDEXED, number("logTimestamp", ", log timestamp: ")), begin="  ")
OUT_OF_ORDER = Line(
    "outOfOrderTimestamp", (_INDEXED, number("previous", ", Previously indexed timestamp: ")), begin="  "
)
NOT_FOUND = Line(
    "offsetNotFound", (number("offset", "Indexed offset: "), number("logOffset", ", found log offset: "))
)


def dump_time_index(file: DumpedFile, options: DumpOptions, output: DumpOutput) -> None:
    """Write the entries of a `.timeindex` file, and the entries without a batch that ends there or has their time."""
    if options.index_sanity_check:
        check_sanity(file, TIME_ENTRY, "relative_offset", output)
        return
    previous = NOTHING
    for entries in entries_of(file, TIME_ENTRY, "relative_offset"):
        times, offsets = entries["timestamp"], entries["relative_offset"] + file.base_offset
        if not options.verify_index_only:
            output.lines(TIME_ENTRY_LINE, {"timestamp": times, "offset": offsets})
        if len(entries):
            log = _LoggedTimes(offsets)
            log.read(file.sibling(".log"), output)
            is_last = log.last_offsets == offsets
            wrong = is_last & (log.timestamps != times)
            columns = {"indexTimestamp": times[wrong], "logTimestamp": log.timestamps[wrong]}
            output.problems(f"Found timestamp mismatch in :{file.path}", WRONG_TIME, columns)
            previous_times = np.append(previous, times[:-1])
            unordered = is_last & (previous_times >= times)
            columns = {"indexTimestamp": times[unordered], "previous": previous_times[unordered]}
            output.problems(f"Found out of order timestamp in :{file.path}", OUT_OF_ORDER, columns)
            columns = {"offset": offsets[~is_last], "logOffset": log.last_offsets[~is_last]}
            output.problems("The following indexed offsets are not found in the log.", NOT_FOUND, columns)
            previous = int(times[-1])


@dataclass(slots=True)
class _LoggedTimes:
    """For `offsets`, the last offset of their batch, and if that is equal, its largest timestamp."""

    offsets: Longs
    last_offsets: Longs
    timestamps: Longs

    def __init__(self, offsets: Longs) -> None:
        self.offsets = offsets
        self.last_offsets, self.timestamps = np.full(len(offsets), NOTHING), np.full(len(offsets), NOTHING)

    def read(self, log: DumpedFile, output: DumpOutput) -> None:
        order, begin = np.argsort(self.offsets, kind="stable"), 0
        try:
            for window in log.frames(log.size):
                last = window.rows["base_offset"] + window.rows["last_offset_delta"]
                end = int(np.searchsorted(self.offsets[order], last.max(), side="right"))
                entries = order[begin:end]
                rows = np.minimum(np.searchsorted(last, self.offsets[entries]), len(last) - 1)
                self.last_offsets[entries] = last[rows]
                for entry, row in zip(entries.tolist(), rows.tolist(), strict=True):
                    if last[row] == self.offsets[entry]:
                        batch, source = window.rows[row : row + 1], Source(log.path, window.position)
                        records, error = scan(byte_array(window.data), batch, source, (), 1)
                        if error is not None:
                            raise error
                        self.timestamps[entry] = int(records.timestamps.max(initial=NOTHING))
                begin = max(begin, end)
                if begin == len(order):
                    return
        except CorruptRecordError as error:
            output.fail(error)


_ABORTED = ("version", "producerId", "firstOffset", "lastOffset", "lastStableOffset")
ABORTED = Line("abortedTransaction", tuple(number(name) for name in _ABORTED))
_PRODUCER = (
    *(number(name) for name in ("producerId", "producerEpoch", "coordinatorEpoch")),
    optional("currentTxnFirstOffset"),
    number("lastTimestamp"),
)
_LAST_BATCH = tuple(
    number(name) for name in ("firstSequence", "lastSequence", "lastOffset", "offsetDelta", "timestamp")
)
PRODUCER = Line("producer", (*_PRODUCER, *_LAST_BATCH))
#: A producer without a known batch. Kafka's line ends with a space.
PRODUCER_WITHOUT_BATCH = Line("producer", _PRODUCER, end=" \n")
EPOCH = Line("leaderEpoch", (number("epoch"), number("startOffset")))


def dump_transaction_index(file: DumpedFile, output: DumpOutput) -> None:
    """Write the aborted transactions in a `.txnindex` file; raises UnsupportedVersionError for a later version."""
    data = file.storage.read(file.name)
    entries = np.frombuffer(
        data[: len(data) // TRANSACTION_ENTRY.itemsize * TRANSACTION_ENTRY.itemsize], TRANSACTION_ENTRY
    )
    later = np.flatnonzero(entries["version"] >> 8 > VERSION)
    readable = entries[: later[0]] if len(later) else entries
    columns = {
        name: readable[field].astype(np.int64)
        for name, field in zip(_ABORTED, TRANSACTION_ENTRY.names or (), strict=True)
    }
    output.lines(ABORTED, columns | {"version": columns["version"] >> 8})
    if len(later):
        text = "an aborted transaction has an unknown version: a newer Kafka may have written it"
        raise UnsupportedVersionError(text, file=file.path, position=int(later[0]) * TRANSACTION_ENTRY.itemsize)


def dump_producers(file: DumpedFile, output: DumpOutput) -> None:
    """Write the producers in a `.snapshot` file; raises CorruptIndexError if it is damaged."""
    entries = read_producer_snapshot(file.storage.read(file.name), file=file.path)
    first_offset, epoch = entries["transaction_first_offset"], entries["coordinator_epoch"]
    columns = {
        "producerId": entries["producer_id"],
        "producerEpoch": entries["producer_epoch"],
        "coordinatorEpoch": epoch,
        "currentTxnFirstOffset": np.where(first_offset >= 0, first_offset, ABSENT),
        "lastTimestamp": entries["last_timestamp"],
        "firstSequence": (entries["last_sequence"].astype(np.int64) - entries["offset_delta"]) & MAX_INT,
        "lastSequence": entries["last_sequence"],
        "lastOffset": entries["last_offset"],
        "offsetDelta": entries["offset_delta"],
        "timestamp": entries["last_timestamp"],
    }
    for row, has_batch in enumerate(entries["last_offset"] >= 0):
        line = PRODUCER if has_batch else PRODUCER_WITHOUT_BATCH
        output.lines(line, {name: values[row : row + 1] for name, values in columns.items()})


def dump_leader_epochs(file: DumpedFile, output: DumpOutput) -> None:
    """Write the epochs in a `leader-epoch-checkpoint` file."""
    try:
        lines = file.storage.read(file.name).decode().splitlines()
        entries = [[int(word) for word in line.split()] for line in lines[2:]]
        if lines and (int(lines[0]) != 0 or int(lines[1]) != len(entries) or {*map(len, entries)} - {2}):
            raise ValueError("its version is not 0, or the number of its entries is wrong")
    except (ValueError, IndexError) as error:
        raise CorruptMetadataError(f"not a checkpoint of leader epochs: {error}", file=file.path) from None
    epochs, offsets = zip(*entries, strict=True) if entries else ((), ())
    output.lines(EPOCH, {"epoch": np.array(epochs, np.int64), "startOffset": np.array(offsets, np.int64)})


def _dump_one(file: DumpedFile, options: DumpOptions, output: DumpOutput) -> None:
    if file.suffix == ".log":
        dump_log(file, options, output)
    elif file.suffix == ".index":
        dump_index(file, options, output)
    elif file.suffix == ".timeindex":
        dump_time_index(file, options, output)
    elif file.suffix == ".txnindex":
        dump_transaction_index(file, output)
    elif file.suffix == ".snapshot":
        dump_producers(file, output)
    elif file.name == paths.LEADER_EPOCHS:
        dump_leader_epochs(file, output)
    elif file.suffix == paths.BUNDLE_SUFFIX:
        output.fail(
            InvalidConfigError(
                "a bundle has segments of many partitions, which only the topic's commits locate: `distlog export` "
                "writes their files, `distlog segments` lists them, `distlog read` prints their records",
                file=file.address,
            )
        )
    else:
        output.note(f"Ignoring unknown file {file.address}", "unknownFile")
