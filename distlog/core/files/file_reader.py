"""Reads input files and turns them into Arrow tables of records.

A driver lists the files, cuts them into splits, and packs consecutive splits into runs. Each task reads one run, part
by part. From the reports of all runs, `check_fields` finds missing fields, and `runs_to_repeat` finds the runs that
must be read again.
"""

from __future__ import annotations

import io
import itertools
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distlog.core.arrays import Longs, column_of, integers, scalar_of
from distlog.core.display import counted
from distlog.core.errors import DistlogError, InvalidConfigError, InvalidRecordError, StorageError
from distlog.core.files.input_files import (
    CSV,
    HEAD_BYTES,
    JSONL,
    NO_FIELDS,
    PARQUET,
    RECORDS,
    UTF8_MARK,
    InputFile,
    ReadOptions,
    check_decompressed,
    deleted_error,
    list_files,
    read_range,
    shortened_error,
)
from distlog.core.files.json_lines import JsonFields, JsonRecords, SeenFields
from distlog.core.files.record_times import TimeReader
from distlog.core.files.table_rows import CsvRows, check_columns, header_names, parquet_records, row_group_sizes
from distlog.core.files.text_lines import BadLine, LineParser, PatternLines, TextLines, line_at, line_starts
from distlog.core.format.record_batch import HEADERS_TYPE
from distlog.core.storage.calls import in_order, in_parallel
from distlog.core.storage.storage import CHUNK_BYTES, InputStorage

SPLIT_BYTES = 64 << 20
#: The cost of opening a file, as bytes that could be read in that time.
OPEN_BYTES = 128 << 10
#: A longer line raises an error. This bounds the memory of a reader.
LONGEST_LINE = 64 << 20
#: The bytes of the first read past the end of a split. Each further read is twice as large, up to CHUNK_BYTES.
_FIRST_TAIL_READ = 64 << 10
#: Files of lines up to _SMALL_BYTES are parsed together, in blocks of up to _BLOCK_BYTES.
_SMALL_BYTES, _BLOCK_BYTES = 256 << 10, 4 << 20
_READS_AHEAD = 16  # the most small objects that are read concurrently
_MAX_COUNTED_BYTES = 1 << 30  # the most bytes that are read to find the line number of a bad line
#: A batch of one record without headers has at most this many bytes in addition to its key and value.
_BATCH_OVERHEAD = 128
_NAMES_IN_WARNING = 3
_SKIP_HINT = "--bad-lines skip leaves bad lines out"


@dataclass(frozen=True, slots=True)
class FileSplit:
    """A part of a file: the lines that start in the stored bytes [start, end). A compressed file is one split."""

    file: InputFile
    start: int
    end: int
    #: Parquet row groups [first_group, end_group), or all if `end_group` is 0; `start` and `end` are estimates.
    first_group: int = 0
    end_group: int = 0

    @property
    def length(self) -> int:
        return self.end - self.start

    @property
    def is_whole(self) -> bool:
        return self.start == 0 and self.end == self.file.size


def whole_file(file: InputFile) -> FileSplit:
    return FileSplit(file, 0, file.size)


#: Splits that one task reads, one after the other.
Run = Sequence[FileSplit]


@dataclass(frozen=True, slots=True)
class Block:
    """Whole lines without the last newline, and the position of the first line in its file (decompressed)."""

    position: int
    text: bytes


