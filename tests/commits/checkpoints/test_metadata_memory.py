"""Hostile metadata: a small file cannot make its reader take much memory, nor can a large one."""

from __future__ import annotations

import ctypes
import dataclasses
import io
import json
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from crc32c import crc32c
from histories import CONFIG, History, append, commit_log, segment, topic_storage
from topics import NOW

from distlog.core import paths
from distlog.core.commits.checkpoints import checkpoint, checkpoint_format, checkpoint_table, parquet_memory
from distlog.core.commits.format import json_text
from distlog.core.commits.format.actions import Add, SetTransaction
from distlog.core.commits.format.commit import Commit
from distlog.core.commits.state.transaction_columns import TransactionInfo
from distlog.core.errors import CorruptMetadataError
from distlog.core.storage.storage import MAX_CONDITIONAL_BYTES, Storage

MIB = 1 << 20


def peak(call: Callable[[], object]) -> int:
    """How many bytes Python and Arrow took at most for `call`, which a CorruptMetadataError may end."""
    pool, before = pa.proxy_memory_pool(pa.default_memory_pool()), pa.default_memory_pool()
    # what Arrow's threads still hold must not outlive its pool, not even when the interpreter ends
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
        pa.set_memory_pool(before)
    return python + pool.max_memory()


@pytest.fixture(scope="module")
def honest() -> pa.Table:
    """The table of a checkpoint with one segment and one transaction."""
    history = History()
    history.create(1)
    history.commit(Add(segment(0, 0, 10)), SetTransaction("app", 7, {0: (0, 10)}))
    return pq.read_table(io.BytesIO(checkpoint_format.encode(history.snapshot())))


