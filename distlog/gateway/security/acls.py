"""Access control lists (ACLs) as Kafka has them (KIP-11, KIP-290)."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Collection, Iterable, Iterator
from enum import IntEnum
from typing import NamedTuple

from distlog.core.errors import InvalidConfigError
from distlog.core.paths import is_topic_name


class ResourceType(IntEnum):
    """The kind of a resource. ANY is only for filters."""

    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5


class Operation(IntEnum):
    """An operation on a resource. ANY is only for filters, ALL only for ACLs."""

    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


class Permission(IntEnum):
    """Whether an ACL denies or allows its operation. ANY is only for filters."""

    ANY = 1
    DENY = 2
    ALLOW = 3


class PatternType(IntEnum):
    """The meaning of the name in an ACL. ANY and MATCH are only for filters."""

    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


#: The name of the only resource of type CLUSTER, and the name that stands for all resources of a type.
CLUSTER_NAME, WILDCARD = "kafka-cluster", "*"
_USER = "User:"
EVERYONE = _USER + WILDCARD
_O = Operation
_CONFIGS = (_O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS)
#: The operations that an ACL may name for a resource: `AclEntry.supportedOperations` of Kafka.
OPERATIONS = {
    ResourceType.TOPIC: (_O.READ, _O.WRITE, _O.CREATE, _O.DELETE, _O.ALTER, _O.DESCRIBE, *_CONFIGS),
    ResourceType.GROUP: (_O.READ, _O.DELETE, _O.DESCRIBE, *_CONFIGS),
    ResourceType.CLUSTER: (_O.CREATE, _O.ALTER, _O.DESCRIBE, _O.CLUSTER_ACTION, _O.IDEMPOTENT_WRITE, *_CONFIGS),
    ResourceType.TRANSACTIONAL_ID: (_O.WRITE, _O.DESCRIBE),
}
#: By operation: other operations whose ACLs also allow it, as in Kafka. ACLs that deny imply nothing.
_IMPLIED_BY = {
    _O.DESCRIBE: frozenset({_O.READ, _O.WRITE, _O.DELETE, _O.ALTER}),
    _O.DESCRIBE_CONFIGS: frozenset({_O.ALTER_CONFIGS}),
}
#: The longest principal and the longest name of a resource in an ACL.
_MAX_TEXT_BYTES = 1 << 10


class Acl(NamedTuple):
    """An ACL. `principal` is written as `User:alice`. `host` is an address, or `*` for all."""

    resource_type: ResourceType
    pattern_type: PatternType
    name: str
    principal: str
    host: str
    operation: Operation
    permission: Permission


def check_acl(acl: Acl) -> Acl:
    """Return the ACL, with `check_host` of its host. Raises InvalidConfigError unless it can apply to a request."""
    if acl.resource_type not in OPERATIONS or acl.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        kinds = {"resource": acl.resource_type.name, "pattern": acl.pattern_type.name}
        raise InvalidConfigError("an ACL needs a type of resource, and the pattern type LITERAL or PREFIXED", **kinds)
    if acl.permission is Permission.ANY or acl.operation not in (_O.ALL, *OPERATIONS[acl.resource_type]):
        text = "an ACL must allow or deny an operation that its type of resource has"
        raise InvalidConfigError(text, resource=acl.resource_type.name, operation=acl.operation.name)
    check_principal(acl.principal)
    name = acl.name
    if not _is_valid_text(name) or not name:
        raise InvalidConfigError("the resource name of an ACL must have 1 to 1024 bytes of UTF-8")
    if name == WILDCARD:
        if acl.pattern_type is PatternType.PREFIXED:
            raise InvalidConfigError("a prefix * matches no name: use the literal * for all resources")
    elif acl.resource_type is ResourceType.CLUSTER and name != CLUSTER_NAME:
        raise InvalidConfigError(f"the cluster's name must be {CLUSTER_NAME}", name=name)
    # no topic is named `.` or `..`, but the names of topics may start with them
    elif acl.resource_type is ResourceType.TOPIC and not (
        is_topic_name(name) or (acl.pattern_type is PatternType.PREFIXED and name in (".", ".."))
    ):
        raise InvalidConfigError("no topic can have this name", name=repr(name))
    return acl._replace(host=check_host(acl.host))


def _is_valid_text(text: str) -> bool:
    try:
        return len(text.encode()) <= _MAX_TEXT_BYTES
    except UnicodeEncodeError:
        return False


_MAPPED = "::ffff:"  # the start of an IPv4 address that is written as an IPv6 address


def check_host(host: str) -> str:
    """Return the host in the form of `client_host`. Raises InvalidConfigError if it can match no client."""
    if host == WILDCARD:
        return host
    try:
        address = ipaddress.ip_address(host)
        if address.version == 6:
            if address.scope_id is not None:
                raise ValueError("a scope is of one machine")  # becomes the InvalidConfigError below
            # `str(address)` may write a mapped IPv4 address without the dots that `client_host` looks for
            return client_host(socket.inet_ntop(socket.AF_INET6, address.packed))
    except ValueError:
        text = "the host of an ACL must be * or one IP address without a scope"
        raise InvalidConfigError(text, host=repr(host)) from None
    return str(address)


def client_host(address: str) -> str:
    """A client's address as ACLs have it: without a scope, and as IPv4 if it is a mapped IPv4 address."""
    host = address.partition("%")[0]
    return host.removeprefix(_MAPPED) if "." in host else host


def check_principal(principal: str) -> str:
    """Return the principal. Raises InvalidConfigError unless it is `User:` and a printable name."""
    is_name = len(principal) > len(_USER) and principal.isprintable() and _is_valid_text(principal)
    if not principal.startswith(_USER) or not is_name:
        raise InvalidConfigError("a principal must be User: and a name, as in User:alice", principal=repr(principal))
    return principal


