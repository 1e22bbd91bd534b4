"""The result of parsing a block of lines: records, and lines that are none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from distlog.core.arrays import byte_array


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that is not a record: its position in the block, the number of records before it, and the reason."""

    position: int
    records_before: int
    reason: str


@dataclass(frozen=True, slots=True)
class Parsed:
    """The records of a block of lines, and its lines that are not records.

    `consumed` counts the parsed bytes of the block and its last newline: the remaining bytes belong to a row that
    continues in the next block. `starts` are where the records begin in the block; None if each line that is not bad
    is a record.
    """

    records: pa.Table
    bad: Sequence[BadLine]
    consumed: int
    starts: npt.NDArray[np.int64] | None = None


class LineParser(Protocol):
    """Parses blocks of whole lines of one format."""

    def parse(self, text: bytes, limit: int, *, is_last: bool) -> Parsed:
        """The records that begin in the first `limit` bytes of a block, which has no newline at its end.

        `is_last` says that no line follows. Raises InvalidRecordError for what makes all of the file useless.
        """


def line_starts(text: bytes) -> npt.NDArray[np.int64]:
    return np.append(0, np.flatnonzero(byte_array(text) == ord("\n")) + 1)


def line_at(text: bytes, position: int) -> int:
    return text.count(b"\n", 0, position)
