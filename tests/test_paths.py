"""File names: built and parsed in one place, and nothing read from storage becomes a path unchecked."""

from __future__ import annotations

import pytest

from distlog.core import paths
from distlog.core.errors import InvalidTopicError

HEX = "0123456789abcdef0123456789abcdef"


@pytest.mark.parametrize("name", ["clicks", "a.b_c-D9", "x" * 249, "..."])
def test_kafkas_legal_topic_names_are_accepted(name: str) -> None:
    assert paths.check_topic_name(name) == name


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "ü", "x" * 250, "a\n", "../a"])
def test_illegal_topic_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidTopicError, match="a topic name has 1 to 249"):
        paths.check_topic_name(name)


def test_a_stem_carries_the_version_that_its_writer_saw() -> None:
    stem = paths.new_stem(7, HEX)
    assert stem == f"v00000000000000000007-{HEX}"
    assert paths.stem_read_version(stem) == 7
    assert paths.stem_read_version("00000000000000000012") is None


@pytest.mark.parametrize(
    "stem", ["", "../x", "v7-" + HEX, f"v{7:020d}-{HEX.upper()}", "0" * 19, f"{'0' * 20}/x", "0" * 20 + "\n"]
)
def test_a_stem_from_storage_that_is_none_is_refused(stem: str) -> None:
    with pytest.raises(InvalidTopicError, match="a segment's stem"):
        paths.segment_file("t", 0, stem, ".log")


def test_segment_files_lie_in_kafkas_partition_folder() -> None:
    assert paths.segment_file("t", 3, "0" * 20, ".index") == f"t-3/{'0' * 20}.index"
    with pytest.raises(InvalidTopicError, match="not a segment file"):
        paths.segment_file("t", 3, "0" * 20, ".exe")


def test_commit_and_checkpoint_names_are_parsed_back() -> None:
    assert paths.parse_commit_file(paths.commit_file(12)) == 12
    assert paths.parse_checkpoint_file(paths.checkpoint_file(100, HEX)) == 100
    assert paths.parse_commit_file("00000000000000000012.json.tmp") is None
    assert paths.parse_checkpoint_file("_last_checkpoint") is None


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("a-1-0/{new}.log", (0, "{new}")),
        ("a-1-0/00000000000000000005.timeindex", (0, "00000000000000000005")),
        ("a-1-0/{new}.snapshot", (0, "{new}")),
        # the states of producers before an offset, which are of no segment
        ("a-1-0/00000000000000000005.snapshot", None),
        # of other topics, whose names begin alike
        ("a-1-2-0/{new}.log", None),
        ("a-10/{new}.log", None),
        ("a-1/{new}.log", None),
    ],
)
def test_a_file_is_of_a_segment_of_the_topic_whose_folder_it_is_in(name: str, found: tuple[int, str] | None) -> None:
    stem = paths.new_stem(7, "ab" * 16)
    expected = found and (found[0], found[1].format(new=stem))
    assert paths.parse_segment_file(name.format(new=stem), "a-1") == expected
