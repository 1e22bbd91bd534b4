"""Compiles the Numba kernels ahead of time: calls each operation that uses one, on small topics."""

from __future__ import annotations

import gzip
import io
import struct
import tempfile
import time
import uuid
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from distlog.core.arrays import MAX_LONG
from distlog.core.errors import RetentionWarning, TimestampWarning
from distlog.core.files.json_lines import JsonFields, SeenFields
from distlog.core.files.record_times import TimeReader
from distlog.core.format.kernels.record_scan import to_microseconds
from distlog.core.kafka.dump import DumpedFile, dump
from distlog.core.kafka.dump_lines import DumpOptions, DumpOutput
from distlog.core.opening import create
from distlog.core.read.fetch import fetch_stored
from distlog.core.topic import Topic
from distlog.core.write.append import MANY_PARTITIONS

_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
_RECORD_COUNT = 200
_JSON = b'{"k": 1}'
#: Settings with which a few records fill an index and are compacted.
_CONFIG = {"min.cleanable.dirty.ratio": 0, "index.interval.bytes": 64, "batch.bytes": 512}


@dataclass(frozen=True, slots=True)
class WarmUp:
    seconds: float

    def __str__(self) -> str:
        return f"compiled distlog's kernels in {self.seconds:.1f} s"

    def to_dict(self) -> dict[str, Any]:
        return {"seconds": round(self.seconds, 3)}


def warm_up() -> WarmUp:
    """Compile the kernels of reads, appends and maintenance, so that no process pays for it later.

    Run it once after an installation, or when a container image is built, as a user that may write next to the
    installed library, or with NUMBA_CACHE_DIR set. It takes about 15 seconds of CPU time; repeated, one second.
    """
    started = time.monotonic()
    to_microseconds(np.zeros(1, np.int64), np.zeros(1, np.int64))  # only Spark calls this kernel
    fields = {"key": "k"}
    JsonFields(fields, TimeReader(), SeenFields(fields)).parse(_JSON, len(_JSON), is_last=True)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        for category in (RetentionWarning, TimestampWarning):
            warnings.simplefilter("ignore", category)
        for root in (folder, f"memory://{uuid.uuid4().hex}"):
            for policy in ("delete", "compact"):
                _append_read_and_maintain(create(f"{root}/{policy}", 3, {"cleanup.policy": policy, **_CONFIG}))
        path = Path(folder)
        # the old messages, of formats 0 and 1, have their own kernels
        uncompressed = _old_message(0, b"v", codec=0)
        (path / f"{0:020d}.log").write_bytes(uncompressed + _old_message(1, gzip.compress(uncompressed), codec=1))
        files = [
            DumpedFile.from_address(str(file))
            for suffix in ("log", "index", "timeindex")
            for file in path.rglob(f"*.{suffix}")
        ]
        dump(files, DumpOptions(print_data_log=True), DumpOutput(io.BytesIO(), io.BytesIO()))
    return WarmUp(time.monotonic() - started)


def _append_read_and_maintain(topic: Topic) -> None:
    for codec in _CODECS:
        topic.append(list(_records()), compression=codec)
        topic.append(list(_records(headers=[("name", b"value")])), partition=0, compression=codec)
    # an append to this many partitions writes their small segments as one bundle
    bundled_topic = create(f"{topic.url}-bundled", MANY_PARTITIONS, topic.config.overrides())
    for optional_fields in ({}, {"headers": [("name", b"value")]}):
        records = enumerate(_records(**optional_fields))
        bundled_topic.append([{**record, "partition": number % MANY_PARTITIONS} for number, record in records])
    with topic.writer(linger_ms=0) as writer:
        for record in _records():
            writer.append(**record)
        writer.flush()
        _read(topic.refresh())  # while the segments are active
    topic.compact()
    _read(topic.refresh())
    topic.rebuild_indexes(force=True)
    topic.verify()
    topic.retention(dry_run=True)
    topic.vacuum(dry_run=True)


def _old_message(offset: int, value: bytes, codec: int) -> bytes:
    """Return a message of format 1, without a key. With a codec, its value holds compressed messages."""
    return struct.pack(">qiIbbqii", offset, 22 + len(value), 0, 1, codec, 0, -1, len(value)) + value


def _records(**optional_fields: Any) -> Iterator[dict[str, Any]]:
    for number in range(_RECORD_COUNT):
        yield {"key": b"%d" % (number % 50), "value": b"%030d" % number, "timestamp": 1000 * number} | optional_fields


def _read(topic: Topic) -> None:
    topic.scan().to_table()
    topic.scan(columns=["offset", "value"], start_time=5000, end_time=9000, isolation="read_committed").to_table()
    topic.scan(start=3, end=7).count()
    list(topic.records(start=5, limit=2))
    topic.read(0, 5, check_crcs=True)
    fetch_stored(topic.reader, topic.snapshot.partitions[0], 0, 1, 1)
    for start in (5000, MAX_LONG):
        topic.offsets_for_times(start)
    with topic.consume(timeout=0) as consumer:
        for _ in consumer:
            pass
