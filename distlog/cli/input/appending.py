"""Appends what comes in: files in one commit or none, a stream in commits by time and size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType

import pyarrow as pa

from distlog.core.errors import DistlogError, InvalidRecordError
from distlog.core.topics.appending.transaction import Transaction
from distlog.core.topics.topic import Topic

#: A stream is committed when it has so many bytes, whatever the time: then its segments have a good size.
COMMIT_BYTES = 256 << 20


@dataclass(slots=True)
class Taken:
    """What was appended: the last version, and by partition the first offset and the end of the last commit."""

    version: int | None = None
    records: int = 0
    offsets: dict[int, tuple[int, int]] = field(default_factory=dict)
    expired: int = 0


class Appending:
    """Takes records and commits them: when `seconds` have passed since the first, or at its end if that is None.

    A `with` block commits what is taken if it ends well, and also if it raises while it is a stream.
    """

    def __init__(
        self,
        topic: Topic,
        partition: int | None,
        compression: str | None,
        seconds: float | None,
        clock: Callable[[], float],
    ) -> None:
        self._topic, self._partition, self._compression = topic, partition, compression
        self._seconds, self._clock = seconds, clock
        self._transaction: Transaction | None = None
        self._bytes, self._due = 0, 0.0
        self.taken = Taken()

    def wait(self) -> float | None:
        """The seconds until the next commit, or None if nothing waits for one."""
        if self._seconds is None or self._transaction is None:
            return None
        return max(0.0, self._due - self._clock())

    def append(self, records: pa.Table) -> int:
        """Take records; returns how many."""
        if records.num_rows == 0:
            return 0
        if self._transaction is None:
            self._transaction, self._bytes = self._topic.transaction(compression=self._compression), 0
            self._due = self._clock() + (self._seconds or 0)
        self._bytes += records.nbytes
        try:
            return self._transaction.append(records, self._partition)
        except BaseException:
            # it ended itself, so what waited for the commit is not appended
            self._transaction = None
            raise

    def commit_if_due(self) -> None:
        """Commit what waits if it is time, or much."""
        if self._seconds is not None and (self.wait() == 0 or self._bytes >= COMMIT_BYTES):
            self.commit()

    def commit(self) -> None:
        """Commit what waits."""
        if self._transaction is None:
            return
        transaction, self._transaction = self._transaction, None
        result, self._bytes = transaction.commit(), 0
        self.taken.version = result.version
        self.taken.records += result.record_count
        self.taken.expired += result.expired
        for number, (first, end) in result.offsets.items():
            self.taken.offsets[number] = self.taken.offsets.get(number, (first, end))[0], end

    def abort(self) -> None:
        """Append nothing of what waits."""
        if self._transaction is not None:
            self._transaction.abort()
        self._transaction = None

    def __enter__(self) -> Appending:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None or (self._seconds is not None and issubclass(kind, InvalidRecordError)):
            self.commit()
        else:
            self.abort()
        if isinstance(error, DistlogError):
            error.details["appended"] = self.taken.records
