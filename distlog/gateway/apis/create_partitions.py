"""CreatePartitions: raises the number of a topic's partitions."""

from __future__ import annotations

from functools import partial
from typing import Any

from distlog.core.commits.creation import check_partition_count
from distlog.core.topics.alter_topic import check_grows
from distlog.gateway.apis.attempts import attempted
from distlog.gateway.broker import Api, Broker
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
    check_partition_count(asked.count)
    topic = broker.metadata.clients_topic(asked.name).topic
    check_grows(topic.current.refresh(), asked.count)
    if not only_look:
        topic.create_partitions(asked.count)


API = Api(37, "CreatePartitions", 0, 3, handle)
