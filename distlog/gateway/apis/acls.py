"""The APIs of ACLs: DescribeAcls, CreateAcls and DeleteAcls (KIP-140, KIP-290)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import IntEnum
from functools import partial
from typing import Any, TypeVar

from distlog.core.errors import InvalidConfigError
from distlog.gateway.apis.cluster import attempted, grouped
from distlog.gateway.broker import Api, Broker
from distlog.gateway.protocol.frames import Fields, UnsupportedRequestError
from distlog.gateway.protocol.messages import ErrorCode
from distlog.gateway.security.acls import (
    Acl,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    check_acl,
    check_host,
)
from distlog.gateway.server.request import Request

_DISABLED = {
    "error_code": ErrorCode.security_disabled,
    "error_message": "No authorizer is configured: the gateway was started without --acls.",
}
_Kind = TypeVar("_Kind", bound=IntEnum)
_Result = TypeVar("_Result")


def _member_of(kind: type[_Kind], code: int) -> _Kind:
    try:
        return kind(code)
    except ValueError:
        raise UnsupportedRequestError("a request has an unknown word of ACLs", kind=kind.__name__, n=code) from None


def _requested(make: Callable[[Any], _Result], fields: Any) -> _Result:
    try:
        return make(fields)
    except InvalidConfigError as error:
        raise UnsupportedRequestError(error.message, **error.details) from None


def _acl(fields: Any) -> Acl:
    return check_acl(
        Acl(
            _member_of(ResourceType, fields.resource_type),
            _member_of(PatternType, fields.resource_pattern_type),
            fields.resource_name,
            fields.principal,
            fields.host,
            _member_of(Operation, fields.operation),
            _member_of(Permission, fields.permission_type),
        )
    )


def _filter(fields: Any) -> AclFilter:
    return AclFilter(
        _member_of(ResourceType, fields.resource_type_filter),
        _member_of(PatternType, fields.pattern_type_filter),
        fields.resource_name_filter,
        fields.principal_filter,
        None if fields.host_filter is None else check_host(fields.host_filter),
        _member_of(Operation, fields.operation),
        _member_of(Permission, fields.permission_type),
    )


def _entry_fields(acl: Acl) -> Fields:
    return {
        "principal": acl.principal,
        "host": acl.host,
        "operation": acl.operation,
        "permission_type": acl.permission,
    }


def _resource_fields(acl: Acl) -> Fields:
    return {"resource_type": acl.resource_type, "resource_name": acl.name, "pattern_type": acl.pattern_type}


def describe_acls(request: Request, broker: Broker) -> Fields:
    """The ACLs as they are now."""
    if broker.acls is None:
        return {"throttle_time": 0, "resources": (), **_DISABLED}
    acls = broker.acls

    def described() -> Fields:
        request.rights.check_cluster(Operation.DESCRIBE)
        acl_filter = _requested(_filter, request.body)
        acls.refresh()
        resources = grouped(filter(acl_filter.matches, acls.acls), lambda acl: acl[:3]).values()
        return {"resources": [{**_resource_fields(of[0]), "acls": [*map(_entry_fields, of)]} for of in resources]}

    return {"throttle_time": 0, **attempted(described, resources=())}


def _denied(request: Request) -> Fields | None:
    outcome = attempted(partial(request.rights.check_cluster, Operation.ALTER))
    return outcome if outcome["error_code"] else None


def create_acls(request: Request, broker: Broker) -> Fields:
    """Respond when the ACLs are durable."""
    acls, creations = broker.acls, request.body.creations
    if acls is None:
        return {"throttle_time": 0, "results": [_DISABLED] * len(creations)}
    if denied := _denied(request):
        return {"throttle_time": 0, "results": [denied] * len(creations)}
    new = list[Acl]()
    results = [attempted(partial(_add_acl, new, creation)) for creation in creations]
    return {"throttle_time": 0, "results": _with(results, attempted(lambda: acls.create(new)))}


def _add_acl(new: list[Acl], fields: Any) -> None:
    new.append(_requested(_acl, fields))


def _with(results: Iterable[Fields], outcome: Fields) -> list[Fields]:
    """The results of a request; all that are good have the `outcome` of the change."""
    return [{**result, **outcome} if result["error_code"] is ErrorCode.none else result for result in results]


def delete_acls(request: Request, broker: Broker) -> Fields:
    """Respond when the removal is durable, with the ACLs of each filter."""
    acls, filters = broker.acls, request.body.filters
    if acls is None:
        return {"throttle_time": 0, "filter_results": [_DISABLED] * len(filters)}
    if denied := _denied(request):
        return {"throttle_time": 0, "filter_results": [{**denied, "matching_acls": ()}] * len(filters)}
    matches = list[Acl]()

    def find(fields: Any) -> Fields:
        matching = list(filter(_requested(_filter, fields).matches, acls.acls))
        matches.extend(matching)
        success = {"error_code": ErrorCode.none, "error_message": None}
        return {"matching_acls": [{**success, **_resource_fields(acl), **_entry_fields(acl)} for acl in matching]}

    looked = attempted(acls.refresh)
    results = [attempted(partial(find, acl_filter), matching_acls=()) for acl_filter in filters]
    if looked["error_code"] is ErrorCode.none:
        looked = attempted(lambda: acls.delete(matches))
    if looked["error_code"] is not ErrorCode.none:
        looked = {**looked, "matching_acls": ()}
    return {"throttle_time": 0, "filter_results": _with(results, looked)}


APIS = (
    Api(29, "DescribeAcls", 1, 3, describe_acls, "DESCRIBE of the cluster"),
    Api(30, "CreateAcls", 1, 3, create_acls, "ALTER of the cluster"),
    Api(31, "DeleteAcls", 1, 3, delete_acls, "ALTER of the cluster"),
)
