"""The APIs of authentication, users and ACLs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from operator import attrgetter
from typing import Any, TypeVar

from distlog.core.errors import InvalidConfigError
from distlog.gateway.kafka_apis import Api, Broker, Handlers
from distlog.gateway.protocol.error_codes import RefusedError, fields_or_error
from distlog.gateway.protocol.messages import ErrorCode, Fields
from distlog.gateway.root_records import Credential, RootUsers
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
from distlog.gateway.security.authentication import AuthenticationFailedError
from distlog.gateway.security.users_file import (
    HASHES,
    ITERATIONS,
    MIN_ITERATIONS,
    ScramSecret,
    check_name,
    secret_of_salted,
)
from distlog.gateway.server.fairness import owner_name
from distlog.gateway.server.request import Request, grouped


def sasl_handshake(request: Request, broker: Broker) -> Fields | None:
    """Return the enabled mechanisms. Disconnect a client that chooses another one."""
    sasl = request.session.sasl
    if sasl is None or not sasl.expects_handshake:
        # as in Kafka, this is refused if the listener has no SASL, or after a first handshake
        return {"error_code": ErrorCode.illegal_sasl_state}
    if not sasl.choose(request.body.mechanism, bare_tokens=request.api_version == 0):  # bare: without headers
        refusal = {"error_code": ErrorCode.unsupported_sasl_mechanism, "mechanisms": sasl.mechanisms}
        _refuse(request, broker, refusal, user="", reason=f"no mechanism {request.body.mechanism}")
        return None
    return {"mechanisms": sasl.mechanisms}


def sasl_authenticate(request: Request, broker: Broker) -> Fields | None:
    """Answer the next token. Password checks have their own queue, so that no other request waits for them."""
    session = request.session
    if session.sasl is None or session.principal is not None or session.sasl.expects_handshake:
        reason = "SaslAuthenticate without SaslHandshake, or after authentication"
        return {"error_code": ErrorCode.illegal_sasl_state, "error_message": reason, "auth_bytes": b""}
    token, sasl = request.body.auth_bytes, session.sasl
    if broker.queue_password_check is not None and request.handler_state is None and sasl.is_slow(token):
        # set for the next call, from the queue, which is fair among the users that clients claim to be
        request.handler_state = sasl.claimed_user(token)
        broker.queue_password_check(request)
        return None
    try:
        answer, session.principal = sasl.step(token)
    except AuthenticationFailedError as error:
        text = f"Authentication failed: invalid credentials with SASL mechanism {sasl.mechanism}"
        fields = {"error_code": ErrorCode.sasl_authentication_failed, "error_message": text, "auth_bytes": b""}
        _refuse(request, broker, fields, user=sasl.claimed_user(token), reason=error.message)
        return None
    return {"error_code": ErrorCode.none, "error_message": None, "auth_bytes": answer, "session_lifetime": 0}


def _refuse(request: Request, broker: Broker, fields: Fields, *, user: str, reason: str) -> None:
    """Log a failed login, send `fields` after a delay that grows with the host's failures, and disconnect."""
    session, shortest_s = request.session, broker.config.failed_authentication_delay_ms / 1000
    assert session.sasl is not None
    failures, host = session.sasl.failures, session.address[0]
    failures.log.note(f"{user or 'a client'} at {host}", reason)
    request.refuse(fields, failures.note_failure(owner_name(None, host), shortest_s))


#: The mechanisms by their codes: ScramMechanism of Kafka's admin client.
_MECHANISMS = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
_MECHANISM_CODES = {name: code for code, name in _MECHANISMS.items()}
_MAX_SALT_BYTES = 1 << 10
_USERS_DISABLED = {
    "error_code": ErrorCode.security_disabled,
    "error_message": "Clients may change users only at a gateway with --acls.",
}


def describe_users(request: Request, broker: Broker) -> Fields:
    users, requested = broker.users, request.body.users

    def describe() -> Fields:
        request.rights.check_cluster(Operation.DESCRIBE)
        # without ACLs, return no users: an error would end kafka-configs, which always requests users
        secrets: Mapping[str, Mapping[str, ScramSecret]] = {}
        if users is not None:
            users.refresh()
            secrets = users.secrets
        # an empty list means all users, as null does: the Java client sends an empty list
        names = grouped((user.name for user in requested) if requested else secrets, str)
        results = [
            fields_or_error(_user_fields, equal_names, secrets.get(name), user=name)
            for name, equal_names in names.items()
        ]
        return {"results": results}

    return fields_or_error(describe)


