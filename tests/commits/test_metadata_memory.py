"""Hostile metadata: no file, small or large, can make its reader use much memory."""

from __future__ import annotations

import ctypes
import dataclasses
import json
import os
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pytest
from crc32c import crc32c
from histories import CONFIG, History, append, commit_log, raise_, segment, topic_storage
from topics import NOW

from distlog.core import paths
from distlog.core.commits import checkpoint, fields
from distlog.core.commits.actions import Add, Commit, SetTransaction
from distlog.core.commits.deduplication import TransactionInfo
from distlog.core.errors import CorruptMetadataError
from distlog.core.storage.storage import MAX_CONDITIONAL_BYTES, Storage

MIB = 1 << 20


def peak(call: Callable[[], object]) -> int:
    """Return the peak memory of Python and Arrow in bytes during `call`, which may raise CorruptMetadataError."""
    pool, initial_pool = pa.proxy_memory_pool(pa.default_memory_pool()), pa.default_memory_pool()
    # memory that Arrow's threads still hold must not outlive its pool, even at interpreter exit
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(pool))
    pa.set_memory_pool(pool)
    tracemalloc.start()
    try:
        call()
    except CorruptMetadataError:
        pass
    finally:
        python = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        pa.set_memory_pool(initial_pool)
    return python + pool.max_memory()


State: TypeAlias = "tuple[dict[str, Any], pa.RecordBatch, pa.RecordBatch, pa.RecordBatch]"


@pytest.fixture(scope="module")
def honest() -> State:
    history = History()
    history.create(1)
    history.commit(Add(segment(0, 0, 10)), SetTransaction("app", 7, {0: (0, 10)}))
    state, batches = checkpoint.unpack(checkpoint.encode(history.snapshot()))
    return state, *batches.values()


def with_name(honest: State, size: int) -> State:
    state, segments, transactions, producers = honest
    return state, segments, transactions.set_column(0, "app_id", pa.array(["a" * size])), producers


def plain(state: State, **options: Any) -> bytes:
    """Return the decompressed bytes of a checkpoint of `state`, with batches by these options of Arrow."""
    body, *batches = state
    columns = [{spec.name: str(spec.type) for spec in batch.schema} for batch in batches]
    names = "segments", "transactions", "producers"
    text = json.dumps({**body, "columns": dict(zip(names, columns, strict=True))}).encode()
    text += b" " * (-len(text) % 8)
    sink = pa.BufferOutputStream()
    for batch in batches:
        with pa.ipc.new_stream(
            stream := pa.BufferOutputStream(), batch.schema, options=pa.ipc.IpcWriteOptions(**options)
        ) as writer:
            writer.write_batch(batch)
        reader = pa.ipc.MessageReader.open_stream(stream.getvalue())
        reader.read_next_message()
        reader.read_next_message().serialize_to(sink)
    return struct.pack("<q", len(text)) + text + sink.getvalue().to_pybytes()


def frame(data: bytes) -> bytes:
    return pa.Codec("zstd").compress(data, asbytes=True)


