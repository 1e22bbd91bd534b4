"""Splits: parts of input files, in order, and runs of consecutive splits for tasks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from distlog.core.errors import InvalidRecordError
from distlog.core.files.formats import PARQUET
from distlog.core.files.input_files import InputFile
from distlog.core.files.parquet_rows import row_groups
from distlog.core.storage.input_storage import InputStorage
from distlog.core.storage.parallel import in_parallel

SPLIT_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class FileSplit:
    """A part of a file.

    A split of lines owns the lines that start in bytes [start, end). A split of Parquet has row groups [first_group,
    end_group), or all if `end_group` is 0; `start` and `end` only say how much work that is. A compressed file is one
    split.
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
        """True if the split is the whole file."""
        return self.start == 0 and self.end == self.file.size


def whole_file(file: InputFile) -> FileSplit:
    return FileSplit(file, 0, file.size)


#: Splits that one task reads, one after the other.
Run = Sequence[FileSplit]


def split_files(
    files: Sequence[InputFile], storage: InputStorage, split_bytes: int | None = SPLIT_BYTES
) -> list[FileSplit]:
    """The splits of files, in order, of about `split_bytes`; with None a split is a whole file.

    If a Parquet file has several splits, its footer is read. Raises InvalidRecordError for a file that is not
    Parquet.
    """
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
    """Consecutive row groups; their sizes add up to the file's size, as positions estimate the work."""
    first, start, position = 0, 0, 0
    for number, size in enumerate(sizes, 1):
        position += size
        if position - start >= split_bytes or number == len(sizes):
            end = file.size if number == len(sizes) else min(position, file.size)
            yield FileSplit(file, start, end, first, number)
            first, start = number, position
    if not sizes:
        yield whole_file(file)


#: The cost of opening a file, as bytes that could be read in that time.
OPEN_BYTES = 128 << 10


def pack(splits: Sequence[FileSplit], tasks: int) -> list[Run]:
    """Runs of consecutive splits, at most `tasks`, of about the same work each; none is empty."""
    if tasks < 1:
        raise InvalidRecordError("splits are packed for at least one task", tasks=tasks)
    if not splits:
        return []
    work = [split.length * (3 if split.file.kind.compression else 1) + OPEN_BYTES for split in splits]
    ends = np.cumsum(work)
    # a split belongs to the task in whose share its middle lies
    middles = ends - np.array(work) / 2
    owners = np.minimum((middles * tasks / ends[-1]).astype(np.int64), tasks - 1)
    edges = [0, *(np.flatnonzero(np.diff(owners)) + 1).tolist(), len(splits)]
    return [splits[start:end] for start, end in itertools.pairwise(edges)]