class FileReader:
    """Reads input files. It can be pickled. Raises InvalidConfigError for an invalid time format."""

    def __init__(self, options: ReadOptions, storage: InputStorage) -> None:
        self.options, self.storage = options, storage
        self.times = TimeReader(options.timestamp_unit, options.time_format, options.now_ms)
        self.times.check()

    def files(self, inputs: Sequence[str]) -> list[InputFile]:
        return list_files(inputs, self.storage, self.options.format)

    def splits(self, files: Sequence[InputFile], split_bytes: int | None = SPLIT_BYTES) -> list[FileSplit]:
        """Return the splits of files in order, of about `split_bytes` each; None makes one split of each file."""
        large = [file for file in files if split_bytes is not None and file.size > split_bytes]
        parquet = [file for file in large if file.kind.format == PARQUET]
        group_sizes = dict(zip(parquet, in_parallel(partial(row_group_sizes, self.storage), parquet), strict=True))
        return [split for file in files for split in _file_splits(file, split_bytes, group_sizes.get(file))]

    def check_first_files(self, files: Sequence[InputFile]) -> None:
        """Check the columns and options for the first file of each format that has bytes."""
        seen_fields = SeenFields(self.options.fields)
        # in reverse, so that a format's first file replaces its later ones
        first_files = {file.kind.format: file for file in reversed(files) if file.size}
        for file_format, file in first_files.items():
            if file_format == PARQUET:
                check_columns(self.storage, file, self.options)
            elif file_format == CSV:
                # `lines_after` reads less than `split_blocks`, but cannot decompress
                is_compressed, storage = file.kind.compression is not None, self.storage
                blocks = split_blocks(storage, whole_file(file)) if is_compressed else lines_after(storage, file, 0)
                LineReading(self, file_format, seen_fields, file).read_names(next(blocks))
            else:
                self.parser(file_format, seen_fields)  # raises an error if the options do not fit the format

    def read(self, run: Run, seen_fields: SeenFields | None = None) -> RunReading:
        """Return an iterable of the parts of a run; it adds the fields of JSON objects to `seen_fields`."""
        return RunReading(self, run, seen_fields or SeenFields(self.options.fields))

    def parser(self, file_format: str, seen_fields: SeenFields, names: Sequence[str] | None = None) -> LineParser:
        options = self.options
        if file_format == CSV:
            return CsvRows(names or (), options.fields, self.times)
        if file_format == RECORDS:
            return JsonRecords(self.times)
        if file_format == JSONL:
            return JsonFields(options.fields, self.times, seen_fields)
        if options.pattern is not None:
            return PatternLines(options.pattern, self.times)
        if options.fields:
            raise InvalidConfigError(NO_FIELDS)
        return TextLines(options.key_separator)


@dataclass(frozen=True, slots=True)
class Origin:
    """The source of a block's bytes from `offset` on: `file` from `position` on, or a stream if `file` is None."""

    offset: int
    file: InputFile | None
    #: In bytes; in rows for Parquet.
    position: int
    #: The number of lines before `position`; None if unknown.
    lines: int | None


@dataclass(frozen=True, slots=True)
class InputPart:
    """Some records of an input in order, and the number of `skipped` bad lines."""

    records: pa.Table
    #: The bytes of the lines, decompressed. For Parquet, the first part has the stored bytes of the whole split.
    input_bytes: int
    skipped: int
    #: The block of lines that has the records; empty for Parquet.
    text: bytes
    #: The positions of the records in `text`; None if each line is a record.
    starts: Longs | None
    origins: Sequence[Origin]

    def location(self, row: int) -> dict[str, Any]:
        """Return the file and the line of a record for an error, or its position if the line is unknown."""
        if self.starts is None and not self.text:
            origin = self.origins[0]
            return {"file": origin.file.name if origin.file else None, "row": origin.position + row}
        starts = line_starts(self.text) if self.starts is None else self.starts
        return location_at(self.text, self.origins, int(starts[row]))

    def located(self, error: DistlogError) -> DistlogError:
        """Return the error of an append of `records`; the file and the line, if known, replace the row."""
        row = error.details.pop("row", None)
        # the encoder reports the limit that a record exceeds, but not always the record's row
        if row is None and isinstance(error.details.get("limit"), int):
            row = self._row_of_largest(error.details["limit"])
        if row is not None:
            error.details.pop("row_of_partition", None)
            error.details |= self.location(row)
        elif len({origin.file for origin in self.origins}) == 1:
            error.details["file"] = self.location(0)["file"]
        return error

    def _row_of_largest(self, limit: int) -> int | None:
        """Return the row of the largest record; None if a batch of `limit` bytes could hold the record."""
        sizes = pc.binary_length(self.records["value"]).cast(pa.int64())
        if "key" in self.records.schema.names and not pa.types.is_null(self.records["key"].type):
            lengths = pc.binary_length(self.records["key"]).cast(pa.int64())
            zero = scalar_of(0, pa.int64())
            sizes = pc.add(pc.fill_null(sizes, zero), pc.fill_null(lengths, zero))
        largest = pc.max(sizes).as_py()
        return None if largest is None or largest + _BATCH_OVERHEAD < limit else int(pc.index(sizes, largest).as_py())


