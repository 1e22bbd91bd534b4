"""The transaction index, `<stem>.txnindex`: the aborted transactions whose end marker is in the segment (KIP-98).

    position | type | field
    0        | i16  | version, 0; Kafka looks at the first byte alone, and refuses one above 0
    2        | i64  | producer id
    10       | i64  | first offset of the transaction, perhaps in an earlier segment
    18       | i64  | last offset: that of the abort marker
    26       | i64  | last stable offset when the marker was appended

Entries are big-endian, without a header, with absolute offsets, in the order of their markers (Kafka's
`TransactionIndex`). The first entry creates the file; without a file the index is empty. The file is small and is
read whole.
"""

from __future__ import annotations

import dataclasses
import errno
import os
from collections.abc import Iterable
from dataclasses import dataclass
from io import FileIO
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from distlog.core.errors import CorruptIndexError, UnsupportedVersionError

ENTRY = np.dtype(
    [
        ("version", ">i2"),
        ("producer_id", ">i8"),
        ("first_offset", ">i8"),
        ("last_offset", ">i8"),
        ("last_stable_offset", ">i8"),
    ]
)
VERSION = 0
_NONE = np.empty(0, ENTRY)


@dataclass(frozen=True, slots=True)
class AbortedTransaction:
    """An aborted transaction; `last_offset` is the offset of its abort marker."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int

    def moved(self, shift: int) -> AbortedTransaction:
        """The transaction in a relocated segment, where all offsets are higher by `shift`."""
        first, last, stable = self.first_offset, self.last_offset, self.last_stable_offset
        return AbortedTransaction(self.producer_id, first + shift, last + shift, stable + shift)


class AbortedTransactions(NamedTuple):
    """The transactions that a fetch must hide; if not `complete`, the next segment's index may hold more."""

    transactions: list[AbortedTransaction]
    complete: bool


class TransactionIndex:
    """The transaction index of one segment; no entry may lie below `base_offset`.

    A read opens the file for a moment only, so before the first append there is nothing to close. Every read raises
    UnsupportedVersionError for an entry of a later version; an incomplete last entry is ignored.
    """

    def __init__(self, path: str, base_offset: int, *, writable: bool = False) -> None:
        self.path = path
        self.base_offset = base_offset
        self._writable = writable
        self._file: FileIO | None = None

    def append(self, transaction: AbortedTransaction) -> None:
        """Add an entry; the first one makes the file. ValueError unless its last offset is above the one before."""
        file = self._open().fileno()
        size = os.fstat(file).st_size
        last = np.frombuffer(os.pread(file, ENTRY.itemsize, size - ENTRY.itemsize), ENTRY) if size else _NONE
        if len(last) and transaction.last_offset <= last["last_offset"][0]:
            raise ValueError(f"last offset {transaction.last_offset} is not above the last one: {self.path}")
        entry = np.array((VERSION, *dataclasses.astuple(transaction)), ENTRY).tobytes()
        if os.write(file, entry) != len(entry):
            os.ftruncate(file, size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.path)

    def transactions(self) -> list[AbortedTransaction]:
        """All entries, in file order."""
        return _transactions(self._entries())

    def collect_aborted(self, fetch_offset: int, upper_bound: int) -> AbortedTransactions:
        """The aborted transactions that reach into [fetch_offset, upper_bound) (Kafka's `collectAbortedTxns`)."""
        entries = self._entries()
        stops = np.flatnonzero(entries["last_stable_offset"] >= upper_bound)
        if len(stops):
            entries = entries[: stops[0] + 1]
        inside = (entries["last_offset"] >= fetch_offset) & (entries["first_offset"] < upper_bound)
        return AbortedTransactions(_transactions(entries[inside]), len(stops) > 0)

    def checksum(self) -> int:
        """The CRC-32C of the file."""
        return crc32c(self._read())

    def truncate_to(self, offset: int) -> None:
        """Drop the entries from the first one that ends at `offset` or above it."""
        ends = self._entries()["last_offset"] >= offset
        if ends.any():
            self._open().truncate(int(ends.argmax()) * ENTRY.itemsize)

    def truncate(self) -> None:
        """Drop all entries."""
        if os.path.exists(self.path):
            self._open().truncate(0)

    def sanity_check(self) -> None:
        """Raise CorruptIndexError if a transaction begins after its end or ends below the base offset."""
        entries = self._entries()
        bad = (entries["last_offset"] < self.base_offset) | (entries["first_offset"] > entries["last_offset"])
        if bad.any():
            raise CorruptIndexError(
                "an aborted transaction lies outside of its segment: recover the segment from its log",
                file=self.path,
                position=int(bad.argmax()) * ENTRY.itemsize,
            )

    def flush(self) -> None:
        """Sync the appended entries to the device."""
        if self._file is not None:
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file; a later append opens it again."""
        if self._file is not None:
            self._file.close()
        self._file = None

    def _open(self) -> FileIO:
        # Cuts off an incomplete entry that a crash left, so that the next one begins at the right place.
        if not self._writable:
            raise ValueError(f"the index is not open for writing: {self.path}")
        if self._file is None:
            self._file = FileIO(self.path, "a+")
            size = os.fstat(self._file.fileno()).st_size
            self._file.truncate(size - size % ENTRY.itemsize)
        return self._file

    def _read(self) -> bytes:
        try:
            with open(self.path, "rb") as file:
                return file.read()
        except FileNotFoundError:
            return b""

    def _entries(self) -> npt.NDArray[np.void]:
        data = self._read()
        entries = np.frombuffer(data[: len(data) // ENTRY.itemsize * ENTRY.itemsize], ENTRY)
        later = entries["version"] >> 8 > VERSION
        if later.any():
            raise UnsupportedVersionError(
                "an aborted transaction has a version that is not known: upgrade, or recover the segment",
                file=self.path,
                position=int(later.argmax()) * ENTRY.itemsize,
            )
        return entries


def encode_transactions(transactions: Iterable[AbortedTransaction]) -> bytes:
    """The file content for `transactions`, which must be in the order of their last offsets."""
    return np.array([(VERSION, *dataclasses.astuple(each)) for each in transactions], ENTRY).tobytes()


def _transactions(entries: npt.NDArray[np.void]) -> list[AbortedTransaction]:
    return [AbortedTransaction(*fields) for _, *fields in entries.tolist()]
