"""Segments in bundles: their fields in commits and checkpoints, and invalid ones."""

from __future__ import annotations

import dataclasses
import uuid
from typing import Any

import pyarrow as pa
import pytest
from histories import History, segment

from distlog.core import paths
from distlog.core.arrays import MAX_LONG
from distlog.core.commits import checkpoint, fields
from distlog.core.commits.actions import Add, Remove, first_stem_below
from distlog.core.commits.segment_table import OWN_FILE, SegmentInfo
from distlog.core.commits.snapshot import Snapshot
from distlog.core.errors import CorruptMetadataError

STEM = paths.new_stem(0, uuid.UUID(int=1).hex)
POSITIONS = ("log_position", "offset_index_position", "time_index_position")


def part(partition: int = 0, log: int = 0, offsets: int = 1000, times: int = 2000, **changes: Any) -> SegmentInfo:
    """Return a segment with 100 bytes of log, and 8 and 12 bytes of indexes, at these positions."""
    info = segment(partition, log_bytes=100, offset_index_bytes=8, time_index_bytes=12)
    positions = dict(zip(POSITIONS, (log, offsets, times), strict=True))
    return dataclasses.replace(info, **{"stem": STEM, **positions, **changes})


def added(*segments: SegmentInfo) -> Snapshot:
    history = History()
    history.create(4)
    history.commit(*map(Add, segments))
    return history.snapshot()


def test_a_segment_without_positions_has_files_of_its_own() -> None:
    info = fields.read(SegmentInfo, fields.write(segment()))
    assert {getattr(info, name) for name in POSITIONS} == {OWN_FILE}
    assert not info.is_bundled


@pytest.mark.parametrize("name", POSITIONS)
@pytest.mark.parametrize("value", [-2, MAX_LONG + 1, 1.0, None, "0"])
def test_an_impossible_position_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=name):
        fields.read(SegmentInfo, {**fields.write(part()), name: value})


def test_an_index_is_in_a_bundle_only_if_its_log_is() -> None:
    part(offsets=OWN_FILE, times=OWN_FILE).check()
    with pytest.raises(ValueError, match="has an index in a bundle"):
        part(log=OWN_FILE).check()
    with pytest.raises(ValueError, match="stem of Kafka's"):
        part(stem=f"{0:020d}").check()


@pytest.mark.parametrize(
    ("segments", "complaint"),
    [
        ([part(), part(1, 99, 1008, 2012)], "overlap"),
        ([part(), part(1, 0, 1008, 2012)], "overlap"),
        ([part(), part(1, 100, 1007, 2012)], "overlap"),
        ([part(offsets=50)], "overlap"),
        ([part(log=MAX_LONG - 99)], "largest position"),
    ],
)
def test_parts_that_overlap_or_have_no_end_are_refused(segments: list[SegmentInfo], complaint: str) -> None:
    with pytest.raises(CorruptMetadataError, match=complaint):
        added(*segments)
    apart = [dataclasses.replace(info, stem=paths.new_stem(0, uuid.uuid4().hex)) for info in segments]
    if len(segments) > 1:
        assert len(added(*apart).partitions) == 4


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"log_position": 99}, "overlap"),
        ({"log_position": MAX_LONG}, "largest"),
        ({"log_position": -2}, "log_position"),
    ],
)
def test_a_checkpoint_with_overlapping_parts_is_refused(changes: dict[str, int], complaint: str) -> None:
    data = checkpoint.encode(added(part(), part(1, 100, 1008, 2012)))
    state, batches = checkpoint.unpack(data)
    rows, schema = batches["segments"].to_pylist(), batches["segments"].schema
    rows[1].update(changes)
    changed = checkpoint.pack(state, {**batches, "segments": pa.RecordBatch.from_pylist(rows, schema)})
    with pytest.raises(CorruptMetadataError, match=complaint):
        checkpoint.decode(changed, "a checkpoint")


def test_a_redescribed_part_leaves_other_partitions_parts_new() -> None:
    again = [Remove(0, STEM), Add(part())]
    assert first_stem_below(again, 1) is None
    assert first_stem_below([*again, Add(part(1, 100, 1008, 2012))], 1) == STEM
