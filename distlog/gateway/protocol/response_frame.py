"""Writes responses from plain fields, so that a handler need not know the version that a client asked for.

A field that the version does not have is left out; one that is not given has its default. Bytes that are served from
a log are not copied: a response is a list of pieces.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, get_type_hints

from kio.index import load_response_schema
from kio.schema.index import api_key_map, schema_name_map
from kio.static.constants import EntityType

from distlog.gateway.protocol.message_writer import Fields as Fields
from distlog.gateway.protocol.message_writer import Piece as Piece
from distlog.gateway.protocol.message_writer import Pieces, entity_of, message_writer

_HEAD = struct.Struct(">ii")
_CORRELATION_ID = struct.Struct(">i")


def write_response(api_key: int, version: int, correlation_id: int, fields: Fields) -> list[Piece]:
    """The frame of a response, with its length in front, as pieces that are sent one after the other.

    Raises ValueError for a field that no version of the API knows.
    """
    header, write = _writer(api_key, version)
    pieces = Pieces()
    pieces.small += bytes(_HEAD.size) + header
    write(pieces, fields)
    pieces.end()
    size = sum(map(len, pieces.done))
    first = _HEAD.pack(size - _HEAD.size + _CORRELATION_ID.size, correlation_id) + pieces.done[0][_HEAD.size :]
    return [first, *pieces.done[1:]]


@cache
def _writer(api_key: int, version: int) -> tuple[bytes, Callable[[Pieces, Fields], None]]:
    """What the response's header has behind the correlation id, and what writes the rest."""
    schema: Any = load_response_schema(api_key, version)
    versions = schema_name_map[api_key_map[api_key]]
    known = [load_response_schema(api_key, each) for each in versions if EntityType.response in versions[each]]
    # a response's header of version 1 has tagged fields, of which there are none
    header = b"\0" if schema.__header_schema__.__flexible__ else b""
    return header, message_writer(schema, _known_fields(known))


def _known_fields(schemas: Sequence[Any]) -> frozenset[str]:
    """The names that any version of the message has, at any depth."""
    # the text of an error is left out where an API has no place for it
    names = {"error_message"}
    todo = list(schemas)
    while todo:
        schema = todo.pop()
        names |= {each.name for each in dataclasses.fields(schema)}
        todo += [kind for kind in map(entity_of, get_type_hints(schema).values()) if kind is not None]
    return frozenset(names)
