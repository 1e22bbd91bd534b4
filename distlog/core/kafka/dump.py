"""Dumps the files of a log directory by their suffixes, as Kafka's `DumpLogSegments` does."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from distlog.core import paths
from distlog.core.arrays import MAX_INT, MAX_LONG, Flags, Longs, byte_array
from distlog.core.errors import (
    CorruptIndexError,
    CorruptRecordError,
    DistlogError,
    InvalidConfigError,
    StorageError,
    UnsupportedVersionError,
)
from distlog.core.format.indexes import OFFSET_ENTRY, TIME_ENTRY, TRANSACTION_ENTRY, TRANSACTION_VERSION
from distlog.core.format.kernels.batch_scan import (
    BAD_LENGTH,
    BATCH,
    LOG_OVERHEAD,
    OK,
    SMALLEST_LENGTH,
    count_batches,
    find_valid,
    read_batches,
)
from distlog.core.format.record_batch import Batches, BatchWalk, Headers, Source
from distlog.core.kafka.dump_lines import (
    ABSENT,
    DumpedRecords,
    DumpOptions,
    DumpOutput,
    Line,
    LogStyle,
    decode,
    empty_records,
    number_field,
    number_fields,
    optional_field,
)
from distlog.core.kafka.partition_folder import read_epochs
from distlog.core.segments.producer_states import read_producer_snapshot
from distlog.core.segments.segment_parts import LogFile
from distlog.core.storage.backend import Part
from distlog.core.storage.calls import cores, in_order, prefetched
from distlog.core.storage.storage import Storage
from distlog.core.times import NO_TIMESTAMP


def _problem_line(kind: str, **labels: str) -> Line:
    """Return an indented line of numbers, each after its label."""
    return Line(kind, tuple(number_field(name, label) for name, label in labels.items()), begin="  ")


GAP_LINE = _problem_line("nonConsecutive", first="", second=" is followed by ")
ENTRIES_AT_ONCE = 1 << 16
#: The first bytes of a batch, with the fields that show its last offset (formats 0 and 1 lack the delta).
_BATCH_PREFIX = np.dtype(
    [("base_offset", ">i8"), ("length", ">i4"), ("", "V4"), ("magic", "u1"), ("", "V6"), ("last_offset_delta", ">i4")]
)
OFFSET_ENTRY_LINE = Line("entry", number_fields("offset", "position"))
MISMATCH_LINE = _problem_line("indexMismatch", indexOffset="Index offset: ", logOffset=", log offset: ")
NO_BATCH_LINE = _problem_line("indexedPositionNotFound", offset="Index offset: ", position=", position: ")
#: The offset that is shown, as in Kafka, for an entry of a time index whose batch is not in the log.
NO_SUCH_BATCH = -1
TIME_ENTRY_LINE = Line("entry", number_fields("timestamp", "offset"))
WRONG_TIME_LINE = _problem_line(
    "timestampMismatch", indexTimestamp="Index timestamp: ", logTimestamp=", log timestamp: "
)
OUT_OF_ORDER_LINE = _problem_line(
    "outOfOrderTimestamp", indexTimestamp="Index timestamp: ", previous=", Previously indexed timestamp: "
)
NOT_FOUND_LINE = Line(
    "offsetNotFound", (number_field("offset", "Indexed offset: "), number_field("logOffset", ", found log offset: "))
)
_ABORTED_FIELDS = ("version", "producerId", "firstOffset", "lastOffset", "lastStableOffset")
ABORTED_LINE = Line("abortedTransaction", number_fields(*_ABORTED_FIELDS))
_PRODUCER_FIELDS = (
    *number_fields("producerId", "producerEpoch", "coordinatorEpoch"),
    optional_field("currentTxnFirstOffset"),
    number_field("lastTimestamp"),
)
_LAST_BATCH_FIELDS = number_fields("firstSequence", "lastSequence", "lastOffset", "offsetDelta", "timestamp")
PRODUCER_LINE = Line("producer", (*_PRODUCER_FIELDS, *_LAST_BATCH_FIELDS))
#: A producer without a known batch. Kafka's line ends with a space.
PRODUCER_WITHOUT_BATCH_LINE = Line("producer", _PRODUCER_FIELDS, end=" \n")
EPOCH_LINE = Line("leaderEpoch", number_fields("epoch", "startOffset"))
_REBUILD_HINT = "run `distlog rebuild-index` for a topic; a broker rebuilds an index that you delete"
#: The log is processed in windows of this many bytes.
WINDOW_BYTES = 2 << 20
_BASE_OFFSET = re.compile(r"[0-9]{1,20}")
_FOLDER_AND_NAME = re.compile(r"(?P<folder>.*[/:])?(?P<name>[^/]*)", re.DOTALL)
#: The decompressed bytes of a part. A part is the batches of a window whose records are formatted at once.
PART_BYTES = 4 << 20
#: The most parts that are formatted ahead. This bounds the memory, since a window may decompress to any size.
_BUFFERED_PARTS = 4


def dump(files: Iterable[DumpedFile], options: DumpOptions, output: DumpOutput) -> None:
    """Write the contents of `files`; a file that cannot be read is reported and skipped."""
    for file in files:
        output.write_line(f"Dumping {file.address}", "file", file=file.address)
        output.title = ""  # so that the first problems in each file get a title
        try:
            _dump_file(file, options, output)
        except BrokenPipeError:
            raise
        except DistlogError as error:
            output.fail(error)
        except OSError as error:
            where = error.filename or file.address
            output.fail(StorageError(f"cannot read the file: {error.strerror or error}", file=where))


@dataclass(frozen=True, slots=True)
class DumpedFile:
    """A file, and its address as the user gave it."""

    address: str
    storage: Storage
    name: str

    @classmethod
    def from_address(cls, address: str, storage_options: dict[str, Any] | None = None) -> DumpedFile:
        """Return the file at a path or URL. Raises StorageError for a bad address."""
        match = _FOLDER_AND_NAME.fullmatch(address)
        assert match is not None
        return cls(address, Storage(match["folder"] or ".", storage_options), match["name"])

    @property
    def suffix(self) -> str:
        return "." + self.name.rpartition(".")[2] if "." in self.name else ""

    @property
    def path(self) -> str:
        return f"{self.storage.url.rstrip('/')}/{self.name}"

    @property
    def base_offset(self) -> int:
        """The offset in the name before the first dot; 0 if there is none, as in the names of distlog's files."""
        stem = self.name.partition(".")[0]
        offset = int(stem) if _BASE_OFFSET.fullmatch(stem) else 0
        return offset if offset <= MAX_LONG else 0

    @property
    def size(self) -> int:
        return self.storage.size(self.name)

    def sibling(self, suffix: str) -> DumpedFile:
        return DumpedFile(self.address, self.storage, self.name.partition(".")[0] + suffix)

    def windows(self, end: int) -> Iterator[Batches]:
        """Yield the complete batches before `end`, unchecked, WINDOW_BYTES at a time. Raises CorruptRecordError."""
        file = LogFile(self.storage, Part.file(self.name, end), end, mapped=False)
        try:
            yield from BatchWalk(file.read, 0, end, WINDOW_BYTES, "raise", headers=self._headers)
        finally:
            file.close()

    def _headers(self, data: memoryview, position: int) -> Headers:
        array = byte_array(data)
        allows_any_format = True
        status, stop, count = count_batches(array, 0, array.size, allows_any_format)
        rows = np.zeros(count, BATCH)
        read_batches(array, 0, rows)
        if status == OK:
            return rows, None
        # the base offset, of 8 bytes, precedes the length
        length = int.from_bytes(array[stop + 8 : stop + LOG_OVERHEAD].tobytes(), "big", signed=True)
        least = f"the smallest batch, of {SMALLEST_LENGTH}" if status == BAD_LENGTH else "its header"
        text = f"a batch claims {length} bytes, fewer than {least}: nothing after it can be read"
        return rows, CorruptRecordError(text, file=self.path, position=position + stop)


