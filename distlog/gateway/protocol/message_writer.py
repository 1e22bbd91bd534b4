"""Writes messages of Kafka's protocol from plain fields, by kio's schemas.

What there is to write is found out once for each schema: fields of fixed size that follow each other are one step,
and no object is made for a message. kio's own writer needs one, and checks each number by itself.
"""

from __future__ import annotations

import dataclasses
import datetime
import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, get_args, get_type_hints

#: The fields of a message by kio's names; an array is a sequence of these. Times are ints: ms.
Fields = Mapping[str, Any]
Piece = bytes | memoryview

#: Smaller pieces are copied together: a copy costs less than a call of the system.
COPIED_BYTES = 1 << 14
_FIXED = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "error_code": "h",
    "int32": "i",
    "uint32": "I",
    "timedelta_i32": "i",
    "int64": "q",
    "float64": "d",
    "timedelta_i64": "q",
    "datetime_i64": "q",
}
_UUID_BYTES = 16
_INT16, _INT32 = struct.Struct(">h"), struct.Struct(">i")
#: What stands before a message that may be null, and is not (KIP-893); and in the place of one that is.
_PRESENT, _ABSENT = b"\x01", b"\xff"
_MS = datetime.timedelta(milliseconds=1)


class Pieces:
    """What is written: small pieces together, large ones as they are, not copied."""

    def __init__(self) -> None:
        self.done = list[Piece]()
        self.small = bytearray()

    def put(self, data: Piece) -> None:
        """Add bytes, which may be many."""
        if len(data) < COPIED_BYTES:
            self.small += data
            return
        self.end()
        self.done.append(data)

    def end(self) -> None:
        """Have all that is written in `done`."""
        if self.small:
            self.done.append(bytes(self.small))
            self.small = bytearray()


Put = Callable[[Pieces, Any], None]
_Step = Callable[[Pieces, Fields], None]


def message_writer(schema: Any, known: Collection[str]) -> Callable[[Pieces, Fields], None]:
    """A function that writes a message of `schema` from fields; one that is not given has its default.

    The function raises ValueError for a field that is not `known`; one that this version does not have is left out.
    """
    hints, is_flexible, steps = get_type_hints(schema), schema.__flexible__, list[_Step]()
    names, tagged = frozenset(known), list[tuple[int, str, Any, Put]]()
    run = list[tuple[str, Any, str]]()
    for each in dataclasses.fields(schema):
        kind, hint = each.metadata.get("kafka_type", ""), hints[each.name]
        if kind in _FIXED and not _is_array(hint) and "tag" not in each.metadata:
            run.append((each.name, _default(each, hint), _FIXED[kind]))
            continue
        put = _put(kind, hint, names, is_flexible=is_flexible, is_tag="tag" in each.metadata)
        if "tag" in each.metadata:
            tagged.append((each.metadata["tag"], each.name, _default(each, hint), put))
            continue
        steps += [_fixed_step(run), _step(each.name, _default(each, hint), put)]
        run = []
    steps += [_fixed_step(run), *([_tags_step(sorted(tagged, key=lambda one: one[0]))] if is_flexible else [])]
    return _message(schema.__name__, [step for step in steps if step is not _nothing], names)


def _message(name: str, steps: Sequence[_Step], known: frozenset[str]) -> Callable[[Pieces, Fields], None]:
    def write(pieces: Pieces, fields: Fields) -> None:
        if not fields.keys() <= known:
            raise ValueError(f"no version of {name} has {sorted(fields.keys() - known)}")
        for step in steps:
            step(pieces, fields)

    return write


def _nothing(pieces: Pieces, fields: Fields) -> None:
    """A step that has nothing to do."""


def _fixed_step(run: Sequence[tuple[str, Any, str]]) -> _Step:
    """Writes fields of fixed size: (name, default, format)."""
    if not run:
        return _nothing
    pack = struct.Struct(">" + "".join(kind for _, _, kind in run)).pack
    defaults = [(name, default) for name, default, _ in run]

    def step(pieces: Pieces, fields: Fields) -> None:
        pieces.small += pack(*[fields.get(name, default) for name, default in defaults])

    return step


def _step(name: str, default: Any, put: Put) -> _Step:
    return lambda pieces, fields: put(pieces, fields.get(name, default))


