"""Names in a broker's log directory, as in Kafka's LocalLogTest."""

from __future__ import annotations

import pytest

from distlog.core.kafka.partition_folder import FileName, folder_state, parse_file, parse_partition_folder

UUID = "0123456789abcdef0123456789abcdef"


@pytest.mark.parametrize(
    ("name", "parsed"),
    [
        ("test_topic-143", ("test_topic", 143)),
        ("foo.bar-x-42", ("foo.bar-x", 42)),
        ("a-0", ("a", 0)),
        ("b--1", ("b-", 1)),
    ],
)
def test_a_folder_is_named_after_its_partition(name: str, parsed: tuple[str, int]) -> None:
    assert parse_partition_folder(name) == parsed
    assert folder_state(name) is None


@pytest.mark.parametrize(
    "name",
    ["", "-", "topic", "topic-", "-5", "topic-1999a", "topic-01", "a b-1", "..-1", f"{'t' * 250}-1"],
)
def test_other_folders_are_not_partitions(name: str) -> None:
    assert parse_partition_folder(name) is None
    assert folder_state(name) is None


@pytest.mark.parametrize("state", ["delete", "future", "stray"])
def test_the_suffix_of_a_folder_is_its_state(state: str) -> None:
    for topic in ("foo.bar-testtopic", "t" * 249):
        name = f"{topic}-42.{UUID}-{state}"
        assert folder_state(name) == state
        assert parse_partition_folder(name) is None


@pytest.mark.parametrize(
    "name", [f"topic.{UUID}-delete", f"topic-.{UUID}-delete", f"-.{UUID}-delete", "a-1.x-delete"]
)
def test_other_names_have_no_state(name: str) -> None:
    assert folder_state(name) is None


@pytest.mark.parametrize("suffix", [".log", ".index", ".timeindex", ".txnindex", ".snapshot"])
def test_files_are_named_by_their_offset(suffix: str) -> None:
    assert parse_file(f"{23423423:020d}{suffix}") == FileName(23423423, suffix, "")
    for temporary in (".cleaned", ".swap", ".deleted"):
        assert parse_file(f"{2**63 - 1:020d}{suffix}{temporary}") == FileName(2**63 - 1, suffix, temporary)
    for other in (f"{2**63:020d}{suffix}", f"5{suffix}", f"{5:020d}{suffix}.tmp", f"{5:020d}", f" {5:020d}{suffix}"):
        assert parse_file(other) is None
