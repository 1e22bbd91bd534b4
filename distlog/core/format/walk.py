"""Walks the complete batches of a log, from any source of bytes, with a choice of how to handle damage."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from distlog.core.errors import CorruptRecordError
from distlog.core.format.record_batch import LOG_OVERHEAD, check_crcs, read_headers


class Batches(NamedTuple):
    """Complete batches from `position` of the log: their bytes, and BATCH rows with positions in the bytes."""

    position: int
    data: memoryview
    rows: npt.NDArray[Any]

    @property
    def end(self) -> int:
        return self.position + self.data.nbytes

    def first(self, count: int) -> Batches:
        size = int(self.rows["size"][:count].sum())
        return Batches(self.position, self.data[:size], self.rows[:count])


#: The rows of the complete batches before the first damage, and the error of the damage, if any.
Headers = tuple[npt.NDArray[Any], CorruptRecordError | None]


@dataclass(slots=True)
class BatchWalk:
    """Iterates over the batches between `position`, the start of a batch, and `end`, about `step` bytes at a time.

    `read` returns the bytes between two positions, fewer if the log became shorter; it may reuse a buffer. Errors
    name `file`, and positions as if the log started at `origin`. With `checked`, all checksums are compared.
    `headers` replaces the check for damage; it is called with bytes and their position.

    Damage after the sound batches is raised, or stops the walk, or is passed to a function, after which the walk
    continues at the next batch, if its start is known. A batch that the end cuts short is damage too, but is not
    raised: as in Kafka's `FileLogInputStream`, a writer may be writing it. `position` is the current position,
    `next_size` the size of the batch there, 0 if it was not read, and `damage` the reason of a stop. Until
    `hint`, a read ends at `hint` or at the end of a batch.
    """

    read: Callable[[int, int], memoryview]
    position: int
    end: int
    step: int
    on_damage: Literal["raise", "stop"] | Callable[[CorruptRecordError], None]
    file: str = ""
    origin: int = 0
    checked: bool = False
    headers: Callable[[memoryview, int], Headers] | None = None
    hint: int = 0
    damage: CorruptRecordError | None = field(default=None, init=False)
    next_size: int = field(default=0, init=False)
    _is_over: bool = field(default=False, init=False)

    def __iter__(self) -> Iterator[Batches]:
        size, hint = self.step, self.hint
        while self.position < self.end and not self._is_over:
            step_bytes = min(size, (hint if self.position < hint else self.end) - self.position)
            data = self.read(self.position, self.position + step_bytes)
            rows, damage = (self.headers or self._headers)(data, self.position)
            whole_bytes = 0
            if len(rows):
                whole_bytes = int(rows["position"][-1] + rows["size"][-1])
                batches = Batches(self.position, data[:whole_bytes], rows)
                self.position = batches.end
                self.next_size = size_of_first(data[whole_bytes:]) if whole_bytes < data.nbytes else 0
                yield batches
                size, hint = self.step, self.hint
            elif damage is None:
                # the next batch is larger than the read, unless the log ends within it
                unread = self.end - self.position
                first_size = size_of_first(data)
                if data.nbytes < step_bytes or step_bytes == unread or first_size > unread:
                    self._is_over = True
                    if self.on_damage != "raise":
                        self._meet(self._error("the file ends within a batch"), data)
                # a smaller size is a fault, for which the complete header is read
                size, hint = first_size if first_size > step_bytes else max(self.step, step_bytes + 1), 0
            if damage is not None and not self._is_over:
                self._meet(damage, data[whole_bytes:])

    def stop(self, batches: Batches, count: int, reason: str | None = None) -> Batches:
        """End the walk after the first `count` of the last batches, and return these.

        `reason` describes damage there.
        """
        batches = batches.first(count)
        self.position, self._is_over = batches.end, True
        if reason is not None:
            self.damage = self._error(reason)
        return batches

    def _headers(self, data: memoryview, position: int) -> Headers:
        position += self.origin
        rows, damage = headers_before_damage(data, self.file, position)
        if self.checked:
            try:
                check_crcs(data, rows, file=self.file, file_position=position)
            except CorruptRecordError as error:
                return rows[: np.searchsorted(rows["position"], error.details["position"] - position)], error
        return rows, damage

    def _meet(self, damage: CorruptRecordError, data: memoryview) -> None:
        if self.on_damage == "raise":
            raise damage
        if self.on_damage == "stop":
            self.damage = damage
        else:
            self.on_damage(damage)
            # only with an offset is the size sound
            if "offset" in damage.details:
                self.position += size_of_first(data)
                return
        self._is_over = True

    def _error(self, reason: str) -> CorruptRecordError:
        return CorruptRecordError(reason, file=self.file, position=self.origin + self.position)


def headers_before_damage(data: memoryview, file: str, file_position: int) -> Headers:
    """Return the batches before the first damaged header, and the error of that header."""
    try:
        return read_headers(data, file=file, file_position=file_position), None
    except CorruptRecordError as error:
        # sizes are checked before the other fields of a header, so an earlier header may be damaged too
        rows, earlier = headers_before_damage(data[: error.details["position"] - file_position], file, file_position)
        return rows, earlier or error


def size_of_first(data: memoryview) -> int:
    """Return the size of the first batch of `data`; LOG_OVERHEAD if `data` is too short to contain it."""
    if data.nbytes < LOG_OVERHEAD:
        return LOG_OVERHEAD
    return LOG_OVERHEAD + int.from_bytes(data[8:LOG_OVERHEAD], "big", signed=True)
