"""Reads requests: the head that all have, and the body by kio, which is generated from Kafka's message files."""

from __future__ import annotations

import struct
from functools import cache
from typing import Any, NamedTuple

from kio.index import UnknownAPIKey, UnknownEntity, load_request_schema
from kio.serial import entity_reader
from kio.serial.errors import SerialError

from distlog.gateway.protocol.invalid_request import InvalidRequestError
from distlog.gateway.protocol.item_limit import MAX_ITEMS, SMALLEST_ITEM, check_items

_HEAD = struct.Struct(">hhi")
_PRODUCE = 0
#: The largest request that carries no records: many small fields cost thirty times their size, and seconds.
LARGEST_OTHER_BYTES = 4 << 20


class RequestHead(NamedTuple):
    """The first fields of every request; the answer has the same correlation id."""

    api_key: int
    api_version: int
    correlation_id: int


class ParsedRequest(NamedTuple):
    """A request's client id, and its body: kio's object of this API and version."""

    client_id: str
    body: Any


def read_head(frame: memoryview) -> RequestHead:
    """The head of the request in `frame`, which is without its length. Raises InvalidRequestError."""
    if len(frame) < _HEAD.size:
        raise InvalidRequestError("a request is too short to have a head", size=len(frame))
    return RequestHead(*_HEAD.unpack_from(frame))


def read_request(frame: memoryview, head: RequestHead) -> ParsedRequest:
    """All of a request of a known API and version. Raises InvalidRequestError.

    Bytes behind its end are passed over, as in Kafka: librdkafka sends some when it asks for all topics.
    """
    if len(frame) > LARGEST_OTHER_BYTES and head.api_key != _PRODUCE:
        raise InvalidRequestError("a request without records is too large", api_key=head.api_key, size=len(frame))
    schema, read_header, read_body = _readers(head.api_key, head.api_version)
    if len(frame) > SMALLEST_ITEM * MAX_ITEMS:
        check_items(frame, schema)
    try:
        header, header_size = read_header(frame, 0)
        body, _ = read_body(frame, header_size)
    except (SerialError, ValueError, OverflowError, MemoryError) as error:
        raise InvalidRequestError(
            f"a request does not decode: {type(error).__name__}", api_key=head.api_key, version=head.api_version
        ) from None
    return ParsedRequest(header.client_id or "", body)


@cache
def _readers(api_key: int, version: int) -> tuple[Any, Any, Any]:
    try:
        schema: Any = load_request_schema(api_key, version)
    except (UnknownAPIKey, UnknownEntity):
        raise InvalidRequestError("there is no such API", api_key=api_key, version=version) from None
    return schema, entity_reader(schema.__header_schema__), entity_reader(schema)
