"""Metadata: the topics, their partitions, and who leads them, which is this gateway for all."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

from kio.schema.errors import ErrorCode

from distlog.core.errors import DistlogError
from distlog.gateway.broker import Api, Broker
from distlog.gateway.hosted_topic import HostedTopic
from distlog.gateway.protocol.error_codes import error_code
from distlog.gateway.protocol.response_frame import Fields
from distlog.gateway.server.request import Request

#: No leader epoch: there is no election. Clients then check no epochs.
NO_EPOCH = -1


def handle(request: Request, broker: Broker) -> Fields:
    """The topics asked for, or all."""
    host, port = broker.address(request)
    return {
        "throttle_time": 0,
        "brokers": [{"node_id": broker.config.node_id, "host": host, "port": port, "rack": None}],
        "cluster_id": broker.cluster_id,
        "controller_id": broker.config.node_id,
        "topics": list(_topics(request, broker)),
        "error_code": ErrorCode.none,
    }


def _topics(request: Request, broker: Broker) -> Iterator[Fields]:
    asked = request.body.topics
    # in version 0, none are all
    if asked is None or (request.api_version == 0 and not asked):
        yield from (_described(hosted, broker) for hosted in broker.metadata.all_topics().values())
        return
    by_id: dict[uuid.UUID, str] | None = None
    for topic in asked:
        name, topic_id = topic.name, getattr(topic, "topic_id", None)
        if name is None and topic_id is not None:
            by_id = by_id if by_id is not None else _ids(broker)
            name = by_id.get(topic_id)
        yield _asked(name, topic_id, broker)


def _asked(name: str | None, topic_id: Any, broker: Broker) -> Fields:
    if name is None:
        return {"error_code": ErrorCode.unknown_topic_id, "name": None, "topic_id": topic_id, "partitions": []}
    try:
        return _described(broker.metadata.fresh_topic(name), broker)
    except (DistlogError, OSError) as error:
        return {"error_code": error_code(error), "name": name, "topic_id": topic_id, "partitions": []}


def _described(hosted: HostedTopic, broker: Broker) -> Fields:
    node = broker.config.node_id
    return {
        "error_code": ErrorCode.none,
        "name": hosted.name,
        "topic_id": topic_uuid(hosted),
        "is_internal": hosted.name.startswith("__"),
        "partitions": [
            {
                "error_code": ErrorCode.none,
                "partition_index": number,
                "leader_id": node,
                "leader_epoch": NO_EPOCH,
                "replica_nodes": (node,),
                "isr_nodes": (node,),
                "offline_replicas": (),
            }
            for number in range(len(hosted.snapshot.partitions))
        ],
    }


def topic_uuid(hosted: HostedTopic) -> uuid.UUID:
    """The topic's id as Kafka's protocol has it."""
    return uuid.UUID(hosted.snapshot.topic_id)


def _ids(broker: Broker) -> dict[uuid.UUID, str]:
    return {topic_uuid(hosted): name for name, hosted in broker.metadata.all_topics().items()}


API = Api(3, "Metadata", 0, 12, handle)
