"""Memory that is used again."""

from __future__ import annotations

import numpy as np

from distlog.core.buffers import BLOCK_BYTES, give_back, take_block


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
