"""Reads what comes into a partition, batch by batch, from an offset on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy.typing as npt

from distlog.core.batches.record_batch import check_crcs, read_headers
from distlog.core.reading.fetch import FetchedBatches

#: How much is read at once.
READ_BYTES = 1 << 20


class TailBatches(NamedTuple):
    """Whole batches, with their checksums compared, and their headers (BATCH rows) at the offsets of the log."""

    data: bytes
    rows: npt.NDArray[Any]


class PartitionTail:
    """The batches behind `offset`; for one thread at a time. `read` fetches from an offset on, None at the end."""

    def __init__(self, read: Callable[[int], FetchedBatches | None], offset: int = 0) -> None:
        self._read, self.offset = read, offset

    def batches(self) -> Iterator[TailBatches]:
        """What has come since the last call; `offset` moves on when the caller takes the next ones.

        Raises CorruptRecordError, and the errors of `read`.
        """
        while (found := self._read(self.offset)) is not None and len(found):
            data = bytes(found)
            rows = read_headers(data)
            check_crcs(memoryview(data), rows)
            yield TailBatches(data, rows)
            self.offset = found.next_offset