def _dump_file(file: DumpedFile, options: DumpOptions, output: DumpOutput) -> None:
    if file.suffix == ".log":
        output.write_line(f"Log starting offset: {file.base_offset}", "log", startOffset=file.base_offset)
        _LogDump(file, options, output).run(min(file.size, options.max_bytes))
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
        text = (
            "a bundle has segments of many partitions, which only the topic's commits locate: `distlog export` "
            "writes their files, `distlog segments` lists them, `distlog read` prints their records"
        )
        output.fail(InvalidConfigError(text, file=file.address))
    else:
        output.write_note(f"Ignoring unknown file {file.address}", "unknownFile")


class _LogDump:
    """Writes the batches of a `.log` file. Skips a batch that cannot be read, if its size is sound."""

    def __init__(self, file: DumpedFile, options: DumpOptions, output: DumpOutput) -> None:
        self._file, self._options, self._output = file, options, output
        style = LogStyle(not options.skip_record_metadata, options.print_data_log, output.as_json)
        self._windows = LogWindows(file.path, style, options.is_deep)
        self._last_offset = -1

    def run(self, end: int) -> None:
        position = 0
        try:
            for window, window_end in self._formatted(end):
                for batches in window:
                    self._output.out.write(batches.lines)
                    self._compare_offsets(batches.offsets)
                    if batches.error is not None:
                        self._output.fail(batches.error)
                position = window_end
        except CorruptRecordError as error:
            self._output.fail(error)
        # with `max_bytes` the last batch may be incomplete
        if position < end and self._options.max_bytes == MAX_INT:
            text = f"Found {end - position} invalid bytes at the end of {self._file.name}"
            self._output.write_line(text, "invalidBytes", count=end - position)

    def _formatted(self, end: int) -> Iterator[tuple[Iterator[BatchLines], int]]:
        """Yield the lines and the end of each window; all cores format the first parts of the next windows."""

        def format_ahead(window: Batches) -> tuple[Iterator[BatchLines], int]:
            return prefetched(self._windows.format(window), _BUFFERED_PARTS), window.end

        workers = cores()
        tasks = (partial(format_ahead, window) for window in self._file.windows(end))
        with closing(in_order(tasks, workers + 1, workers=workers, joined=True)) as windows:
            yield from windows

    def _compare_offsets(self, offsets: Longs) -> None:
        if self._last_offset >= 0:
            offsets = np.append(self._last_offset, offsets)
        gaps = np.flatnonzero(np.diff(offsets) != 1)
        title = f"Non-consecutive offsets in {self._file.path}"
        self._output.write_problems(title, GAP_LINE, {"first": offsets[gaps], "second": offsets[gaps + 1]})
        self._last_offset = int(offsets[-1]) if len(offsets) else self._last_offset


