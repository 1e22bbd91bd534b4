"""Metadata of Parquet that is hostile: whatever it says, it is read no further than it goes."""

from __future__ import annotations

import pytest

from distlog.core.commits.checkpoints.thrift import INT32, Thrift, integer, struct

#: 2**62 as the number of the items of a list.
MANY = b"\x80" * 8 + b"\x40"
BOOLEAN, BYTE, INTEGER, DOUBLE, BINARY, LIST, STRUCT = 1, 3, 5, 7, 8, 9, 12


def test_fields_are_found_by_number_and_kind_and_others_passed_over() -> None:
    inner = bytes([0x15, 8, 0])
    data = bytes([0x15, 6, 0x18, 2, 7, 7, 0x29, 0x21, 1, 1, 0x1C]) + inner + b"\0behind"
    thrift = Thrift(memoryview(data))
    fields = thrift.read_struct()
    assert integer(fields, 1, INT32) == 3
    found = struct(fields, 5)
    assert found is not None
    assert integer(found, 1, INT32) == 4
    assert data[thrift.position :] == b"behind"


@pytest.mark.parametrize("kind", [BOOLEAN, BYTE, INTEGER, DOUBLE, BINARY, LIST, STRUCT])
def test_a_list_of_more_items_than_there_are_bytes_ends_with_them(kind: int) -> None:
    data = bytes([0x19, 0xF0 | kind]) + MANY + bytes(20)
    with pytest.raises(IndexError):
        Thrift(memoryview(data)).read_struct()


@pytest.mark.parametrize("nested", [b"\x1c", b"\x19\x1c", b"\x19\x19"])
def test_what_is_nested_too_deep_is_refused(nested: bytes) -> None:
    with pytest.raises(ValueError, match="nested too deep"):
        Thrift(memoryview(nested * 100)).read_struct()