def location_at(text: bytes, origins: Sequence[Origin], position: int) -> dict[str, Any]:
    """Return the file and the line of a byte of a block, or its position in the file if the line is unknown."""
    origin = origins[bisect_right(origins, position, key=attrgetter("offset")) - 1]
    name = None if origin.file is None else origin.file.name
    if origin.lines is None:
        return {"file": name, "position": origin.position + position - origin.offset}
    return {"file": name, "line": origin.lines + line_at(text, position) - line_at(text, origin.offset) + 1}


@dataclass(frozen=True, slots=True)
class SplitReport:
    """The positions [start, end) that a split read, and its counts; `start` is None if no line starts in it."""

    start: int | None
    end: int
    records: int
    skipped: int


@dataclass(slots=True)
class RunReport:
    """The reports on the splits of a run, and the fields of the JSON objects in the run."""

    seen_fields: SeenFields
    splits: list[SplitReport] = field(default_factory=list)
    #: The error of a bad line in a later split of a CSV file. `runs_to_repeat` raises it, unless the split began
    #: within a quoted field, because the line may be good in this case.
    error: InvalidRecordError | None = None

    @property
    def skipped(self) -> int:
        return sum(split.skipped for split in self.splits)


class RunReading:
    """An iterable of the parts of a run; after the last part, `report` is complete."""

    def __init__(self, reader: FileReader, run: Run, seen_fields: SeenFields) -> None:
        self._reader, self._run = reader, run
        self.report = RunReport(seen_fields)

    def __iter__(self) -> Iterator[InputPart]:
        for group in _read_groups(self._run):
            if len(group) > 1:
                yield from self._small_files(group)
            elif group[0].file.kind.format == PARQUET:
                yield from self._parquet_rows(group[0])
            else:
                yield from self._lines(group[0])
            if self.report.error is not None:
                return

    def _parquet_rows(self, split: FileSplit) -> Iterator[InputPart]:
        groups = range(split.first_group, split.end_group) if split.end_group else None
        # the bytes of single rows are unknown, so the first part counts the bytes of the whole split
        reader, unreported_bytes = self._reader, split.length
        records = skipped = 0
        batches = parquet_records(reader.storage, split.file, groups, reader.options, reader.times)
        for table, first_row, faults in batches:
            if faults:
                if not reader.options.skips_bad_lines:
                    row = min(faults)
                    location = {"file": split.file.name, "row": first_row + row}
                    raise InvalidRecordError(f"{faults[row]} ({_SKIP_HINT})", **location)
                table = table.take(integers(np.delete(np.arange(table.num_rows), [*faults])))
            table = _with_added_columns(table, reader.options)
            origin = Origin(0, split.file, position=first_row, lines=None)
            yield InputPart(table, unreported_bytes, len(faults), text=b"", starts=None, origins=[origin])
            unreported_bytes = 0
            records += table.num_rows
            skipped += len(faults)
        self.report.splits.append(SplitReport(split.start, split.end, records, skipped))

    def _small_files(self, splits: Sequence[FileSplit]) -> Iterator[InputPart]:
        storage = self._reader.storage
        tasks = (partial(read_range, storage, split.file, 0, split.file.size) for split in splits)
        is_local = storage.is_local(splits[0].file.url)
        contents = (task() for task in tasks) if is_local else in_order(tasks, _READS_AHEAD)
        texts, origins, offset = list[bytes](), list[Origin](), 0
        for split, content in zip(splits, contents, strict=True):
            text = content.removeprefix(UTF8_MARK)
            if text:
                origins.append(Origin(offset, split.file, position=len(content) - len(text), lines=0))
                texts.append(text.removesuffix(b"\n"))
                offset += len(texts[-1]) + 1
        record_counts, skipped = dict[InputFile | None, int](), 0
        lines = LineReading(self._reader, splits[0].file.kind.format, self.report.seen_fields)
        # `part_then_error` yields one part for all files; `edges` has the number of each file's first record in it
        for part in lines.part_then_error(b"\n".join(texts), origins) if texts else ():
            starts = line_starts(part.text) if part.starts is None else part.starts
            edges = np.searchsorted(starts, [*(origin.offset for origin in origins), len(part.text) + 1])
            record_counts = dict(zip((origin.file for origin in origins), np.diff(edges).tolist(), strict=True))
            skipped = part.skipped
            yield part
        for number, split in enumerate(splits):
            # bad lines are not counted by file, so the first report has their sum
            report = SplitReport(0, split.length, record_counts.get(split.file, 0), skipped if number == 0 else 0)
            self.report.splits.append(report)

    def _lines(self, split: FileSplit) -> Iterator[InputPart]:
        reader, file = self._reader, split.file
        lines = LineReading(reader, file.kind.format, self.report.seen_fields, file)
        if split.start and file.kind.format == CSV:
            # the names of the columns are in the file's first split
            lines.read_names(next(lines_after(reader.storage, file, 0)))
        report = SplitReport(start=None, end=split.end, records=0, skipped=0)
        try:
            for part in lines.split(split):
                records, skipped = report.records + part.records.num_rows, report.skipped + part.skipped
                report = SplitReport(lines.start, lines.end, records, skipped)
                yield part
        except InvalidRecordError as error:
            if file.kind.format != CSV or split.start == 0:
                raise
            self.report.error = error
            report = SplitReport(lines.start, lines.end, report.records, report.skipped)
        self.report.splits.append(report)


