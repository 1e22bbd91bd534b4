"""Metadata: the topics, their partitions, and the gateway that clients should ask for each of them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import suppress
from functools import partial

from kio.schema.errors import ErrorCode

from distlog.core.config import TopicConfig
from distlog.core.errors import TopicExistsError, TopicNotFoundError
from distlog.gateway.apis.attempts import attempted
from distlog.gateway.broker import Api, Broker
from distlog.gateway.protocol.error_codes import UnknownTopicIdError
from distlog.gateway.protocol.response_frame import Fields
from distlog.gateway.server.request import Request
from distlog.gateway.topics.hosted_topic import HostedTopic

#: No leader epoch: there is no election. Clients then check no epochs.
NO_EPOCH = -1


def handle(request: Request, broker: Broker) -> Fields:
    """The topics asked for, or all."""
    nodes = [(node.id, *broker.address(request, node)) for node in broker.cluster.nodes]
    return {
        "throttle_time": 0,
        "brokers": [{"node_id": number, "host": host, "port": port, "rack": None} for number, host, port in nodes],
        "cluster_id": broker.cluster_id,
        "controller_id": broker.cluster.node.id,
        "topics": list(_topics(request, broker)),
        "error_code": ErrorCode.none,
    }


def _topics(request: Request, broker: Broker) -> Iterator[Fields]:
    asked = request.body.topics
    # in version 0, none are all
    if asked is None or (request.api_version == 0 and not asked):
        yield from (_described(hosted, broker) for hosted in broker.metadata.all_topics().values())
        return
    for topic in asked:
        topic_id = getattr(topic, "topic_id", None)
        work = partial(_named, broker, topic.name, topic_id)
        yield attempted(work, name=topic.name, topic_id=topic_id, partitions=())


def _named(broker: Broker, name: str | None, topic_id: uuid.UUID | None) -> Fields:
    name = name_of(broker, name, topic_id)
    try:
        return _described(broker.metadata.fresh_topic(name), broker)
    except TopicNotFoundError:
        if not broker.config.auto_create_topics:
            raise
    with suppress(TopicExistsError):
        broker.metadata.create(name, broker.config.num_partitions, TopicConfig())
    return _described(broker.metadata.fresh_topic(name), broker)


def name_of(broker: Broker, name: str | None, topic_id: uuid.UUID | None) -> str:
    """The name of the topic that a client gives by name or id. Raises UnknownTopicIdError."""
    if name is not None:
        return name
    for hosted in broker.metadata.all_topics().values() if topic_id is not None else ():
        if topic_uuid(hosted) == topic_id:
            return hosted.name
    raise UnknownTopicIdError("there is no topic with this id", topic_id=topic_id)


def _described(hosted: HostedTopic, broker: Broker) -> Fields:
    return {
        "error_code": ErrorCode.none,
        "name": hosted.name,
        "topic_id": topic_uuid(hosted),
        "is_internal": hosted.name.startswith("__"),
        "partitions": [_partition(hosted, number, broker) for number in range(len(hosted.snapshot.partitions))],
    }


def _partition(hosted: HostedTopic, number: int, broker: Broker) -> Fields:
    leader = broker.cluster.leader(hosted.snapshot.topic_id, number).id
    return {
        "error_code": ErrorCode.none,
        "partition_index": number,
        "leader_id": leader,
        "leader_epoch": NO_EPOCH,
        "replica_nodes": (leader,),
        "isr_nodes": (leader,),
        "offline_replicas": (),
    }


def topic_uuid(hosted: HostedTopic) -> uuid.UUID:
    """The topic's id as Kafka's protocol has it."""
    return uuid.UUID(hosted.snapshot.topic_id)


API = Api(3, "Metadata", 0, 12, handle)
