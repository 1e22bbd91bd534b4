"""The end marker of a transaction: a control batch with one record, which says how it ended (KIP-98)."""

from __future__ import annotations

import struct

import numpy as np
import pyarrow as pa

from distlog.core.batches.record_batch import ABORT, COMMIT
from distlog.core.batches.record_encoder import encode
from distlog.core.commits.format.actions import PREPARE_COMMIT, ProducerTransaction
from distlog.core.log.partition.batch_runs import BatchRun

#: Version and type of a control record; version of the value, and epoch of the coordinator that decided.
_KEY, _VALUE = struct.Struct(">hh"), struct.Struct(">hi")
_VERSION = 0
#: Whoever decides holds a lock, or puts a commit first: so no marker of a coordinator that was replaced can come.
_COORDINATOR_EPOCH = 0


def end_marker(decided: ProducerTransaction, now_ms: int) -> BatchRun:
    """The marker of a transaction that the commit log decided, see `marker`."""
    is_committed = decided.state == PREPARE_COMMIT
    return marker(decided.producer_id, decided.producer_epoch, now_ms, is_committed=is_committed)


def marker(producer_id: int, producer_epoch: int, now_ms: int, *, is_committed: bool) -> BatchRun:
    """An end marker of the time `now_ms`, as `PartitionLog.end_transaction` takes it."""
    kind = COMMIT if is_committed else ABORT
    record = pa.record_batch(
        {
            "timestamp": pa.array([now_ms], pa.int64()),
            "key": pa.array([_KEY.pack(_VERSION, kind)], pa.binary()),
            "value": pa.array([_VALUE.pack(_VERSION, _COORDINATOR_EPOCH)], pa.binary()),
        }
    )
    encoded = encode(
        record,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
    )
    return BatchRun(
        np.frombuffer(encoded.data, np.uint8),
        encoded.batches,
        encoded.offsets_of_max_timestamp,
        encoded.min_timestamps,
        in_transaction=True,
    )
