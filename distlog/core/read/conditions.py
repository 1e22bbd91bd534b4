"""The bounds of a filter on partition, offset, timestamp and key, which limit what is read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from operator import and_, or_
from typing import TYPE_CHECKING

import pyarrow as pa

from distlog.core.arrays import MAX_LONG, MIN_LONG
from distlog.core.segments.chunks import ALWAYS, NEVER, TimeRange

if TYPE_CHECKING:
    import pyarrow.compute as pc

Ranges = Mapping[int, tuple[int, int]]
"""The offsets (start, end) by partition."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """The bounds of a filter. No record outside the bounds passes the filter; if `is_exact`, all records inside pass.

    Unbounded `times` include records without a time. If `keys` is None, it includes all keys and records without one.
    """

    partitions: frozenset[int]
    start: int = 0
    end: int = MAX_LONG
    times: TimeRange = ALWAYS
    keys: frozenset[bytes] | None = None
    is_exact: bool = True

    @classmethod
    def of_expression(cls, expression: pc.Expression, schema: pa.Schema, partitions: Iterable[int]) -> Conditions:
        """Return the bounds of Arrow's filter, read from its Substrait encoding; inexact if it has no encoding."""
        unbounded = cls(frozenset(partitions))
        try:
            encoded = bytes(expression.to_substrait(schema))
        except (pa.ArrowInvalid, NotImplementedError, pa.ArrowKeyError):
            return unbounded.inexact()
        return _SubstraitFilter(encoded, schema.names, unbounded).conditions()

    def compared(self, column: str, operator: str, values: Iterable[int | bytes]) -> Conditions:
        """Return the bounds of records that also satisfy a comparison. `values` are numbers (times in us) or keys."""
        if column == "key":
            keys = frozenset(value for value in values if isinstance(value, bytes))
            return self & replace(self, keys=keys) if operator in ("=", "in") else self.inexact()
        numbers = frozenset(value for value in values if isinstance(value, int))
        # Times are compared in us, but bounded in ms: `//` rounds down, and `-(-n // unit)` rounds up. "=" and "in"
        # set both bounds, ">" and ">=" set `low`, and "<" and "<=" set `high`; ">" and "<" exclude the number.
        unit = 1000 if column == "timestamp" else 1
        low = MIN_LONG if operator[0] == "<" else -(-min(numbers) // unit)
        high = MAX_LONG if operator[0] == ">" else max(numbers) // unit
        if operator == ">":
            low = min(numbers) // unit + 1
        if operator == "<":
            high = -(-max(numbers) // unit) - 1
        if column == "partition":
            members = numbers if operator == "in" else range(max(low, 0), high + 1)
            return replace(self, partitions=frozenset(number for number in self.partitions if number in members))
        is_exact = self.is_exact and len(numbers) == 1  # several numbers of `in` have numbers between them
        if column == "offset":
            return replace(self, start=max(self.start, low), end=min(self.end, high + 1), is_exact=is_exact)
        return replace(self, times=self.times.within(TimeRange(low, high)), is_exact=is_exact)

    def inexact(self) -> Conditions:
        return replace(self, is_exact=False)

    def __and__(self, other: Conditions) -> Conditions:
        key_sets = [keys for keys in (self.keys, other.keys) if keys is not None]
        return Conditions(
            self.partitions & other.partitions,
            max(self.start, other.start),
            min(self.end, other.end),
            self.times.within(other.times),
            frozenset.intersection(*key_sets) if key_sets else None,
            self.is_exact and other.is_exact,
        )

    def __or__(self, other: Conditions) -> Conditions:
        """Return bounds around both operands. Records between the operands are inside, but pass neither operand."""
        if self.is_empty or self == other:
            return other
        if other.is_empty:
            return self
        oldest, newest = min(self.times.oldest, other.times.oldest), max(self.times.newest, other.times.newest)
        keys = None if self.keys is None or other.keys is None else self.keys | other.keys
        # Ranges may have records between them, but sets of keys have none: the result is exact only if the operands
        # differ in nothing but keys. Then they also have the same `is_exact`.
        differs_only_by_keys = replace(self, keys=None) == replace(other, keys=None)
        return Conditions(
            self.partitions | other.partitions,
            min(self.start, other.start),
            max(self.end, other.end),
            TimeRange(oldest, newest),
            keys,
            is_exact=differs_only_by_keys and self.is_exact,
        )

    @property
    def is_empty(self) -> bool:
        is_in_no_range = self.start >= self.end or self.times.oldest > self.times.newest
        return not self.partitions or is_in_no_range or (self.keys is not None and not self.keys)

    def narrow(self, ranges: Ranges) -> Ranges:
        """Return the offsets of `ranges` that are inside of the bounds."""
        narrowed = {}
        for partition in sorted(self.partitions & ranges.keys()):
            start, end = ranges[partition]
            low = min(max(start, self.start), end)
            narrowed[partition] = low, max(min(end, self.end), low)
        return {} if self.keys is not None and not self.keys else narrowed

    def key_array(self) -> pa.Array | None:
        return None if self.keys is None else pa.array(sorted(self.keys), pa.binary())


#: Substrait's functions for comparisons, and the operators with the two sides exchanged.
_OPERATORS = {"equal": "=", "lt": "<", "lte": "<=", "gt": ">", "gte": ">="}
_MIRRORED_OPERATORS = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
#: Field numbers of Substrait's messages (substrait.io, `ExtendedExpression`), as all other numbers in the code below.
_EXTENSIONS, _REFERRED_EXPRESSIONS = 2, 3
_LITERAL, _SELECTION, _FUNCTION, _IF_THEN, _LIST = 1, 2, 3, 6, 8
#: Kinds of literals: integers of 8 to 64 bits; microseconds since 1970, UTC; texts and bytes; a null.
_INTEGERS, _MICROSECONDS, _BYTES, _NULL = (2, 3, 5, 7), 27, (12, 13), 29


class _SubstraitFilter:
    """A filter in Substrait's encoding, an ExtendedExpression; `unbounded` has the bounds without the filter."""

    def __init__(self, encoded: bytes, names: list[str], unbounded: Conditions) -> None:
        message = _Message(encoded)
        functions = [extension.child(3) for extension in message.children(_EXTENSIONS)]
        self._functions = {function.number(2): function.text(3) for function in functions}  # number (2), name (3)
        self._root = message.child(_REFERRED_EXPRESSIONS).child(1)
        self._names, self._unbounded = names, unbounded

    def conditions(self) -> Conditions:
        return self._bounds_of(self._root)

    def _bounds_of(self, expression: _Message) -> Conditions:
        if _FUNCTION in expression:
            return self._bounds_of_function(expression.child(_FUNCTION))
        if _LIST in expression:
            listed = expression.child(_LIST)
            return self._compared(listed.child(1), "in", list(listed.children(2)))  # value (1), options (2)
        if _IF_THEN in expression:
            return self._bounds_of_branches(expression.child(_IF_THEN))
        if _LITERAL in expression and _NULL in expression.child(_LITERAL):
            return replace(self._unbounded, times=NEVER)  # a filter that is null lets no record pass
        return self._unbounded.inexact()

    def _bounds_of_function(self, function: _Message) -> Conditions:
        name = self._functions.get(function.number(1), "")
        arguments = [part.child(3) for part in function.children(4)]  # the value (3) of each argument (4)
        if name in ("and", "or"):
            return reduce(and_ if name == "and" else or_, map(self._bounds_of, arguments))
        operator = _OPERATORS.get(name)
        if operator is None or len(arguments) != 2:
            return self._unbounded.inexact()
        first, second = arguments
        if _LITERAL in first:
            return self._compared(second, _MIRRORED_OPERATORS[operator], [first])
        return self._compared(first, operator, [second])

    def _bounds_of_branches(self, branches: _Message) -> Conditions:
        """Return the bounds of `if a then b else c`, as in DuckDB's IN: a record that passes must pass b or c."""
        results = [self._bounds_of(branch.child(2)) for branch in branches.children(1)]  # `then` (2) of each `if` (1)
        return reduce(or_, [*results, self._bounds_of(branches.child(2))]).inexact()

    def _compared(self, column: _Message, operator: str, literals: list[_Message]) -> Conditions:
        name = self._name_of(column)
        kinds = _LITERAL_KINDS.get(name or "", ())
        values = [value for literal in literals if (value := _value(literal, kinds)) is not None]
        if name is None or not values or len(values) < len(literals):
            return self._unbounded.inexact()
        return self._unbounded.compared(name, operator, values)

    def _name_of(self, column: _Message) -> str | None:
        """Return the name of the column that a selection refers to; None for a part of a column, or a computation."""
        if _SELECTION not in column:
            return None
        reference = column.child(_SELECTION).child(1).child(2)  # a direct reference (1) to a field (2)
        return None if 2 in reference else self._names[reference.number(1)]  # 1: its number, 2: its child


#: The kinds of literals that bound a column.
_LITERAL_KINDS = {"partition": _INTEGERS, "offset": _INTEGERS, "timestamp": (_MICROSECONDS,), "key": _BYTES}


def _value(expression: _Message, kinds: Iterable[int]) -> int | bytes | None:
    if _LITERAL not in expression:
        return None
    literal = expression.child(_LITERAL)
    kind = next((kind for kind in kinds if kind in literal), None)
    if kind is None:
        return None
    return literal.bytes(kind) if kind in _BYTES else literal.number(kind)


class _Message:
    """A message of Protocol Buffers, by the numbers of its fields; a missing field is 0 or empty."""

    def __init__(self, encoded: bytes) -> None:
        self._fields: dict[int, list[int | bytes]] = {}
        for number, value in _fields(encoded):
            self._fields.setdefault(number, []).append(value)

    def __contains__(self, number: int) -> bool:
        return number in self._fields

    def children(self, number: int) -> Iterator[_Message]:
        return (_Message(value) for value in self._fields.get(number, []) if isinstance(value, bytes))

    def child(self, number: int) -> _Message:
        return next(self.children(number), _Message(b""))

    def number(self, number: int) -> int:
        value = self._fields.get(number, [0])[-1]
        if not isinstance(value, int):
            return 0
        return value - (1 << 64) if value > MAX_LONG else value

    def bytes(self, number: int) -> bytes:
        value = self._fields.get(number, [b""])[-1]
        return value if isinstance(value, bytes) else b""

    def text(self, number: int) -> str:
        return self.bytes(number).decode()


def _fields(encoded: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the number and the value of each field of a message."""
    position = 0

    def varint() -> int:
        nonlocal position
        value = shift = 0
        while True:
            byte = encoded[position]
            position += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while position < len(encoded):
        tag = varint()  # the number of the field, and in the lowest three bits its wire type
        if tag & 7 == 0:
            yield tag >> 3, varint()
            continue
        size = {1: 8, 5: 4}.get(tag & 7) or varint()  # fixed by the wire type, or a length
        yield tag >> 3, encoded[position : position + size]
        position += size
