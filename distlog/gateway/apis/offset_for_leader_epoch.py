"""OffsetForLeaderEpoch (KIP-320): whether a log was cut below what a consumer has read.

There is one leader for ever, and what was acknowledged is never cut: so each epoch that a consumer has met, as in
batches of an adopted log, ends where the log ends.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from distlog.gateway.apis.attempts import attempted
from distlog.gateway.broker import Api, Broker
from distlog.gateway.protocol.response_frame import Fields
from distlog.gateway.server.request import Request


def handle(request: Request, broker: Broker) -> Fields:
    """The end of the epoch of each partition."""
    topics = [
        {
            "topic": topic.topic,
            "partitions": [
                attempted(partial(_end, broker, topic.topic, one), partition=one.partition)
                for one in topic.partitions
            ],
        }
        for topic in request.body.topics
    ]
    return {"throttle_time": 0, "topics": topics}


def _end(broker: Broker, topic: str, asked: Any) -> Fields:
    partition = broker.metadata.fresh_topic(topic).partition(asked.partition)
    return {"leader_epoch": asked.leader_epoch, "end_offset": partition.visible_end(committed=False).offset}


API = Api(23, "OffsetForLeaderEpoch", 2, 4, handle)
