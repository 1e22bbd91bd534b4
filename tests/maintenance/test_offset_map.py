"""The offset map: Kafka's OffsetMapTest, and a dict as its model."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distlog.core.errors import InvalidConfigError
from distlog.core.maintenance.record_keys import SLOT_BYTES, OffsetMap, hash_keys


def hashes(keys: list[bytes]) -> np.ndarray:
    data = np.frombuffer(b"".join(keys) + b"\0", np.uint8)
    ends = np.cumsum([0] + [len(key) for key in keys]).astype(np.int32)
    return hash_keys(data, ends[:-1].astype(np.int64), ends, bytes(16))


def put(table: OffsetMap, keys: list[bytes | None], first_offset: int = 0) -> int:
    """Put the keys at consecutive offsets; how many records were taken."""
    valid = np.array([key is not None for key in keys], bool)
    offsets = np.arange(first_offset, first_offset + len(keys), dtype=np.int64)
    return table.put(hashes([key or b"" for key in keys]), valid, offsets)


def get(table: OffsetMap, *keys: bytes) -> list[int]:
    return table.get(hashes(list(keys))).tolist()


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


@pytest.mark.parametrize("items", [10, 100, 1000, 5000])
def test_every_key_is_found_at_half_load(items: int) -> None:
    table = OffsetMap(2 * items)
    assert put(table, list(numbered(items))) == items
    assert get(table, *numbered(items)) == list(range(items))
    assert get(table, b"missing") == [-1]


def test_a_full_map_answers_and_stops_at_the_next_key() -> None:
    table = OffsetMap(4)
    assert put(table, list(numbered(10))) == 3
    assert get(table, b"2", b"3") == [2, -1]
    assert put(table, [None, None, b"1", b"2"], 10) == 2
    assert get(table, b"1") == [1]


def test_moving_the_latest_offset_changes_no_value() -> None:
    table = OffsetMap(10)
    put(table, [b"0", b"1"], 5)
    table.update_latest_offset(99)
    assert (get(table, b"0", b"1"), table.latest_offset) == ([5, 6], 99)


def test_the_latest_offset_is_the_last_one_put() -> None:
    table = OffsetMap(10)
    assert table.latest_offset == -1
    for offset in range(7):
        put(table, [b"key", None], offset)
        assert table.latest_offset == offset


def test_the_size_counts_keys_and_not_records() -> None:
    table = OffsetMap(100)
    assert table.size == 0
    for number in range(50):
        put(table, [b"%d" % number, b"%d" % number])
        assert table.size == number + 1


def test_memory_and_the_number_of_records_bound_the_map() -> None:
    assert OffsetMap.within(10 * SLOT_BYTES, 1000).slots == 10
    table = OffsetMap.within(1 << 40, 1000)
    assert put(table, list(numbered(1000))) == 1000
    assert table.slots < 1200


def test_a_map_without_room_is_refused() -> None:
    with pytest.raises(InvalidConfigError, match="give compaction more memory"):
        OffsetMap.within(SLOT_BYTES, 1000)


keys = st.lists(st.none() | st.integers(0, 40).map(lambda number: b"key-%d" % number), max_size=80)


@given(st.lists(keys, max_size=5), st.integers(2, 60))
def test_it_is_a_dict_until_it_is_full(rounds: list[list[bytes | None]], slots: int) -> None:
    table, model, offset = OffsetMap(slots), dict[bytes, int](), 0
    limit = int(slots * 0.9)
    for batch in rounds:
        taken = 0
        for key in batch:
            if key is not None and len(model) >= limit:
                break
            if key is not None:
                model[key] = offset + taken
            taken += 1
        assert put(table, batch, offset) == taken
        offset += taken
    assert table.size == len(model)
    asked = [b"key-%d" % number for number in range(41)]
    assert get(table, *asked) == [model.get(key, -1) for key in asked]


def test_both_words_of_a_hash_tell_keys_apart() -> None:
    table = OffsetMap(10)
    alike = np.array([[1, 1], [1, 2], [2, 1], [0, 0]], np.int64)
    assert table.put(alike, np.ones(4, bool), np.arange(4)) == 4
    assert table.get(alike).tolist() == [0, 1, 2, 3]
