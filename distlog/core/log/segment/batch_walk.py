"""Walks the whole batches of a file. The file may be written to meanwhile, or a crash may have torn its end.

As in Kafka's `FileLogInputStream`, a batch that is cut short by the end is ignored, without an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from distlog.core.batches.record_batch import LOG_OVERHEAD, check_crcs, read_headers
from distlog.core.buffers import new_array
from distlog.core.errors import CorruptRecordError
from distlog.core.log.segment.active_file import ActiveFile

#: Bytes read at once where all of them are wanted.
WALK_BYTES = 4 << 20


class Batches(NamedTuple):
    """Whole batches, from `position` of the file on: their bytes, and BATCH rows with positions in those bytes."""

    position: int
    data: memoryview
    rows: npt.NDArray[Any]

    @property
    def end(self) -> int:
        """The position behind the last of them."""
        return self.position + self.data.nbytes

    def first(self, count: int) -> Batches:
        """The first `count` of them."""
        size = int(self.rows["size"][:count].sum())
        return Batches(self.position, self.data[:size], self.rows[:count])


def batches_from(file: ActiveFile, position: int, end: int, step: int) -> Iterator[Batches]:
    """The whole batches between `position`, where one begins, and `end`, about `step` bytes at a time.

    Checksums are left to the caller. Raises CorruptRecordError for bytes that cannot be a batch, after the batches
    before them were yielded.
    """
    buffer = new_array(0, np.uint8)
    while position < end:
        size = min(step, end - position)
        if buffer.size < size:
            buffer = new_array(size, np.uint8)
        # callers are done with a step's batches when they ask for the next, so one buffer is enough
        data = buffer.data[: file.read_into(buffer.data[:size], position)]
        rows, error = _headers(data, file.path, position)
        if len(rows):
            found = Batches(position, data[: int(rows["position"][-1] + rows["size"][-1])], rows)
            yield found
            position = found.end
        if error is not None:
            raise error
        if not len(rows):
            wanted = _size_of_first(data)
            if data.nbytes < size or not size < wanted <= end - position:
                return
            step = wanted


def _headers(data: memoryview, path: str, position: int) -> tuple[npt.NDArray[Any], CorruptRecordError | None]:
    """(the rows before the first bad batch, the error of that batch or None)."""
    try:
        return read_headers(data, file=path, file_position=position), None
    except CorruptRecordError as error:
        return read_headers(data, end=error.details["position"] - position), error


def _size_of_first(data: memoryview) -> int:
    """The size of the batch that `data` begins; LOG_OVERHEAD if `data` is too short to tell."""
    if data.nbytes < LOG_OVERHEAD:
        return LOG_OVERHEAD
    return LOG_OVERHEAD + int.from_bytes(data[8:LOG_OVERHEAD], "big", signed=True)


def sound_batches(file: ActiveFile, position: int, end: int, next_offset: int) -> Iterator[Batches]:
    """The batches from `position` on up to the first that is torn, fails its checksum or is out of order.

    A crash left these whole. Their offsets begin at `next_offset` or above, and ascend.
    """
    walk = batches_from(file, position, end, WALK_BYTES)
    while True:
        try:
            found = next(walk)
        except (StopIteration, CorruptRecordError):
            return
        count = min(_whole(found, file.path), _in_order(found.rows, next_offset))
        if count:
            yield found.first(count) if count < len(found.rows) else found
            next_offset = int(found.rows["base_offset"][count - 1] + found.rows["last_offset_delta"][count - 1]) + 1
        if count < len(found.rows):
            return


def _whole(found: Batches, path: str) -> int:
    """The number of batches before the first one with a wrong checksum."""
    try:
        check_crcs(found.data, found.rows, file=path, file_position=found.position)
    except CorruptRecordError as error:
        bad = error.details["position"] - found.position
        return int(np.searchsorted(found.rows["position"], bad))
    return len(found.rows)


def _in_order(rows: npt.NDArray[Any], next_offset: int) -> int:
    """The number of batches before the first one that begins below the end of the batch before it."""
    ends = rows["base_offset"] + rows["last_offset_delta"] + 1
    bad = rows["base_offset"] < np.concatenate([[next_offset], ends[:-1]])
    return int(bad.argmax()) if bad.any() else len(rows)
