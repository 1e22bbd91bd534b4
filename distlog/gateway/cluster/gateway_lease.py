"""The lease of a gateway, by which it is one of the gateways of a root, and holds some partitions of their groups.

The gateways are a group of followers (distlog.core.groups) in the root's own folder, which share the partitions of
`__consumer_offsets`: each of them beats, and what a dead one held goes to the others. No clock is compared with
another's. The lease is for people and clients to know whom to ask. What keeps a gateway that lost it from committing
is the epoch of the partition (distlog.core.topics.writing.leadership).
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from distlog.core.groups.group_log import GroupLog
from distlog.core.groups.group_state import GroupState, Member
from distlog.core.groups.membership import Membership
from distlog.core.storage.storage import Storage
from distlog.core.times import elapsed_s
from distlog.gateway.cluster.node import Node, free_id

#: The group of the gateways is no topic's.
ROOT_ID, GROUP = str(uuid.UUID(int=0)), "gateways"

_log = logging.getLogger("distlog.gateway")


@dataclass(frozen=True, slots=True)
class _View:
    """What was found at the last look; `term` grows when what was held before must be learnt anew."""

    nodes: tuple[Node, ...] = ()
    holders: Mapping[int, Node] = field(default_factory=dict)
    held: frozenset[int] = frozenset()
    term: int = 0


class GatewayLease:
    """This gateway among those of `root`. One thread calls `sync` and `leave`, any thread the rest.

    `node_id` is the id that it wants, or None for the lowest one that is free.
    """

    def __init__(
        self,
        root: Storage,
        node_id: int | None,
        lease_s: float,
        *,
        clock: Callable[[], float] = elapsed_s,
        new_id: Callable[[], str] = lambda: uuid.uuid4().hex,
        log: GroupLog | None = None,
    ) -> None:
        self._log = log or GroupLog(root, ROOT_ID, GROUP, clock=clock)
        self._wanted_id, self._view = node_id, _View()
        self.node = Node(node_id or 0, "", 0, "")
        self._member = Membership(self._log, self._name, None, lease_s, clock, new_id)
        self._has_begun, self._told = False, set[Node]()

    def be_at(self, host: str, port: int, machine: str) -> None:
        """Say where it listens, before the first `sync`."""
        self.node = Node(self.node.id, host, port, machine)

    def sync(self, partitions: int, pending: Collection[int]) -> bool:
        """Show that it lives, and share `partitions` with the others; whether anything changed for this gateway.

        A partition that another gateway should have is given up when it is not `pending` any more. The first time, a
        gateway that was at the same place is taken for dead: its port is ours. Raises StorageError,
        CommitConflictError, CommitStateUnknownError.
        """
        before, member = self._view, self._member
        if not self._has_begun:
            self._log.commit(self._log.load(), self._without_the_one_before)
            self._has_begun = True
        was_lapsed, joins = member.is_lapsed, member.joins
        member.sync(partitions, lambda number, added: 0, pending)
        is_new = was_lapsed or member.joins != joins
        state = member.state
        assert state is not None
        nodes = {each.id: node for each in state.members if (node := Node.parse(each.name)) is not None}
        self.node = nodes.get(member.id, self.node)
        self._tell_of_unreachable(nodes.values())
        self._view = _View(
            tuple(sorted(nodes.values(), key=lambda node: node.id)),
            {number: nodes[owner] for number, owner in state.owners.items() if owner in nodes},
            frozenset(member.owned.keys() - set(member.leaving)),
            before.term + is_new,
        )
        return (before.held, before.term) != (self._view.held, self._view.term)

    def due_s(self, pending: Collection[int]) -> float:
        """The seconds until `sync` should be called; 0 if at once."""
        return self._member.due_s(pending)

    def leave(self) -> None:
        """Let the others have all of it at once. Raises what `sync` raises."""
        self._view = dataclasses.replace(self._view, held=frozenset(), term=self._view.term + 1)
        self._member.leave()

    @property
    def is_lapsed(self) -> bool:
        """Whether others may hold what this gateway held."""
        return self._member.is_lapsed

    @property
    def held(self) -> frozenset[int]:
        """The partitions that it answers for now."""
        return frozenset() if self.is_lapsed else self._view.held

    @property
    def term(self) -> int:
        """Grows when it held nothing for a while: what it knew of its partitions then may be old."""
        return self._view.term

    @property
    def nodes(self) -> Sequence[Node]:
        """The gateways that live and that clients of this one can reach, itself too, by their ids."""
        others = (node for node in self._view.nodes if node.place != self.node.place)
        found = [node for node in others if node.is_reached_from(self.node.machine) and node.id != self.node.id]
        return sorted([*found, self.node], key=lambda node: node.id)

    def holder(self, partition: int) -> Node | None:
        """The gateway that answers for a partition; None if nobody does now whom clients of this one can reach."""
        if self._is_mine(partition):
            return self.node if partition in self.held else None
        found = self._view.holders.get(partition)
        return found if found is not None and found.is_reached_from(self.node.machine) else None

    def leader(self, topic_id: str, partition: int) -> Node:
        """The gateway that clients should ask for the records of a partition: each gateway names the same one.

        Every gateway would do. But what one client sends must not overtake itself on two ways, and a fetch waits
        where the appends are.
        """
        nodes = self.nodes
        return nodes[0] if len(nodes) == 1 else max(nodes, key=lambda node: _weight(topic_id, partition, node))

    def _tell_of_unreachable(self, nodes: Iterable[Node]) -> None:
        for node in nodes:
            if node not in self._told and not node.is_reached_from(self.node.machine):
                self._told.add(node)
                _log.warning("clients cannot reach %s, which coordinates some groups: advertise its address", node)

    def _is_mine(self, partition: int) -> bool:
        found = self._view.holders.get(partition)
        return found is not None and found.id == self.node.id

    def _name(self, others: Sequence[Member]) -> str:
        taken = {node.id for other in others if (node := Node.parse(other.name)) is not None}
        wanted = self.node.id if self._has_name else self._wanted_id
        number = free_id(taken) if wanted is None or wanted in taken else wanted
        return str(dataclasses.replace(self.node, id=number))

    @property
    def _has_name(self) -> bool:
        return bool(self._member.id)

    def _without_the_one_before(self, state: GroupState) -> GroupState | None:
        gone = {each.id for each in state.members if _place(each) == self.node.place}
        if not gone:
            return None
        members = tuple(each for each in state.members if each.id not in gone)
        owners = {number: owner for number, owner in state.owners.items() if owner not in gone}
        return dataclasses.replace(state, members=members, owners=owners)


def _place(member: Member) -> tuple[str, int, str] | None:
    node = Node.parse(member.name)
    return None if node is None else node.place


def _weight(topic_id: str, partition: int, node: Node) -> bytes:
    """Rendezvous hashing: when a gateway comes or goes, few partitions move."""
    return hashlib.blake2b(f"{topic_id}/{partition}/{node.id}".encode(), digest_size=8).digest()
