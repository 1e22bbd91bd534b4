"""The parts of the checks of requests: the refusal of a whole request, and of some items of an array."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, NamedTuple

from distlog.gateway.access_lists import Client
from distlog.gateway.broker import Broker
from distlog.gateway.protocol.frames import Fields
from distlog.gateway.protocol.messages import ErrorCode
from distlog.gateway.security.acls import OPERATIONS, Operation, ResourceType
from distlog.gateway.server.request import Request

#: A check of a request: the response to one that is not handled, or None.
Work = Callable[[Request, Broker, Client], Fields | None]


class Check(NamedTuple):
    """The rights that an API needs, in words, and the check of a request.

    `check` returns the response to a request that is not handled, or None.
    """

    needs: str
    check: Work


#: Kafka's code for a resource that a client may not use so.
CODES = {
    ResourceType.TOPIC: ErrorCode.topic_authorization_failed,
    ResourceType.GROUP: ErrorCode.group_authorization_failed,
    ResourceType.CLUSTER: ErrorCode.cluster_authorization_failed,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.transactional_id_authorization_failed,
}
OF_TOPIC, OF_GROUP, OF_CLUSTER, OF_ID = CODES.values()
TEXTS = {
    OF_TOPIC: "Topic authorization failed.",
    OF_GROUP: "Group authorization failed.",
    OF_CLUSTER: "Cluster authorization failed.",
    OF_ID: "Transactional Id authorization failed.",
}
_NAME = attrgetter("name")


def denied(code: ErrorCode, **fields: Any) -> Fields:
    """The fields of a refusal."""
    return {**fields, "error_code": code, "error_message": TEXTS[code]}


def amend(request: Request, change: Callable[[Fields], Fields]) -> None:
    """Have the response changed, after the changes that there are."""
    before = request.amend
    request.amend = change if before is None else lambda fields: change(before(fields))


def amend_each(request: Request, array: str, change: Callable[[Fields], Fields | None]) -> None:
    """Have each item of an array in the response changed, or left out where `change` gives None."""
    amend(request, lambda fields: {**fields, array: [new for each in fields[array] if (new := change(each))]})


def split(
    request: Request,
    array: str,
    into: str,
    is_allowed: Callable[[Any], bool],
    refusal: Callable[[Any], Fields],
) -> Fields | None:
    """Go on with the allowed items of the request's `array`, and refuse others in `into`; or the response to all."""
    items = getattr(request.body, array)
    allowed, refused = [], []
    for each in items:
        if is_allowed(each):
            allowed.append(each)
        else:
            refused.append(refusal(each))
    if not refused:
        return None
    if not allowed:
        return {"throttle_time": 0, into: refused}
    request.body = request.body._replace(**{array: tuple(allowed)})
    amend(request, lambda fields: {**fields, into: [*fields[into], *refused]})
    return None


def no_partitions(code: ErrorCode, topic: Any, **nothing: Any) -> Fields:
    """The refusal of a topic of a request: `code`, and `nothing` in the other fields of each partition."""
    has_numbers = hasattr(topic, "partition_indexes")
    numbers = topic.partition_indexes if has_numbers else [each.partition_index for each in topic.partitions]
    parts = [{"partition_index": number, "error_code": code, **nothing} for number in numbers]
    return {"name": topic.name, "partitions": parts}


def each_item(
    array: str,
    into: str,
    operation: Operation,
    kind: ResourceType,
    refusal: Callable[[Any], Fields],
    name: Callable[[Any], str] = _NAME,
) -> Work:
    """A check of each item of an array: of the operation with the resource of that name."""

    def check(request: Request, broker: Broker, client: Client) -> Fields | None:
        return split(request, array, into, lambda each: client.may(operation, kind, name(each)), refusal)

    return check


def whole(operation: Operation, kind: ResourceType, name: str, **fields: Any) -> Work:
    """A check of a whole request, by the resource that its field `name` names; `fields` are of the refusal."""

    def check(request: Request, broker: Broker, client: Client) -> Fields | None:
        if client.may(operation, kind, getattr(request.body, name)):
            return None
        return denied(CODES[kind], throttle_time=0, **fields)

    return check


def with_cluster(*operations: Operation, **fields: Any) -> Work:
    """A check of a whole request, by one of the operations with the cluster."""

    def check(request: Request, broker: Broker, client: Client) -> Fields | None:
        return None if client.may_with_cluster(*operations) else denied(OF_CLUSTER, throttle_time=0, **fields)

    return check


def anyone(request: Request, broker: Broker, client: Client) -> None:
    """Every client may send it."""


def rights_with(client: Client, kind: ResourceType, name: str) -> int:
    """The operations that a client may do with a resource, as bits (KIP-430)."""
    return sum(1 << each for each in OPERATIONS[kind] if client.might(each, kind, name))


def describes(client: Client, name: str) -> bool:
    """True if a client may see a topic that it did not ask for by name."""
    return client.might(Operation.DESCRIBE, ResourceType.TOPIC, name)
