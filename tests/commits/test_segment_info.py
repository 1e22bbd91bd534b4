"""The description of a segment in a snapshot."""

from __future__ import annotations

import dataclasses

import pytest
from histories import segment

from distlog.core.commits import fields
from distlog.core.commits.segment_table import SegmentInfo


def test_a_segment_moves_with_all_its_offsets() -> None:
    moved = segment(base_offset=0, count=10, offset_of_max_timestamp=7).moved_to(100)
    assert (moved.base_offset, moved.next_offset, moved.offset_of_max_timestamp) == (100, 110, 107)
    assert moved.stored_base_offset == 0
    assert moved.shift == 100
    assert moved.moved_to(0).moved_to(100) == moved


def test_a_segment_without_timestamps_moves_without_them() -> None:
    assert segment(offset_of_max_timestamp=-1).moved_to(100).offset_of_max_timestamp == -1


def test_an_adopted_segment_needs_no_shift() -> None:
    assert segment(base_offset=50, stored_base_offset=50).shift == 0


def test_a_segment_is_dense_only_if_each_offset_is_a_record_that_readers_get() -> None:
    assert segment().dense
    assert not segment(record_count=9).dense
    assert not segment(has_transactions=True).dense


def test_stored_offsets_that_would_overflow_are_refused() -> None:
    segment(stored_base_offset=2**63 - 11).check()
    with pytest.raises(ValueError, match="stores offsets past the largest"):
        segment(stored_base_offset=2**63 - 10).check()


def test_only_fields_with_a_default_may_be_missing() -> None:
    info, body = segment(), fields.write(segment())
    for spec in dataclasses.fields(SegmentInfo):
        if spec.default is not dataclasses.MISSING:
            body.pop(spec.name, None)
    assert len(body) == 16
    assert fields.read(SegmentInfo, body).leader_epoch == info.leader_epoch == -1
    for name in body:
        with pytest.raises(ValueError, match=name):
            fields.read(SegmentInfo, {key: value for key, value in body.items() if key != name})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("partition", -1),
        ("partition", 2**31),
        ("partition", True),
        ("partition", "0"),
        ("base_offset", 2**63),
        ("base_offset", 1.0),
        ("base_offset", None),
        ("log_bytes", -1),
        ("max_timestamp", -2),
        ("crc32c", 2**32),
        ("compacted", 1),
        ("compression", "../zstd"),
        ("compression", "zstd\n"),
        ("stem", "../../etc/passwd"),
        ("stem", "00000000000000000000\n"),
        ("stem", ["00000000000000000000"]),
    ],
)
def test_a_field_out_of_its_range_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=name):
        fields.read(SegmentInfo, {**fields.write(segment()), name: value})


@pytest.mark.parametrize("body", [None, [], "segment", 1])
def test_a_segment_must_be_an_object(body: object) -> None:
    with pytest.raises(ValueError, match="must be an object"):
        fields.read(SegmentInfo, body)


@pytest.mark.parametrize(
    "changes",
    [
        {"next_offset": 0},
        {"record_count": 11},
        {"offset_of_max_timestamp": 10},
        {"base_offset": 5, "next_offset": 15, "offset_of_max_timestamp": 4},
    ],
)
def test_fields_that_contradict_each_other_are_refused(changes: dict[str, int]) -> None:
    segment().check()
    with pytest.raises(ValueError, match="segment"):
        segment(**changes).check()
