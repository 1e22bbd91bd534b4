"""The record in the page of a partition's lock: a damaged one is ignored."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distlog.core.commits.actions import Active
from distlog.core.log.partition_files import RECORD_BYTES, PageStatus, StateRecord
from distlog.core.segments.segment_state import SegmentState
from distlog.core.storage.locks_and_pages import MAX_VALUE_BYTES

TOPIC, OTHER = "00000000-0000-4000-8000-000000000001", "00000000-0000-4000-8000-000000000002"
STATE = SegmentState.new(f"v{7:020d}-{'a' * 32}", 10, 1000)
RECORD = StateRecord(TOPIC, PageStatus.ACTIVE, STATE)
ACTIVE = Active(0, STATE.stem, 10)


@pytest.mark.parametrize(
    "record", [RECORD, StateRecord(TOPIC, PageStatus.CHANGING, STATE), StateRecord(TOPIC, PageStatus.NONE)]
)
def test_a_record_round_trips(record: StateRecord) -> None:
    assert StateRecord.unpack(record.pack()) == record
    assert len(record.pack()) == RECORD_BYTES <= MAX_VALUE_BYTES


def test_a_record_of_another_boot_is_ignored(rebooted: Callable[[], None]) -> None:
    data = RECORD.pack()
    rebooted()
    assert StateRecord.unpack(data) is None


@pytest.mark.parametrize(("index", "value"), [(0, 1), (1, 5), (1, 255), (34, 0xFF), (34, ord("/"))], ids=str)
def test_a_record_of_another_version_status_or_stem_is_ignored(index: int, value: int) -> None:
    data = bytearray(RECORD.pack())
    data[index] = value
    assert StateRecord.unpack(bytes(data)) is None


def test_a_contradicting_state_is_ignored() -> None:
    wrong = dataclasses.replace(STATE, next_offset=5)
    assert StateRecord.unpack(StateRecord(TOPIC, PageStatus.ACTIVE, wrong).pack()) is None


@given(
    st.one_of(
        st.none(), st.binary(max_size=RECORD_BYTES + 1), st.binary(min_size=RECORD_BYTES, max_size=RECORD_BYTES)
    )
)
def test_other_bytes_are_ignored(data: bytes | None) -> None:
    assert StateRecord.unpack(data) is None


@given(st.integers(0, RECORD_BYTES - 1), st.integers(0, 255))
def test_a_changed_byte_is_ignored(index: int, value: int) -> None:
    data = bytearray(RECORD.pack())
    data[index] = value
    record = StateRecord.unpack(bytes(data))
    assert record is None or record.status == PageStatus.NONE or record.pack() == data


def test_the_state_applies_to_the_committed_segment() -> None:
    assert RECORD.state_of(TOPIC, ACTIVE) == STATE
    assert RECORD.state_of(OTHER, ACTIVE) is None
    assert RECORD.state_of(TOPIC, None) is None
    assert RECORD.state_of(TOPIC, dataclasses.replace(ACTIVE, stem=f"v{7:020d}-{'b' * 32}")) is None
    assert RECORD.state_of(TOPIC, dataclasses.replace(ACTIVE, base_offset=9)) is None
    assert StateRecord(TOPIC, PageStatus.NONE).state_of(TOPIC, ACTIVE) is None
