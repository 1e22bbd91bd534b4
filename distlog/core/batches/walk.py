"""Walks the whole batches of a log, from any source of bytes, with a choice of the handling of damage."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from distlog.core.batches.record_batch import LOG_OVERHEAD, check_crcs, read_headers
from distlog.core.errors import CorruptRecordError


class Batches(NamedTuple):
    """Whole batches, from `position` of the log on: their bytes, and BATCH rows with positions in those bytes."""

    position: int
    data: memoryview
    rows: npt.NDArray[Any]

    @property
    def end(self) -> int:
        return self.position + self.data.nbytes

    def first(self, count: int) -> Batches:
        size = int(self.rows["size"][:count].sum())
        return Batches(self.position, self.data[:size], self.rows[:count])


#: The rows of the whole batches before the first damaged one of some bytes, and its error if there is one.
Headers = tuple[npt.NDArray[Any], CorruptRecordError | None]


@dataclass(slots=True)
class BatchWalk:
    """Goes over the batches between `position`, where one begins, and `end`, about `step` bytes at a time.

    `read` gives the bytes between two positions, fewer if the log became shorter; it may use a buffer again. Errors
    name `file`, and the position as if the log began at `origin`. With `checked`, each checksum is compared. A caller
    with another rule of damage gives `headers`, which takes bytes and their position.

    Damage behind the sound batches is raised, or stops the walk, or a function is told of it: then the walk goes on
    behind it, if it is known where the next batch begins. A batch that the end cuts short is damage too, but it is
    not raised: as in Kafka's `FileLogInputStream`, a writer may be at it. `position` is where the walk has come
    to, and `next_size` what the batch there would have, 0 if nothing of it was read; `damage` says why it stopped.
    Before `hint` no more is read than up to there, but to the end of a batch.
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
                # the next batch is larger than what was read, unless the log ends within it
                rest = self.end - self.position
                first_size = size_of_first(data)
                if data.nbytes < step_bytes or step_bytes == rest or first_size > rest:
                    self._is_over = True
                    if self.on_damage != "raise":
                        self._meet(self._error("the file ends within a batch"), data)
                # a size below that is of no batch: a whole header is read for its fault
                size, hint = first_size if first_size > step_bytes else max(self.step, step_bytes + 1), 0
            if damage is not None and not self._is_over:
                self._meet(damage, data[whole_bytes:])

    def stop(self, batches: Batches, count: int, reason: str | None = None) -> Batches:
        """End the walk after the first `count` of the last batches; returns these. `reason` is the damage there."""
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
            # only then its size is sound
            if "offset" in damage.details:
                self.position += size_of_first(data)
                return
        self._is_over = True

    def _error(self, reason: str) -> CorruptRecordError:
        return CorruptRecordError(reason, file=self.file, position=self.origin + self.position)


def headers_before_damage(data: memoryview, file: str, file_position: int) -> Headers:
    """The batches before the first damaged header, and the fault of that header."""
    try:
        return read_headers(data, file=file, file_position=file_position), None
    except CorruptRecordError as error:
        # sizes are checked before the other fields of a header, so an earlier header may be damaged too
        rows, earlier = headers_before_damage(data[: error.details["position"] - file_position], file, file_position)
        return rows, earlier or error


def size_of_first(data: memoryview) -> int:
    """The size of the batch that `data` begins with; LOG_OVERHEAD if `data` is too short to tell."""
    if data.nbytes < LOG_OVERHEAD:
        return LOG_OVERHEAD
    return LOG_OVERHEAD + int.from_bytes(data[8:LOG_OVERHEAD], "big", signed=True)
