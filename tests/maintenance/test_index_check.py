"""The valid entries of an index for its log: the writer's, or the possible ones of a broker."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from distlog.core.commits.segment_table import SegmentInfo
from distlog.core.errors import CorruptIndexError
from distlog.core.format.indexes import AbortedTransaction, encode_transactions
from distlog.core.format.record_batch import BATCH, CONTROL
from distlog.core.maintain.verify_segment import (
    IndexCheck,
    OffsetIndexCheck,
    TimeIndexCheck,
    TransactionIndexCheck,
)
from distlog.core.segments.segment_state import LogDescription
from distlog.core.storage.backend import Part

BASE = 1000
OURS = f"v{0:020d}-{'0' * 32}"
TIMESTAMPS = [50, 40, 60, 60, 55, 70, 10, 80, 80, 90]


def batches_of(timestamps: list[int] = TIMESTAMPS) -> np.ndarray:
    """Batches of 100 bytes and 3 records each."""
    batches = np.zeros(len(timestamps), BATCH)
    batches["position"], batches["size"] = np.arange(len(timestamps)) * 100, 100
    batches["base_offset"], batches["last_offset_delta"] = BASE + np.arange(len(timestamps)) * 3, 2
    batches["max_timestamp"] = timestamps
    return batches


BATCHES = batches_of()


def segment(stem: str = OURS) -> SegmentInfo:
    fields: dict[str, Any] = dict.fromkeys(
        ["record_count", "txn_index_bytes", "first_timestamp", "max_timestamp", "created_ms", "crc32c", "partition"],
        0,
    )
    fields |= {"offset_index_bytes": 0, "time_index_bytes": 0, "offset_of_max_timestamp": -1, "compression": "none"}
    ends = {"base_offset": 5, "next_offset": 5 + 30, "stored_base_offset": BASE, "log_bytes": 1000}
    return SegmentInfo(stem=stem, **fields, **ends)


def mismatch(
    kind: type[IndexCheck], data: Any, stem: str = OURS, step: int = 4, batches: np.ndarray = BATCHES
) -> bool:
    """Return whether `data` contradicts the batches, which come in runs of `step`."""
    check = kind(Part.file("a file", 0), segment(stem), bytes(data))
    for start in range(0, len(batches), step):
        check.add(batches[start : start + step], start * 100)
    return check.mismatch() is not None


def written(interval: int) -> dict[type[IndexCheck], np.ndarray]:
    description = LogDescription(BASE, interval_bytes=interval)
    description.add(bytes(BATCHES["size"].sum()), BATCHES)
    files = description.finish()
    kinds: dict[type[IndexCheck], str] = {OffsetIndexCheck: ".index", TimeIndexCheck: ".timeindex"}
    return {kind: np.frombuffer(files[suffix], kind.ENTRY) for kind, suffix in kinds.items()}


def is_wrong(kind: type[IndexCheck], entries: np.ndarray, stem: str = OURS) -> bool:
    try:
        return mismatch(kind, entries.tobytes(), stem)
    except CorruptIndexError:
        return True


@pytest.mark.parametrize("interval", [0, 150, 250, 500])
@pytest.mark.parametrize("step", [1, 3, 10])
@pytest.mark.parametrize("stem", [OURS, f"{BASE:020d}"])
def test_entries_of_the_writer_are_valid_at_any_interval(interval: int, step: int, stem: str) -> None:
    for kind, entries in written(interval).items():
        assert not mismatch(kind, entries.tobytes(), stem, step)


@pytest.mark.parametrize("kind", [OffsetIndexCheck, TimeIndexCheck])
@pytest.mark.parametrize("change", [-100, -3, -1, 1, 3, 100])
def test_an_entry_with_any_other_number_is_wrong(kind: type[IndexCheck], change: int) -> None:
    right = written(150)[kind]
    assert len(right) > 3
    for slot in range(len(right)):
        for name in right.dtype.names or ():
            entries = right.copy()
            entries[name][slot] += change
            assert is_wrong(kind, entries), (slot, name)


def test_the_time_index_must_end_with_the_largest_timestamp() -> None:
    entries = written(150)[TimeIndexCheck]
    assert mismatch(TimeIndexCheck, entries[:-1].tobytes())
    assert mismatch(TimeIndexCheck, b"")
    assert not mismatch(TimeIndexCheck, entries[:-1].tobytes(), f"{BASE:020d}"), "a broker may not have come to it"
    assert not mismatch(TimeIndexCheck, b"", batches=batches_of([-1] * 10))


def test_a_later_batch_with_the_same_timestamp_is_wrong() -> None:
    """Batches 2 and 3 have the timestamp 60; a search for 60 would start after batch 2."""
    entries = np.array([(60, 11), (90, 29)], TimeIndexCheck.ENTRY)
    assert is_wrong(TimeIndexCheck, entries)
    assert is_wrong(TimeIndexCheck, entries, f"{BASE:020d}")


def test_an_entry_of_an_older_batch_is_wrong() -> None:
    assert is_wrong(TimeIndexCheck, np.array([(55, 14), (90, 29)], TimeIndexCheck.ENTRY))


@pytest.mark.parametrize("kind", [OffsetIndexCheck, TimeIndexCheck])
def test_entries_past_the_last_batch_are_wrong(kind: type[IndexCheck]) -> None:
    assert mismatch(kind, written(0)[kind].tobytes(), batches=BATCHES[:-2])


def test_a_broker_makes_one_entry_for_batches_appended_together() -> None:
    """Batches 1 to 3 in one append, 4 to 9 in another: (last offset of the append, its start)."""
    entries = np.array([(11, 100), (29, 400)], OffsetIndexCheck.ENTRY)
    assert not is_wrong(OffsetIndexCheck, entries, f"{BASE:020d}")
    assert is_wrong(OffsetIndexCheck, entries)


@pytest.mark.parametrize("entry", [(14, 100), (2, 100), (4, 100), (11, 101)])
def test_impossible_entries_of_appends_are_wrong(entry: tuple[int, int]) -> None:
    """The entry reaches into the next append, ends before its start or in its first batch, or begins in a batch."""
    entries = np.array([entry, (29, 400)], OffsetIndexCheck.ENTRY)
    assert is_wrong(OffsetIndexCheck, entries, f"{BASE:020d}")


@pytest.mark.parametrize(("offset", "wrong"), [(5, True), (6, False), (7, False), (8, False), (9, True)])
def test_an_old_broker_names_a_record_of_the_batch(offset: int, wrong: bool) -> None:
    entries = np.array([(60, offset), (90, 29)], TimeIndexCheck.ENTRY)
    assert is_wrong(TimeIndexCheck, entries, f"{BASE:020d}") == wrong


def test_an_aborted_transaction_ends_with_a_control_batch_of_its_producer() -> None:
    batches = batches_of()
    batches["last_offset_delta"][4], batches["base_offset"][4] = 0, BASE + 14
    batches["attributes"][4], batches["producer_id"] = CONTROL, 7
    right = AbortedTransaction(7, 3, BASE + 14, BASE + 15)
    assert not mismatch(TransactionIndexCheck, encode_transactions([right]), batches=batches)
    for wrong in [(8, 3, BASE + 14), (7, 3, BASE + 17), (7, 3, BASE + 13)]:
        data = encode_transactions([AbortedTransaction(*wrong, BASE + 15)])
        assert mismatch(TransactionIndexCheck, data, batches=batches)


@pytest.mark.parametrize(
    ("kind", "entries", "position"),
    [
        (OffsetIndexCheck, [(2, 100), (2, 200)], 8),
        (OffsetIndexCheck, [(2, 100), (5, 100)], 8),
        (OffsetIndexCheck, [(2, -1)], 0),
        (OffsetIndexCheck, [(2, 1000)], 0),
        (OffsetIndexCheck, [(30, 100)], 0),
        (TimeIndexCheck, [(5, 2), (5, 5)], 12),
        (TimeIndexCheck, [(5, 5), (6, 2)], 12),
        (TimeIndexCheck, [(5, 2), (-1, 5)], 12),
        (TimeIndexCheck, [(5, 30)], 0),
        (TransactionIndexCheck, [(1, 7, 3, BASE, 0)], 0),
        (TransactionIndexCheck, [(0, 7, BASE + 1, BASE, 0)], 0),
        (TransactionIndexCheck, [(0, 7, -1, BASE, 0)], 0),
        (TransactionIndexCheck, [(0, 7, 3, BASE - 1, 0)], 0),
        (TransactionIndexCheck, [(0, 7, 3, BASE + 30, 0)], 0),
        (TransactionIndexCheck, [(0, 7, 3, BASE + 1, 0), (0, 7, 3, BASE + 1, 0)], 34),
    ],
)
def test_entries_that_no_log_can_have_are_refused(kind: type[IndexCheck], entries: list[Any], position: int) -> None:
    with pytest.raises(CorruptIndexError, match=f"position={position} "):
        kind(Part.file("a file", 0), segment(), np.array(entries, kind.ENTRY).tobytes())
    with pytest.raises(CorruptIndexError, match="not a multiple"):
        kind(Part.file("a file", 0), segment(), bytes(kind.ENTRY.itemsize + 1))
