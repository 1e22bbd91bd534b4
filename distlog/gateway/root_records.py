"""The records that all gateways of a root share in its topics: users, ACLs, quotas and settings of groups."""

from __future__ import annotations

import json
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar, cast

from distlog.core.config import TopicConfig
from distlog.core.display import text
from distlog.core.errors import DistlogError, InvalidConfigError, TopicNotFoundError
from distlog.gateway.config import GroupConfigs, decode_setting
from distlog.gateway.event_log import FAILURES, EventLog
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
from distlog.gateway.security.users_file import HASHES, ScramSecret, check_name, parsed_secret, written_secret
from distlog.gateway.server.fairness import (
    CLIENT_ID,
    MAX_NAME_BYTES,
    NAMES,
    REQUEST_PERCENTAGE,
    USER,
    Entity,
    Limits,
    Quotas,
)
from distlog.gateway.server.request import Rights
from distlog.gateway.topics.metadata_cache import (
    ACLS_TOPIC,
    CONFIGS_TOPIC,
    CREDENTIALS_TOPIC,
    HostedTopic,
    MetadataCache,
)
from distlog.gateway.topics.partition import PartitionTail
from distlog.gateway.transactions.transaction_log import internal_batch

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class RootRecords(ABC, Generic[Key, Value]):
    """The newest value of each key in the topic `name`, for many threads. Logs call the values `subject`."""

    name: str
    subject: str

    def __init__(self, metadata: MetadataCache, clock: Callable[[], int]) -> None:
        self._metadata, self._clock, self._lock = metadata, clock, threading.Lock()
        self._hosted: HostedTopic | None = None
        self._tail = PartitionTail(lambda offset: None)  # replaced by the first read
        self._values: dict[Key, Value] = {}
        # True if `on_changed` was called with the current values
        self._is_reported = False

    @abstractmethod
    def parse(self, key: bytes, value: bytes | None) -> tuple[Key, Value | None]:
        """Parse a record. A value of None removes the key, and so does UnknownValueError. Errors are logged."""

    @abstractmethod
    def on_changed(self, values: Mapping[Key, Value]) -> None:
        """Apply all values after a change."""

    def refresh(self) -> None:
        """Read the changes of all gateways. Raises DistlogError."""
        with self._lock:
            try:
                hosted = self._metadata.fresh_topic(self.name)
                hosted.refresh()
            except TopicNotFoundError:
                if self._hosted is not None:
                    self._reset(None)
            else:
                self._read(hosted)
            if not self._is_reported:
                self.on_changed(dict(self._values))
                self._is_reported = True

    def try_refresh(self) -> None:
        try:
            self.refresh()
        except Exception as error:
            FAILURES.note(f"reading {self.subject}", error)

    def append(self, records: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Store records durably, and apply them in this gateway. Raises DistlogError."""
        if records:
            hosted = self._metadata.internal_topic(self.name, 1, _CONFIG)
            hosted.append_run(0, internal_batch(records, self._clock()), fence=lambda snapshot: None)
            self.refresh()

    def _reset(self, hosted: HostedTopic | None) -> None:
        self._hosted, self._values, self._is_reported = hosted, {}, False

    def _read(self, hosted: HostedTopic) -> None:
        partition = hosted.partition(0)
        if hosted is not self._hosted:
            self._reset(hosted)
            self._tail = PartitionTail.of(partition)
        if self._tail.restart_if_compacted(partition.hosted.snapshot.partitions[0]):
            self._reset(hosted)
        for records in self._tail.records():
            for row in records.to_pylist():
                self._is_reported = False
                try:
                    key, value = self.parse(row["key"] or b"", row["value"])
                except (ValueError, DistlogError) as error:
                    effect = "is ignored"
                    if isinstance(error, UnknownValueError):
                        effect = "only removes the former value"
                        self._values.pop(cast("Key", error.key), None)
                    message = "a record of %s %s: %s; upgrade this gateway, or set the value again (offset=%s)"
                    _log.error(message, self.name, effect, text(str(error))[:_MAX_SHOWN_CHARACTERS], row["offset"])
                    continue
                if value is None:
                    self._values.pop(key, None)
                else:
                    self._values[key] = value


_log = logging.getLogger("distlog.gateway")
_CONFIG = TopicConfig.parse({"cleanup.policy": "compact"})
#: The most characters of an error that the log shows: a record may have any text.
_MAX_SHOWN_CHARACTERS = 300
#: The errors that parsing raises if a field is missing or has the wrong type.
_MALFORMED = (ValueError, KeyError, TypeError, AttributeError, RecursionError)


class UnknownValueError(ValueError):
    """The new value of a key cannot be read."""

    def __init__(self, key: Hashable, reason: str) -> None:
        super().__init__(reason)
        self.key = key


def encode_acl(acl: Acl) -> tuple[bytes, bytes]:
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
    """Return the key of a record and its ACL, None if removed. Raises ValueError, which does not quote the record."""
    if value is None:
        return key, None
    try:
        fields: Any = json.loads(key)
        permission = Permission[fields["permission"]]
        name, principal, host = (fields[field] for field in ("name", "principal", "host"))
        if not all(isinstance(field_value, str) for field_value in (name, principal, host)):
            raise ValueError("it is not an ACL")
        operation = Operation.__members__.get(fields["operation"])
        if operation is None:
            if permission is not Permission.DENY:
                raise ValueError("it is not an ACL")
            # if the ACL were ignored, the operation would be allowed
            operation = Operation.ALL
            _log.error("an ACL that denies an unknown operation denies all operations: upgrade this gateway")
        kind, pattern = ResourceType[fields["resource"]], PatternType[fields["pattern"]]
        return key, check_acl(Acl(kind, pattern, name, principal, host, operation, permission))
    except InvalidConfigError as error:
        # leave out the details of the error, which quote the record
        raise ValueError(error.message) from None
    except _MALFORMED:
        raise ValueError("it is not an ACL") from None


class RootAcls(RootRecords[bytes, Acl]):
    """The ACLs in a root, for many threads. Before the first refresh only super users may do anything."""

    name, subject, parse = ACLS_TOPIC, "ACLs", staticmethod(decode_acl)

    def __init__(
        self,
        metadata: MetadataCache,
        clock: Callable[[], int],
        super_users: Collection[str],
        *,
        everyone_if_none: bool,
    ) -> None:
        super().__init__(metadata, clock)
        self._super_users, self._everyone_if_none = frozenset(super_users), everyone_if_none
        self._lists = AccessLists((), self._super_users)
        # the keys of each ACL's records: several if another program orders the fields of a key in another way
        self._keys: Mapping[Acl, Sequence[bytes]] = {}
        self.denials = EventLog("requests that no ACL allows")

    @property
    def acls(self) -> list[Acl]:
        return self._lists.acls

    def rights(self, user: str, host: str) -> Rights:
        return Rights(self._lists, f"User:{user}", client_host(host), self.denials)

    def create(self, acls: Iterable[Acl]) -> None:
        self.append([encode_acl(check_acl(acl)) for acl in dict.fromkeys(acls)])

    def delete(self, acls: Iterable[Acl]) -> None:
        keys = self._keys
        deleted_keys = list[bytes]()
        for acl in dict.fromkeys(acls):
            key, _ = encode_acl(acl)
            deleted_keys += keys.get(acl, [key])
        self.append([(key, None) for key in deleted_keys])

    def on_changed(self, values: Mapping[bytes, Acl]) -> None:
        keys: dict[Acl, list[bytes]] = {}
        for key, acl in values.items():
            keys.setdefault(acl, []).append(key)
        self._keys = keys
        self._lists = AccessLists(keys, self._super_users, everyone_if_none=self._everyone_if_none)


# A credential's record has the user and the mechanism in its key. Its value is the secret, as in the file of users.


class Credential(NamedTuple):
    user: str
    mechanism: str


def encode_credential(credential: Credential, secret: ScramSecret | None) -> tuple[bytes, bytes | None]:
    key = json.dumps(credential._asdict(), sort_keys=True).encode()
    return key, None if secret is None else json.dumps(written_secret(secret)).encode()


def decode_credential(key: bytes, value: bytes | None) -> tuple[Credential, ScramSecret | None]:
    """Return the credential of a record. Raises InvalidConfigError, ValueError, which do not quote the value."""
    try:
        fields: Any = json.loads(key)
        credential = Credential(check_name(fields["user"]), fields["mechanism"])
        if credential.mechanism not in HASHES:
            raise ValueError("an unknown mechanism")
    except InvalidConfigError:
        raise
    except _MALFORMED:
        raise ValueError("its key is not a user and a SCRAM mechanism") from None
    try:
        secret = None if value is None else parsed_secret(credential.mechanism, json.loads(value))
        return credential, secret
    except _MALFORMED:
        # the former password must not stay valid
        reason = f"its value is not a stored password of {credential.user} ({credential.mechanism})"
        raise UnknownValueError(credential, reason) from None


class RootUsers(RootRecords[Credential, ScramSecret]):
    name, subject, parse = CREDENTIALS_TOPIC, "the credentials of users", staticmethod(decode_credential)
    #: The secrets by user and mechanism at the last refresh. A change makes a new object.
    secrets: Mapping[str, Mapping[str, ScramSecret]] = {}

    def alter(self, changes: Iterable[tuple[Credential, ScramSecret | None]]) -> None:
        self.append([encode_credential(credential, secret) for credential, secret in changes])

    def on_changed(self, values: Mapping[Credential, ScramSecret]) -> None:
        users: dict[str, dict[str, ScramSecret]] = {}
        for credential, secret in values.items():
            users.setdefault(credential.user, {})[credential.mechanism] = secret
        self.secrets = users


# In the key of a quota's record, the name null means the default entity. A record without a value removes the quota.

#: A quota must be less than this, as a LONG setting of Kafka.
_MAX_QUOTA = float(1 << 63)

Changes = Mapping[str, float | None]


def check_quotas(entity: Entity, changes: Changes) -> None:
    types = [kind for kind, _ in entity.parts]
    if "ip" in types:
        advice = "set max.connections.per.ip to limit their connections"
        raise InvalidConfigError(f"quotas for IP addresses are not supported: {advice}")
    if not types or not {USER, CLIENT_ID}.issuperset(types):
        raise InvalidConfigError("a quota must be for users or client ids", types=", ".join(types))
    for kind, name in entity.parts:
        if name is not None and not 0 < len(name.encode()) <= MAX_NAME_BYTES:
            raise InvalidConfigError(f"the {kind} of a quota must have 1 to {MAX_NAME_BYTES} bytes of UTF-8")
    for name, value in changes.items():
        if name not in NAMES:
            raise InvalidConfigError(f"a quota must be one of {', '.join(NAMES)}", found=name)
        if value is not None and not 0 < value < _MAX_QUOTA:
            raise InvalidConfigError(f"the quota {name} must be above 0 and below 2^63", found=str(value))
        if value is not None and name != REQUEST_PERCENTAGE and value != int(value):
            raise InvalidConfigError(f"the quota {name} must be a whole number of bytes", found=str(value))


def decode_quota(fields: Mapping[str, Any], value: bytes | None) -> tuple[tuple[Entity, str], float | None]:
    entity, name = Entity.of(dict(fields["entity"])), str(fields["quota"])
    quota = None if value is None else float(json.loads(value))
    check_quotas(entity, {name: quota})
    return (entity, name), quota


#: An entity and the name of a quota, or a group and the name of a setting.
_Key = tuple[Entity | str, str]


def encode_config(subject: Entity | str, name: str, value: float | None) -> tuple[bytes, bytes | None]:
    fields: dict[str, object] = {"group": subject, "setting": name}
    if isinstance(subject, Entity):
        fields = {"entity": dict(subject.parts), "quota": name}
    key = json.dumps(fields, sort_keys=True).encode()
    return key, None if value is None else json.dumps(value).encode()


def decode_config(key: bytes, value: bytes | None) -> tuple[_Key, float | None]:
    try:
        fields: Any = json.loads(key)
        return decode_setting(fields, value) if "group" in fields else decode_quota(fields, value)
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError("it is not a quota or a setting of a group") from error


class DynamicConfigs(RootRecords[_Key, float]):
    name, subject, parse = CONFIGS_TOPIC, "quotas and settings of groups", staticmethod(decode_config)

    def __init__(
        self, metadata: MetadataCache, quotas: Quotas, groups: GroupConfigs, clock: Callable[[], int]
    ) -> None:
        super().__init__(metadata, clock)
        self._quotas, self.groups = quotas, groups

    @property
    def quotas(self) -> Limits:
        return self._quotas.limits

    def alter_quotas(self, entity: Entity, changes: Changes) -> None:
        check_quotas(entity, changes)
        self.append([encode_config(entity, name, value) for name, value in sorted(changes.items())])

    def alter_group(self, group: str, changes: Mapping[str, int | None]) -> None:
        self.append([encode_config(group, name, value) for name, value in sorted(changes.items())])

    def on_changed(self, values: Mapping[_Key, float]) -> None:
        limits: dict[Entity, dict[str, float]] = {}
        settings: dict[tuple[str, str], int] = {}
        for (subject, name), value in values.items():
            if isinstance(subject, Entity):
                limits.setdefault(subject, {})[name] = value
            else:
                settings[subject, name] = int(value)
        self._quotas.set(limits)
        self.groups.set(settings)