#: Small files that would use far more memory to read.
BOMBS: dict[str, tuple[Callable[[State], bytes], str]] = {
    "a very long name": (lambda honest: frame(plain(with_name(honest, 40 * MIB))), "decompresses to"),
    "a name that is compressed twice": (
        lambda honest: frame(plain(with_name(honest, 40 * MIB), compression="zstd")),
        "are compressed",
    ),
    "a size that is not true": (lambda honest: frame(bytes(20 * MIB))[:5] + b"\x08" * 20, "decompress"),
    "a text of a size that is not true": (lambda honest: frame(b"\xff" * 7 + bytes(1_000)), "cut off"),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_hostile_small_checkpoint_uses_little_memory(honest: State, bomb: str) -> None:
    make, complaint = BOMBS[bomb]
    data = make(honest)
    assert len(data) < 4 * MIB
    with pytest.raises(CorruptMetadataError, match=complaint):
        checkpoint.decode(data, "a file")
    assert peak(lambda: checkpoint.decode(data, "a file")) < 2 * checkpoint.MIN_SIZE_LIMIT


def test_columns_that_share_their_bytes_are_refused(honest: State) -> None:
    state, segments, transactions, producers = honest
    for name, size in (("a", MIB), ("b", 1), ("c", 1)):
        segments = segments.append_column(name, pa.array(["x" * size]))
    data = plain((state, segments, transactions, producers))
    assert [len(batch) for batch in checkpoint.unpack(frame(data))[1].values()] == [1, 1, 0]
    words = np.frombuffer(data, np.int64).copy()
    # a buffer is its position and its size; a column has buffers of nulls, offsets and text
    (size,) = np.flatnonzero(words == MIB)
    words[size + 3 : size + 7] = words[size + 9 : size + 13] = words[size - 3 : size + 1]
    with pytest.raises(ValueError, match="larger than the bytes"):
        checkpoint.unpack(frame(words.tobytes()))


def test_a_checkpoint_that_no_reader_would_accept_is_not_written(
    memory_url: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = topic_storage(memory_url.url)
    log = commit_log(storage, checkpoint_commits=1)
    monkeypatch.setattr(checkpoint, "MAX_STATE_BYTES", 1_000)
    snapshot = append(log, log.create(1, CONFIG), 2)
    monkeypatch.undo()
    monkeypatch.setattr(checkpoint, "_check_segments", lambda *_: raise_(ValueError("no")))
    snapshot = append(log, snapshot, 2)
    assert [file.name for file in storage.list(paths.COMMITS_DIR) if "checkpoint" in file.name] == []
    assert log.load() == snapshot


def test_a_state_of_equal_rows_has_a_checkpoint(memory_url: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record for each of a hundred partitions, repeatedly: it compresses as well as a bomb, so it is padded."""
    monkeypatch.setattr(checkpoint, "MIN_SIZE_LIMIT", MIB)
    storage = topic_storage(memory_url.url)
    snapshot = commit_log(storage).create(100, CONFIG)
    batches = {
        ("app", number): TransactionInfo(number, NOW, dict.fromkeys(range(100), (number, number + 1)))
        for number in range(3_000)
    }
    snapshot = dataclasses.replace(
        snapshot, transactions=snapshot.transactions.updated(batches, NOW), timestamp_ms=NOW
    )
    data = checkpoint.encode(snapshot)
    assert data.endswith(bytes(50_000))
    name = checkpoint.write(storage, snapshot)
    assert checkpoint.read(storage, name) == snapshot
    with pytest.raises(CorruptMetadataError, match="far more than its size"):
        checkpoint.decode(data.rstrip(b"\0"), "a file")


def sparse(storage: Storage, name: str, size: int) -> None:
    """Create a sparse file of zeros."""
    path = Path(storage.local_path(name))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    os.truncate(path, size)


@pytest.mark.parametrize("read", ["read", "read as the winner of a race"])
def test_a_commit_that_is_too_large_is_refused_before_it_is_read(tmp_path: Path, read: str) -> None:
    storage = topic_storage(tmp_path)
    log = commit_log(storage)
    snapshot = append(log, log.create(1, CONFIG))
    sparse(storage, paths.commit_file(2), 1 << 30)
    call = log.load if read == "read" else lambda: append(log, snapshot)
    with pytest.raises(CorruptMetadataError, match="larger than any commit may be"):
        call()
    assert peak(call) < MAX_CONDITIONAL_BYTES + 10 * MIB


def test_a_hint_or_a_checkpoint_that_is_too_large_is_ignored(tmp_path: Path) -> None:
    storage = topic_storage(tmp_path)
    log = commit_log(storage)
    snapshot = append(log, log.create(1, CONFIG), 3)
    sparse(storage, paths.LAST_CHECKPOINT, 1 << 30)
    assert peak(lambda: log.load()) < MIB
    sparse(storage, paths.checkpoint_file(2, "0" * 32), 1 << 30)
    assert log.load() == snapshot
    assert peak(lambda: log.load()) < checkpoint.MAX_FILE_BYTES + 10 * MIB


@pytest.mark.parametrize("filler", [b"[]", b"{}", b"0", b'""', b'{"a":1}'])
def test_a_commit_of_far_more_values_than_its_size_is_refused(filler: bytes) -> None:
    history = History()
    text = history.create(1).encode().partition(b',"crc32c"')[0]
    text += b',"x":[' + b",".join([filler] * 2_500_000) + b"]"
    data = text + b',"crc32c":%d}\n' % crc32c(text)
    with pytest.raises(CorruptMetadataError, match="more than metadata does"):
        Commit.decode(data, "a file")
    assert peak(lambda: Commit.decode(data, "a file")) < MIB


def test_a_large_commit_of_small_actions_is_accepted() -> None:
    history = History()
    history.create(1)
    removes = [{"remove": {"partition": 0, "stem": segment().stem}}] * 50_000
    text = json.dumps(removes, separators=(",", ":")).encode()
    assert len(fields.parse(text)) == 50_000
    values = text.count(b",") + text.count(b"[") + text.count(b"{")
    assert values * fields.BYTES_PER_VALUE < len(text)
