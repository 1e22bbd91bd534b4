"""Splits: parts of input files, in order, and runs of consecutive splits for tasks."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa

from distlog.core.errors import InvalidRecordError, StorageError
from distlog.core.files.input_files import (
    HEAD_BYTES,
    PARQUET,
    UTF8_MARK,
    InputFile,
    check_decompressed,
    shorter,
    vanished,
)
from distlog.core.files.table_rows import row_groups
from distlog.core.storage.parallel import in_parallel
from distlog.core.storage.storage import CHUNK_BYTES, InputStorage

SPLIT_BYTES = 64 << 20
#: The cost of opening a file, as bytes that could be read in that time.
OPEN_BYTES = 128 << 10
#: A longer line fails, which bounds the memory of a reader.
LONGEST_LINE = 64 << 20
_TAIL_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class FileSplit:
    """A part of a file; a compressed file is one split.

    A split of lines owns the lines that start in bytes [start, end). A split of Parquet has the row groups
    [first_group, end_group), or all if `end_group` is 0; there `start` and `end` only estimate the work.
    """

    file: InputFile
    start: int
    end: int
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


def split_files(
    files: Sequence[InputFile], storage: InputStorage, split_bytes: int | None = SPLIT_BYTES
) -> list[FileSplit]:
    """Return the splits of files in order, of about `split_bytes` each; None makes one split of each file."""
    large = [file for file in files if split_bytes is not None and file.size > split_bytes]
    parquet = [file for file in large if file.kind.format == PARQUET]
    groups = dict(zip(parquet, in_parallel(partial(row_groups, storage), parquet), strict=True))
    return [split for file in files for split in _splits_of(file, split_bytes, groups.get(file))]


def _splits_of(file: InputFile, split_bytes: int | None, groups: Sequence[int] | None) -> Iterator[FileSplit]:
    if groups is not None and split_bytes is not None:
        yield from _splits_of_groups(file, split_bytes, groups)
    elif split_bytes is None or file.kind.compression or file.kind.format == PARQUET or file.size <= split_bytes:
        yield whole_file(file)
    else:
        count = -(-file.size // split_bytes)
        edges = [file.size * number // count for number in range(count + 1)]
        for start, end in itertools.pairwise(edges):
            yield FileSplit(file, start, end)


def _splits_of_groups(file: InputFile, split_bytes: int, sizes: Sequence[int]) -> Iterator[FileSplit]:
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
    """Return runs of consecutive splits, at most `tasks`, with about equal work; none is empty."""
    if not splits:
        return []
    work = [split.length * (3 if split.file.kind.compression else 1) + OPEN_BYTES for split in splits]
    ends = np.cumsum(work)
    # a split belongs to the task in whose share its middle lies
    middles = ends - np.array(work) / 2
    owners = np.minimum((middles * tasks / ends[-1]).astype(np.int64), tasks - 1)
    edges = [0, *(np.flatnonzero(np.diff(owners)) + 1).tolist(), len(splits)]
    return [splits[start:end] for start, end in itertools.pairwise(edges)]


@dataclass(frozen=True, slots=True)
class Block:
    """Whole lines without the last newline, and the position of the first in its file (decompressed)."""

    position: int
    text: bytes


def split_blocks(storage: InputStorage, split: FileSplit) -> Iterator[Block]:
    """Yield the lines that start in a split. Raises InvalidRecordError for a changed or bad file, or a long line."""
    file = split.file
    if file.kind.compression:
        yield from _whole_lines(file, _decompressed(storage, file), 0)
        return
    # a line that starts at the first byte has a newline before it
    begin = max(split.start - 1, 0)
    chunks = _stored(storage, file, begin, split.end)
    position = begin
    if split.start:
        skipped = 0
        for chunk in chunks:
            newline = chunk.find(b"\n")
            if newline >= 0:
                position = begin + skipped + newline + 1
                chunks = itertools.chain([chunk[newline + 1 :]], chunks)
                break
            skipped += len(chunk)
        else:
            return
    yield from _whole_lines(file, chunks, position, split.end)


def lines_after(storage: InputStorage, file: InputFile, position: int) -> Iterator[Block]:
    """Yield the lines from `position`, the start of a line, to the end of the file, in small blocks."""
    return _whole_lines(file, _growing(storage, file, position), position)


def _stored(storage: InputStorage, file: InputFile, start: int, end: int) -> Iterator[bytes]:
    """Yield the bytes of a file up to `end`, or to the end of the line there."""
    position = start
    last = b""
    try:
        for chunk in storage.chunks(file.url, start, end):
            yield chunk
            position, last = position + len(chunk), chunk[-1:]
        if position < end:
            raise shorter(file, position)
        if end == file.size or last == b"\n":
            return
        for chunk in _growing(storage, file, end):
            newline = chunk.find(b"\n")
            yield chunk if newline < 0 else chunk[: newline + 1]
            if newline >= 0:
                return
    except FileNotFoundError:
        raise vanished(file.url) from None


def _growing(storage: InputStorage, file: InputFile, position: int) -> Iterator[bytes]:
    """Yield the bytes from `position` on, at first a few, since most lines are short."""
    size = _TAIL_BYTES
    while position < file.size:
        try:
            chunk = storage.read(file.url, position, min(position + size, file.size))
        except FileNotFoundError:
            raise vanished(file.url) from None
        if not chunk:
            raise shorter(file, position)
        yield chunk
        position, size = position + len(chunk), min(2 * size, CHUNK_BYTES)


def _whole_lines(file: InputFile, chunks: Iterator[bytes], position: int, end: int | None = None) -> Iterator[Block]:
    """Yield blocks of whole lines, the first from `position` on; a line at `end` belongs to the next split."""
    fragments, size = list[bytes](), 0
    for chunk in chunks:
        cut = chunk.rfind(b"\n")
        if cut < 0:
            fragments.append(chunk)
            size += len(chunk)
            if size > LONGEST_LINE:
                text = f"a line is longer than {LONGEST_LINE >> 20} MiB: is it the right format?"
                raise InvalidRecordError(text, file=file.name, position=position)
            continue
        fragments.append(chunk[:cut])
        yield _block(position, fragments)
        position += size + cut + 1
        fragments, size = [chunk[cut + 1 :]], len(chunk) - cut - 1
    if size and (end is None or position < end):
        yield _block(position, fragments)


def _block(position: int, fragments: list[bytes]) -> Block:
    text = b"".join(fragments) if len(fragments) > 1 else fragments[0]
    if position == 0 and text.startswith(UTF8_MARK):
        return Block(len(UTF8_MARK), text[len(UTF8_MARK) :])
    return Block(position, text)


def _decompressed(storage: InputStorage, file: InputFile) -> Iterator[bytes]:
    stored = _Chunks(_stored(storage, file, 0, file.size))
    try:
        with pa.CompressedInputStream(pa.PythonFile(stored, "r"), file.kind.compression) as stream:
            is_first = True
            while data := stream.read(CHUNK_BYTES):
                if is_first:
                    check_decompressed(file.name, data[:HEAD_BYTES])
                    is_first = False
                yield data
    except (InvalidRecordError, StorageError):
        raise
    except (OSError, pa.ArrowException) as error:
        if stored.error is not None:
            raise stored.error from None
        raise InvalidRecordError(f"the file cannot be decompressed: {error}", file=file.name) from None


class _Chunks(io.RawIOBase):
    """Chunks as a stream; it stores the error of a chunk, which Arrow wraps."""

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
        data, self._unread = self._unread[:size], self._unread[size:]
        return bytes(data)