def _read_groups(run: Run) -> Iterator[list[FileSplit]]:
    """Yield the splits that are parsed together: several small files of lines of one kind, or a single split."""
    group, size = list[FileSplit](), 0
    for split in run:
        kind = split.file.kind
        is_plain = not kind.compression and kind.format not in (CSV, PARQUET)
        is_small = is_plain and split.is_whole and split.length <= _SMALL_BYTES
        if group and (not is_small or kind != group[0].file.kind or size + split.length > _BLOCK_BYTES):
            yield group
            group, size = [], 0
        if is_small:
            group.append(split)
            size += split.length
        else:
            yield [split]
    if group:
        yield group


class LineReading:
    """Reads the records of one split or stream, block by block."""

    def __init__(
        self, reader: FileReader, file_format: str, seen_fields: SeenFields, file: InputFile | None = None
    ) -> None:
        self._reader, self._format, self._seen_fields, self._file = reader, file_format, seen_fields, file
        self._parser = None if file_format == CSV else reader.parser(file_format, seen_fields)
        #: The bytes of an unfinished row, whose end is in the next block.
        self._unfinished = b""
        #: The source of the next bytes to parse.
        self._origin = Origin(0, file, 0, lines=0)
        #: The bytes that the parser used in its last call (`Parsed.consumed`).
        self._consumed = 0
        #: The file position of the first line (None before it is read), and the position after the last parsed row.
        self.start: int | None = None
        self.end = 0

    def read_names(self, block: Block) -> None:
        """Read the names of the CSV columns in the first line of a file's first block."""
        try:
            names = header_names(block.text.partition(b"\n")[0])
            self._parser = self._reader.parser(self._format, self._seen_fields, names)
        except InvalidRecordError as error:
            error.details.setdefault("file", self._file.name if self._file else None)
            raise

    def split(self, split: FileSplit) -> Iterator[InputPart]:
        """Yield the records of the rows that begin in the split."""
        for block in split_blocks(self._reader.storage, split):
            yield from self.block(block)
        ends_file = split.end >= split.file.size or split.file.kind.compression is not None
        position = self.end + len(self._unfinished)
        yield from self.remaining(() if ends_file else lines_after(self._reader.storage, split.file, position))

    def block(self, block: Block) -> Iterator[InputPart]:
        text = block.text
        if self.start is None:
            self.start = block.position
            # the number of earlier lines is only known at the beginning of a file
            is_file_start = block.position <= len(UTF8_MARK)
            self._origin = Origin(0, self._file, block.position, lines=0 if is_file_start else None)
        if self._parser is None:  # the first block of CSV begins with the header
            line, newline, text = text.partition(b"\n")
            self.read_names(block)
            self.end = block.position + len(line) + 1
            self._origin = Origin(0, self._file, self.end, lines=1)
            if not newline:
                # no records: yield an empty part, so that `_lines` reports where the header starts and ends
                no_records = pa.table({"value": pa.nulls(0, pa.binary())})
                yield InputPart(no_records, 0, 0, text=b"", starts=None, origins=[self._origin])
                return
        yield from self.part_then_error(self._unfinished + text, [self._origin])

    def remaining(self, next_blocks: Iterable[Block] = ()) -> Iterator[InputPart]:
        """Yield the records of unfinished CSV rows. The rows may end in `next_blocks`, the lines after the split."""
        # the bytes of the split in `_unfinished`; each call of `part_then_error` sets `_unfinished` and `_consumed`
        unparsed_bytes = len(self._unfinished)
        for block in next_blocks if unparsed_bytes else ():
            # rows that begin in `block` belong to the next split
            yield from self.part_then_error(self._unfinished + block.text, [self._origin], unparsed_bytes)
            if self._consumed >= unparsed_bytes:
                return
            unparsed_bytes -= self._consumed
        if unparsed_bytes:
            text = self._unfinished.removesuffix(b"\n")
            yield from self.part_then_error(text, [self._origin], unparsed_bytes, is_last=True)

    def part_then_error(
        self, text: bytes, origins: Sequence[Origin], limit: int | None = None, *, is_last: bool = False
    ) -> Iterator[InputPart]:
        """Yield one part: the records that begin in the first `limit` bytes of a block, or in all if it is None.

        If a line is bad and bad lines are not skipped, the part ends before the line, and the line's error is raised.
        """
        origin = origins[0]
        assert self._parser is not None
        try:
            parsed = self._parser.parse(text, len(text) if limit is None else limit, is_last=is_last)
        except InvalidRecordError as error:
            error.details.setdefault("file", origin.file.name if origin.file else None)
            raise
        # `text` lacks the newline of its last line, but `consumed` includes that newline if the last row ended
        self._consumed = parsed.consumed
        self._unfinished = text[parsed.consumed :] + b"\n" if parsed.consumed <= len(text) else b""
        if len(origins) == 1:
            self.end = origin.position + parsed.consumed
            lines = None if origin.lines is None else origin.lines + line_at(text + b"\n", parsed.consumed)
            self._origin = Origin(0, origin.file, self.end, lines)
        options = self._reader.options
        bad = None if options.skips_bad_lines else next(iter(parsed.bad), None)
        records = parsed.records if bad is None else parsed.records.slice(0, bad.records_before)
        records = _with_added_columns(records, options)
        skipped = len(parsed.bad) if bad is None else 0
        yield InputPart(records, parsed.consumed, skipped, text, parsed.starts, origins)
        if bad is not None:
            raise self._error(bad, text, origins)

    def _error(self, bad: BadLine, text: bytes, origins: Sequence[Origin]) -> InvalidRecordError:
        location = location_at(text, origins, bad.position)
        # in a later split the line number is unknown: count the lines before the position in the file
        if self._file is not None and "position" in location and location["position"] <= _MAX_COUNTED_BYTES:
            chunks = self._reader.storage.chunks(self._file.url, 0, location["position"])
            location = {"file": location["file"], "line": sum(chunk.count(b"\n") for chunk in chunks) + 1}
        return InvalidRecordError(f"{bad.reason} ({_SKIP_HINT})", **location)


