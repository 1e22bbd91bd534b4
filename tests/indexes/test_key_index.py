"""The format of key indexes, by plain Python, and searches in them."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from crc32c import crc32c
from hypothesis import example, given
from hypothesis import strategies as st
from raw_batches import entry

from distlog.core.errors import CorruptIndexError, CorruptRecordError
from distlog.core.format.kernels.key_entries import BUCKET_SHIFT, BUCKETS
from distlog.core.format.key_index import KeyBatches, KeyIndexBuilder, hashes_of, index_file, search
from distlog.core.format.record_batch import read_headers
from distlog.core.format.record_encoder import encode

BLOCK = 4096


def key_hash(key: bytes) -> int:
    return xxhash.xxh64_intdigest(key) & 2**63 - 1


def log_of(batches: Sequence[Sequence[bytes | None]], codec: int = 0) -> tuple[bytes, list[int]]:
    """A log with the keys of each batch, and the positions of the batches."""
    log, positions, offset = b"", [], 0
    for keys in batches:
        rows = pa.record_batch(
            {
                "timestamp": pa.array([0] * len(keys)),
                "key": pa.array(keys, pa.binary()),
                "value": pa.array([b"value"] * len(keys), pa.binary()),
            }
        )
        positions.append(len(log))
        log += bytes(encode(rows, base_offset=offset, codec=codec).data)
        offset += len(keys)
    return log, positions


class Index(NamedTuple):
    """The bytes of an index, its number of entries, and the checksum of its log's first batch."""

    data: bytes
    count: int
    log_crc: int


def index_of(log: bytes) -> Index:
    builder = KeyIndexBuilder()
    builder.add(log, read_headers(memoryview(log)), 0)
    return Index(*builder.finish(), int.from_bytes(log[17:21], "big"))


def blocks(table: bytes, item_bytes: int, log_crc: int) -> Iterator[bytes]:
    """The items of a table, whose checksums are right."""
    for start in range(0, len(table), BLOCK):
        block = table[start : start + BLOCK]
        assert struct.unpack(">I", block[-4:]) == (crc32c(block[:-4]) ^ log_crc,)
        assert len(block[:-4]) % item_bytes == 0
        yield block[:-4]


