"""Memory that is used again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import distlog
from distlog.core.buffers import BLOCK_BYTES, fitted, give_back, take_block


def address(block: np.ndarray) -> int:
    return int(block.__array_interface__["data"][0])


def test_blocks_begin_at_a_page_and_can_be_written() -> None:
    block = take_block()
    block[:] = 7
    assert (block.size, block.dtype, address(block) % 4096) == (BLOCK_BYTES, np.uint8, 0)
    give_back(block)


def test_a_block_that_was_given_back_is_used_again_and_has_one_user_at_a_time() -> None:
    blocks = [take_block() for _ in range(20)]
    assert len({address(block) for block in blocks}) == 20
    give_back(blocks[3])
    again, other = take_block(), take_block()
    assert address(again) == address(blocks[3])
    assert address(other) != address(again)


def test_memory_that_is_no_block_is_not_handed_to_others() -> None:
    shifted = np.empty(BLOCK_BYTES + 8192, np.uint8)
    start = 1 - address(shifted) % 4096
    others = [np.empty(100, np.uint8), np.empty(2 * BLOCK_BYTES, np.uint8), shifted[start + 4096 :][:BLOCK_BYTES]]
    for other in others:
        give_back(other)
    taken = {address(take_block()) for _ in range(20)}
    assert taken.isdisjoint(map(address, others))


@pytest.mark.parametrize("size", [0, 1, 6750])
def test_a_little_of_a_large_array_is_copied_so_that_the_rest_is_free(size: int) -> None:
    array = np.arange(9000)
    part = fitted(array, size)
    assert (part.tolist(), np.shares_memory(part, array)) == (list(range(size)), False)


@pytest.mark.parametrize("size", [6751, 9000])
def test_most_of_an_array_is_not_copied(size: int) -> None:
    array = np.arange(9000)
    part = fitted(array, size)
    assert (part.size, part[-1], np.shares_memory(part, array)) == (size, size - 1, True)


def test_keys_that_were_read_do_not_hold_the_memory_of_the_values_beside_them(tmp_path: Path) -> None:
    topic = distlog.create(str(tmp_path / "t"))
    topic.append(pa.table({"key": [b"%016d" % number for number in range(5000)], "value": [b"v" * 1000] * 5000}))
    before = pa.total_allocated_bytes()
    keys = topic.scan(columns=["key"]).to_table()
    assert keys.num_rows == 5000
    assert pa.total_allocated_bytes() - before < 3 * keys.nbytes < 500_000
