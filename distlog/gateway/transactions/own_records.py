"""Batches that the gateway itself appends: changes of transactions, and positions that are part of one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from distlog.core.batches.record_encoder import encode, write_headers
from distlog.core.log.partition.batch_runs import BatchRun
from distlog.gateway.transactions.transaction_state import ProducerId

#: `max.message.bytes` of the topics that hold them. A request that makes one is smaller.
MAX_BATCH_BYTES = 16 << 20


def own_batch(
    records: Sequence[tuple[bytes, bytes | None]], now_ms: int, in_transaction_of: ProducerId | None = None
) -> BatchRun:
    """One batch of these keys and values, of the time `now_ms`. Raises InvalidRecordError if it is too large."""
    keys, values = zip(*records, strict=True)
    columns = {
        "timestamp": pa.array([now_ms] * len(records), pa.int64()),
        "key": pa.array(keys, pa.binary()),
        "value": pa.array(values, pa.binary()),
    }
    producer: dict[str, Any] = {}
    if in_transaction_of is not None:
        ids = in_transaction_of
        producer = {"producer_id": ids.id, "producer_epoch": ids.epoch, "base_sequence": 0, "transactional": True}
    encoded = encode(
        pa.record_batch(columns), batch_bytes=MAX_BATCH_BYTES, max_batch_bytes=MAX_BATCH_BYTES, **producer
    )
    # as by Kafka's coordinators, the batches of the gateway are not numbered
    encoded.batches["base_sequence"] = -1
    write_headers(encoded.data, encoded.batches)
    return BatchRun(
        np.frombuffer(encoded.data, np.uint8),
        encoded.batches,
        encoded.offsets_of_max_timestamp,
        encoded.min_timestamps,
        in_transaction=in_transaction_of is not None,
    )
