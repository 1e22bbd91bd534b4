"""Log directories of brokers that were killed amid transactions: partitions, and what `__transaction_state` says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from raw_batches import batch, record

from distlog.core.format.record_batch import CONTROL, TRANSACTIONAL
from distlog.core.kafka.transactions import (
    ProducerId,
    TransactionState,
    TransactionStatus,
    encode_key,
    encode_state,
)

TIME_MS = 1_600_000_000_000
_TIMES = {"base_timestamp": TIME_MS, "max_timestamp": TIME_MS}


def plain(offset: int, value: bytes) -> bytes:
    return batch([record(0, 0, b"k", value)], base_offset=offset, leader_epoch=4, **_TIMES)


def in_transaction(offset: int, value: bytes, producer: int = 7, epoch: int = 3, sequence: int = 0) -> bytes:
    of = (producer, epoch, sequence)
    records = [record(0, 0, b"k", value)]
    return batch(records, base_offset=offset, attributes=TRANSACTIONAL, producer=of, leader_epoch=4, **_TIMES)


def end_marker(offset: int, kind: int, producer: int = 7, epoch: int = 3) -> bytes:
    body = record(0, 0, b"\0\0" + kind.to_bytes(2, "big"), b"\0\0\0\0\0\5")
    attributes, of = TRANSACTIONAL | CONTROL, (producer, epoch, -1)
    return batch([body], base_offset=offset, attributes=attributes, producer=of, leader_epoch=4, **_TIMES)


def state(
    id: str,
    status: TransactionStatus,
    *locations: tuple[str, int],
    producer: int = 7,
    epoch: int = 3,
    time_ms: int = TIME_MS,
) -> TransactionState:
    transaction_state = TransactionState(
        transactional_id=id,
        producer=ProducerId(producer, epoch),
        timeout_ms=60_000,
        status=status,
        partitions=frozenset(locations),
        updated_ms=time_ms,
        started_ms=time_ms,
    )
    return replace(transaction_state, partitions=frozenset()) if transaction_state.is_over else transaction_state


def states_log(states: Sequence[TransactionState | str]) -> bytes:
    """A log of `__transaction_state`; an id alone is one that was forgotten."""
    return b"".join(
        batch(
            [record(0, 0, encode_key(transaction), None)]
            if isinstance(transaction, str)
            else [record(0, 0, encode_key(transaction.transactional_id), encode_state(transaction))],
            base_offset=offset,
            **_TIMES,
        )
        for offset, transaction in enumerate(states)
    )


def left_log_dir(folder: Path, logs: Mapping[str, bytes], states: Mapping[int, bytes]) -> Path:
    """A log directory after `kill -9` with these partitions, and these of `__transaction_state`."""
    log_dir = folder / "kafka-logs"
    partitions = {**logs, **{f"__transaction_state-{number}": data for number, data in states.items()}}
    for name, data in partitions.items():
        (log_dir / name).mkdir(parents=True)
        (log_dir / name / f"{0:020d}.log").write_bytes(data)
        (log_dir / name / "partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAg")
    return log_dir