@dataclass(frozen=True, slots=True)
class BatchLines:
    """The lines of some batches, the offsets of their records, and the error that ended them."""

    lines: memoryview
    offsets: Longs
    error: CorruptRecordError | None


@dataclass(frozen=True, slots=True)
class LogWindows:
    """Formats windows of the log at `path`: batches alone, or with their records (`is_deep`)."""

    path: str
    style: LogStyle
    is_deep: bool

    def format(self, window: Batches) -> Iterator[BatchLines]:
        valid = np.zeros(len(window.rows), bool)
        find_valid(byte_array(window.data), window.rows, valid)
        # format each run of batches of one format by itself, since the fields of lines depend on the format
        changes = np.flatnonzero(np.diff(window.rows["magic"])) + 1
        for first, end in itertools.pairwise([0, *changes.tolist(), len(window.rows)]):
            row = first
            for records, error in self._records(window, window.rows[first:end]):
                part = slice(row, row + len(records.counts))
                lines = self.style.lines(window.rows[part], window.position, valid[part], records)
                yield BatchLines(lines, records.offsets.copy(), error)
                row = part.stop

    def _records(
        self, window: Batches, batches: npt.NDArray[Any]
    ) -> Iterator[tuple[DumpedRecords, CorruptRecordError | None]]:
        """Yield the records of `batches`, part by part; a batch that cannot be read is a part by itself."""
        source = Source(self.path, window.position)
        if not self.is_deep:
            yield empty_records(batches), None
            return
        if batches["magic"][0] < 0:
            # as in Kafka, an unknown format is read as format 2 only if its number is above 2
            text = f"batches have the unknown format {batches['magic'][0]}; their records are not shown"
            yield empty_records(batches), source.corrupt(text, 0, batches[0])
            return
        has_headers = batches["magic"][0] >= 2 and self.style.has_metadata
        columns = ("key", "value", "headers") if has_headers else ("key", "value")
        data = byte_array(window.data)
        while len(batches):
            records, error = decode(data, batches, source, columns, PART_BYTES)
            if error is not None and len(batches) > 1:
                # halve the batches until the bad one is alone
                yield from self._records(window, batches[: len(batches) // 2])
                batches = batches[len(batches) // 2 :]
            else:
                yield records, error
                batches = batches[len(records.counts) :]


def dump_index(file: DumpedFile, options: DumpOptions, output: DumpOutput) -> None:
    """Write the entries of an `.index` file; reports those without the last offset of the batch at their position."""
    if file.size < OFFSET_ENTRY.itemsize:
        output.write_line(f"{file.address} is empty.", "empty")
        return
    if options.index_sanity_check:
        check_sanity(file, OFFSET_ENTRY, output)
        return
    log = file.sibling(".log")
    for entries in read_entries(file, OFFSET_ENTRY):
        offsets, positions = entries["relative_offset"] + file.base_offset, entries["position"].astype(np.int64)
        if not options.verify_index_only:
            output.write_lines(OFFSET_ENTRY_LINE, {"offset": offsets, "position": positions})
        has_batch, last_offsets = _last_offsets(log, positions)
        differs = last_offsets != offsets[has_batch]
        columns = {"indexOffset": offsets[has_batch][differs], "logOffset": last_offsets[differs]}
        output.write_problems(f"Mismatches in :{file.path}", MISMATCH_LINE, columns)
        title = f"The log has no whole batch at these indexed positions, in :{file.path}"
        columns = {"offset": offsets[~has_batch], "position": positions[~has_batch]}
        output.write_problems(title, NO_BATCH_LINE, columns)


def read_entries(file: DumpedFile, entry: np.dtype[Any]) -> Iterator[npt.NDArray[Any]]:
    """Yield the entries of an index file as int64, ENTRIES_AT_ONCE at a time, up to the zeros that a crash leaves."""
    int64_type = np.dtype([(name, np.int64) for name in entry.names or ()])
    count = file.size // entry.itemsize
    for start in range(0, count, ENTRIES_AT_ONCE):
        end = min(start + ENTRIES_AT_ONCE, count)
        data = file.storage.read_joined([(file.name, start * entry.itemsize, end * entry.itemsize)])
        entries = np.frombuffer(data, entry).astype(int64_type)
        # only the first entry may have the relative offset 0; a later one is unused space
        zeros = np.flatnonzero(entries["relative_offset"] == 0)
        zeros = zeros[zeros + start > 0]
        if len(zeros):
            yield entries[: zeros[0]]
            return
        yield entries


def check_sanity(file: DumpedFile, entry: np.dtype[Any], output: DumpOutput) -> None:
    """Check an index as a broker does at startup (`sanityCheck`), and write that it passed."""
    size = file.size
    if size % entry.itemsize:
        text = f"the length of the index is not a multiple of {entry.itemsize}: {_REBUILD_HINT}"
        raise CorruptIndexError(text, file=file.path, size=size)
    if size:
        position = size - entry.itemsize
        ends = [(file.name, 0, entry.itemsize), (file.name, position, size)]
        first, last = np.frombuffer(file.storage.read_joined(ends), entry)
        if last["relative_offset"] < 0:
            text, offset = "the last entry is below the base offset", file.base_offset + int(last["relative_offset"])
            raise CorruptIndexError(f"{text}: {_REBUILD_HINT}", file=file.path, position=position, offset=offset)
        if "timestamp" in (entry.names or ()) and last["timestamp"] < first["timestamp"]:
            text = f"the last entry is older than the first: {_REBUILD_HINT}"
            raise CorruptIndexError(text, file=file.path, position=position, timestamp=int(last["timestamp"]))
    output.write_line(f"{file.address} passed sanity check.", "sane")


def _last_offsets(log: DumpedFile, positions: Longs) -> tuple[Flags, Longs]:
    """Return which positions have a complete batch, and the last offset of each complete batch."""
    log_size, prefix_bytes = log.size, _BATCH_PREFIX.itemsize
    has_batch = (positions >= 0) & (positions + prefix_bytes <= log_size)
    ranges = [(log.name, position, position + prefix_bytes) for position in positions[has_batch].tolist()]
    prefixes = np.frombuffer(b"".join(log.storage.read_ranges(ranges)), _BATCH_PREFIX)
    lengths = prefixes["length"].astype(np.int64)
    is_complete = (lengths >= SMALLEST_LENGTH) & (positions[has_batch] + LOG_OVERHEAD + lengths <= log_size)
    has_batch[has_batch] = is_complete  # `is_complete` has an item for each True in `has_batch`
    prefixes = prefixes[is_complete]
    # formats 0 and 1 store the last offset of a batch in place of its base offset
    last_offset_deltas = np.where(prefixes["magic"] >= 2, prefixes["last_offset_delta"], 0)
    return has_batch, prefixes["base_offset"].astype(np.int64) + last_offset_deltas


def dump_time_index(file: DumpedFile, options: DumpOptions, output: DumpOutput) -> None:
    """Write the entries of a `.timeindex` file; reports those without a batch, with a wrong time, or out of order."""
    if options.index_sanity_check:
        check_sanity(file, TIME_ENTRY, output)
        return
    previous_time = NO_TIMESTAMP
    for entries in read_entries(file, TIME_ENTRY):
        times, offsets = entries["timestamp"], entries["relative_offset"] + file.base_offset
        if not options.verify_index_only:
            output.write_lines(TIME_ENTRY_LINE, {"timestamp": times, "offset": offsets})
        if len(entries):
            last_offsets, timestamps = _logged_times(offsets, file.sibling(".log"), output)
            has_batch = last_offsets == offsets
            wrong = has_batch & (timestamps != times)
            columns = {"indexTimestamp": times[wrong], "logTimestamp": timestamps[wrong]}
            output.write_problems(f"Found timestamp mismatch in :{file.path}", WRONG_TIME_LINE, columns)
            previous_times = np.append(previous_time, times[:-1])
            unordered = has_batch & (previous_times >= times)
            columns = {"indexTimestamp": times[unordered], "previous": previous_times[unordered]}
            output.write_problems(f"Found out of order timestamp in :{file.path}", OUT_OF_ORDER_LINE, columns)
            columns = {"offset": offsets[~has_batch], "logOffset": last_offsets[~has_batch]}
            output.write_problems("The following indexed offsets are not found in the log.", NOT_FOUND_LINE, columns)
            previous_time = int(times[-1])


def _logged_times(offsets: Longs, log: DumpedFile, output: DumpOutput) -> tuple[Longs, Longs]:
    """Return, for each offset, the last offset and the largest timestamp of its batch.

    The timestamp is only read if the offset is the batch's last one, as in any correct entry of a time index.
    """
    last_offsets, timestamps = np.full(len(offsets), NO_SUCH_BATCH), np.full(len(offsets), NO_TIMESTAMP)
    # sort the entries by offset, to read the log only once; those before `first_entry` were in earlier windows
    order, first_entry = np.argsort(offsets, kind="stable"), 0
    try:
        for window in log.windows(log.size):
            window_last_offsets = window.rows["base_offset"] + window.rows["last_offset_delta"]
            end_entry = int(np.searchsorted(offsets[order], window_last_offsets.max(), side="right"))
            entries = order[first_entry:end_entry]
            # `minimum`, since offsets in a damaged log may decrease
            rows = np.minimum(np.searchsorted(window_last_offsets, offsets[entries]), len(window_last_offsets) - 1)
            last_offsets[entries] = window_last_offsets[rows]
            for entry, row in zip(entries.tolist(), rows.tolist(), strict=True):
                if window_last_offsets[row] == offsets[entry]:
                    batch, source = window.rows[row : row + 1], Source(log.path, window.position)
                    # a part has at least one batch, so `part_bytes` has no effect here
                    records, error = decode(byte_array(window.data), batch, source, columns=(), part_bytes=1)
                    if error is not None:
                        raise error
                    timestamps[entry] = int(records.timestamps.max(initial=NO_TIMESTAMP))
            first_entry = max(first_entry, end_entry)
            if first_entry == len(order):
                break
    except CorruptRecordError as error:
        output.fail(error)
    return last_offsets, timestamps


def dump_transaction_index(file: DumpedFile, output: DumpOutput) -> None:
    """Write the aborted transactions in a `.txnindex` file; raises UnsupportedVersionError for a later version."""
    data = file.storage.read(file.name)
    size = TRANSACTION_ENTRY.itemsize
    entries = np.frombuffer(data[: len(data) // size * size], TRANSACTION_ENTRY)
    # Kafka writes the version as an int16, but reads only its first byte (`AbortedTxn`)
    versions = entries["version"].astype(np.int64) >> 8
    later = np.flatnonzero(versions > TRANSACTION_VERSION)
    readable = entries[: later[0]] if len(later) else entries
    columns = {
        name: readable[field].astype(np.int64)
        for name, field in zip(_ABORTED_FIELDS, TRANSACTION_ENTRY.names or (), strict=True)
    }
    output.write_lines(ABORTED_LINE, columns | {"version": versions[: len(readable)]})
    if len(later):
        text = "an aborted transaction has an unknown version: a newer Kafka may have written it"
        raise UnsupportedVersionError(text, file=file.path, position=int(later[0]) * size)


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
        # the sequence number after MAX_INT is 0
        "firstSequence": (entries["last_sequence"].astype(np.int64) - entries["offset_delta"]) & MAX_INT,
        "lastSequence": entries["last_sequence"],
        "lastOffset": entries["last_offset"],
        "offsetDelta": entries["offset_delta"],
        "timestamp": entries["last_timestamp"],
    }
    for row, has_batch in enumerate(entries["last_offset"] >= 0):
        line = PRODUCER_LINE if has_batch else PRODUCER_WITHOUT_BATCH_LINE
        output.write_lines(line, {name: values[row : row + 1] for name, values in columns.items()})


def dump_leader_epochs(file: DumpedFile, output: DumpOutput) -> None:
    epochs = np.array(read_epochs(file.storage.read(file.name), file=file.path), np.int64).reshape(-1, 2)
    output.write_lines(EPOCH_LINE, {"epoch": epochs[:, 0], "startOffset": epochs[:, 1]})
