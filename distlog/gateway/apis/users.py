"""The APIs of users: DescribeUserScramCredentials and AlterUserScramCredentials (KIP-554)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from distlog.core.errors import InvalidConfigError
from distlog.gateway.apis.cluster import attempted, grouped
from distlog.gateway.broker import Api, Broker
from distlog.gateway.protocol.frames import Fields
from distlog.gateway.protocol.messages import ErrorCode
from distlog.gateway.root_users import Credential, RootUsers
from distlog.gateway.security.users_file import (
    HASHES,
    ITERATIONS,
    MIN_ITERATIONS,
    ScramSecret,
    check_name,
    secret_of_salted,
)
from distlog.gateway.server.request import Request

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

    def __init__(self, code: ErrorCode, why: str) -> None:
        super().__init__(why)
        self.fields: Fields = {"error_code": code, "error_message": why}


# ---
# DescribeUserScramCredentials: the mechanisms and iterations of users, and nothing that is secret.


def describe_users(request: Request, broker: Broker) -> Fields:
    """The requested users of the root, or all."""
    users, wanted = broker.users, request.body.users

    def described() -> Fields:
        # without ACLs there are none: an error would end kafka-configs, which asks for users beside their quotas
        secrets: Mapping[str, Mapping[str, ScramSecret]] = {}
        if users is not None:
            users.look()
            secrets = users.secrets
        # an empty list means all, as null does: it is what the Java client sends
        names = (each.name for each in wanted) if wanted else secrets
        return {"results": [_user_fields(name, several, secrets) for name, several in grouped(names, str).items()]}

    return {"throttle_time": 0, **attempted(described, results=())}


def _user_fields(name: str, several: list[str], all: Mapping[str, Mapping[str, ScramSecret]]) -> Fields:
    secrets = all.get(name)
    fields: Fields = {"user": name, "credential_infos": ()}
    if len(several) > 1:
        return {**fields, "error_code": ErrorCode.duplicate_resource, "error_message": "a request has a user twice"}
    if secrets is None:
        return {**fields, "error_code": ErrorCode.resource_not_found, "error_message": "the root has no such user"}
    infos = [{"mechanism": _CODES[each], "iterations": secret.iterations} for each, secret in sorted(secrets.items())]
    return {**fields, "error_code": ErrorCode.none, "error_message": None, "credential_infos": infos}


DESCRIBE_USERS = Api(50, "DescribeUserScramCredentials", 0, 0, describe_users)


# ---
# AlterUserScramCredentials: sets and removes credentials, all of a user or none. A password never comes here.


def alter_users(request: Request, broker: Broker) -> Fields:
    """Respond when the credentials are durable."""
    body, users = request.body, broker.users
    changes = grouped([*body.deletions, *body.upsertions], lambda each: each.name)
    if users is None:
        return {"throttle_time": 0, "results": [{"user": name, **_DISABLED} for name in changes]}
    outcome = attempted(users.look)
    results, good = dict[str, Fields](), list[tuple[Credential, ScramSecret | None]]()
    sasl = request.session.sasl
    for name, several in changes.items():
        new, refusal = _changes(several, users, is_local=sasl is not None and sasl.is_of_file(name))
        good += new
        if refusal is not None:
            results[name] = refusal
    if outcome["error_code"] is ErrorCode.none:
        outcome = attempted(lambda: users.alter(good))
    return {"throttle_time": 0, "results": [{"user": name, **results.get(name, outcome)} for name in changes]}


def _changes(
    several: Sequence[Any], users: RootUsers, *, is_local: bool
) -> tuple[Sequence[tuple[Credential, ScramSecret | None]], Fields | None]:
    """The changes of a user, or the refusal of all of them."""
    try:
        new = dict(_change(each, users, is_local=is_local) for each in several)
        if len(new) < len(several):
            raise _RefusedError(ErrorCode.duplicate_resource, "a request has a credential twice")
    except _RefusedError as refused:
        return (), refused.fields
    return list(new.items()), None


def _change(each: Any, users: RootUsers, *, is_local: bool) -> tuple[Credential, ScramSecret | None]:
    mechanism = _MECHANISMS.get(each.mechanism)
    if mechanism is None:
        raise _RefusedError(ErrorCode.unsupported_sasl_mechanism, "unknown mechanism")
    name = Credential(each.name, mechanism)
    if not hasattr(each, "salted_password"):
        if mechanism not in users.secrets.get(each.name, {}):
            raise _RefusedError(ErrorCode.resource_not_found, "the root has no such credential")
        return name, None
    try:
        check_name(each.name)
        if is_local:
            raise InvalidConfigError("this user is in the file of users of the gateway, which comes first")
        if not MIN_ITERATIONS <= each.iterations <= ITERATIONS:
            raise InvalidConfigError(f"iterations are {MIN_ITERATIONS} to {ITERATIONS}")
        is_whole = len(each.salted_password) == hashlib.new(HASHES[mechanism]).digest_size
        if not is_whole or not 0 < len(each.salt) <= _MOST_SALT_BYTES:
            raise InvalidConfigError("a salt or a salted password has another length than it can have")
    except InvalidConfigError as error:
        raise _RefusedError(ErrorCode.unacceptable_credential, error.message) from None
    return name, secret_of_salted(mechanism, each.salted_password, each.salt, each.iterations)


ALTER_USERS = Api(51, "AlterUserScramCredentials", 0, 0, alter_users)

#: The APIs of this module.
APIS = (DESCRIBE_USERS, ALTER_USERS)
