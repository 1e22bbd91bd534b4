"""Idempotent and transactional producers whose batches a test puts together, one after the other."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Protocol

from raw_batches import batch, record

from distlog.core.format.indexes import AbortedTransaction
from distlog.core.format.record_batch import ABORT, COMMIT, CONTROL, TRANSACTIONAL


class Log(Protocol):
    """Where the batches go, and what time it is there."""

    clock: Callable[[], int]

    def add(self, data: bytes, *aborted: AbortedTransaction) -> None:
        """Take batches as the next segment."""


class Producers:
    """Writes batches one after the other: at the next offset, with the next sequence number, in open transactions."""

    def __init__(self, log: Log, *, transactional: bool = True, offset: int = 0) -> None:
        self.log, self._attributes = log, TRANSACTIONAL if transactional else 0
        self.next_offset = offset
        self._sequences: dict[int, int] = {}
        self._open: dict[int, int] = {}
        self._aborted: list[AbortedTransaction] = []
        self._data = b""

    def send(self, producer: int, *keys: int) -> Producers:
        rows = [record(delta, 0, b"%d" % key, b"value") for delta, key in enumerate(keys)]
        sequence = self._sequences.get(producer, 0)
        self._put(rows, self._attributes, (producer, 0, sequence))
        self._sequences[producer] = sequence + len(keys)
        self._open.setdefault(producer, self.next_offset - len(keys))
        return self

    def plain(self, key: int) -> Producers:
        self._put([record(0, 0, b"%d" % key, b"value")], 0, (-1, -1, -1))
        return self

    def commit(self, producer: int) -> Producers:
        self._open.pop(producer, None)
        return self._mark(producer, COMMIT)

    def abort(self, producer: int) -> Producers:
        first = self._open.pop(producer)
        stable = min([self.next_offset + 1, *self._open.values()])
        self._aborted.append(AbortedTransaction(producer, first, self.next_offset, stable))
        return self._mark(producer, ABORT)

    def restart_numbers(self, producer: int) -> Producers:
        """Number the next batch from 0 on, as the coordinator of groups does each time."""
        self._sequences.pop(producer, None)
        return self

    def end(self, producer: int, *, commit: bool) -> Producers:
        return self.commit(producer) if commit else self.abort(producer)

    def _mark(self, producer: int, kind: int) -> Producers:
        key, value = struct.pack(">hh", 0, kind), struct.pack(">hi", 0, 0)
        self._put([record(0, 0, key, value)], CONTROL | TRANSACTIONAL, (producer, 0, -1))
        return self

    def _put(self, rows: list[bytes], attributes: int, producer: tuple[int, int, int]) -> None:
        now = self.log.clock()
        self._data += batch(
            rows,
            base_offset=self.next_offset,
            attributes=attributes,
            base_timestamp=now,
            max_timestamp=now,
            producer=producer,
        )
        self.next_offset += len(rows)

    @property
    def segment_bytes(self) -> int:
        return len(self._data)

    def roll(self) -> None:
        self.log.add(self._data, *self._aborted)
        self._data, self._aborted = b"", []
