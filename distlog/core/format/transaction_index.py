"""The transaction index, `<stem>.txnindex`: the aborted transactions whose end marker is in the segment (KIP-98).

    position | type | field
    0        | i16  | version, 0; Kafka reads only the first byte, and refuses a value above 0
    2        | i64  | producer id
    10       | i64  | first offset of the transaction, perhaps in an earlier segment
    18       | i64  | last offset: the offset of the abort marker
    26       | i64  | last stable offset when the marker was appended

Entries are big-endian, without a header, with absolute offsets, in the order of their markers (Kafka's
`TransactionIndex`). Without a file the index is empty. The file is small and is read whole.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

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
        """Return the transaction in a relocated segment, where all offsets are higher by `shift`."""
        first, last, stable = self.first_offset, self.last_offset, self.last_stable_offset
        return AbortedTransaction(self.producer_id, first + shift, last + shift, stable + shift)


def collect_aborted(
    transactions: Sequence[AbortedTransaction], fetch_offset: int, upper_bound: int
) -> tuple[list[AbortedTransaction], bool]:
    """Return the transactions in [fetch_offset, upper_bound), and True if later indexes have no more."""
    stop = next((n for n, aborted in enumerate(transactions) if aborted.last_stable_offset >= upper_bound), None)
    candidates = transactions if stop is None else transactions[: stop + 1]
    inside = [
        aborted
        for aborted in candidates
        if aborted.last_offset >= fetch_offset and aborted.first_offset < upper_bound
    ]
    return inside, stop is not None


def decode_transactions(data: bytes, file: str, base_offset: int) -> list[AbortedTransaction]:
    """Decode the content of the index `file`, whose transactions must end at `base_offset` or later.

    An incomplete last entry is ignored. Raises CorruptIndexError, UnsupportedVersionError for a later version.
    """
    size = TRANSACTION_ENTRY.itemsize
    entries = np.frombuffer(data[: len(data) // size * size], TRANSACTION_ENTRY)
    later = entries["version"] >> 8 > VERSION
    if later.any():
        raise UnsupportedVersionError(
            "an aborted transaction has an unknown version: upgrade, or recover the segment",
            file=file,
            position=int(later.argmax()) * size,
        )
    bad = (entries["last_offset"] < base_offset) | (entries["first_offset"] > entries["last_offset"])
    if bad.any():
        raise CorruptIndexError(
            "an aborted transaction is outside of its segment: recover the segment from its log",
            file=file,
            position=int(bad.argmax()) * size,
        )
    return [AbortedTransaction(*fields) for _, *fields in entries.tolist()]


def encode_transactions(transactions: Iterable[AbortedTransaction]) -> bytes:
    """Encode `transactions`, which must be in the order of their last offsets."""
    return np.array(
        [(VERSION, *dataclasses.astuple(transaction)) for transaction in transactions], TRANSACTION_ENTRY
    ).tobytes()
