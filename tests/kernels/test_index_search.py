"""The search kernel against bisect, and on unordered bytes."""

from __future__ import annotations

import bisect

import numpy as np
import pytest
from compiled import compiled
from hypothesis import given, settings
from hypothesis import strategies as st

from distlog.core.format.kernels.segments import WARM_BYTES, first_bad_slot, floor_entry, floor_slot
from distlog.core.format.kernels.segments import read_int as read_int_part

read_int = compiled(read_int_part)

LAYOUTS = [(8, 0, 4), (8, 4, 4), (12, 0, 8), (12, 8, 4)]
LONGS = st.integers(-(2**63), 2**63 - 1)


def table(values: list[int], stride: int, start: int, width: int) -> np.ndarray:
    """An index file with `values` in one column and noise in the other."""
    data = np.full(len(values) * stride, 0x5A, np.uint8)
    for slot, value in enumerate(values):
        position = slot * stride + start
        data[position : position + width] = np.frombuffer(value.to_bytes(width, "big", signed=True), np.uint8)
    return data


@settings(deadline=None)
@given(LONGS, st.integers(-(2**31), 2**31 - 1), st.integers(0, 9))
def test_integers_are_read_as_signed_big_endian(long: int, small: int, position: int) -> None:
    prefix = b"\xff" * position
    data = np.frombuffer(
        prefix + long.to_bytes(8, "big", signed=True) + small.to_bytes(4, "big", signed=True), np.uint8
    )
    assert read_int(data, position, 8) == long
    assert read_int(data, position + 8, 4) == small


@pytest.mark.parametrize("layout", LAYOUTS)
@settings(deadline=None)
@given(st.lists(st.integers(0, 2**31 - 1)).map(sorted), st.integers(-1, 2**31))
def test_floor_slot_is_the_last_key_not_above_the_target(
    layout: tuple[int, int, int], keys: list[int], target: int
) -> None:
    data = table(keys, *layout)
    slot = floor_slot(data, len(keys), target, *layout)
    floor = bisect.bisect_right(keys, target) - 1
    assert (slot, keys[slot] if slot >= 0 else None) == (slot, keys[floor] if floor >= 0 else None)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("over", [-2, -1, 0, 1, 2, 5000])
def test_every_target_is_found_on_both_sides_of_the_warm_section(layout: tuple[int, int, int], over: int) -> None:
    keys = np.arange(WARM_BYTES // layout[0] + over) * 3 + 7
    data = table(keys.tolist(), *layout)
    targets = np.arange(int(keys[-1]) + 3, dtype=np.int64)
    assert np.array_equal(
        [floor_slot(data, len(keys), int(target), *layout) for target in targets],
        np.searchsorted(keys, targets, "right") - 1,
    )


@pytest.mark.parametrize("layout", LAYOUTS)
@settings(deadline=None)
@given(st.binary(max_size=400), st.integers(-5, 100), LONGS)
def test_any_bytes_return_a_slot_with_a_key_up_to_the_target(
    layout: tuple[int, int, int], raw: bytes, entries: int, target: int
) -> None:
    stride, start, width = layout
    data = np.frombuffer(raw, np.uint8)
    slot = floor_slot(data, entries, target, *layout)
    assert -1 <= slot < max(0, min(entries, len(data) // stride))
    assert slot < 0 or read_int(data, slot * stride + start, width) <= target


@pytest.mark.parametrize(("stride", "width"), [(8, 4), (12, 8)])
@settings(deadline=None)
@given(st.binary(max_size=400), st.integers(-5, 100), LONGS)
def test_the_floor_entry_is_what_lies_in_the_floor_slot(
    stride: int, width: int, raw: bytes, entries: int, target: int
) -> None:
    data = np.frombuffer(raw, np.uint8)
    slot = floor_slot(data, entries, target, stride, 0, width)
    position = slot * stride
    fields = (read_int(data, position, width), read_int(data, position + width, 4)) if slot >= 0 else (0, 0)
    assert floor_entry(data, entries, target, stride, width) == (slot, *fields)


@pytest.mark.parametrize("layout", LAYOUTS)
@settings(deadline=None)
@given(st.lists(st.integers(-3, 30)), st.integers(0, 2), st.integers(0, 30))
def test_the_first_bad_slot_is_the_first_that_breaks_the_order_or_the_limit(
    layout: tuple[int, int, int], values: list[int], step: int, largest: int
) -> None:
    bad = [
        slot
        for slot, value in enumerate(values)
        if not 0 <= value <= largest or (slot > 0 and value < values[slot - 1] + step)
    ]
    data = table(values, *layout)
    assert first_bad_slot(data, len(values), step, largest, *layout) == (bad[0] if bad else -1)
    assert first_bad_slot(data, len(values) + 9, step, largest, *layout) == (bad[0] if bad else -1)
