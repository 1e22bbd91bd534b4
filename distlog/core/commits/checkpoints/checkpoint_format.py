"""A checkpoint's bytes: one Parquet file.

Its rows are the live segments in the order of (partition, base_offset), then the batches of the transaction table; a
row fills one of the two columns `segment` and `transaction`. The rest is JSON in the file's metadata, under
`distlog`, with the counts and the ends that the rows must agree with. Fields that a newer library added are kept as
they are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from distlog.core.commits.checkpoints import checkpoint_table
from distlog.core.commits.checkpoints.checkpoint_rows import segments_of, transactions_of
from distlog.core.commits.format import fields, json_text
from distlog.core.commits.format.actions import MAX_PARTITIONS, Active, Pin, ProducerTransaction
from distlog.core.commits.format.commit import FORMAT
from distlog.core.commits.format.features import NOTHING, Requires
from distlog.core.commits.format.fields import LONG, UUID, Integer, Text, stored, unknown_fields
from distlog.core.commits.state import segment_table
from distlog.core.commits.state.columns import join
from distlog.core.commits.state.segment_table import SegmentTable
from distlog.core.commits.state.snapshot import PartitionState, Snapshot
from distlog.core.commits.state.transaction_table import TransactionTable
from distlog.core.config import TopicConfig
from distlog.core.errors import CorruptMetadataError

_METADATA = b"distlog"

Value = TypeVar("Value")


def _all(kind: type[Value]) -> Callable[[Any], tuple[Value, ...]]:
    return lambda bodies: tuple(fields.read(kind, body) for body in bodies)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Partition:
    log_start_offset: int = stored(LONG)
    log_end_offset: int = stored(LONG)
    first_dirty_offset: int = stored(LONG)
    segments: int = stored(LONG)
    unknown: str = unknown_fields()


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    """The JSON in the file's metadata; names are those of Snapshot."""

    format: int = stored(Integer(FORMAT, FORMAT))
    version: int = stored(LONG)
    commit_id: str = stored(UUID)
    topic_id: str = stored(UUID)
    name: str = stored(Text("[a-zA-Z0-9._-]{1,249}"))
    timestamp_ms: int = stored(LONG)
    config: Mapping[str, str] = stored(fields.settings)
    gc_floor: int = stored(LONG)
    dropped: bool = stored(fields.boolean)
    commit_bytes: int = stored(LONG)
    pins: tuple[Pin, ...] = stored(_all(Pin))
    partitions: tuple[_Partition, ...] = stored(_all(_Partition))
    active: tuple[Active, ...] = stored(_all(Active))
    transactions: int = stored(LONG)
    requires: Requires = stored(Requires.of, default=NOTHING)
    producer_transactions: tuple[ProducerTransaction, ...] = stored(_all(ProducerTransaction), default=())
    unknown: str = unknown_fields()


def encode(snapshot: Snapshot, *, is_packed: bool = True) -> bytes:
    """The Parquet file of `snapshot`; if not packed, it is about as large as the memory that reading it takes."""
    segments = join([segment_table.EMPTY.columns(), *(part.segments.columns() for part in snapshot.partitions)])
    transactions = snapshot.transactions.columns()
    rows = pa.table(
        {
            "segment": pa.chunked_array([segments.to_struct_array(), _nulls(segments, len(transactions))]),
            "transaction": pa.chunked_array([_nulls(transactions, len(segments)), transactions.to_struct_array()]),
        }
    )
    state = json.dumps(fields.write(_state(snapshot)), default=fields.write, separators=(",", ":"))
    sink = pa.BufferOutputStream()
    table = rows.replace_schema_metadata({_METADATA: state})
    pq.write_table(table, sink, compression="zstd" if is_packed else "none", use_dictionary=is_packed)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def decode(data: bytes, file: str) -> Snapshot:
    """The state that the bytes of the checkpoint `file` hold.

    Raises CorruptMetadataError, UnsupportedVersionError.
    """
    try:
        table = checkpoint_table.read(data)
        state = fields.read(_State, json_text.parse(table.schema.metadata[_METADATA]))
        state.requires.check_readable(file)
        return _snapshot(state, table)
    except (pa.ArrowException, ArithmeticError, LookupError, OSError, RecursionError, TypeError, ValueError) as error:
        raise CorruptMetadataError(f"not a checkpoint: {error}", file=file) from error


def _state(snapshot: Snapshot) -> _State:
    return _State(
        format=FORMAT,
        version=snapshot.version,
        commit_id=snapshot.commit_id,
        topic_id=snapshot.topic_id,
        name=snapshot.name,
        timestamp_ms=snapshot.timestamp_ms,
        config={name: str(value) for name, value in snapshot.config.overrides().items()},
        gc_floor=snapshot.gc_floor,
        dropped=snapshot.dropped,
        commit_bytes=snapshot.commit_bytes,
        pins=tuple(snapshot.pins.values()),
        partitions=tuple(_partition(partition) for partition in snapshot.partitions),
        active=tuple(partition.active for partition in snapshot.partitions if partition.active),
        transactions=len(snapshot.transactions),
        requires=snapshot.requires,
        producer_transactions=tuple(snapshot.producer_transactions.values()),
        unknown=snapshot.unknown,
    )


def _partition(state: PartitionState) -> _Partition:
    return _Partition(
        log_start_offset=state.log_start_offset,
        log_end_offset=state.log_end_offset,
        first_dirty_offset=state.first_dirty_offset,
        segments=len(state.segments),
        unknown=state.unknown,
    )


def _nulls(like: pa.RecordBatch, count: int) -> pa.Array:
    return pa.nulls(count, pa.struct(list(like.schema)))


def _snapshot(state: _State, table: pa.Table) -> Snapshot:
    if len(state.partitions) > MAX_PARTITIONS:
        raise ValueError(f"it has more than {MAX_PARTITIONS} partitions")
    count = sum(partition.segments for partition in state.partitions)
    if table.num_rows != count + state.transactions:
        raise ValueError("the number of its rows differs from its metadata")
    segments = segments_of(
        table.slice(0, count).column("segment").combine_chunks(),
        [partition.segments for partition in state.partitions],
        [partition.log_end_offset for partition in state.partitions],
    )
    transactions = transactions_of(table.slice(count).column("transaction").combine_chunks(), state.timestamp_ms)
    return Snapshot(
        version=state.version,
        commit_id=state.commit_id,
        topic_id=state.topic_id,
        name=state.name,
        timestamp_ms=state.timestamp_ms,
        config=TopicConfig.stored(state.config),
        partitions=_partition_states(segments, state),
        transactions=TransactionTable(transactions),
        gc_floor=state.gc_floor,
        pins={pin.name: pin for pin in state.pins},
        dropped=state.dropped,
        commit_bytes=state.commit_bytes,
        requires=state.requires,
        producer_transactions={each.transactional_id: each for each in state.producer_transactions},
        unknown=state.unknown,
    )


def _partition_states(segments: pa.RecordBatch, state: _State) -> tuple[PartitionState, ...]:
    starts = np.cumsum([0] + [partition.segments for partition in state.partitions]).tolist()
    active = {segment.partition: segment for segment in state.active}
    return tuple(
        PartitionState(
            log_start_offset=partition.log_start_offset,
            log_end_offset=partition.log_end_offset,
            segments=SegmentTable(segments.slice(start, partition.segments)),
            first_dirty_offset=partition.first_dirty_offset,
            active=active.get(number),
            unknown=partition.unknown,
        )
        for number, (start, partition) in enumerate(zip(starts, state.partitions, strict=False))
    )
