"""Producer snapshots: a vector, and those that a broker wrote."""

from __future__ import annotations

import numpy as np
import pytest
from golden import DATA

from distlog.core.errors import CorruptIndexError
from distlog.core.transactions.producer_states import ENTRY, read_producer_snapshot, write_producer_snapshot

VECTOR = bytes.fromhex(
    "00018681074800000001000000000000000700020000000100000000000000010000000100000000000007d000000009ffffffffffffffff"
)
EMPTY = bytes.fromhex("000148674bc700000000")


def test_the_vector_of_an_ended_transaction_is_read_and_written() -> None:
    (entry,) = read_producer_snapshot(VECTOR)
    assert entry.tolist() == (7, 2, 1, 1, 1, 2000, 9, -1)
    assert write_producer_snapshot(np.array([entry], ENTRY)) == VECTOR


def test_a_snapshot_without_producers_has_ten_bytes() -> None:
    assert len(read_producer_snapshot(EMPTY)) == 0
    assert write_producer_snapshot(np.empty(0, ENTRY)) == EMPTY


def test_the_snapshots_of_a_broker_are_read_and_written_back() -> None:
    files = sorted(DATA.glob("kafka-*/*/*/*.snapshot"))
    assert len(files) > 20
    for file in files:
        data = file.read_bytes()
        assert write_producer_snapshot(read_producer_snapshot(data)) == data
    last = DATA / "kafka-4.1" / "first" / "txn-0" / "00000000000000000713.snapshot"
    entries = read_producer_snapshot(last.read_bytes())
    assert len(entries) == 3
    assert (entries["transaction_first_offset"] >= 0).sum() == 1


@pytest.mark.parametrize("file", ["", "x-0/00000000000000000003.snapshot"])
def test_every_flipped_byte_and_every_truncation_is_refused(file: str) -> None:
    damaged = [VECTOR[:size] for size in range(len(VECTOR))]
    damaged += [VECTOR[:at] + bytes([VECTOR[at] ^ 0x10]) + VECTOR[at + 1 :] for at in range(len(VECTOR))]
    damaged.append(VECTOR + b"\0")
    for data in damaged:
        with pytest.raises(CorruptIndexError) as caught:
            read_producer_snapshot(data, file=file)
        assert caught.value.details["file"] == (file or None)
