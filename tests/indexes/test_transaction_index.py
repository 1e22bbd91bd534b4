"""TransactionIndex: what Kafka's own tests pin, files that a broker wrote, and damaged ones."""

from __future__ import annotations

import contextlib
import gzip
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from golden import DATA
from hypothesis import given, settings
from hypothesis import strategies as st

from distlog.core.errors import CorruptIndexError, UnsupportedVersionError
from distlog.core.indexes.transaction_index import (
    TRANSACTION_ENTRY,
    AbortedTransaction,
    TransactionIndex,
    collect_aborted,
    encode_transactions,
)

#: The aborted transactions of Kafka's test.
FOUR = [
    AbortedTransaction(0, 0, 10, 11),
    AbortedTransaction(1, 5, 15, 13),
    AbortedTransaction(2, 18, 35, 25),
    AbortedTransaction(3, 32, 50, 40),
]


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Where the index goes."""
    return str(tmp_path / "00000000000000000000.txnindex")


@pytest.fixture
def four(path: str) -> TransactionIndex:
    """The index of Kafka's test, with four aborted transactions."""
    return index_of(path, FOUR)


def index_of(path: str, transactions: Sequence[AbortedTransaction]) -> TransactionIndex:
    """An index with these entries."""
    Path(path).write_bytes(encode_transactions(transactions))
    return TransactionIndex(path, 0)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One file that the property tests write over and over."""
    return tmp_path_factory.mktemp("index") / "scratch.txnindex"


# What Kafka's TransactionIndexTest pins.


def test_a_transaction_that_ends_below_the_base_offset_is_corrupt(four: TransactionIndex, path: str) -> None:
    four.sanity_check()
    TransactionIndex(path, 10).sanity_check()
    with pytest.raises(CorruptIndexError, match="outside of its segment") as caught:
        TransactionIndex(path, 100).sanity_check()
    assert caught.value.details == {"file": path, "position": 0}


@pytest.mark.parametrize(
    ("start", "end", "found", "complete"),
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
    four: TransactionIndex, start: int, end: int, found: list[AbortedTransaction], complete: bool
) -> None:
    assert collect_aborted(four.transactions(), start, end) == (found, complete)


def test_an_entry_has_its_five_fields_big_endian(path: str) -> None:
    index = index_of(path, [AbortedTransaction(7, 0, 2, 3)])
    assert Path(path).read_bytes() == bytes.fromhex(
        "00000000000000000007000000000000000000000000000000020000000000000003"
    )
    assert index.transactions() == [AbortedTransaction(7, 0, 2, 3)]


# Life and limits.


def test_no_file_is_an_empty_index(path: str) -> None:
    index = TransactionIndex(path, 0)
    index.sanity_check()
    assert index.transactions() == []
    assert collect_aborted(index.transactions(), 0, 10) == ([], False)
    assert not Path(path).exists()


def test_an_incomplete_last_entry_is_ignored(four: TransactionIndex, path: str) -> None:
    Path(path).write_bytes(Path(path).read_bytes()[:-1])
    assert four.transactions() == FOUR[:3]


def test_a_transaction_moves_with_its_segment() -> None:
    assert FOUR[1].moved(100) == AbortedTransaction(1, 105, 115, 113)


# Files that a broker wrote, and damaged ones.

DUMPS = sorted((DATA / "kafka-4.1").glob("dump.*.txnindex.txt.gz"))
LINE = re.compile(r"version: 0 producerId: (\d+) firstOffset: (\d+) lastOffset: (\d+) lastStableOffset: (\d+)")


@pytest.mark.parametrize("dump", DUMPS, ids=lambda dump: dump.name)
def test_entries_are_what_kafkas_dump_tool_prints(dump: Path) -> None:
    _, partition, stem, *_ = dump.name.split(".")
    index = TransactionIndex(str(DATA / "kafka-4.1" / "first" / partition / f"{stem}.txnindex"), int(stem))
    index.sanity_check()
    text = gzip.decompress(dump.read_bytes()).decode()
    printed = [AbortedTransaction(*map(int, match)) for match in LINE.findall(text)]
    assert index.transactions() == printed
    assert len(printed) >= 4


def test_every_broker_file_is_sane() -> None:
    files = sorted(DATA.glob("kafka-4.1/*/*/*.txnindex"))
    for file in files:
        TransactionIndex(str(file), int(file.stem)).sanity_check()
    assert len(DUMPS) == 2
    assert len(files) > 10


def test_an_entry_of_a_later_version_is_not_read(four: TransactionIndex, path: str) -> None:
    data = bytearray(Path(path).read_bytes())
    data[TRANSACTION_ENTRY.itemsize] = 1
    Path(path).write_bytes(data)
    for read in (four.transactions, four.sanity_check):
        with pytest.raises(UnsupportedVersionError, match="upgrade") as raised:
            read()
        assert raised.value.details == {"file": path, "position": TRANSACTION_ENTRY.itemsize}


@pytest.mark.parametrize("version", [1, 255, 0x8000, 0xFFFF])
def test_only_the_first_byte_of_a_version_counts_and_only_above_0_as_in_kafka(
    version: int, four: TransactionIndex, path: str
) -> None:
    before = four.transactions()
    data = bytearray(Path(path).read_bytes())
    data[TRANSACTION_ENTRY.itemsize : TRANSACTION_ENTRY.itemsize + 2] = version.to_bytes(2, "big")
    Path(path).write_bytes(data)
    assert four.transactions() == before


def test_a_transaction_that_begins_after_its_end_is_corrupt(path: str) -> None:
    index = index_of(path, [FOUR[0], AbortedTransaction(1, 21, 20, 21)])
    with pytest.raises(CorruptIndexError, match="outside of its segment") as caught:
        index.sanity_check()
    assert caught.value.details["position"] == 34


@settings(deadline=None)
@given(st.binary(max_size=200), st.integers(-(2**62), 2**62), st.integers(-(2**62), 2**62))
def test_random_bytes_give_entries_that_reach_in_or_an_error(scratch: Path, raw: bytes, start: int, end: int) -> None:
    versions = bytearray(raw)
    for at in range(0, len(raw), 34):
        versions[at : at + 2] = bytes(len(versions[at : at + 2]))
    scratch.write_bytes(versions)
    index = TransactionIndex(str(scratch), 0)
    assert len(index.transactions()) == len(raw) // 34
    for found in collect_aborted(index.transactions(), start, end).transactions:
        assert found.last_offset >= start
        assert found.first_offset < end
    scratch.write_bytes(raw)
    with contextlib.suppress(CorruptIndexError, UnsupportedVersionError):
        index.sanity_check()