class AclFilter(NamedTuple):
    """Matches ACLs. None and ANY match all values of a field (`AclBindingFilter` of Kafka)."""

    resource_type: ResourceType
    pattern_type: PatternType
    name: str | None
    principal: str | None
    host: str | None
    operation: Operation
    permission: Permission

    def matches(self, acl: Acl) -> bool:
        """Whether the filter selects the ACL. The pattern type MATCH selects all ACLs that apply to `name`."""
        return (
            self.resource_type in (ResourceType.ANY, acl.resource_type)
            and self.operation in (Operation.ANY, acl.operation)
            and self.permission in (Permission.ANY, acl.permission)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self._matches_pattern(acl)
        )

    def _matches_pattern(self, acl: Acl) -> bool:
        if self.pattern_type not in (PatternType.ANY, PatternType.MATCH, acl.pattern_type):
            return False
        if self.name is None or self.name == acl.name:
            return True
        is_literal = acl.pattern_type is PatternType.LITERAL
        includes_name = (acl.name == WILDCARD) if is_literal else self.name.startswith(acl.name)
        return includes_name and self.pattern_type is PatternType.MATCH


#: The most cached decisions. Decisions with more characters of names are not cached, since clients choose the names.
_MAX_DECISIONS, _MAX_CACHED_TEXT = 20_000, 512


class AccessLists:
    """A fixed set of ACLs, with cached decisions. `everyone_if_none` is Kafka's `allow.everyone.if.no.acl.found`."""

    def __init__(
        self, acls: Iterable[Acl], super_users: Collection[str] = (), *, everyone_if_none: bool = False
    ) -> None:
        self._super_users, self._everyone_if_none = frozenset(super_users), everyone_if_none
        self._by_pattern: dict[tuple[ResourceType, PatternType, str], list[Acl]] = {}
        for acl in acls:
            self._by_pattern.setdefault((acl.resource_type, acl.pattern_type, acl.name), []).append(acl)
        self._prefix_lengths = {  # by type, the lengths of all prefixes, ascending
            kind: sorted({len(acl.name) for acl in self._of_type(kind) if acl.pattern_type is PatternType.PREFIXED})
            for kind in OPERATIONS
        }
        self._decisions: dict[tuple[str, str, Operation, ResourceType, str], bool] = {}

    @property
    def acls(self) -> list[Acl]:
        return [acl for acls in self._by_pattern.values() for acl in acls]

    def may(self, principal: str, host: str, operation: Operation, kind: ResourceType, name: str) -> bool:
        """Whether the principal (`User:alice`) may do this with a resource from this address."""
        key = principal, host, operation, kind, name
        if len(principal) + len(name) > _MAX_CACHED_TEXT:
            return self._decide(*key)
        decision = self._decisions.get(key)
        if decision is None:
            if len(self._decisions) >= _MAX_DECISIONS:
                self._decisions.clear()
            decision = self._decisions[key] = self._decide(*key)
        return decision

    def may_any(self, principal: str, host: str, operation: Operation, kind: ResourceType) -> bool:
        """Whether any resource allows this (KIP-679): by `everyone_if_none`, or by an ACL that no DENY covers."""
        if principal in self._super_users:
            return True
        denied, allowed = list[Acl](), list[Acl]()
        for acl in self._of_type(kind):
            if _applies_to(acl, principal, host) and _has_operation(acl, operation):
                (denied if acl.permission is Permission.DENY else allowed).append(acl)
        if any(acl.pattern_type is PatternType.LITERAL and acl.name == WILDCARD for acl in denied):
            return False
        return self._everyone_if_none or any(not any(_covers(denial, acl) for denial in denied) for acl in allowed)

    def _decide(self, principal: str, host: str, operation: Operation, kind: ResourceType, name: str) -> bool:
        if principal in self._super_users:
            return True
        has_acl = is_allowed = False
        for acl in self._acls_of_resource(kind, name):
            has_acl = True
            if _applies_to(acl, principal, host) and _has_operation(acl, operation):
                if acl.permission is Permission.DENY:
                    return False
                is_allowed = True
        return is_allowed or (self._everyone_if_none and not has_acl)

    def _acls_of_resource(self, kind: ResourceType, name: str) -> Iterator[Acl]:
        for literal in {name, WILDCARD}:
            yield from self._by_pattern.get((kind, PatternType.LITERAL, literal), ())
        for length in self._prefix_lengths[kind]:
            if length > len(name):
                return
            yield from self._by_pattern.get((kind, PatternType.PREFIXED, name[:length]), ())

    def _of_type(self, kind: ResourceType) -> Iterator[Acl]:
        return (acl for (type_, *_), acls in self._by_pattern.items() if type_ is kind for acl in acls)


def _applies_to(acl: Acl, principal: str, host: str) -> bool:
    return acl.principal in (principal, EVERYONE) and acl.host in (host, WILDCARD)


def _has_operation(acl: Acl, operation: Operation) -> bool:
    if acl.operation in (operation, _O.ALL):
        return True
    return acl.permission is Permission.ALLOW and acl.operation in _IMPLIED_BY.get(operation, ())


def _covers(denied: Acl, allowed: Acl) -> bool:
    """Whether `denied`, whose name is not the literal `*`, applies to all resources of `allowed`."""
    if denied.pattern_type is PatternType.PREFIXED:
        return allowed.name.startswith(denied.name)
    return allowed.pattern_type is PatternType.LITERAL and allowed.name == denied.name