def _with_added_columns(records: pa.Table, options: ReadOptions) -> pa.Table:
    if options.headers and records.num_rows:
        added_headers = [{"key": name, "value": value.encode()} for name, value in options.headers]
        if (index := records.schema.get_field_index("headers")) < 0:
            column = pa.repeat(scalar_of(added_headers, HEADERS_TYPE), records.num_rows)
            records = records.append_column("headers", column)
        else:
            lists = [[*(headers or ()), *added_headers] for headers in records["headers"].to_pylist()]
            records = records.set_column(index, "headers", column_of(lists, HEADERS_TYPE))
    if options.partition is not None:
        column = pa.repeat(scalar_of(options.partition, pa.int32()), records.num_rows)
        if "partition" in records.schema.names:
            records = records.drop_columns("partition")
        records = records.append_column("partition", column)
    return records


@dataclass(frozen=True, slots=True)
class Repeat:
    """A run that replaces the runs [first, end) of a list, because their records may be wrong."""

    first: int
    end: int
    run: Run


def runs_to_repeat(runs: Sequence[Run], reports: Sequence[RunReport]) -> list[Repeat]:
    """Return the runs to read again because a CSV split began in a quoted field. Raises the error of any other run.

    A split assumes that its first line begins a row. If the last row of the file's previous split did not end there,
    the whole file is read again as one split.
    """
    urls_to_repeat = set[str]()
    previous_url, previous_end = "", 0
    for run, report in zip(runs, reports, strict=True):
        for split, split_report in zip(run, report.splits, strict=False):  # an error ends a report early
            if split_report.start is None:
                continue
            url = split.file.url
            starts_within_row = (url, split_report.start) != (previous_url, previous_end)
            if split.file.kind.format == CSV and split.start and starts_within_row:
                urls_to_repeat.add(url)
            previous_url, previous_end = url, split_report.end
        # the last split of a report with an error is the split of the error
        if report.error is not None and run[len(report.splits) - 1].file.url not in urls_to_repeat:
            raise report.error
    must_repeat = [any(split.file.url in urls_to_repeat for split in run) for run in runs]
    repeats, end = list[Repeat](), 0
    for is_repeated, group in itertools.groupby(must_repeat):
        first, end = end, end + len(list(group))
        if not is_repeated:
            continue
        repeated_run = list[FileSplit]()
        for split in itertools.chain.from_iterable(runs[first:end]):
            if split.file.url not in urls_to_repeat:
                repeated_run.append(split)
            elif split.start == 0:
                repeated_run.append(whole_file(split.file))
        repeats.append(Repeat(first, end, repeated_run))
    return repeats