def _user_fields(equal_names: list[str], secrets: Mapping[str, ScramSecret] | None) -> Fields:
    if len(equal_names) > 1:
        raise RefusedError("the request names the user more than once", code=ErrorCode.duplicate_resource)
    if secrets is None:
        raise RefusedError("the root does not have this user", code=ErrorCode.resource_not_found)
    infos = [
        {"mechanism": _MECHANISM_CODES[mechanism], "iterations": secret.iterations}
        for mechanism, secret in sorted(secrets.items())
    ]
    return {"credential_infos": infos}


def alter_users(request: Request, broker: Broker) -> Fields:
    body, users = request.body, broker.users
    changes = grouped([*body.deletions, *body.upsertions], lambda change: change.name)
    if users is None:
        return {"results": [{"user": name, **_USERS_DISABLED} for name in changes]}
    if denied := _alter_denial(request):
        return {"results": [{"user": name, **denied} for name in changes]}
    outcome = fields_or_error(users.refresh)  # its error, or an error of `alter`, is for all valid items
    sasl = request.session.sasl
    valid_changes = list[tuple[Credential, ScramSecret | None]]()

    def add(name: str, requested: list[Any]) -> None:
        is_file_user = sasl is not None and sasl.is_file_user(name)
        change, *duplicates = (_parsed_change(change, users, is_file_user=is_file_user) for change in requested)
        if duplicates:
            message = "A user credential cannot be altered twice in the same request"
            raise RefusedError(message, code=ErrorCode.duplicate_resource)
        valid_changes.append(change)

    results = [fields_or_error(add, name, user_changes, user=name) for name, user_changes in changes.items()]
    if outcome["error_code"] is ErrorCode.none:
        outcome = fields_or_error(users.alter, valid_changes)
    return {"results": _with_outcome(results, outcome)}


def _parsed_change(requested: Any, users: RootUsers, *, is_file_user: bool) -> tuple[Credential, ScramSecret | None]:
    """Return a credential and its new secret, None if it is deleted. Raises RefusedError."""
    mechanism = _MECHANISMS.get(requested.mechanism)
    if mechanism is None:
        raise RefusedError("Unknown SCRAM mechanism", code=ErrorCode.unsupported_sasl_mechanism)
    credential = Credential(requested.name, mechanism)
    if not hasattr(requested, "salted_password"):  # a deletion
        if mechanism not in users.secrets.get(requested.name, {}):
            message = "Attempt to delete a user credential that does not exist"
            raise RefusedError(message, code=ErrorCode.resource_not_found)
        return credential, None
    try:
        check_name(requested.name)
        if is_file_user:
            raise InvalidConfigError("the gateway's file of users has this user: change it by `distlog users`")
        if not MIN_ITERATIONS <= requested.iterations <= ITERATIONS:  # the most that Kafka allows
            raise InvalidConfigError(f"iterations must be {MIN_ITERATIONS} to {ITERATIONS}")
        hash_bytes = hashlib.new(HASHES[mechanism]).digest_size
        if len(requested.salted_password) != hash_bytes or not 0 < len(requested.salt) <= _MAX_SALT_BYTES:
            text = f"the salted password must have {hash_bytes} bytes, and the salt 1 to {_MAX_SALT_BYTES}"
            raise InvalidConfigError(text)
    except InvalidConfigError as error:
        raise RefusedError(error.message, code=ErrorCode.unacceptable_credential) from None
    return credential, secret_of_salted(mechanism, requested.salted_password, requested.salt, requested.iterations)


_ACLS_DISABLED = {
    "error_code": ErrorCode.security_disabled,
    "error_message": "No authorizer is configured: the gateway was started without --acls.",
}
_Enum = TypeVar("_Enum", bound=IntEnum)
_Result = TypeVar("_Result")


def _enum_value(kind: type[_Enum], code: int) -> _Enum:
    try:
        return kind(code)
    except ValueError:
        raise RefusedError("a request has an unknown value for an ACL", field=kind.__name__, value=code) from None


def _parsed(parse: Callable[[Any], _Result], fields: Any) -> _Result:
    try:
        return parse(fields)
    except InvalidConfigError as error:
        raise RefusedError(error.message, **error.details) from None


def _parsed_acl(fields: Any) -> Acl:
    return check_acl(
        Acl(
            resource_type=_enum_value(ResourceType, fields.resource_type),
            pattern_type=_enum_value(PatternType, fields.resource_pattern_type),
            name=fields.resource_name,
            principal=fields.principal,
            host=fields.host,
            operation=_enum_value(Operation, fields.operation),
            permission=_enum_value(Permission, fields.permission_type),
        )
    )


