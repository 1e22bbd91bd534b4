"""Writes responses by kio, from plain fields, so that a handler need not know the version that a client asked for.

A field that the version does not have is left out; one that is not given has its default. Bytes that are served from
a log are not copied: a response is a list of pieces.
"""

from __future__ import annotations

import dataclasses
import datetime
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, get_args, get_type_hints

from kio.index import load_response_schema
from kio.schema.index import api_key_map, schema_name_map
from kio.serial import entity_writer
from kio.static.constants import EntityType

#: The fields of a message by kio's names; an array is a sequence of these. Times are ints: ms.
Fields = Mapping[str, Any]
Piece = bytes | memoryview

_HEAD = struct.Struct(">ii")
_CORRELATION_ID = struct.Struct(">i")
#: Smaller pieces are copied together: a copy costs less than a call of the system.
_COPIED_BYTES = 1 << 14
_NOTHING = datetime.timedelta(0)


class _Pieces:
    """What kio writes to: keeps large bytes as they are."""

    def __init__(self) -> None:
        self.done = list[Piece]()
        self._small = list[Piece]()
        self.size = 0

    def write(self, piece: Any) -> None:
        self.size += len(piece)
        if len(piece) < _COPIED_BYTES:
            self._small.append(piece)
            return
        self.end()
        self.done.append(piece)

    def end(self) -> None:
        if self._small:
            self.done.append(b"".join(self._small))
            self._small = []


def write_response(api_key: int, version: int, correlation_id: int, fields: Fields) -> list[Piece]:
    """The frame of a response, with its length in front, as pieces that are sent one after the other.

    Raises ValueError for a field that no version of the API knows.
    """
    schema, make, write = _writer(api_key, version)
    pieces = _Pieces()
    write(pieces, make(fields))
    pieces.end()
    # a response's header of version 1 has tagged fields, of which there are none
    header = b"\0" if schema.__header_schema__.__flexible__ else b""
    head = _HEAD.pack(_CORRELATION_ID.size + len(header) + pieces.size, correlation_id) + header
    first = pieces.done[0] if pieces.done else b""
    if len(first) < _COPIED_BYTES or isinstance(first, bytes):
        return [head + bytes(first), *pieces.done[1:]]
    return [head, *pieces.done]


@cache
def _writer(api_key: int, version: int) -> tuple[Any, Callable[[Fields], Any], Any]:
    schema: Any = load_response_schema(api_key, version)
    versions = schema_name_map[api_key_map[api_key]]
    known = [load_response_schema(api_key, each) for each in versions if EntityType.response in versions[each]]
    return schema, _maker(schema, _known_fields(known)), entity_writer(schema)


def _known_fields(schemas: Sequence[Any]) -> frozenset[str]:
    """The names that any version of the message has, at any depth."""
    # the text of an error is left out where an API has no place for it
    names = {"error_message"}
    todo = list(schemas)
    while todo:
        schema = todo.pop()
        names |= {each.name for each in dataclasses.fields(schema)}
        todo += [kind for kind in map(_entity_of, get_type_hints(schema).values()) if kind is not None]
    return frozenset(names)


def _maker(schema: Any, known: frozenset[str]) -> Callable[[Fields], Any]:
    """A function that makes kio's object of `schema` from fields."""
    hints = get_type_hints(schema)
    makers = {each.name: _field_maker(each, hints[each.name], known) for each in dataclasses.fields(schema)}
    needed = {
        each.name: _empty(each)
        for each in dataclasses.fields(schema)
        if each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING
    }

    def make(fields: Fields) -> Any:
        if not fields.keys() <= known:
            raise ValueError(f"no version of {schema.__name__} has {sorted(fields.keys() - known)}")
        values = dict(needed)
        for name, value in fields.items():
            maker = makers.get(name, _left_out)
            if maker is not _left_out:
                values[name] = value if maker is None else maker(value)
        return schema(**values)

    return make


def _left_out(value: Any) -> Any:
    """For a field that the version does not have."""


def _field_maker(each: Any, hint: Any, known: frozenset[str]) -> Callable[[Any], Any] | None:
    """What makes a field's value; None if it is taken as it is."""
    entity = _entity_of(hint)
    if entity is not None:
        make = _maker(entity, known)
        if _is_array(hint):
            return lambda items: None if items is None else tuple(make(item) for item in items)
        return lambda item: None if item is None else make(item)
    kind = each.metadata.get("kafka_type", "")
    if kind.startswith("timedelta"):
        return lambda ms: datetime.timedelta(milliseconds=ms)
    if kind.startswith("datetime"):
        return _time_of if type(None) in get_args(hint) else _any_time
    return None


def _time_of(ms: int) -> datetime.datetime | None:
    return None if ms < 0 else _any_time(ms)


def _any_time(ms: int) -> datetime.datetime:
    """For a field that Kafka does not declare to be null: -1 is a time before 1970."""
    return datetime.datetime.fromtimestamp(ms / 1000, datetime.timezone.utc)


def _empty(each: Any) -> Any:
    """The value of a field that has no default in Kafka's message files either, and is not given."""
    kind = each.metadata.get("kafka_type", "")
    if kind.startswith("timedelta"):
        return _NOTHING
    return {"string": "", "bool": False, "bytes": b"", "uuid": None}.get(kind, () if not kind else 0)


def _is_array(hint: Any) -> bool:
    return any(getattr(part, "__origin__", None) is tuple for part in (hint, *get_args(hint)))


def _entity_of(hint: Any) -> Any:
    """The message that a field, or an array of it, or an optional one, consists of; None for plain values."""
    for part in (hint, *get_args(hint)):
        if dataclasses.is_dataclass(part):
            return part
        found = [inner for inner in get_args(part) if dataclasses.is_dataclass(inner)]
        if found:
            return found[0]
    return None
