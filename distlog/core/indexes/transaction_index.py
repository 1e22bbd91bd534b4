"""The transaction index, `<stem>.txnindex`: the aborted transactions whose end marker is in the segment (KIP-98).

    position | type | field
    0        | i16  | version, 0; Kafka looks at the first byte alone, and refuses one above 0
    2        | i64  | producer id
    10       | i64  | first offset of the transaction, perhaps in an earlier segment
    18       | i64  | last offset: that of the abort marker
    26       | i64  | last stable offset when the marker was appended

Entries are big-endian, without a header, with absolute offsets, in the order of their markers (Kafka's
`TransactionIndex`). Without a file the index is empty. The file is small and is read whole.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from distlog.core.errors import CorruptIndexError, UnsupportedVersionError

TRANSACTION_ENTRY = np.dtype(
    [
        ("version", ">i2"),
        ("producer_id", ">i8"),
        ("first_offset", ">i8"),
        ("last_offset", ">i8"),
        ("last_stable_offset", ">i8"),
    ]
)
VERSION = 0


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

    Every read opens the file for a moment, and raises UnsupportedVersionError for an entry of a later version; an
    incomplete last entry is ignored.
    """

    def __init__(self, path: str, base_offset: int) -> None:
        self.path = path
        self.base_offset = base_offset

    def transactions(self) -> list[AbortedTransaction]:
        """All entries, in file order."""
        return _transactions(self._entries())

    def checksum(self) -> int:
        """The CRC-32C of the file."""
        return crc32c(self._read())

    def sanity_check(self) -> None:
        """Raise CorruptIndexError if a transaction begins after its end or ends below the base offset."""
        _check(self._entries(), self.path, self.base_offset)

    def _read(self) -> bytes:
        try:
            with open(self.path, "rb") as file:
                return file.read()
        except FileNotFoundError:
            return b""

    def _entries(self) -> npt.NDArray[np.void]:
        return _whole_entries(self._read(), self.path)


def collect_aborted(
    transactions: Sequence[AbortedTransaction], fetch_offset: int, upper_bound: int
) -> AbortedTransactions:
    """The transactions of an index that reach into [fetch_offset, upper_bound) (Kafka's `collectAbortedTxns`)."""
    stop = next((place for place, each in enumerate(transactions) if each.last_stable_offset >= upper_bound), None)
    known = transactions if stop is None else transactions[: stop + 1]
    inside = [each for each in known if each.last_offset >= fetch_offset and each.first_offset < upper_bound]
    return AbortedTransactions(inside, stop is not None)


def decode_transactions(data: bytes, file: str, base_offset: int) -> list[AbortedTransaction]:
    """The transactions in the content of the index `file`, none of which may lie below `base_offset`.

    Raises CorruptIndexError, UnsupportedVersionError for an entry of a later version.
    """
    entries = _whole_entries(data, file)
    _check(entries, file, base_offset)
    return _transactions(entries)


def _check(entries: npt.NDArray[np.void], file: str, base_offset: int) -> None:
    bad = (entries["last_offset"] < base_offset) | (entries["first_offset"] > entries["last_offset"])
    if bad.any():
        raise CorruptIndexError(
            "an aborted transaction lies outside of its segment: recover the segment from its log",
            file=file,
            position=int(bad.argmax()) * TRANSACTION_ENTRY.itemsize,
        )


def _whole_entries(data: bytes, file: str) -> npt.NDArray[np.void]:
    entries = np.frombuffer(
        data[: len(data) // TRANSACTION_ENTRY.itemsize * TRANSACTION_ENTRY.itemsize], TRANSACTION_ENTRY
    )
    later = entries["version"] >> 8 > VERSION
    if later.any():
        raise UnsupportedVersionError(
            "an aborted transaction has an unknown version: upgrade, or recover the segment",
            file=file,
            position=int(later.argmax()) * TRANSACTION_ENTRY.itemsize,
        )
    return entries


def encode_transactions(transactions: Iterable[AbortedTransaction]) -> bytes:
    """The file content for `transactions`, which must be in the order of their last offsets."""
    return np.array([(VERSION, *dataclasses.astuple(each)) for each in transactions], TRANSACTION_ENTRY).tobytes()


def _transactions(entries: npt.NDArray[np.void]) -> list[AbortedTransaction]:
    return [AbortedTransaction(*fields) for _, *fields in entries.tolist()]
