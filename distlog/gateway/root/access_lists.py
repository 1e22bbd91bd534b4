"""The ACLs of a root as records in its topic `__acls`: the same for all its gateways."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from distlog.core.errors import InvalidConfigError
from distlog.gateway.root.root_records import RootRecords
from distlog.gateway.security.acls import (
    AccessLists,
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    check_acl,
    client_host,
)
from distlog.gateway.security.event_log import EventLog
from distlog.gateway.security.rights import Rights
from distlog.gateway.topics.metadata_cache import ACLS_TOPIC, MetadataCache

_log = logging.getLogger("distlog.gateway")


def encode_acl(acl: Acl) -> tuple[bytes, bytes]:
    """The key and the value of a record."""
    fields = {
        "resource": acl.resource_type.name,
        "pattern": acl.pattern_type.name,
        "name": acl.name,
        "principal": acl.principal,
        "host": acl.host,
        "operation": acl.operation.name,
        "permission": acl.permission.name,
    }
    return json.dumps(fields, sort_keys=True).encode(), b"{}"


def decode_acl(key: bytes, value: bytes | None) -> tuple[bytes, Acl | None]:
    """The key and the ACL of a record, None if it is removed. Raises ValueError for another one, without its content.

    Denying an unknown operation denies all operations: ignoring the ACL would allow that operation.
    """
    if value is None:
        return key, None
    try:
        fields: Any = json.loads(key)
        permission = Permission[fields["permission"]]
        name, principal, host = (fields[field] for field in ("name", "principal", "host"))
        if not all(isinstance(field_value, str) for field_value in (name, principal, host)):
            raise ValueError("a field is not a text")
        operation = Operation.__members__.get(fields["operation"])
        if operation is None and permission is Permission.DENY:
            operation = Operation.ALL
            _log.error("an ACL that denies an unknown operation denies all operations: upgrade this gateway")
        if operation is None:
            raise ValueError("an unknown operation")
        kind, pattern = ResourceType[fields["resource"]], PatternType[fields["pattern"]]
        return key, check_acl(Acl(kind, pattern, name, principal, host, operation, permission))
    except InvalidConfigError as error:
        raise ValueError(error.message) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ValueError("this is not an ACL") from None


class RootAcls:
    """The ACLs in a root, for many threads; `clock` returns ms.

    Before the first refresh only super users may do anything. See `AccessLists` about the settings.
    """

    def __init__(
        self,
        metadata: MetadataCache,
        clock: Callable[[], int],
        super_users: Collection[str],
        *,
        everyone_if_none: bool,
    ) -> None:
        self._super_users, self._everyone_if_none = frozenset(super_users), everyone_if_none
        self._lists = AccessLists((), self._super_users)
        #: The keys of each ACL's records; the gateways write one key for each.
        self._keys: Mapping[Acl, Sequence[bytes]] = {}
        self._records = RootRecords(metadata, ACLS_TOPIC, clock, decode_acl, self._set)
        #: Reads what was changed, by any gateway. Raises DistlogError.
        self.refresh = self._records.refresh
        self.denials = EventLog("requests that no ACL allows")

    @property
    def acls(self) -> list[Acl]:
        """All ACLs as of the last refresh."""
        return self._lists.acls

    def rights(self, user: str, host: str) -> Rights:
        """The rights of a user at an address."""
        return Rights(self._lists, f"User:{user}", client_host(host), self.denials)

    def create(self, acls: Iterable[Acl]) -> None:
        """Keep more ACLs; they are durable, and count here, when this returns. Raises DistlogError."""
        self._records.append([encode_acl(check_acl(acl)) for acl in dict.fromkeys(acls)])

    def delete(self, acls: Iterable[Acl]) -> None:
        """Remove ACLs, as `create` adds them."""
        keys = self._keys
        deleted_keys = [key for acl in dict.fromkeys(acls) for key in keys.get(acl, (encode_acl(acl)[0],))]
        self._records.append([(key, None) for key in deleted_keys])

    def _set(self, acls: Mapping[bytes, Acl]) -> None:
        keys: dict[Acl, list[bytes]] = {}
        for key, acl in acls.items():
            keys.setdefault(acl, []).append(key)
        self._keys = keys
        self._lists = AccessLists(keys, self._super_users, everyone_if_none=self._everyone_if_none)
