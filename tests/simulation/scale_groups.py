"""What consumer groups take: members of one group, and groups of one topic."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from unittest import mock

if TYPE_CHECKING:
    from simulation.object_store import Object
    from simulation.scale import Stage
    from simulation.world import Process

LEASE_S = 60.0
#: So long the members do nothing, and are counted.
IDLE_S = 300.0


class Group:
    """Members of one group, each with a share of the topic's partitions, that follow it in processes of their own."""

    def __init__(self, stage: Stage, size: int) -> None:
        self.stage, self.size = stage, size
        self.processes: list[Process] = []
        self.found: dict[str, Any] = {}
        #: How many records were handed out, and committed, and requests below `_groups/`.
        self.committed = self.requests = 0

    def play(self) -> dict[str, Any]:
        """Have them join at once, wait, get a record each, and one of them die; returns the figures."""
        from simulation.object_store import Client

        real = Client.request

        def counted(client: Client, kind: str, key: str, *given: Any, **named: Any) -> Any:
            self.requests += "/_groups/" in key
            return real(client, kind, key, *given, **named)

        self.processes = [self.stage.world.process(f"member-{number}") for number in range(self.size)]
        with mock.patch.object(Client, "request", counted):
            self.stage.play([self._watches])
        return self.found

    def _follows(self) -> None:
        import distlog

        topic = distlog.open(self.stage.url)
        with topic.consume(group="readers", start=distlog.EARLIEST, lease=LEASE_S) as follower:
            for rows in follower:
                follower.commit()
                self.committed += rows.num_rows

    def _watches(self) -> None:
        try:
            self._watch()
        finally:
            for process in self.processes:
                process.die()

    def _watch(self) -> None:
        import distlog

        world = self.stage.world
        topic, table = distlog.open(self.stage.url), self.stage.rows(self.size)
        for process in self.processes:
            process.start(self._follows)
        self._until("join", lambda: len(self._owners()) == self.size)
        # those that waited look less often from now on
        world.pause(LEASE_S)
        before, begun_s = self.requests, time.process_time()
        world.pause(IDLE_S)
        minutes = IDLE_S / 60 * self.size
        self.found["requests a minute of an idle member"] = (self.requests - before) / minutes
        self.found["CPU ms a minute of an idle member"] = (time.process_time() - begun_s) * 1000 / minutes
        topic.append(table)
        self._until("commit", lambda: self.committed == self.size)
        state = self._state()
        self.found["KB of the group's state"] = len(state) / 1000
        dead = self.processes[0]
        dead.die()
        self._until(
            "take over", lambda: len(self._members()) == self.size - 1 and len(self._owners()) == self.size - 1
        )

    def _until(self, what: str, is_done: Callable[[], bool]) -> None:
        """Wait until something has happened, and note how long that took, and how many requests."""
        world = self.stage.world
        began_s, before, begun_s = world.now, self.requests, time.process_time()
        while not is_done():
            world.pause(0.5)
            for process, error in world.errors:
                raise RuntimeError(f"{process.name} has ended") from error
        self.found |= {
            f"s to {what}": world.now - began_s,
            f"requests of a member to {what}": (self.requests - before) / self.size,
            f"CPU ms of a member to {what}": (time.process_time() - begun_s) * 1000 / self.size,
        }

    def _state(self) -> bytes:
        names = [key for key in self.stage.store.objects if "/_groups/" in key and key.endswith(".json")]
        return self.stage.store.objects[max(names)].data if names else b"{}"

    def _members(self) -> list[Any]:
        return list(json.loads(self._state()).get("members", ()))

    def _owners(self) -> set[str]:
        return set(json.loads(self._state()).get("owners", {}).values())


def groups_of_a_topic(stage: Stage, size: int) -> dict[str, Any]:
    """What it takes to list so many groups, to vacuum beside them, and to delete them after a drop."""
    import distlog

    found: dict[str, Any] = {}
    world, store = stage.world, stage.store

    def measured(what: str, work: Callable[[], object]) -> None:
        before, began_s, begun_s = sum(store.requests.values()), world.now, time.process_time()
        work()
        found[f"requests of {what}"] = sum(store.requests.values()) - before
        found[f"s of {what}"] = world.now - began_s
        found[f"CPU ms of {what}"] = (time.process_time() - begun_s) * 1000

    def acts() -> None:
        topic = distlog.open(stage.url)
        topic.append(stage.rows(stage.partitions))
        measured("a new group", lambda: topic.reset_group("group-0", distlog.EARLIEST))
        _copy(store.objects, size)
        measured("a list of them", topic.groups)
        world.pause(3700.0)
        measured("a vacuum beside them", topic.vacuum)
        topic.drop()
        world.pause(3700.0)
        measured("a vacuum of them", topic.vacuum)
        found["objects left"] = sum("/_groups/" in key for key in store.objects)
        distlog.create(stage.url)

    stage.play([acts], math.inf)
    return found


def _copy(objects: dict[str, Object], size: int) -> None:
    """Make so many groups of one: each has a state of its own name."""
    from distlog.core.read.group_log import GroupState
    from simulation.object_store import Object

    key, known = next((key, each) for key, each in objects.items() if "/_groups/" in key and "group-0" in key)
    state = GroupState.decode(known.data, key)
    for number in range(1, size):
        name = f"group-{number}"
        data = type(state)(**{each: getattr(state, each) for each in state.__slots__} | {"group": name}).encode()
        objects[key.replace("group-0", name)] = Object(data, known.written_s)