def _tags_step(tagged: Sequence[tuple[int, str, Any, Put]]) -> _Step:
    """Writes the tagged fields that are given, and are not as they are without: (tag, name, default, put)."""

    def step(pieces: Pieces, fields: Fields) -> None:
        given = [
            (tag, put, fields[name]) for tag, name, default, put in tagged if fields.get(name, default) != default
        ]
        pieces.small += uvarint(len(given))
        for tag, put, value in given:
            content = Pieces()
            put(content, value)
            content.end()
            data = b"".join(content.done)
            pieces.small += uvarint(tag) + uvarint(len(data))
            pieces.put(data)

    return step


def _put(kind: str, hint: Any, known: frozenset[str], *, is_flexible: bool, is_tag: bool) -> Put:
    """Writes the value of a field; null is written where Kafka lets it be null."""
    entity, is_array = entity_of(hint), _is_array(hint)
    is_nullable = type(None) in get_args(hint) and not is_tag
    item = message_writer(entity, known) if entity is not None else _plain(kind, is_flexible)
    if is_array:
        length = _length(_INT32, is_flexible)
        return _nullable(_array(item, length), length(-1)) if is_nullable else _array(item, length)
    if entity is not None:
        return _nullable(_present(item), _ABSENT) if is_nullable else item
    if kind in _FIXED or kind == "uuid" or not is_nullable:
        return item
    return _nullable(item, _length(_INT16 if kind == "string" else _INT32, is_flexible)(-1))


def _plain(kind: str, is_flexible: bool) -> Put:
    """Writes a value that is no message: a number, text, bytes or an id."""
    if kind in _FIXED:
        pack = struct.Struct(">" + _FIXED[kind]).pack
        return lambda pieces, value: pieces.put(pack(value))
    if kind == "uuid":
        return lambda pieces, value: pieces.put(bytes(_UUID_BYTES) if value is None else value.bytes)
    length = _length(_INT16 if kind == "string" else _INT32, is_flexible)
    return _text(length) if kind == "string" else _bytes(length)


def _text(length: Callable[[int], bytes]) -> Put:
    def put(pieces: Pieces, value: str) -> None:
        data = value.encode()
        pieces.small += length(len(data))
        pieces.put(data)

    return put


def _bytes(length: Callable[[int], bytes]) -> Put:
    def put(pieces: Pieces, value: Piece) -> None:
        pieces.small += length(len(value))
        pieces.put(value)

    return put


def _array(item: Put, length: Callable[[int], bytes]) -> Put:
    def put(pieces: Pieces, items: Sequence[Any]) -> None:
        pieces.small += length(len(items))
        for each in items:
            item(pieces, each)

    return put


def _present(put: Put) -> Put:
    def put_marked(pieces: Pieces, value: Any) -> None:
        pieces.small += _PRESENT
        put(pieces, value)

    return put_marked


def _nullable(put: Put, null: bytes) -> Put:
    return lambda pieces, value: pieces.put(null) if value is None else put(pieces, value)


def _length(plain: struct.Struct, is_flexible: bool) -> Callable[[int], bytes]:
    """Lengths, of which -1 is null."""
    return (lambda size: uvarint(size + 1)) if is_flexible else plain.pack


def uvarint(value: int) -> bytes:
    """The unsigned number, 7 bits a byte, the lowest first."""
    if value < 0x80:
        return bytes((value,))
    data = bytearray()
    while value >= 0x80:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    data.append(value)
    return bytes(data)


def _default(each: Any, hint: Any) -> Any:
    """What a field is if it is not given; without a default in Kafka's message files, it is empty."""
    if each.default is dataclasses.MISSING:
        return () if _is_array(hint) else {} if entity_of(hint) else _EMPTY.get(each.metadata["kafka_type"], 0)
    if isinstance(each.default, datetime.timedelta):
        return each.default // _MS
    return -1 if each.default is None and each.metadata.get("kafka_type") == "datetime_i64" else each.default


_EMPTY = {"string": "", "bytes": b"", "records": b"", "uuid": None}


def _is_array(hint: Any) -> bool:
    return any(getattr(part, "__origin__", None) is tuple for part in (hint, *get_args(hint)))


def entity_of(hint: Any) -> Any:
    """The message that a field, or an array of it, or an optional one, consists of; None for plain values."""
    for part in (hint, *get_args(hint)):
        found = [inner for inner in (part, *get_args(part)) if dataclasses.is_dataclass(inner)]
        if found:
            return found[0]
    return None