def _parsed_filter(fields: Any) -> AclFilter:
    return AclFilter(
        resource_type=_enum_value(ResourceType, fields.resource_type_filter),
        pattern_type=_enum_value(PatternType, fields.pattern_type_filter),
        name=fields.resource_name_filter,
        principal=fields.principal_filter,
        host=None if fields.host_filter is None else check_host(fields.host_filter),
        operation=_enum_value(Operation, fields.operation),
        permission=_enum_value(Permission, fields.permission_type),
    )


def _entry_fields(acl: Acl) -> Fields:
    entry = {"principal": acl.principal, "host": acl.host}
    return {**entry, "operation": acl.operation, "permission_type": acl.permission}


def _resource_fields(acl: Acl) -> Fields:
    return {"resource_type": acl.resource_type, "resource_name": acl.name, "pattern_type": acl.pattern_type}


_RESOURCE = attrgetter("resource_type", "pattern_type", "name")


def describe_acls(request: Request, broker: Broker) -> Fields:
    if broker.acls is None:
        return _ACLS_DISABLED
    acls = broker.acls

    def describe() -> Fields:
        request.rights.check_cluster(Operation.DESCRIBE)
        acl_filter = _parsed(_parsed_filter, request.body)
        acls.refresh()
        by_resource = grouped(filter(acl_filter.matches, acls.acls), _RESOURCE).values()
        resources = [{**_resource_fields(group[0]), "acls": [*map(_entry_fields, group)]} for group in by_resource]
        return {"resources": resources}

    return fields_or_error(describe)


def _alter_denial(request: Request) -> Fields | None:
    outcome = fields_or_error(request.rights.check_cluster, Operation.ALTER)
    return outcome if outcome["error_code"] else None


def create_acls(request: Request, broker: Broker) -> Fields:
    acls, creations = broker.acls, request.body.creations
    if acls is None:
        return {"results": [_ACLS_DISABLED] * len(creations)}
    if denied := _alter_denial(request):
        return {"results": [denied] * len(creations)}
    new_acls = list[Acl]()

    def add(creation: Any) -> None:
        new_acls.append(_parsed(_parsed_acl, creation))

    results = [fields_or_error(add, creation) for creation in creations]
    return {"results": _with_outcome(results, fields_or_error(acls.create, new_acls))}


def _with_outcome(results: Iterable[Fields], outcome: Fields) -> list[Fields]:
    """Give all valid items of a request the `outcome` of the change that applies them together."""
    return [{**result, **outcome} if result["error_code"] is ErrorCode.none else result for result in results]


def delete_acls(request: Request, broker: Broker) -> Fields:
    acls, filters = broker.acls, request.body.filters
    if acls is None:
        return {"filter_results": [_ACLS_DISABLED] * len(filters)}
    if denied := _alter_denial(request):
        return {"filter_results": [denied] * len(filters)}
    matches = list[Acl]()

    def find(fields: Any) -> Fields:
        matching = list(filter(_parsed(_parsed_filter, fields).matches, acls.acls))
        matches.extend(matching)
        success = {"error_code": ErrorCode.none, "error_message": None}
        return {"matching_acls": [{**success, **_resource_fields(acl), **_entry_fields(acl)} for acl in matching]}

    outcome = fields_or_error(acls.refresh)
    results = [fields_or_error(find, acl_filter) for acl_filter in filters]
    if outcome["error_code"] is ErrorCode.none:
        outcome = fields_or_error(acls.delete, matches)
    if outcome["error_code"] is not ErrorCode.none:
        outcome = {**outcome, "matching_acls": ()}
    return {"filter_results": _with_outcome(results, outcome)}


APIS = (
    Api(17, "SaslHandshake", 0, 1, sasl_handshake, "", Handlers.SASL),
    Api(36, "SaslAuthenticate", 0, 2, sasl_authenticate, "", Handlers.SASL),
    Api(50, "DescribeUserScramCredentials", 0, 0, describe_users, "DESCRIBE of the cluster"),
    Api(51, "AlterUserScramCredentials", 0, 0, alter_users, "ALTER of the cluster"),
    Api(29, "DescribeAcls", 1, 3, describe_acls, "DESCRIBE of the cluster"),
    Api(30, "CreateAcls", 1, 3, create_acls, "ALTER of the cluster"),
    Api(31, "DeleteAcls", 1, 3, delete_acls, "ALTER of the cluster"),
)
