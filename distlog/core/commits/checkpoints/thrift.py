"""Reads Thrift's compact protocol, the format of Parquet's metadata, without trust in the data."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, TypeVar

_TRUE, _FALSE, _BYTE, _INT16, INT32, INT64, _DOUBLE, _BINARY, LIST, _SET, STRUCT = (*range(1, 11), 12)
_INTEGERS = (_INT16, INT32, INT64)
_DEEPEST = 16

Value = TypeVar("Value")

#: The values of a struct by field number and type: integers, structs, and lists of structs. If a field is there
#: twice, the last one counts. A field of another type than the reader asks for counts as missing.
Fields: TypeAlias = "dict[tuple[int, int], int | Fields | list[Fields]]"


def integer(fields: Fields, number: int, kind: int, default: int | None = None) -> int:
    """A size or a count; ValueError when it is not there and has no default, or is negative."""
    value = fields.get((number, kind), default)
    if not isinstance(value, int) or value < 0:
        raise ValueError("a size or a count in it is missing or wrong")
    return value


def struct(fields: Fields, number: int) -> Fields | None:
    """The struct of a number, or None."""
    value = fields.get((number, STRUCT))
    return value if isinstance(value, dict) else None


def structs(fields: Fields, number: int) -> list[Fields]:
    """The list of structs of a number, empty when it is not there."""
    value = fields.get((number, LIST))
    return value if isinstance(value, list) else []


class Thrift:
    """Reads `data` from its start; `position` is how far. Raises IndexError when the data is cut short."""

    def __init__(self, data: memoryview) -> None:
        self._data, self.position = data, 0

    def read_struct(self, depth: int = 0) -> Fields:
        """The next struct; raises ValueError when it is malformed."""
        if depth > _DEEPEST:
            raise ValueError("its metadata is nested too deep")
        fields: Fields = {}
        number = 0
        while head := self._byte():
            step, kind = head >> 4, head & 15
            number = number + step if step else self._zigzag()
            if kind in _INTEGERS:
                value = self._varint()
                fields[number, kind] = (value >> 1) ^ -(value & 1)
            elif kind == STRUCT:
                fields[number, kind] = self.read_struct(depth + 1)
            elif kind in (LIST, _SET):
                fields[number, kind] = self._read_list(depth)
            elif kind not in (_TRUE, _FALSE):
                self._skip(kind)
        return fields

    def _read_list(self, depth: int) -> list[Fields]:
        head = self._byte()
        count = self._varint() if head >> 4 == 15 else head >> 4
        if head & 15 == STRUCT:
            return [self.read_struct(depth + 1) for _ in range(count)]
        for _ in range(count):
            if head & 15 in (LIST, _SET):
                self._nested(self._read_list, depth)
            else:
                self._skip(head & 15)
        return []

    def _nested(self, read: Callable[[int], Value], depth: int) -> Value:
        if depth > _DEEPEST:
            raise ValueError("its metadata is nested too deep")
        return read(depth + 1)

    def _skip(self, kind: int) -> None:
        if kind == _BINARY:
            size = self._varint()
            self.position += size
        elif kind in _INTEGERS:
            self._varint()
        elif kind in (_TRUE, _FALSE, _BYTE):
            self.position += 1
        elif kind == _DOUBLE:
            self.position += 8
        else:
            raise ValueError("its metadata is of a kind that is not known")
        # or a list of 2**62 items that are not looked at would not end
        if self.position > len(self._data):
            raise IndexError("its metadata is cut short")

    def _byte(self) -> int:
        value = self._data[self.position]
        self.position += 1
        return value

    def _varint(self) -> int:
        value = self._data[self.position]
        self.position += 1
        return value if value < 128 else self._long_varint(value & 127)

    def _long_varint(self, value: int) -> int:
        """The number whose lowest seven bits are `value`, and whose others follow."""
        for shift in range(7, 64, 7):
            byte = self._data[self.position]
            self.position += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise ValueError("a number in its metadata is too long")

    def _zigzag(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)
