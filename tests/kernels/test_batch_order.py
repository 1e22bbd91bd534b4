"""Batches must have the offsets that their segment has at their positions even if their checksums fit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distlog.core.arrays import MAX_LONG
from distlog.core.format.kernels.batch_scan import BATCH, RUN, first_misplaced

#: (base offset, last offset delta) of each batch of a run, and the known properties of the run.
Batches = list[tuple[int, int]]
Run = tuple[int, int, bool, bool]

mostly_none = st.sampled_from([0, 0, 0, 0, 0, 0, 1, -1])


@st.composite
def runs(draw: st.DrawFn) -> tuple[Batches, Run]:
    start = draw(st.integers(0, 3))
    batches, position = [], start
    for _ in range(draw(st.integers(1, 4))):
        base, delta = max(0, position + draw(mostly_none)), draw(st.integers(0, 2))
        batches.append((base, delta))
        position = base + delta + 1
    first, end = draw(st.sampled_from([start, start, start, -1])), position + draw(mostly_none)
    return batches, (first, end, draw(st.booleans()), draw(st.sampled_from([True, True, False])))


def model(batches: Batches, run: Run) -> int | None:
    """The first wrong batch of one run, by the offsets that each batch covers."""
    first, end, dense, ends_file = run
    for number, (base, delta) in enumerate(batches):
        expected = first if number == 0 else batches[number - 1][0] + batches[number - 1][1] + 1
        after, last = base + delta + 1, number == len(batches) - 1
        follows = base == expected if dense and expected >= 0 else base >= expected
        highest = end if ends_file and last else end - 1
        complete = after == end if dense and ends_file and last else True
        if not (follows and after <= highest and complete):
            return number
    return None


def first_misplaced_of(runs: list[tuple[Batches, Run]]) -> int:
    rows = [batch for batches, _ in runs for batch in batches]
    batches = np.zeros(len(rows), BATCH)
    batches["base_offset"], batches["last_offset_delta"] = zip(*rows, strict=True)
    owner = np.repeat(np.arange(len(runs)), [len(batches) for batches, _ in runs])
    return first_misplaced(batches, owner, np.array([run for _, run in runs], RUN))


@given(st.lists(runs(), min_size=1, max_size=3))
def test_the_first_misplaced_batch_is_found(generated: list[tuple[Batches, Run]]) -> None:
    expected, count = -1, 0
    for batches, run in generated:
        wrong = model(batches, run)
        if wrong is not None:
            expected = count + wrong
            break
        count += len(batches)
    assert first_misplaced_of(generated) == expected


@pytest.mark.parametrize("dense", [True, False])
@pytest.mark.parametrize("ends_file", [True, False])
def test_the_largest_offset_is_beyond_every_end(dense: bool, ends_file: bool) -> None:
    run = (0, 10, dense, ends_file)
    assert first_misplaced_of([([(0, 0), (MAX_LONG, 0)], run)]) == 1
    assert first_misplaced_of([([(0, 0), (MAX_LONG - 5, 5), (1, 0)], run)]) == 1
    assert first_misplaced_of([([(MAX_LONG, 0)], (MAX_LONG, MAX_LONG, dense, ends_file))]) == 0
