"""File names are built and parsed in one place, and stored names are checked before they become paths."""

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
    with pytest.raises(InvalidTopicError, match="a topic name must have 1 to 249"):
        paths.check_topic_name(name)


def test_a_stem_has_the_version_of_its_writer() -> None:
    stem = paths.new_stem(7, HEX)
    assert stem == f"v00000000000000000007-{HEX}"
    assert paths.stem_read_version(stem) == 7
    assert paths.is_own_stem(stem)
    assert paths.stem_read_version("00000000000000000012") is None
    assert not paths.is_own_stem("00000000000000000012")


@pytest.mark.parametrize(
    "stem", ["", "../x", "v7-" + HEX, f"v{7:020d}-{HEX.upper()}", "0" * 19, f"{'0' * 20}/x", "0" * 20 + "\n"]
)
def test_an_invalid_stem_from_storage_is_refused(stem: str) -> None:
    with pytest.raises(InvalidTopicError, match="the name of a segment's files"):
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
    ("name", "partition_and_stem"),
    [
        ("a-1-0/{new}.log", (0, "{new}")),
        ("a-1-0/00000000000000000005.timeindex", (0, "00000000000000000005")),
        ("a-1-0/{new}.snapshot", (0, "{new}")),
        ("a-1-0/00000000000000000005.snapshot", None),
        # of other topics with an equal start of the name
        ("a-1-2-0/{new}.log", None),
        ("a-10/{new}.log", None),
        ("a-1/{new}.log", None),
    ],
)
def test_segment_files_are_parsed_by_the_folder_of_their_topic(
    name: str, partition_and_stem: tuple[int, str] | None
) -> None:
    stem = paths.new_stem(7, "ab" * 16)
    expected = partition_and_stem and (partition_and_stem[0], partition_and_stem[1].format(new=stem))
    assert paths.parse_segment_file(name.format(new=stem), "a-1") == expected
