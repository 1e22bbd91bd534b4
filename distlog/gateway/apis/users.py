"""The APIs of users: their authentication by SASL, and the SCRAM credentials that clients set (KIP-554)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import partial
from typing import Any

from distlog.core.errors import InvalidConfigError
from distlog.gateway.apis.cluster import attempted, grouped
from distlog.gateway.broker import Api, Broker
from distlog.gateway.protocol.frames import Fields
from distlog.gateway.protocol.messages import ErrorCode
from distlog.gateway.root.root_users import Credential, RootUsers
from distlog.gateway.security.acls import Operation
from distlog.gateway.security.authentication import AuthenticationFailedError
from distlog.gateway.security.users_file import (
    HASHES,
    ITERATIONS,
    MIN_ITERATIONS,
    ScramSecret,
    check_name,
    secret_of_salted,
)
from distlog.gateway.server.fairness import owner_of
from distlog.gateway.server.request import Request


def sasl_handshake(request: Request, broker: Broker) -> Fields | None:
    """The mechanisms; a client that chooses another one gets an error, and is disconnected."""
    sasl = request.session.sasl
    if sasl is None or not sasl.expects_handshake:
        # as in Kafka: no SASL on this listener, or a second handshake where sessions have no end
        return {"error_code": ErrorCode.illegal_sasl_state, "mechanisms": ()}
    if not sasl.choose(request.body.mechanism, by_tokens=request.api_version == 0):
        refusal = {"error_code": ErrorCode.unsupported_sasl_mechanism, "mechanisms": sasl.mechanisms}
        _refuse(request, broker, refusal, "", f"no mechanism {request.body.mechanism}")
        return None
    return {"error_code": ErrorCode.none, "mechanisms": sasl.mechanisms}


def sasl_authenticate(request: Request, broker: Broker) -> Fields | None:
    """The next token of the exchange. A client that fails gets the error after a delay, and is disconnected.

    A password that must be checked waits in a line of its own, so that nothing else waits for it.
    """
    session = request.session
    if session.sasl is None or session.principal is not None or session.sasl.expects_handshake:
        reason = "SaslAuthenticate without SaslHandshake, or after authentication"
        return {"error_code": ErrorCode.illegal_sasl_state, "error_message": reason, "auth_bytes": b""}
    token, sasl = request.body.auth_bytes, session.sasl
    if broker.check_password is not None and request.delayed is None and sasl.is_slow(token):
        request.delayed = sasl.claimed(token)
        broker.check_password(request)
        return None
    try:
        answer, session.principal = sasl.step(token)
    except AuthenticationFailedError as error:
        text = f"Authentication failed: invalid credentials with SASL mechanism {sasl.mechanism}"
        _refuse(
            request,
            broker,
            {"error_code": ErrorCode.sasl_authentication_failed, "error_message": text, "auth_bytes": b""},
            sasl.claimed(token),
            error.message,
        )
        return None
    return {"error_code": ErrorCode.none, "error_message": None, "auth_bytes": answer, "session_lifetime": 0}


def _refuse(request: Request, broker: Broker, fields: Fields, user: str, reason: str) -> None:
    session, shortest_s = request.session, broker.config.failed_authentication_delay_ms / 1000
    assert session.sasl is not None
    failures, host = session.sasl.failures, session.address[0]
    failures.log.note(f"{user or 'a client'} at {host}", reason)
    request.refuse(fields, failures.delay_s(owner_of(None, host), shortest_s))


#: The APIs that authenticate a client.
SASL_APIS = (
    Api(17, "SaslHandshake", 0, 1, sasl_handshake, ""),
    Api(36, "SaslAuthenticate", 0, 2, sasl_authenticate, ""),
)

#: ScramMechanism of Kafka's admin client.
_MECHANISMS = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
_MOST_SALT_BYTES = 1 << 10
_CODES = {name: code for code, name in _MECHANISMS.items()}
_DISABLED = {
    "error_code": ErrorCode.security_disabled,
    "error_message": "Clients may change users only at a gateway with --acls.",
}


class _RefusedError(Exception):
    """A request that Kafka refuses with this code."""

    def __init__(self, code: ErrorCode, reason: str) -> None:
        super().__init__(reason)
        self.fields: Fields = {"error_code": code, "error_message": reason}


def describe_users(request: Request, broker: Broker) -> Fields:
    """The requested users of the root, or all."""
    users, requested = broker.users, request.body.users

    def described() -> Fields:
        request.rights.check_cluster(Operation.DESCRIBE)
        # without ACLs there are none: an error would end kafka-configs, which also requests the users
        secrets: Mapping[str, Mapping[str, ScramSecret]] = {}
        if users is not None:
            users.refresh()
            secrets = users.secrets
        # an empty list means all, as null does: it is what the Java client sends
        names = (user.name for user in requested) if requested else secrets
        return {"results": [_user_fields(name, several, secrets) for name, several in grouped(names, str).items()]}

    return {"throttle_time": 0, **attempted(described, results=())}


def _user_fields(name: str, several: list[str], all: Mapping[str, Mapping[str, ScramSecret]]) -> Fields:
    secrets = all.get(name)
    fields: Fields = {"user": name, "credential_infos": ()}
    if len(several) > 1:
        return {**fields, "error_code": ErrorCode.duplicate_resource, "error_message": "a request has a user twice"}
    if secrets is None:
        return {
            **fields,
            "error_code": ErrorCode.resource_not_found,
            "error_message": "the root does not have this user",
        }
    infos = [
        {"mechanism": _CODES[mechanism], "iterations": secret.iterations}
        for mechanism, secret in sorted(secrets.items())
    ]
    return {**fields, "error_code": ErrorCode.none, "error_message": None, "credential_infos": infos}


def alter_users(request: Request, broker: Broker) -> Fields:
    """Respond when the credentials are durable."""
    body, users = request.body, broker.users
    changes = grouped([*body.deletions, *body.upsertions], lambda change: change.name)
    if users is None:
        return {"throttle_time": 0, "results": [{"user": name, **_DISABLED} for name in changes]}
    outcome = attempted(partial(request.rights.check_cluster, Operation.ALTER))
    if outcome["error_code"]:
        return {"throttle_time": 0, "results": [{"user": name, **outcome} for name in changes]}
    outcome = attempted(users.refresh)
    results, good = dict[str, Fields](), list[tuple[Credential, ScramSecret | None]]()
    sasl = request.session.sasl
    for name, several in changes.items():
        is_local = sasl is not None and sasl.is_of_file(name)
        try:
            change, *duplicates = (_change(request_change, users, is_local=is_local) for request_change in several)
            if duplicates:
                raise _RefusedError(
                    ErrorCode.duplicate_resource, "A user credential cannot be altered twice in the same request"
                )
            good.append(change)
        except _RefusedError as refused:
            results[name] = refused.fields
    if outcome["error_code"] is ErrorCode.none:
        outcome = attempted(lambda: users.alter(good))
    return {"throttle_time": 0, "results": [{"user": name, **results.get(name, outcome)} for name in changes]}


def _change(requested: Any, users: RootUsers, *, is_local: bool) -> tuple[Credential, ScramSecret | None]:
    mechanism = _MECHANISMS.get(requested.mechanism)
    if mechanism is None:
        raise _RefusedError(ErrorCode.unsupported_sasl_mechanism, "Unknown SCRAM mechanism")
    name = Credential(requested.name, mechanism)
    if not hasattr(requested, "salted_password"):
        if mechanism not in users.secrets.get(requested.name, {}):
            raise _RefusedError(
                ErrorCode.resource_not_found, "Attempt to delete a user credential that does not exist"
            )
        return name, None
    try:
        check_name(requested.name)
        if is_local:
            raise InvalidConfigError("the gateway's file of users has this user, and comes first")
        if not MIN_ITERATIONS <= requested.iterations <= ITERATIONS:
            raise InvalidConfigError(f"iterations are {MIN_ITERATIONS} to {ITERATIONS}")
        is_whole = len(requested.salted_password) == hashlib.new(HASHES[mechanism]).digest_size
        if not is_whole or not 0 < len(requested.salt) <= _MOST_SALT_BYTES:
            raise InvalidConfigError("a salt or a salted password has another length than it can have")
    except InvalidConfigError as error:
        raise _RefusedError(ErrorCode.unacceptable_credential, error.message) from None
    return name, secret_of_salted(mechanism, requested.salted_password, requested.salt, requested.iterations)


APIS = (
    *SASL_APIS,
    Api(50, "DescribeUserScramCredentials", 0, 0, describe_users, "DESCRIBE of the cluster"),
    Api(51, "AlterUserScramCredentials", 0, 0, alter_users, "ALTER of the cluster"),
)
