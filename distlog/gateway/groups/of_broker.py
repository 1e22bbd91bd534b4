"""Where the APIs of groups find them."""

from __future__ import annotations

from distlog.gateway.broker import Broker
from distlog.gateway.groups.services import GroupServices

#: Its name in the broker's parts.
PART = "groups"


def groups_of(broker: Broker) -> GroupServices:
    """The groups of this gateway."""
    found = broker.parts[PART]
    assert isinstance(found, GroupServices)
    return found
