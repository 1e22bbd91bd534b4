"""Costs of consumer groups: members of one group, and groups of one topic."""

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
#: How long the idle members are counted.
IDLE_S = 300.0


class Group:
    """Members of one group, each with a share of the topic's partitions, in their own processes."""

    def __init__(self, stage: Stage, size: int) -> None:
        self.stage, self.size = stage, size
        self.processes: list[Process] = []
        self.figures: dict[str, Any] = {}
        #: The number of committed records, and of requests for `_groups/`.
        self.committed = self.requests = 0

    def play(self) -> dict[str, Any]:
        """Let all members join, wait, consume a record each, and one die; returns the figures."""
        from simulation.object_store import Client

        real = Client.request

        def counted(client: Client, kind: str, key: str, *arguments: Any, **named: Any) -> Any:
            self.requests += "/_groups/" in key
            return real(client, kind, key, *arguments, **named)

        self.processes = [self.stage.world.process(f"member-{number}") for number in range(self.size)]
        with mock.patch.object(Client, "request", counted):
            self.stage.play([self._watch])
        return self.figures

    def _consume(self) -> None:
        import distlog

        topic = distlog.open(self.stage.url)
        with topic.consume(group="readers", start=distlog.EARLIEST, lease=LEASE_S) as consumer:
            for rows in consumer:
                consumer.commit()
                self.committed += rows.num_rows

    def _watch(self) -> None:
        try:
            self._measure()
        finally:
            for process in self.processes:
                process.die()

    def _measure(self) -> None:
        import distlog

        world = self.stage.world
        topic, table = distlog.open(self.stage.url), self.stage.rows(self.size)
        for process in self.processes:
            process.start(self._consume)
        self._until("join", lambda: len(self._owners()) == self.size)
        # members poll less often after a while
        world.pause(LEASE_S)
        requests, cpu_s = self.requests, time.process_time()
        world.pause(IDLE_S)
        minutes = IDLE_S / 60 * self.size
        self.figures["requests a minute of an idle member"] = (self.requests - requests) / minutes
        self.figures["CPU ms a minute of an idle member"] = (time.process_time() - cpu_s) * 1000 / minutes
        topic.append(table)
        self._until("commit", lambda: self.committed == self.size)
        self.figures["KB of the group's state"] = len(self._state()) / 1000
        self.processes[0].die()
        self._until(
            "take over", lambda: len(self._members()) == self.size - 1 and len(self._owners()) == self.size - 1
        )

    def _until(self, event: str, is_done: Callable[[], bool]) -> None:
        """Wait for an event, and note the time and the requests until then."""
        world = self.stage.world
        start_s, requests, cpu_s = world.now, self.requests, time.process_time()
        while not is_done():
            world.pause(0.5)
            for process, error in world.errors:
                raise RuntimeError(f"{process.name} has ended") from error
        self.figures |= {
            f"s to {event}": world.now - start_s,
            f"requests of a member to {event}": (self.requests - requests) / self.size,
            f"CPU ms of a member to {event}": (time.process_time() - cpu_s) * 1000 / self.size,
        }

    def _state(self) -> bytes:
        names = [key for key in self.stage.store.objects if "/_groups/" in key and key.endswith(".json")]
        return self.stage.store.objects[max(names)].data if names else b"{}"

    def _members(self) -> list[Any]:
        return list(json.loads(self._state()).get("members", ()))

    def _owners(self) -> set[str]:
        return set(json.loads(self._state()).get("owners", {}).values())


def groups_of_a_topic(stage: Stage, size: int) -> dict[str, Any]:
    """Measure a list of all groups, a vacuum with them, and their deletion after a drop."""
    import distlog

    figures: dict[str, Any] = {}
    world, store = stage.world, stage.store

    def measure(event: str, work: Callable[[], object]) -> None:
        requests, start_s, cpu_s = sum(store.requests.values()), world.now, time.process_time()
        work()
        figures[f"requests of {event}"] = sum(store.requests.values()) - requests
        figures[f"s of {event}"] = world.now - start_s
        figures[f"CPU ms of {event}"] = (time.process_time() - cpu_s) * 1000

    def acts() -> None:
        topic = distlog.open(stage.url)
        topic.append(stage.rows(stage.partitions))
        measure("a new group", lambda: topic.reset_group("group-0", distlog.EARLIEST))
        _copy(store.objects, size)
        measure("a list", topic.groups)
        world.pause(3700.0)
        measure("a vacuum with groups", topic.vacuum)
        topic.drop()
        world.pause(3700.0)
        measure("a vacuum of groups", topic.vacuum)
        figures["objects left"] = sum("/_groups/" in key for key in store.objects)
        distlog.create(stage.url)

    stage.play([acts], math.inf)
    return figures


def _copy(objects: dict[str, Object], size: int) -> None:
    """Copy the state of one group to `size` - 1 other groups."""
    from distlog.core.read.consumer_group import GroupState
    from simulation.object_store import Object

    key, stored = next((key, stored) for key, stored in objects.items() if "/_groups/" in key and "group-0" in key)
    state = GroupState.decode(stored.data, key)
    fields = {name: getattr(state, name) for name in state.__slots__}
    for number in range(1, size):
        name = f"group-{number}"
        data = type(state)(**fields | {"group": name}).encode()
        objects[key.replace("group-0", name)] = Object(data, stored.written_s)