def packed(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd", write_statistics=False)
    return sink.getvalue()


def with_rows(honest: pa.Table, indices: list[int], **state: Any) -> pa.Table:
    """A table of the honest rows of these numbers, over and over, with a state that agrees."""
    body = json.loads(honest.schema.metadata[b"distlog"])
    body["partitions"][0]["segments"] = indices.count(0)
    body.update({"transactions": indices.count(1), **state})
    table = honest.take(pa.array(indices, pa.int32())).combine_chunks()
    return table.replace_schema_metadata({"distlog": json.dumps(body)})


def with_transaction(honest: pa.Table, count: int, **changes: Any) -> pa.Table:
    row = {**honest.column("transaction")[1].as_py(), **changes}
    table = with_rows(honest, [1])
    one = pa.array([row], table.schema.field("transaction").type)
    return table.set_column(1, "transaction", one).take([0] * count).combine_chunks()


def bombs() -> dict[str, Callable[[pa.Table], pa.Table]]:
    """Small files that take hundreds of megabytes to read, each in another way."""
    return {
        "a segment, half a million times": lambda honest: with_rows(honest, [0] * 500_000),
        "a long name, many times": lambda honest: with_transaction(honest, 3_000, app_id="a" * 100_000),
        "a very long name": lambda honest: with_transaction(honest, 1, app_id="a" * (200 * MIB)),
        "a very long list": lambda honest: with_transaction(
            honest, 40, offsets=[{"partition": 0, "start_offset": 0, "end_offset": 0}] * 200_000
        ),
    }


@pytest.mark.parametrize("bomb", bombs())
def test_a_small_checkpoint_takes_little_memory_whatever_it_says(honest: pa.Table, bomb: str) -> None:
    data = packed(bombs()[bomb](honest))
    assert len(data) < MIB
    with pytest.raises(CorruptMetadataError, match=r"more than its size"):
        checkpoint_format.decode(data, "a file")
    assert peak(lambda: checkpoint_format.decode(data, "a file")) < 100 * MIB


def thrift_integer(value: int, size: int = 0) -> bytes:
    """An integer as the footer has it: zigzag, seven bits to a byte; in `size` bytes, more than it needs."""
    value, groups = 2 * value, list[int]()
    while value or len(groups) < size:
        groups.append(value & 0x7F)
        value >>= 7
    return bytes([*(group | 0x80 for group in groups[:-1]), groups[-1]])


def with_small_numbers(data: bytes) -> bytes:
    """The Parquet file `data` whose footer says of each group and column that it is one row of one byte."""
    size = int.from_bytes(data[-8:-4], "little")
    footer = data[-8 - size : -8]
    group = pq.read_metadata(io.BytesIO(data)).row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    numbers = {group.num_rows, group.total_byte_size}
    numbers |= {number for column in columns for number in (column.num_values, column.total_uncompressed_size)}
    for number in sorted(numbers - {0, 1}, reverse=True):
        stored = thrift_integer(number)
        if len(stored) > 1:
            footer = footer.replace(stored, thrift_integer(1, len(stored)))
    return data[: -8 - size] + footer + data[-8:]


def test_a_footer_that_understates_its_pages_helps_nobody(honest: pa.Table) -> None:
    """Not the footer's sizes and counts are asked, which whoever wrote it chose, but each page."""
    data = with_small_numbers(packed(bombs()["a segment, half a million times"](honest)))
    group = pq.read_metadata(io.BytesIO(data)).row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    assert (group.num_rows, max(column.num_values for column in columns)) == (1, 1)
    assert sum(column.total_uncompressed_size for column in columns) < MIB
    assert parquet_memory.needed(memoryview(data)) > 100 * MIB


def test_the_pages_are_counted_as_arrow_counts_them(honest: pa.Table) -> None:
    data = packed(with_rows(honest, [0] * 5_000 + [1] * 3_000))
    group = pq.read_metadata(io.BytesIO(data)).row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    least = sum(column.num_values * 12 for column in columns)
    # what the footer calls uncompressed counts the headers of pages too
    most = least + sum(column.total_uncompressed_size for column in columns)
    assert least < parquet_memory.needed(memoryview(data)) < most


def test_a_checkpoint_that_nobody_would_read_is_not_written(
    memory_url: Any, monkeypatch: pytest.MonkeyPatch, honest: pa.Table
) -> None:
    storage = topic_storage(memory_url.url)
    log = commit_log(storage, checkpoint_commits=1)
    monkeypatch.setattr(checkpoint_table, "FREE_BYTES", 0)
    monkeypatch.setattr(checkpoint_table, "BYTES_PER_BYTE", 0)
    snapshot = append(log, log.create(1, CONFIG), 2)
    assert [file.name for file in storage.list(paths.COMMITS_DIR) if "checkpoint" in file.name] == []
    assert log.load() == snapshot


def test_a_legal_state_whose_rows_are_all_alike_has_a_checkpoint_too(
    memory_url: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record for each of a hundred partitions, time after time: packed, it would be taken for a bomb."""
    monkeypatch.setattr(checkpoint_table, "FREE_BYTES", MIB)
    storage = topic_storage(memory_url.url)
    snapshot = commit_log(storage).create(100, CONFIG)
    batches = {
        ("app", number): TransactionInfo(number, NOW, dict.fromkeys(range(100), (number, number + 1)))
        for number in range(3_000)
    }
    snapshot = dataclasses.replace(
        snapshot, transactions=snapshot.transactions.updated(batches, NOW), timestamp_ms=NOW
    )
    with pytest.raises(CorruptMetadataError, match="more than its size"):
        checkpoint_format.decode(checkpoint_format.encode(snapshot), "a file")
    assert checkpoint.read(storage, checkpoint.write(storage, snapshot)) == snapshot


def sparse(storage: Storage, name: str, size: int) -> None:
    """A file of zeros that takes no room on the disk."""
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


def test_a_hint_or_a_checkpoint_that_is_too_large_is_passed_over(tmp_path: Path) -> None:
    storage = topic_storage(tmp_path)
    log = commit_log(storage)
    snapshot = append(log, log.create(1, CONFIG), 3)
    sparse(storage, paths.LAST_CHECKPOINT, 1 << 30)
    assert peak(lambda: log.load()) < MIB
    sparse(storage, paths.checkpoint_file(2, "0" * 32), 1 << 30)
    assert log.load() == snapshot
    assert peak(lambda: log.load()) < checkpoint.MAX_BYTES + 10 * MIB


@pytest.mark.parametrize("filler", [b"[]", b"{}", b"0", b'""', b'{"a":1}'])
def test_a_commit_of_far_more_values_than_its_size_is_refused(filler: bytes) -> None:
    history = History()
    text = history.create(1).encode().partition(b',"crc32c"')[0]
    text += b',"x":[' + b",".join([filler] * 2_500_000) + b"]"
    data = text + b',"crc32c":%d}\n' % crc32c(text)
    with pytest.raises(CorruptMetadataError, match="more than metadata does"):
        Commit.decode(data, "a file")
    assert peak(lambda: Commit.decode(data, "a file")) < MIB


def test_a_text_that_is_nested_too_deep_is_refused() -> None:
    with pytest.raises(CorruptMetadataError):
        Commit.decode(b"[" * 500_000, "a file")


def test_a_large_commit_of_small_actions_is_no_bomb() -> None:
    history = History()
    history.create(1)
    removes = [{"remove": {"partition": 0, "stem": segment().stem}}] * 50_000
    text = json.dumps(removes, separators=(",", ":")).encode()
    assert len(json_text.parse(text)) == 50_000
    values = text.count(b",") + text.count(b"[") + text.count(b"{")
    assert values * json_text.BYTES_PER_VALUE < len(text)
