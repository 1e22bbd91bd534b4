"""The offset map: Kafka's OffsetMapTest, and a dict as its model."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distlog.core.errors import InvalidConfigError
from distlog.core.maintain.survivors import (
    SLOT_BYTES,
    Blobs,
    KeyedRecords,
    OffsetMap,
    blob_offsets,
    hash_keys,
    key_rows,
    keys_by_bucket,
    map_slots,
    offsets_by_group,
    plan_buckets,
)


def hashes(keys: list[bytes]) -> np.ndarray:
    data = np.frombuffer(b"".join(keys) + b"\0", np.uint8)
    ends = np.cumsum([0] + [len(key) for key in keys]).astype(np.int32)
    return hash_keys(data, ends[:-1].astype(np.int64), ends, bytes(16))


def put(table: OffsetMap, keys: list[bytes | None], first_offset: int = 0) -> int:
    """Put the keys at consecutive offsets, and return the number of accepted records."""
    valid = np.array([key is not None for key in keys], bool)
    offsets = np.arange(first_offset, first_offset + len(keys), dtype=np.int64)
    return table.put(hashes([key or b"" for key in keys]), valid, offsets)


def get(table: OffsetMap, *keys: bytes) -> list[int]:
    return table.get(hashes(list(keys))).tolist()


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def test_a_full_map_answers_and_stops_at_the_next_key() -> None:
    table = OffsetMap(4)
    assert put(table, list(numbered(10))) == 3
    assert get(table, b"2", b"3") == [2, -1]
    assert put(table, [None, None, b"1", b"2"], 10) == 2
    assert get(table, b"1") == [1]


def test_memory_and_the_number_of_records_bound_the_map() -> None:
    assert OffsetMap.within(10 * SLOT_BYTES, 1000).slots == 10
    table = OffsetMap.within(1 << 40, 1000)
    assert put(table, list(numbered(1000))) == 1000
    assert table.slots < 1200


def test_a_map_without_room_is_refused() -> None:
    with pytest.raises(InvalidConfigError, match="raise dedupe_buffer_bytes"):
        OffsetMap.within(SLOT_BYTES, 1000)


keys = st.lists(st.none() | st.integers(0, 40).map(lambda number: b"key-%d" % number), max_size=80)


@given(st.lists(keys, max_size=5), st.integers(2, 60))
def test_it_is_a_dict_until_it_is_full(rounds: list[list[bytes | None]], slots: int) -> None:
    table, model, offset = OffsetMap(slots), dict[bytes, int](), 0
    limit = int(slots * 0.9)
    for batch in rounds:
        count = 0
        for key in batch:
            if key is not None and len(model) >= limit:
                break
            if key is not None:
                model[key] = offset + count
            count += 1
        assert put(table, batch, offset) == count
        offset += count
    assert table.size == len(model)
    keys_asked = [b"key-%d" % number for number in range(41)]
    assert get(table, *keys_asked) == [model.get(key, -1) for key in keys_asked]


def test_both_words_of_a_hash_distinguish_keys() -> None:
    table = OffsetMap(10)
    alike = np.array([[1, 1], [1, 2], [2, 1], [0, 0]], np.int64)
    assert table.put(alike, np.ones(4, bool), np.arange(4)) == 4
    assert table.get(alike).tolist() == [0, 1, 2, 3]


RECORDS = 5000
KEYS = 700


def some_records(start: int, count: int = RECORDS) -> KeyedRecords:
    """Return records of random keys at every second offset, with every seventh key missing."""
    random = np.random.default_rng(start)
    words = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, (KEYS, 2))
    hashes = words[random.integers(0, KEYS, count)]
    offsets = np.arange(start, start + 2 * count, 2)
    return KeyedRecords(hashes, np.arange(count) % 7 > 0, offsets, np.array([count]), np.array([-1]))


def parts_of(blobs: Blobs) -> list[tuple[int, bytes]]:
    starts = [0, *blobs.ends][:-1]
    pairs = zip(starts, blobs.ends, strict=True)
    return [
        (target, blobs.words[start:end].tobytes())
        for target, (start, end) in zip(blobs.targets.tolist(), pairs, strict=True)
    ]


def superseded(parts: list[KeyedRecords], start_offset: int) -> list[int]:
    """Return the offsets before the last one of their key at or above `start_offset`, by a dict."""
    rows = [
        (tuple(part.hashes[index].tolist()), int(part.offsets[index]))
        for part in parts
        for index in np.flatnonzero(part.has_key)
    ]
    last = {key: offset for key, offset in rows if offset >= start_offset}
    return sorted(offset for key, offset in rows if offset < last.get(key, 0))


@pytest.mark.parametrize("buckets", [1, 2, 7])
@pytest.mark.parametrize("start_offset", [0, 6001, 10**6])
def test_buckets_find_superseded_records_in_any_order(buckets: int, start_offset: int) -> None:
    parts = [some_records(start) for start in (0, 10_000, 20_000)]
    blobs = [blob for part in reversed(parts) for blob in parts_of(keys_by_bucket([part], start_offset, buckets))]
    offsets = []
    for bucket in range(buckets):
        keys = OffsetMap(map_slots(KEYS))
        offsets += [keys.put_rows(key_rows(data)) for target, data in blobs if target == bucket]
        offsets += [keys.superseded_offsets(key_rows(data)) for target, data in blobs if target == bucket + buckets]
    assert sorted(np.concatenate(offsets).tolist()) == superseded(parts, start_offset)


def test_a_bucket_has_all_records_of_its_keys_and_about_as_many_as_the_others() -> None:
    parts = [some_records(0), some_records(10_000)]
    blobs = parts_of(keys_by_bucket(parts, 0, 5))
    keys = [{tuple(row[:2]) for row in key_rows(data).tolist()} for _, data in blobs]
    assert sum(map(len, keys)) == len(set.union(*keys)) == KEYS
    assert min(map(len, keys)) > KEYS / 5 * 0.7
    offsets = sorted(offset for _, data in blobs for offset in key_rows(data)[:, 2].tolist())
    assert offsets == [int(offset) for part in parts for offset in part.offsets[part.has_key]]


def test_no_records_are_no_blob() -> None:
    assert parts_of(keys_by_bucket([], 0, 3)) == []
    assert parts_of(offsets_by_group(np.zeros(0, np.int64), np.array([0, 5]))) == []


def test_the_same_record_twice_supersedes_nothing() -> None:
    keys, row = OffsetMap(4), np.array([[1, 2, 30]])
    assert keys.put_rows(row).tolist() == []
    assert keys.put_rows(row).tolist() == []
    assert keys.superseded_offsets(row).tolist() == []


def test_too_many_keys_fail() -> None:
    keys = OffsetMap(map_slots(3))
    with pytest.raises(InvalidConfigError, match="raise dedupe_buffer_bytes"):
        keys.put_rows(np.arange(30).reshape(-1, 3))


def test_offsets_go_to_the_group_that_they_are_in() -> None:
    blobs = offsets_by_group(np.array([29, 10, 4, 30, 11]), np.array([4, 10, 20, 30]))
    assert [(target, blob_offsets(data).tolist()) for target, data in parts_of(blobs)] == [
        (0, [4]),
        (1, [10, 11]),
        (2, [29]),
        (3, [30]),
    ]


@pytest.mark.parametrize("records", [1, 10, 1000, 10**6, 10**10])
@pytest.mark.parametrize("memory", [1 << 12, 1 << 20, 128 << 20])
def test_the_map_of_a_bucket_fits_in_the_memory_and_its_keys_in_the_map(records: int, memory: int) -> None:
    buckets, slots = plan_buckets(records, memory, 1)
    assert slots * SLOT_BYTES <= memory
    mean = records / buckets
    assert int(slots * 0.9) >= (mean if buckets == 1 else mean + 8 * mean**0.5)
    assert buckets <= max(1, 4 * records * SLOT_BYTES // memory)


def test_there_are_no_more_buckets_than_records() -> None:
    assert plan_buckets(3, 1, 1)[0] == 3
    assert plan_buckets(3, 1 << 20, 8)[0] == 3
    assert plan_buckets(0, 1 << 20, 8)[0] == 1
