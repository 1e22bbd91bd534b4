"""CreatePartitions: raises the number of a topic's partitions."""

from __future__ import annotations

from functools import partial
from typing import Any

from distlog.core.commits.actions import Action, SetPartitions
from distlog.core.commits.snapshot import Snapshot
from distlog.gateway.apis.attempts import attempted
from distlog.gateway.broker import Api, Broker
from distlog.gateway.metadata_cache import check_partitions
from distlog.gateway.protocol.error_codes import InvalidPartitionsError
from distlog.gateway.protocol.response_frame import Fields
from distlog.gateway.server.request import Request


def handle(request: Request, broker: Broker) -> Fields:
    """Raise each topic's number of partitions; with `validate_only` only look whether it could be."""
    only_look = request.body.validate_only
    results = [
        attempted(partial(_raise_count, broker, topic, only_look=only_look), name=topic.name)
        for topic in request.body.topics
    ]
    return {"throttle_time": 0, "results": results}


def _raise_count(broker: Broker, asked: Any, *, only_look: bool) -> None:
    check_partitions(asked.count)
    topic = broker.metadata.clients_topic(asked.name).topic

    def plan(snapshot: Snapshot) -> list[Action]:
        if asked.count <= len(snapshot.partitions):
            raise InvalidPartitionsError(
                "a topic's partitions can only become more", partitions=len(snapshot.partitions), asked=asked.count
            )
        return [SetPartitions(asked.count)]

    snapshot = topic.current.refresh()
    plan(snapshot)
    if not only_look:
        _, after = topic.log.commit(snapshot, "partitions", plan)
        topic.advance(after)


API = Api(37, "CreatePartitions", 0, 3, handle)
