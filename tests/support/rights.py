"""Requests of any API from plain fields, by users of a gateway with ACLs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gateways import serving
from kio.schema.errors import ErrorCode
from users_files import SaslWire, users_file

import distlog
from distlog.gateway.config import STANDARD_AUTHORIZER, AclSettings
from distlog.gateway.gateway_server import GatewayServer
from distlog.gateway.security.acls import Acl, Operation, PatternType, Permission, ResourceType
from distlog.gateway.security.authentication import Authentication
from distlog.gateway.security.users_file import UsersFile

ROOT_USER = "root"


@contextmanager
def with_acls(folder: Path, *, everyone_if_none: bool = False, **settings: Any) -> Iterator[GatewayServer]:
    """A gateway with ACLs over a root with the topic `clicks`, for root, alice and mallory."""
    root = folder / "root"
    if not root.exists():
        distlog.create(str(root / "clicks"))
        users_file(folder, ROOT_USER, "alice", "mallory")
    acls = AclSettings(
        authorizer=STANDARD_AUTHORIZER, super_users=f"User:{ROOT_USER}", everyone_if_none=everyone_if_none
    )
    users = Authentication(UsersFile(str(folder / "users.json")))
    with serving(root, authentication=users, acls=acls, **settings) as gateway:
        yield gateway


class UserWire(SaslWire):
    def __init__(self, gateway: GatewayServer, user: str) -> None:
        super().__init__(gateway)
        assert self.log_in(user).error_code is ErrorCode.none


def right(text: str, principal: str = "User:alice", *, denied: bool = False) -> Acl:
    """An ACL from words as `READ topic clicks`; `topic cli*` is a prefix, and `*` stands for all."""
    operation, kind, *names = text.split()
    name = names[0] if names else "kafka-cluster"
    is_prefix = name.endswith("*") and name != "*"
    return Acl(
        ResourceType[kind.upper()],
        PatternType.PREFIXED if is_prefix else PatternType.LITERAL,
        name[:-1] if is_prefix else name,
        principal,
        "*",
        Operation[operation],
        Permission.DENY if denied else Permission.ALLOW,
    )


def codes(response: Any) -> set[ErrorCode]:
    if isinstance(response, tuple):
        return set().union(*map(codes, response)) if response else set()
    if not hasattr(response, "__dataclass_fields__"):
        return set()
    error_codes = set()
    for name in response.__dataclass_fields__:
        value = getattr(response, name)
        error_codes |= {value} if isinstance(value, ErrorCode) else codes(value)
    return error_codes
