"""The transaction index: the cases of Kafka's tests, files of a broker, and damaged files."""

from __future__ import annotations

import contextlib
import gzip
import re
from pathlib import Path

import pytest
from golden import DATA
from hypothesis import given, settings
from hypothesis import strategies as st

from distlog.core.errors import CorruptIndexError, UnsupportedVersionError
from distlog.core.format.indexes import (
    TRANSACTION_ENTRY,
    AbortedTransaction,
    collect_aborted,
    decode_transactions,
    encode_transactions,
)

#: The aborted transactions of Kafka's test.
FOUR = [
    AbortedTransaction(0, 0, 10, 11),
    AbortedTransaction(1, 5, 15, 13),
    AbortedTransaction(2, 18, 35, 25),
    AbortedTransaction(3, 32, 50, 40),
]


DATA_OF_FOUR = encode_transactions(FOUR)


def decoded(data: bytes, base_offset: int = 0) -> list[AbortedTransaction]:
    return decode_transactions(data, "a.txnindex", base_offset)


def test_a_transaction_that_ends_below_the_base_offset_is_corrupt() -> None:
    assert decoded(DATA_OF_FOUR) == decoded(DATA_OF_FOUR, 10) == FOUR
    with pytest.raises(CorruptIndexError, match="cannot have") as caught:
        decoded(DATA_OF_FOUR, 100)
    assert caught.value.details == {"file": "a.txnindex", "position": 0}


@pytest.mark.parametrize(
    ("start", "end", "expected", "complete"),
    [
        (0, 100, FOUR, False),
        (0, 32, FOUR[:3], True),
        (0, 35, FOUR, True),
        (10, 35, FOUR, True),
        (11, 35, FOUR[1:], True),
        (20, 41, FOUR[2:], False),
        (20, 40, FOUR[2:], True),
    ],
)
def test_aborted_transactions_are_collected_up_to_a_stable_offset(
    start: int, end: int, expected: list[AbortedTransaction], complete: bool
) -> None:
    assert collect_aborted(FOUR, start, end) == (expected, complete)


def test_an_entry_has_its_five_fields_big_endian() -> None:
    data = encode_transactions([AbortedTransaction(7, 0, 2, 3)])
    assert data == bytes.fromhex("00000000000000000007000000000000000000000000000000020000000000000003")
    assert decoded(data) == [AbortedTransaction(7, 0, 2, 3)]


def test_no_bytes_are_an_empty_index() -> None:
    assert decoded(b"") == []
    assert collect_aborted([], 0, 10) == ([], False)


def test_an_incomplete_last_entry_is_ignored() -> None:
    assert decoded(DATA_OF_FOUR[:-1]) == FOUR[:3]


def test_a_transaction_moves_with_its_segment() -> None:
    assert FOUR[1].moved(100) == AbortedTransaction(1, 105, 115, 113)


DUMPS = sorted((DATA / "kafka-4.1").glob("dump.*.txnindex.txt.gz"))
LINE = re.compile(r"version: 0 producerId: (\d+) firstOffset: (\d+) lastOffset: (\d+) lastStableOffset: (\d+)")


@pytest.mark.parametrize("dump", DUMPS, ids=lambda dump: dump.name)
def test_entries_are_what_kafkas_dump_tool_prints(dump: Path) -> None:
    _, partition, stem, *_ = dump.name.split(".")
    data = (DATA / "kafka-4.1" / "first" / partition / f"{stem}.txnindex").read_bytes()
    text = gzip.decompress(dump.read_bytes()).decode()
    printed = [AbortedTransaction(*map(int, match)) for match in LINE.findall(text)]
    assert decoded(data, int(stem)) == printed
    assert len(printed) >= 4


def test_every_broker_file_is_sane() -> None:
    files = sorted(DATA.glob("kafka-4.1/*/*/*.txnindex"))
    for file in files:
        decoded(file.read_bytes(), int(file.stem))
    assert len(DUMPS) == 2
    assert len(files) > 10


def test_an_entry_of_a_later_version_is_not_read() -> None:
    data = bytearray(DATA_OF_FOUR)
    data[TRANSACTION_ENTRY.itemsize] = 1
    with pytest.raises(UnsupportedVersionError, match="upgrade") as raised:
        decoded(bytes(data))
    assert raised.value.details == {"file": "a.txnindex", "position": TRANSACTION_ENTRY.itemsize, "version": 256}


@pytest.mark.parametrize(
    ("version", "is_read"), [(1, True), (255, True), (256, False), (0x8000, True), (0xFFFF, True)]
)
def test_only_the_first_byte_of_a_version_counts_and_only_above_0_as_in_kafka(version: int, is_read: bool) -> None:
    data = bytearray(DATA_OF_FOUR)
    data[TRANSACTION_ENTRY.itemsize : TRANSACTION_ENTRY.itemsize + 2] = version.to_bytes(2, "big")
    with contextlib.nullcontext() if is_read else pytest.raises(UnsupportedVersionError):
        assert decoded(bytes(data)) == FOUR


def test_a_transaction_that_begins_after_its_end_is_corrupt() -> None:
    data = encode_transactions([FOUR[0], AbortedTransaction(1, 21, 20, 21)])
    with pytest.raises(CorruptIndexError, match="cannot have") as caught:
        decoded(data)
    assert caught.value.details["position"] == 34


@settings(deadline=None)
@given(st.binary(max_size=200), st.integers(-(2**62), 2**62), st.integers(-(2**62), 2**62))
def test_random_bytes_give_entries_that_reach_in_or_an_error(raw: bytes, start: int, end: int) -> None:
    with contextlib.suppress(CorruptIndexError, UnsupportedVersionError):
        entries = decoded(raw)
        assert len(entries) == len(raw) // 34
        for transaction in collect_aborted(entries, start, end)[0]:
            assert transaction.last_offset >= start
            assert transaction.first_offset < end