def check_fields(reports: Sequence[RunReport]) -> None:
    """Raise InvalidRecordError if no line of JSON in the whole input has a field that the options name."""
    if not reports:
        return
    seen_fields = SeenFields(reports[0].seen_fields.fields)
    for report in reports:
        seen_fields.add(report.seen_fields)
    if error := seen_fields.error():
        raise error


def files_without_records(run: Run, report: RunReport) -> list[str]:
    """Return the names of the whole files of a run that have bytes but no records."""
    return [
        split.file.name
        for split, counts in zip(run, report.splits, strict=False)
        if split.is_whole and split.length and not counts.records
    ]


def warning_of_no_records(names: Sequence[str]) -> str:
    more = ", ..." if len(names) > _NAMES_IN_WARNING else ""
    return f"no records in {counted(len(names), 'file')}: {', '.join(names[:_NAMES_IN_WARNING])}{more}"


def _file_splits(file: InputFile, split_bytes: int | None, group_sizes: Sequence[int] | None) -> Iterator[FileSplit]:
    if group_sizes is not None and split_bytes is not None:
        yield from _row_group_splits(file, split_bytes, group_sizes)
    elif split_bytes is None or file.kind.compression or file.kind.format == PARQUET or file.size <= split_bytes:
        yield whole_file(file)
    else:
        count = -(-file.size // split_bytes)  # rounded up
        edges = [file.size * number // count for number in range(count + 1)]
        for start, end in itertools.pairwise(edges):
            yield FileSplit(file, start, end)


def _row_group_splits(file: InputFile, split_bytes: int, sizes: Sequence[int]) -> Iterator[FileSplit]:
    """Yield splits of consecutive row groups; their sizes add up to the file's size."""
    first, start, position = 0, 0, 0
    for number, size in enumerate(sizes, 1):
        position += size
        if position - start >= split_bytes or number == len(sizes):
            end = file.size if number == len(sizes) else min(position, file.size)
            yield FileSplit(file, start, end, first, number)
            first, start = number, position
    if not sizes:
        yield whole_file(file)


def pack(splits: Sequence[FileSplit], tasks: int) -> list[Run]:
    """Return at most `tasks` runs of consecutive splits, with about equal work; no run is empty."""
    if not splits:
        return []
    # a compressed file has about three times its stored bytes
    work = [split.length * (3 if split.file.kind.compression else 1) + OPEN_BYTES for split in splits]
    work_ends = np.cumsum(work)
    # each task has an equal share of the work; a split belongs to the share that has its middle
    middles = work_ends - np.array(work) / 2
    tasks_of_splits = np.minimum((middles * tasks / work_ends[-1]).astype(np.int64), tasks - 1)
    edges = [0, *(np.flatnonzero(np.diff(tasks_of_splits)) + 1).tolist(), len(splits)]
    return [splits[start:end] for start, end in itertools.pairwise(edges)]


def split_blocks(storage: InputStorage, split: FileSplit) -> Iterator[Block]:
    """Yield the lines that start in a split. Raises InvalidRecordError for a changed or bad file and a long line."""
    file = split.file
    if file.kind.compression:
        yield from _whole_lines(file, _decompressed_bytes(storage, file), 0)
        return
    # start at the byte before the split: if it is a newline, a line starts at the first byte of the split
    position = max(split.start - 1, 0)
    chunks = _stored_bytes(storage, file, position, split.end)
    if split.start:
        for chunk in chunks:
            newline = chunk.find(b"\n")
            if newline >= 0:
                position += newline + 1
                chunks = itertools.chain([chunk[newline + 1 :]], chunks)
                break
            position += len(chunk)
        else:
            return  # one line of an earlier split covers this split
    yield from _whole_lines(file, chunks, position, split.end)


def lines_after(storage: InputStorage, file: InputFile, position: int) -> Iterator[Block]:
    """Yield the lines from `position`, the start of a line, to the end of the file, in small blocks."""
    return _whole_lines(file, _growing_chunks(storage, file, position), position)


def _stored_bytes(storage: InputStorage, file: InputFile, start: int, end: int) -> Iterator[bytes]:
    """Yield the bytes of a file from `start` to `end`, or to the end of the line at `end`."""
    position = start
    last_byte = b""
    try:
        for chunk in storage.chunks(file.url, start, end):
            yield chunk
            position, last_byte = position + len(chunk), chunk[-1:]
        if position < end:
            raise shortened_error(file, position)
        if end == file.size or last_byte == b"\n":
            return
        for chunk in _growing_chunks(storage, file, end):
            newline = chunk.find(b"\n")
            yield chunk if newline < 0 else chunk[: newline + 1]
            if newline >= 0:
                return
    except FileNotFoundError:
        raise deleted_error(file.url) from None


def _growing_chunks(storage: InputStorage, file: InputFile, position: int) -> Iterator[bytes]:
    """Yield the bytes from `position` on, in chunks that grow from a small one, since most lines are short."""
    size = _FIRST_TAIL_READ
    while position < file.size:
        end = min(position + size, file.size)
        yield read_range(storage, file, position, end)
        position, size = end, min(2 * size, CHUNK_BYTES)


def _whole_lines(file: InputFile, chunks: Iterator[bytes], position: int, end: int | None = None) -> Iterator[Block]:
    """Yield blocks of whole lines, the first from `position` on; a line at `end` belongs to the next split."""
    fragments, fragment_bytes = list[bytes](), 0  # of an unfinished line that begins at `position`
    for chunk in chunks:
        newline = chunk.rfind(b"\n")
        if newline < 0:
            fragments.append(chunk)
            fragment_bytes += len(chunk)
            if fragment_bytes > LONGEST_LINE:
                text = f"a line is longer than {LONGEST_LINE >> 20} MiB: check the format"
                raise InvalidRecordError(text, file=file.name, position=position)
            continue
        fragments.append(chunk[:newline])
        yield _block(position, fragments)
        position += fragment_bytes + newline + 1
        fragments, fragment_bytes = [chunk[newline + 1 :]], len(chunk) - newline - 1
    if fragment_bytes and (end is None or position < end):
        yield _block(position, fragments)


def _block(position: int, fragments: list[bytes]) -> Block:
    text = b"".join(fragments)
    if position == 0 and text.startswith(UTF8_MARK):
        return Block(len(UTF8_MARK), text[len(UTF8_MARK) :])
    return Block(position, text)


def _decompressed_bytes(storage: InputStorage, file: InputFile) -> Iterator[bytes]:
    stored = _ChunkStream(_stored_bytes(storage, file, 0, file.size))
    try:
        with pa.CompressedInputStream(pa.PythonFile(stored, "r"), file.kind.compression) as stream:
            is_first = True
            while decompressed := stream.read(CHUNK_BYTES):
                if is_first:
                    check_decompressed(file.name, decompressed[:HEAD_BYTES])
                    is_first = False
                yield decompressed
    except (InvalidRecordError, StorageError):
        raise
    except (OSError, pa.ArrowException) as error:
        if stored.error is not None:
            raise stored.error from None
        raise InvalidRecordError(f"the file cannot be decompressed: {error}", file=file.name) from None


class _ChunkStream(io.RawIOBase):
    """A stream of chunks; `error` is the error of a read, which Arrow wraps in its own."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks, self._unread = chunks, memoryview(b"")
        self.error: BaseException | None = None

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1) -> bytes:
        if not self._unread:
            try:
                self._unread = memoryview(next(self._chunks, b""))
            except BaseException as error:
                self.error = error
                raise
        size = len(self._unread) if size is None or size < 0 else size
        requested, self._unread = self._unread[:size], self._unread[size:]
        return bytes(requested)