def decoded(index: Index) -> dict[int, list[int]]:
    """The positions of each hash, by plain Python."""
    data, entry_count, log_crc = index
    if entry_count == 0:
        assert data == bytes(4)
        return {}
    table_bytes = 12 * entry_count + 4 * -(-entry_count // 341)
    entries = list(struct.iter_unpack(">qi", b"".join(blocks(data[:table_bytes], 12, log_crc))))
    postings = [number for (number,) in struct.iter_unpack(">i", b"".join(blocks(data[table_bytes:], 4, log_crc)))]
    assert [number for number, _ in entries] == sorted({number for number, _ in entries})
    positions = {}
    for number, value in entries:
        if value >= 0:
            positions[number] = [value]
            continue
        end = next(row for row in range(~value, len(postings)) if postings[row] < 0)
        positions[number] = [*postings[~value:end], ~postings[end]]
    return positions


def searched(index: Index, hashes: np.ndarray) -> tuple[KeyBatches, int]:
    """The result of a search, and the bytes that it has read."""
    steps, size = search(index.count, len(index.data), index.log_crc, hashes), 0
    try:
        ranges = next(steps)
        while True:
            size += sum(end - start for start, end in ranges)
            ranges = steps.send([index.data[start:end] for start, end in ranges])
    except StopIteration as end:
        return end.value, size


KEYS = st.one_of(st.none(), st.binary(max_size=40), st.sampled_from([b"a", b"b", b""]))


@given(st.lists(st.lists(KEYS, min_size=1, max_size=30), min_size=1, max_size=8), st.sampled_from([0, 4]))
@example([[None]], 0)
def test_an_index_has_the_batches_of_each_key(batches: list[list[bytes | None]], codec: int) -> None:
    log, positions = log_of(batches, codec)
    expected = dict[int, list[int]]()
    for position, keys in zip(positions, batches, strict=True):
        for key in {*keys} - {None}:
            assert key is not None
            expected.setdefault(key_hash(key), []).append(position)
    index = index_of(log)
    assert decoded(index) == expected
    assert len(index.data) <= 12 * sum(map(len, expected.values())) + 8 + len(index.data) // BLOCK * 4
    for key in {key for keys in batches for key in keys if key is not None} | {b"absent"}:
        result, _ = searched(index, hashes_of(pa.array([key], pa.binary())))
        assert result.positions.tolist() == expected.get(key_hash(key), [])
        assert result.rows.tolist() == [0] * len(result.positions)


@given(st.lists(st.binary(max_size=100), min_size=1, max_size=20))
@example([bytes(range(size)) for size in range(100)])
def test_the_hash_of_a_key_is_its_xxh64(keys: list[bytes]) -> None:
    assert hashes_of(pa.array(keys, pa.binary())).tolist() == [key_hash(key) for key in keys]


@pytest.fixture(scope="module")
def many() -> tuple[Index, dict[int, list[int]]]:
    """An index of 20,000 keys of one batch, and of 300 of 40 batches each."""
    often = [b"often %d" % number for number in range(300)]
    log, positions = log_of([[*often, *(b"%d of %d" % (row, batch) for row in range(500))] for batch in range(40)])
    index = index_of(log)
    expected = {key_hash(key): positions for key in often}
    expected |= {
        key_hash(b"%d of %d" % (row, batch)): [positions[batch]] for row in range(500) for batch in range(40)
    }
    return index, expected


def test_a_search_of_many_keys_finds_the_batches_of_each(many: tuple[Index, dict[int, list[int]]]) -> None:
    index, expected = many
    assert decoded(index) == expected
    keys = [*(b"often %d" % row for row in range(0, 300, 7)), *(b"%d of 7" % row for row in range(0, 600, 5))]
    hashes = np.unique(hashes_of(pa.array(keys, pa.binary())))
    result, _ = searched(index, hashes)
    by_hash = dict[int, list[int]]()
    for position, row in zip(*(column.tolist() for column in result), strict=True):
        by_hash.setdefault(int(hashes[row]), []).append(position)
    assert by_hash == {number: expected[number] for number in hashes.tolist() if number in expected}
    assert result.positions.tolist() == sorted(result.positions.tolist())


def test_a_search_of_one_key_reads_a_small_part(many: tuple[Index, dict[int, list[int]]]) -> None:
    index, _ = many
    for key in (b"3 of 5", b"absent", b"often 7"):
        _, size = searched(index, hashes_of(pa.array([key], pa.binary())))
        assert size <= 8 * BLOCK < len(index.data) / 5


@pytest.mark.parametrize("counts", [(1, 0), (0, 1), (3, 5), (50_000, 20), (20_000, 1000), (100_000, 100_000)])
def test_an_index_has_all_pairs_even_of_similar_hashes(counts: tuple[int, int]) -> None:
    # somebody has searched for keys with similar hashes
    random, (uniform, similar) = np.random.default_rng(7), counts
    hashes = np.append(random.integers(0, 2**63 - 1, uniform), 2**62 + np.arange(similar)[::-1])
    hashes[: uniform // 10] = hashes[uniform // 2] if uniform > 1 else hashes[:0]
    random.shuffle(hashes)
    positions = np.sort(random.integers(0, 2**31 - 1, len(hashes)).astype(np.int32))
    middle = len(hashes) // 2
    pairs = ([column[:middle], column[middle:]] for column in (hashes, positions))
    file, count = index_file(*pairs, np.bincount(hashes >> BUCKET_SHIFT, minlength=BUCKETS), 77)
    expected = dict[int, list[int]]()
    for key_hash, position in zip(hashes.tolist(), positions.tolist(), strict=True):
        expected.setdefault(key_hash, []).append(position)
    assert decoded(Index(bytes(file), count, 77)) == {
        key_hash: sorted(set(of_hash)) for key_hash, of_hash in expected.items()
    }


@pytest.mark.parametrize("position", [0, 5, 4090, 4095])
def test_a_changed_byte_is_noticed(many: tuple[Index, dict[int, list[int]]], position: int) -> None:
    index, expected = many
    number = sorted(expected)[3]
    damaged = bytearray(index.data)
    damaged[position] ^= 1
    with pytest.raises(CorruptIndexError, match="block of the key index fails its checksum"):
        searched(index._replace(data=bytes(damaged)), np.array([number]))


def test_more_entries_than_the_file_has_are_noticed(many: tuple[Index, dict[int, list[int]]]) -> None:
    index, expected = many
    with pytest.raises(CorruptIndexError, match="another size than its entries"):
        searched(index._replace(count=50 * index.count), np.array([sorted(expected)[-1]]))


def test_the_index_of_another_log_is_noticed(many: tuple[Index, dict[int, list[int]]]) -> None:
    index, expected = many
    with pytest.raises(CorruptIndexError, match="belongs to another log"):
        searched(index._replace(log_crc=index.log_crc ^ 1), np.array([sorted(expected)[3]]))


@pytest.mark.parametrize("magic", [0, 1])
def test_an_index_has_the_keys_of_old_formats(magic: int) -> None:
    entries = [entry(magic, offset, key) for offset, key in enumerate([b"a", None, b"", b"a" * 40])]
    positions = np.cumsum([0, *map(len, entries)]).tolist()
    log = b"".join(entries)
    builder = KeyIndexBuilder()
    builder.add(log, read_headers(memoryview(log)), 0)
    positions_of_keys = {
        key: builder.find(hashes_of(pa.array([key]))).positions.tolist() for key in (b"a", b"", b"a" * 40, b"b")
    }
    assert positions_of_keys == {b"a": positions[:1], b"": positions[2:3], b"a" * 40: positions[3:4], b"b": []}


def test_a_malformed_record_is_an_error_with_its_position() -> None:
    log, _ = log_of([[b"key", b"other"]])
    # the length of the second record's key
    damaged = log.replace(b"\nother", b"\x7eother")
    assert damaged != log
    with pytest.raises(CorruptRecordError, match="key"):
        index_of(damaged)
