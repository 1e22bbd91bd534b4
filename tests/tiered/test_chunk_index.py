"""The chunks of a compressed log by its manifest; a wrong manifest is a ValueError."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiered_buckets import packed

from distlog.core.format.compression import ZSTD, compress
from distlog.core.tiered.tiered_storage import ChunkIndex

SIZES = st.lists(st.integers(1, 2**31 - 1), min_size=1, max_size=50)


def variable(sizes: list[int], *, chunk_bytes: int = 10, data: bytes | None = None) -> dict[str, Any]:
    frame = compress(ZSTD, packed(sizes) if data is None else data)
    return {
        "type": "variable",
        "originalChunkSize": chunk_bytes,
        "originalFileSize": len(sizes) * chunk_bytes - 3,
        "transformedChunks": base64.b64encode(frame).decode(),
    }


@given(SIZES)
def test_packed_sizes_round_trip(sizes: list[int]) -> None:
    index = ChunkIndex.parse(variable(sizes), compressed=True)
    assert index.bounds is not None
    assert index.bounds.tolist() == [sum(sizes[:number]) for number in range(len(sizes) + 1)]
    assert index.stored_bytes == sum(sizes)


def test_the_sizes_of_a_real_manifest_are_found() -> None:
    real = "KLUv/SAXuQAAAAAABgAAA+wCAG0ApQGVAAABnAAAAfs="
    value = {"type": "variable", "originalChunkSize": 3000, "originalFileSize": 15956, "transformedChunks": real}
    index = ChunkIndex.parse(value, compressed=True)
    assert index.bounds is not None
    assert index.bounds.tolist() == [0, 1113, 2282, 3691, 4695, 6111, 6618]


def test_chunks_of_one_size_and_a_last_one_are_found() -> None:
    value = {"type": "fixed", "originalChunkSize": 10, "originalFileSize": 25}
    index = ChunkIndex.parse({**value, "transformedChunkSize": 7, "finalTransformedChunkSize": 4}, compressed=True)
    assert index.bounds is not None
    assert index.bounds.tolist() == [0, 7, 14, 18]
    assert [index.log_position(number) for number in range(4)] == [0, 10, 20, 25]
    assert (index.numbers(0, 10), index.numbers(9, 11), index.numbers(5, 5)) == (range(1), range(2), range(0))


def test_without_compression_the_object_is_the_log() -> None:
    value = {"type": "fixed", "originalChunkSize": 10, "originalFileSize": 25}
    assert ChunkIndex.parse(value, compressed=False).stored_bytes == 25


@pytest.mark.parametrize(
    "value",
    [
        None,
        {},
        {"type": "other"},
        variable([5, 6]) | {"originalFileSize": -1},
        variable([5, 6]) | {"originalFileSize": 2**31},
        variable([5, 6]) | {"originalChunkSize": 0},
        variable([5, 6]) | {"originalChunkSize": True},
        variable([5, 6]) | {"originalChunkSize": 1, "originalFileSize": 2**31 - 1},
        variable([5, 6]) | {"transformedChunks": 3},
        variable([5, 6]) | {"transformedChunks": "not base64!"},
        variable([5, 6]) | {"transformedChunks": "AAAA"},
        variable([5, 6], data=b""),
        variable([5, 6], data=packed([5, 6, 7])),
        variable([5, 6], data=packed([5, 6])[:-1]),
        variable([5, 6], data=packed([5, 6]) + b"\0"),
        variable([5, 6], data=b"\0" * 100_000_000),
        variable([5, 0]),
        {"type": "fixed", "originalChunkSize": 10, "originalFileSize": 25, "transformedChunkSize": 7},
    ],
    ids=range(18),
)
def test_an_invalid_chunk_index_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r".+"):
        ChunkIndex.parse(value, compressed=True)


@given(st.binary(max_size=200))
def test_any_bytes_instead_of_the_sizes_are_refused_or_give_sizes(data: bytes) -> None:
    try:
        index = ChunkIndex.parse(variable([5, 6, 7], data=data), compressed=True)
    except ValueError:
        return
    assert index.bounds is not None
    assert len(index.bounds) == 4
    assert (index.bounds[1:] > index.bounds[:-1]).all()
