"""Bounds what a request consists of before it is read: an object for each of millions of small fields costs minutes.

A request is walked over by its schema, without an object for a field. Lengths are not believed: what ends behind the
request is told by who reads it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, get_args, get_type_hints

from distlog.gateway.protocol.invalid_request import InvalidRequestError

#: How many elements of arrays, and tagged fields, a request may have: more than the partitions of any client.
MAX_ITEMS = 50_000
#: No item is smaller, so a request of so many bytes for each need not be walked over.
SMALLEST_ITEM = 2

_HEAD_BYTES = 8
_SIZES = {
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "uint16": 2,
    "error_code": 2,
    "int32": 4,
    "uint32": 4,
    "timedelta_i32": 4,
    "int64": 8,
    "float64": 8,
    "timedelta_i64": 8,
    "datetime_i64": 8,
    "uuid": 16,
}
_LENGTH_BYTES = {"string": 2, "bytes": 4, "records": 4}


class _Left:
    """How many items a request may still have."""

    def __init__(self, items: int) -> None:
        self._items = items

    def take(self, count: int) -> int:
        self._items -= count
        if self._items < 0:
            raise InvalidRequestError("a request has too many items", most=MAX_ITEMS)
        return count


_Walk = Callable[[memoryview, int, _Left], int]


def check_items(frame: memoryview, schema: Any, limit: int = MAX_ITEMS) -> int:
    """Raise InvalidRequestError if the request has more items; returns where it ends, or should."""
    left = _Left(limit)
    is_flexible = schema.__header_schema__.__flexible__
    at = _sized(_LENGTH_BYTES["string"])(frame, _HEAD_BYTES, left)
    return _entity(schema)(frame, _tags(frame, at, left) if is_flexible else at, left)


@cache
def _entity(schema: Any) -> _Walk:
    """Walks over a message; fields of fixed size that follow each other are one step."""
    hints, is_flexible = get_type_hints(schema), schema.__flexible__
    steps: list[_Walk | int] = []
    for each in dataclasses.fields(schema):
        if "tag" in each.metadata:
            continue
        step = _field(hints[each.name], each.metadata.get("kafka_type"), is_flexible)
        if isinstance(step, int) and steps and isinstance(steps[-1], int):
            steps[-1] += step
        else:
            steps.append(step)
    if is_flexible:
        steps.append(_tags)
    return _one_after_the_other([_fixed(step) if isinstance(step, int) else step for step in steps])


def _field(hint: Any, kind: str | None, is_flexible: bool) -> _Walk | int:
    """Walks over a field; an int is its size."""
    entity: Any = next((part for part in _parts(hint) if dataclasses.is_dataclass(part)), None)
    item = _entity(entity) if entity is not None else _SIZES.get(kind or "") or _of_length(str(kind), is_flexible)
    if not any(getattr(part, "__origin__", None) is tuple for part in (hint, *get_args(hint))):
        return item
    return _array(item, is_flexible)


def _parts(hint: Any) -> Sequence[Any]:
    return [inner for part in (hint, *get_args(hint)) for inner in (part, *get_args(part))]


def _array(item: _Walk | int, is_flexible: bool) -> _Walk:
    def walk(frame: memoryview, at: int, left: _Left) -> int:
        count, at = _compact(frame, at) if is_flexible else _plain(frame, at, 4)
        left.take(count)
        if isinstance(item, int):
            return at + count * item
        for _ in range(count):
            at = item(frame, at, left)
        return at

    return walk


def _tags(frame: memoryview, at: int, left: _Left) -> int:
    count, at = _uvarint(frame, at)
    for _ in range(left.take(count)):
        _, at = _uvarint(frame, at)
        size, at = _uvarint(frame, at)
        at += size
    return at


def _of_length(kind: str, is_flexible: bool) -> _Walk:
    if not is_flexible:
        return _sized(_LENGTH_BYTES[kind])

    def walk(frame: memoryview, at: int, left: _Left) -> int:
        length, at = _compact(frame, at)
        return at + length

    return walk


def _sized(length_bytes: int) -> _Walk:
    def walk(frame: memoryview, at: int, left: _Left) -> int:
        length, at = _plain(frame, at, length_bytes)
        return at + length

    return walk


def _fixed(size: int) -> _Walk:
    return lambda frame, at, left: at + size


def _one_after_the_other(steps: Sequence[_Walk]) -> _Walk:
    def walk(frame: memoryview, at: int, left: _Left) -> int:
        for step in steps:
            at = step(frame, at, left)
        return at

    return walk


def _plain(frame: memoryview, at: int, size: int) -> tuple[int, int]:
    """A length of so many bytes, 0 for null, and where it ends."""
    return max(int.from_bytes(frame[at : at + size], "big", signed=True), 0), at + size


def _compact(frame: memoryview, at: int) -> tuple[int, int]:
    length, at = _uvarint(frame, at)
    return max(length - 1, 0), at


def _uvarint(frame: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift, byte in enumerate(frame[at : at + 5]):
        value |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            return value, at + shift + 1
    return value, at + 5
