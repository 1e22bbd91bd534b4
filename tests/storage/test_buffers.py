"""Memory that is used again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import distlog
from distlog.core.arrays import BLOCK_BYTES, address, fitted, lies_in_pages, new_pages


@pytest.mark.parametrize("position", [0, 1, 4095, 4096, 10_000])
def test_pages_are_aligned_as_in_their_file_and_can_be_written(position: int) -> None:
    memory = new_pages(9000, position)
    memory[:] = 7
    assert (memory.size, memory.dtype, address(memory) % 4096) == (9000, np.uint8, position % 4096)
    assert lies_in_pages(memory, position)
    assert not lies_in_pages(memory, position + 1)


def test_pages_have_one_user_at_a_time() -> None:
    blocks = [new_pages(9000) for _ in range(20)]
    assert not any(np.shares_memory(block, other) for block in blocks for other in blocks if block is not other)


def test_pages_are_free_without_references() -> None:
    old_total_allocated_bytes = pa.total_allocated_bytes()
    part = new_pages(BLOCK_BYTES)[:10]
    assert pa.total_allocated_bytes() - old_total_allocated_bytes >= BLOCK_BYTES
    del part
    assert pa.total_allocated_bytes() == old_total_allocated_bytes


@pytest.mark.parametrize("size", [0, 1, 6750])
def test_a_small_part_of_a_large_array_is_copied(size: int) -> None:
    array = np.arange(9000)
    part = fitted(array, size)
    assert (part.tolist(), np.shares_memory(part, array)) == (list(range(size)), False)


@pytest.mark.parametrize("size", [6751, 9000])
def test_most_of_an_array_is_not_copied(size: int) -> None:
    array = np.arange(9000)
    part = fitted(array, size)
    assert (part.size, part[-1], np.shares_memory(part, array)) == (size, size - 1, True)


def test_keys_do_not_keep_the_memory_of_their_values(tmp_path: Path) -> None:
    topic = distlog.create(str(tmp_path / "t"))
    topic.append(pa.table({"key": [b"%016d" % number for number in range(5000)], "value": [b"v" * 1000] * 5000}))
    old_total_allocated_bytes = pa.total_allocated_bytes()
    keys = topic.scan(columns=["key"]).to_table()
    assert keys.num_rows == 5000
    assert pa.total_allocated_bytes() - old_total_allocated_bytes < 3 * keys.nbytes < 500_000
