"""The rights of a request's client, by the ACLs of the moment in which it was received."""

from __future__ import annotations

from dataclasses import dataclass

from distlog.gateway.protocol.frames import (
    AccessDeniedError,
    ClusterAccessDeniedError,
    GroupAccessDeniedError,
    TransactionalIdAccessDeniedError,
    error_code,
)
from distlog.gateway.protocol.messages import ErrorCode
from distlog.gateway.security.acls import CLUSTER_NAME, OPERATIONS, AccessLists, Operation, ResourceType
from distlog.gateway.security.event_log import EventLog

#: Kafka's value for operations that were not asked for.
NO_OPERATIONS = -(2**31)
_DENIALS = {
    ResourceType.TOPIC: AccessDeniedError("Topic authorization failed."),
    ResourceType.GROUP: GroupAccessDeniedError("Group authorization failed."),
    ResourceType.CLUSTER: ClusterAccessDeniedError("Cluster authorization failed."),
    ResourceType.TRANSACTIONAL_ID: TransactionalIdAccessDeniedError("Transactional Id authorization failed."),
}


@dataclass(frozen=True, slots=True)
class Rights:
    """The rights of a client: everything without `lists`. `denials` logs and counts what was denied.

    A handler checks them before it opens the resource, so a client without rights does not learn what exists.
    """

    lists: AccessLists | None = None
    principal: str = ""
    host: str = ""
    denials: EventLog | None = None

    def might(self, operation: Operation, kind: ResourceType, name: str) -> bool:
        """Return whether the client may do this; nothing is logged, since it did not name the resource."""
        return self.lists is None or self.lists.may(self.principal, self.host, operation, kind, name)

    def might_with_any(self, operation: Operation, kind: ResourceType) -> bool:
        """True if a resource may exist with which the client may do this."""
        return self.lists is None or self.lists.may_any(self.principal, self.host, operation, kind)

    def describes(self, topic: str) -> bool:
        """True if the client may see a topic in a list."""
        return self.might(Operation.DESCRIBE, ResourceType.TOPIC, topic)

    def check(self, operation: Operation, kind: ResourceType, name: str) -> None:
        """Raise AccessDeniedError unless the client may do this."""
        if not self.might(operation, kind, name):
            if self.denials is not None:
                self.denials.note(f"{self.principal} at {self.host}", f"{operation.name} of {kind.name} {name!r}")
            raise type(_DENIALS[kind])(_DENIALS[kind].message)

    def check_cluster(self, *operations: Operation) -> None:
        """Raise AccessDeniedError unless the client may do one of the `operations` with the cluster."""
        if not any(self.might(operation, ResourceType.CLUSTER, CLUSTER_NAME) for operation in operations):
            self.check(operations[-1], ResourceType.CLUSTER, CLUSTER_NAME)

    def denied(self, operation: Operation, kind: ResourceType, name: str = CLUSTER_NAME) -> ErrorCode:
        """Kafka's code of the denial; none if the client may do this."""
        try:
            self.check(operation, kind, name)
        except AccessDeniedError as error:
            return error_code(error)
        return ErrorCode.none

    def operations(self, kind: ResourceType, name: str = CLUSTER_NAME) -> int:
        """The operations that the client may do with a resource, as bits (KIP-430)."""
        if self.lists is None:
            return NO_OPERATIONS
        return sum(1 << operation for operation in OPERATIONS[kind] if self.might(operation, kind, name))
