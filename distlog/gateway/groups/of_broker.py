"""Where the APIs of groups find them."""

from __future__ import annotations

from distlog.gateway.broker import Broker
from distlog.gateway.groups.follow_groups import FollowGroups
from distlog.gateway.groups.services import GroupServices

#: Their names in the broker's parts.
PART, FOLLOW_PART = "groups", "follow-groups"


def groups_of(broker: Broker) -> GroupServices:
    """The groups of this gateway."""
    found = broker.parts[PART]
    assert isinstance(found, GroupServices)
    return found


def follow_groups_of(broker: Broker) -> FollowGroups:
    """The groups of followers, which no gateway coordinates."""
    found = broker.parts[FOLLOW_PART]
    assert isinstance(found, FollowGroups)
    return found
