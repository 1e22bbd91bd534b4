"""Where idempotent producers failed last, so that what they sent behind it is not taken for their first batch.

A log takes any batch as the first one of a producer that it does not know. A client has up to five batches of a
partition under way. If the first one fails, and the second were taken, the client would believe that the first one is
there, too, and report it as delivered: it would be lost. So the second must fail as well, until the first one came
again. Kafka has the lowest sequence number in its `VerificationStateEntry` for that.
"""

from __future__ import annotations

import struct
import threading
from collections import OrderedDict
from typing import Any

from distlog.core.errors import OutOfOrderSequenceError

#: How many producers in partitions are remembered, those that failed last.
REMEMBERED = 10_000
#: A batch's producer id, its epoch and its first sequence number, and where they are.
_PRODUCER, _PRODUCER_AT = struct.Struct(">qhi"), 43


class FailedBatches:
    """The lowest sequence numbers that failed, by topic, partition and producer; for many threads."""

    def __init__(self, limit: int = REMEMBERED) -> None:
        self._limit, self._lock = limit, threading.Lock()
        self._lowest: OrderedDict[tuple[str, int, int], tuple[int, int]] = OrderedDict()

    def failed(self, topic: str, partition: int, records: bytes) -> None:
        """Take note of a batch that failed, and that its client will send again."""
        if len(records) < _PRODUCER_AT + _PRODUCER.size:
            return
        producer, epoch, sequence = _PRODUCER.unpack_from(records, _PRODUCER_AT)
        if producer < 0 or sequence < 0:
            return
        place = topic, partition, producer
        with self._lock:
            known_epoch, lowest = self._lowest.get(place, (epoch, sequence))
            self._lowest[place] = epoch, min(lowest, sequence) if known_epoch == epoch else sequence
            self._lowest.move_to_end(place)
            if len(self._lowest) > self._limit:
                self._lowest.popitem(last=False)

    def appended(self, topic: str, partition: int, records: bytes) -> None:
        """Take note of a batch that was appended: the log knows its producer by now."""
        if self._lowest:
            producer, _, _ = _PRODUCER.unpack_from(records, _PRODUCER_AT)
            with self._lock:
                self._lowest.pop((topic, partition, producer), None)

    def check(self, topic: str, partition: int, row: Any) -> None:
        """Raise OutOfOrderSequenceError for a batch (a BATCH row) behind one that failed.

        It is for batches of producers that the log does not know: of others it knows itself which one is the next.
        """
        epoch, lowest = self._lowest.get((topic, partition, int(row["producer_id"])), (-1, -1))
        if epoch == row["producer_epoch"] and row["base_sequence"] > lowest:
            raise OutOfOrderSequenceError(
                "the producer's batch before this one failed: send that one again first",
                producer_id=int(row["producer_id"]),
                producer_epoch=epoch,
                sequence=int(row["base_sequence"]),
                expected=lowest,
            )
