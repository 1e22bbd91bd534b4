"""Where the APIs of groups and transactions find them among the broker's parts."""

from __future__ import annotations

from distlog.gateway.broker import Broker
from distlog.gateway.groups.follow_groups import FollowGroups
from distlog.gateway.groups.services import GroupServices
from distlog.gateway.transactions.services import TransactionServices

#: Their names in the broker's parts.
GROUPS, FOLLOW_GROUPS, TRANSACTIONS = "groups", "follow-groups", "transactions"


def groups_of(broker: Broker) -> GroupServices:
    """The groups of this gateway."""
    found = broker.parts[GROUPS]
    assert isinstance(found, GroupServices)
    return found


def follow_groups_of(broker: Broker) -> FollowGroups:
    """The groups of followers, which no gateway coordinates."""
    found = broker.parts[FOLLOW_GROUPS]
    assert isinstance(found, FollowGroups)
    return found


def transactions_of(broker: Broker) -> TransactionServices:
    """The transactions of this gateway."""
    found = broker.parts[TRANSACTIONS]
    assert isinstance(found, TransactionServices)
    return found
