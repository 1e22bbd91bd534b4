"""Files that are written piece by piece, on every storage: they are there as a whole or not at all."""

from __future__ import annotations

import numpy as np
import pytest
from every_storage import MIB
from every_storage import storage as storage

from distlog.core.errors import StorageError
from distlog.core.storage.storage import Storage


@pytest.mark.parametrize("size", [0, 1, 16 * MIB - 1, 16 * MIB, 16 * MIB + 1, 24 * MIB, 41 * MIB + 7])
def test_a_writer_writes_files_of_any_size(storage: Storage, size: int) -> None:
    data = np.random.default_rng(size).bytes(size)
    with storage.open_write("topic-0/a.log") as writer:
        for start in range(0, size, 3 * MIB + 1):
            writer.write(data[start : start + 3 * MIB + 1])
    assert writer.written == size == storage.size("topic-0/a.log")
    assert storage.read("topic-0/a.log") == data


def test_a_writer_takes_a_piece_larger_than_everything(storage: Storage) -> None:
    data = np.random.default_rng(1).bytes(35 * MIB)
    with storage.open_write("a") as writer:
        writer.write(data)
    assert storage.read("a") == data


def test_put_takes_a_file_that_needs_several_requests(storage: Storage) -> None:
    data = np.random.default_rng(1).bytes(20 * MIB)
    storage.put("a", memoryview(data))
    assert storage.read("a") == data


def test_a_writers_buffer_may_be_reused(storage: Storage) -> None:
    with storage.open_write("a") as writer:
        for letter in (b"a", b"b"):
            buffer = bytearray(letter * 10)
            writer.write(buffer)
            buffer[:] = b"#" * 10
    assert storage.read("a") == b"a" * 10 + b"b" * 10


@pytest.mark.parametrize("size", [10, 33 * MIB])
def test_an_aborted_writer_leaves_nothing(storage: Storage, size: int) -> None:
    writer = storage.open_write("topic-0/a.log")
    writer.write(bytes(size))
    writer.abort()
    writer.abort()
    assert storage.list("topic-0") == []


def test_an_error_inside_a_writers_block_aborts_it(storage: Storage) -> None:
    def fail_halfway() -> None:
        with storage.open_write("a") as writer:
            writer.write(b"1")
            raise KeyError

    with pytest.raises(KeyError):
        fail_halfway()
    with pytest.raises(FileNotFoundError):
        storage.read("a")


def test_abort_after_close_keeps_the_file(storage: Storage) -> None:
    writer = storage.open_write("a")
    writer.write(b"1")
    writer.close()
    writer.abort()
    writer.close()
    assert storage.read("a") == b"1"


def test_a_closed_writer_takes_no_more(storage: Storage) -> None:
    for finish in ("close", "abort"):
        writer = storage.open_write(finish)
        getattr(writer, finish)()
        with pytest.raises(StorageError, match="closed"):
            writer.write(b"1")
