"""The APIs of quotas: DescribeClientQuotas and AlterClientQuotas (KIP-546)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from distlog.gateway.apis.cluster import attempted, grouped, only_once
from distlog.gateway.broker import Api, Broker
from distlog.gateway.protocol.frames import (
    AccessDeniedError,
    Fields,
    UnsupportedRequestError,
    client_text,
    error_code,
)
from distlog.gateway.protocol.messages import ErrorCode
from distlog.gateway.root.client_quotas import check_change
from distlog.gateway.security.acls import Operation
from distlog.gateway.server.quotas import CLIENT_ID, USER, Entity
from distlog.gateway.server.request import Request

#: How a component of a filter matches: an exact name, the default, or any name.
_EXACT, _DEFAULT, _ANY = range(3)
#: Kafka's quotas of addresses, of which there are none: kafka-configs asks for them.
_IP = "ip"


def describe_client_quotas(request: Request, broker: Broker) -> Fields:
    """The quotas as they are now; with `strict`, of entities that have no other types than the filter."""
    try:
        request.rights.check_cluster(Operation.DESCRIBE_CONFIGS)
        _check_filter(request.body.components)
    except (UnsupportedRequestError, AccessDeniedError) as error:
        return {
            "throttle_time": 0,
            "error_code": error_code(error),
            "error_message": client_text(error),
            "entries": None,
        }
    broker.configs.refresh()
    entries = [
        {
            "entity": _entity_fields(entity),
            "values": [{"key": name, "value": quota} for name, quota in values.items()],
        }
        for entity, values in broker.configs.limits.items()
        if _matches(entity, request.body.components, request.body.strict)
    ]
    return {"throttle_time": 0, "error_code": ErrorCode.none, "error_message": None, "entries": entries}


def _check_filter(components: Sequence[Any]) -> None:
    """Raise UnsupportedRequestError as Kafka would refuse the filter, or an unknown type of entity."""
    types = [component.entity_type for component in components]
    for component in components:
        if component.entity_type not in (USER, CLIENT_ID, _IP):
            raise UnsupportedRequestError(f"Unsupported entity type {component.entity_type}")
        if types.count(component.entity_type) > 1:
            raise UnsupportedRequestError(
                f"Entity type {component.entity_type} cannot appear more than once in the filter."
            )
        if component.match_type not in (_EXACT, _DEFAULT, _ANY):
            raise UnsupportedRequestError(f"Unknown match type {component.match_type}")
        if component.match_type == _EXACT and component.match is None:
            raise UnsupportedRequestError("Request specified MATCH_TYPE_EXACT, but set match string to null.")
    if _IP in types and len(types) > 1:
        raise UnsupportedRequestError("An IP filter component cannot be combined with others.")


def _matches(entity: Entity, components: Sequence[Any], strict: bool) -> bool:
    parts = dict(entity.parts)
    if strict and len(parts) > len(components):
        return False
    return all(
        component.entity_type in parts and _has_name(component, parts[component.entity_type])
        for component in components
    )


def _has_name(component: Any, name: str | None) -> bool:
    return component.match_type == _ANY or name == (component.match if component.match_type == _EXACT else None)


def _entity_fields(entity: Entity) -> list[Fields]:
    return [{"entity_type": kind, "entity_name": name} for kind, name in entity.parts]


def alter_client_quotas(request: Request, broker: Broker) -> Fields:
    """Respond when the quotas are durable; with `validate_only` only check whether they could be set."""
    entries = [
        attempted(
            partial(
                only_once, partial(_alter, request, broker, entity, validate_only=request.body.validate_only), several
            ),
            entity=_entity_fields(entity),
        )
        for entity, several in grouped(
            request.body.entries,
            lambda entry: Entity.of({part.entity_type: part.entity_name for part in entry.entity}),
        ).items()
    ]
    return {"throttle_time": 0, "entries": entries}


def _alter(request: Request, broker: Broker, entity: Entity, entry: Any, *, validate_only: bool) -> None:
    request.rights.check_cluster(Operation.ALTER_CONFIGS)
    changes = {op.key: None if op.remove else op.value for op in entry.ops}
    try:
        if len(changes) < len(entry.ops):
            raise UnsupportedRequestError("a request has a quota twice")
        check_change(entity, changes)
    except ValueError as error:
        # as in Kafka, which returns INVALID_REQUEST for a wrong setting here
        raise UnsupportedRequestError(str(error)) from None
    if not validate_only:
        broker.configs.alter_quotas(entity, changes)


APIS = (
    Api(48, "DescribeClientQuotas", 0, 1, describe_client_quotas, "DESCRIBE_CONFIGS of the cluster"),
    Api(49, "AlterClientQuotas", 0, 1, alter_client_quotas, "ALTER_CONFIGS of the cluster"),
)
