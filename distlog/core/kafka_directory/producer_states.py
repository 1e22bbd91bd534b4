"""What a producer snapshot says at the end of a log, from the headers of its batches (`ProducerStateManager`).

A log that was cleaned or cut at its beginning does not tell of all producers. So a walk begins with the snapshot that
the broker left, if there is one, and takes the batches behind it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from distlog.core.batches.record_batch import CONTROL, TRANSACTIONAL, increment_sequence
from distlog.core.batches.record_decoder import decode
from distlog.core.transactions.open_transactions import OpenTransactions
from distlog.core.transactions.producer_snapshot import ENTRY, write_producer_snapshot

_NONE = -1
_Entry = dict[str, int]


class ProducerStates:
    """The last batch of each producer, and its open transaction, behind the batches seen so far.

    It begins with `entries` (ENTRY rows), a snapshot before `offset`; batches below that are passed over.
    """

    def __init__(self, entries: npt.NDArray[Any] | None = None, offset: int = 0) -> None:
        rows = np.empty(0, ENTRY) if entries is None else entries
        self.offset = offset
        self._entries: dict[int, _Entry] = {
            int(row["producer_id"]): {name: int(row[name]) for name in ENTRY.names or ()} for row in rows
        }
        opened = {
            producer: entry["transaction_first_offset"]
            for producer, entry in self._entries.items()
            if entry["transaction_first_offset"] != _NONE
        }
        self._transactions = OpenTransactions(opened)

    def see(self, data: Any, batches: npt.NDArray[Any], shift: int = 0) -> None:
        """Take the next batches (BATCH rows) of `data`; `shift` is added to their offsets."""
        chosen = (batches["producer_id"] >= 0) & (batches["base_offset"] + shift >= self.offset)
        rows = batches[chosen]
        if not len(rows):
            return
        if (rows["attributes"] & TRANSACTIONAL).any():
            self._transactions.see(data, rows, shift)
        control = rows["attributes"] & CONTROL != 0
        for row in _last_of_each(rows[~control & (rows["record_count"] > 0)]):
            self._take_data(row, shift)
        for row in rows[control & (rows["record_count"] > 0)]:
            self._take_marker(data, row)

    def _take_data(self, row: Any, shift: int) -> None:
        delta = int(row["last_offset_delta"])
        known = self._entry(int(row["producer_id"]))
        sequence = int(row["base_sequence"])
        known.update(
            producer_epoch=int(row["producer_epoch"]),
            last_sequence=_NONE if sequence < 0 else increment_sequence(sequence, delta),
            last_offset=int(row["base_offset"]) + delta + shift,
            offset_delta=delta,
            last_timestamp=int(row["max_timestamp"]),
        )

    def _take_marker(self, data: Any, row: Any) -> None:
        known = self._entry(int(row["producer_id"]))
        if known["producer_epoch"] != int(row["producer_epoch"]):
            # a new epoch begins without batches
            known.update(last_sequence=_NONE, last_offset=_NONE, offset_delta=0)
        known.update(
            producer_epoch=int(row["producer_epoch"]),
            last_timestamp=int(row["max_timestamp"]),
            coordinator_epoch=_coordinator_epoch(data, row),
        )

    def _entry(self, producer: int) -> _Entry:
        fresh = dict.fromkeys(ENTRY.names or (), _NONE) | {"producer_id": producer, "offset_delta": 0}
        return self._entries.setdefault(producer, fresh)

    def snapshot(self) -> bytes:
        """The content of the producer snapshot at the end of the batches."""
        opened = self._transactions.opened
        for producer, entry in self._entries.items():
            entry["transaction_first_offset"] = opened.get(producer, _NONE)
        rows = [tuple(entry[name] for name in ENTRY.names or ()) for _, entry in sorted(self._entries.items())]
        return write_producer_snapshot(np.array(rows, ENTRY))


def _last_of_each(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The last batch of each producer."""
    _, places = np.unique(rows["producer_id"][::-1], return_index=True)
    found: npt.NDArray[Any] = rows[len(rows) - 1 - places]
    return found


def _coordinator_epoch(data: Any, row: Any) -> int:
    """The coordinator's epoch in an end marker: int16 version, then int32, in the value of its only record."""
    shown = np.array([row])
    shown["attributes"] &= ~CONTROL
    records = decode(data, shown, columns=("value",))
    value = records.column(0)[0].as_py() if records.num_rows else None
    return int.from_bytes(value[2:6], "big", signed=True) if value and len(value) >= 6 else _NONE
