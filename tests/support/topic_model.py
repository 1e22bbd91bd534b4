"""A model of a topic, a list of records for each partition: what is put into it, and what a topic must then say."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from compiled import compiled
from hypothesis import strategies as st
from topics import NOW, stored

import distlog
from distlog.core.kernels import keys

murmur2 = compiled(keys.murmur2)
PARTITIONS = 3
BYTES = st.none() | st.binary(max_size=40)
TIMESTAMPS = st.integers(NOW - 20, NOW + 20) | st.just(-1)
HEADERS = st.none() | st.lists(st.tuples(st.sampled_from("ab"), BYTES), max_size=2)
RECORDS = st.lists(
    st.fixed_dictionaries(
        {"value": BYTES},
        optional={
            "key": BYTES,
            "timestamp": TIMESTAMPS | st.none(),
            "headers": HEADERS,
            "partition": st.none() | st.integers(0, PARTITIONS - 1),
        },
    ),
    max_size=25,
)
SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "internal.segment.bytes": st.sampled_from([400, 1000, None]),
        "batch.bytes": st.sampled_from([1, 100, None]),
        "index.interval.bytes": st.sampled_from([0, 100, None]),
        "compression.type": st.sampled_from(["gzip", "lz4", "snappy", "uncompressed", "zstd", None]),
        "message.timestamp.type": st.sampled_from(["LogAppendTime", "CreateTime", None]),
    },
)


class Stored(NamedTuple):
    """A record as the model holds it."""

    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


#: The records of each partition.
Log = list[list[Stored]]


def home(record: dict[str, Any]) -> int | None:
    """The partition that the record asks for or that its key has, as Kafka's partitioner says."""
    if record.get("partition") is not None:
        return int(record["partition"])
    key = record.get("key")
    return None if key is None else (murmur2(np.frombuffer(key, np.uint8), 0, len(key)) & 0x7FFFFFFF) % PARTITIONS


def table(records: list[dict[str, Any]]) -> pa.Table:
    """The records as Arrow, with types other than those that are stored."""
    types = {
        "partition": pa.int64(),
        "timestamp": pa.timestamp("us", "Europe/Paris"),
        "key": pa.binary_view(),
        "value": pa.large_binary(),
        "headers": pa.list_(pa.struct([("key", pa.large_string()), ("value", pa.large_binary())])),
    }
    names = {name for record in records for name in record} | {"value"}
    schema = pa.schema([(name, kind) for name, kind in types.items() if name in names])
    rows = [{**record, "timestamp": _microseconds(record.get("timestamp"))} for record in records]
    return pa.Table.from_pylist(rows, schema)


def _microseconds(timestamp: int | None) -> int | None:
    return None if timestamp is None else timestamp * 1000


def read(found: pa.Table) -> Log:
    """What a scan gave, by partition; it must be in order, without a gap."""
    log: Log = [[] for _ in range(PARTITIONS)]
    places = []
    for row in stored(found):
        headers = [(header["key"], header["value"]) for header in row["headers"]]
        log[row["partition"]].append(
            Stored(row["timestamp"], row["timestamp_type"], row["key"], row["value"], headers)
        )
        places.append((row["partition"], row["offset"]))
    assert places == sorted(places)
    assert all(after[1] == before[1] + 1 for before, after in pairwise(places) if after[0] == before[0])
    return log


def at(records: list[Stored], time: int) -> tuple[int, int] | None:
    """What a lookup of `time` must find."""
    if time in (distlog.LATEST, distlog.EARLIEST):
        return (len(records) if time == distlog.LATEST else 0), -1
    if time == distlog.MAX_TIMESTAMP:
        time = max([record.timestamp for record in records], default=-1)
        if time == -1:
            return None
    return next(
        ((offset, record.timestamp) for offset, record in enumerate(records) if record.timestamp >= time), None
    )
