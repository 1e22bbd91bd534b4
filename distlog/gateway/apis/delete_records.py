"""DeleteRecords: raises the log start offsets of partitions."""

from __future__ import annotations

from functools import partial

from distlog.gateway.apis.attempts import attempted
from distlog.gateway.broker import Api, Broker
from distlog.gateway.protocol.response_frame import Fields
from distlog.gateway.server.request import Request

_NONE = -1


def handle(request: Request, broker: Broker) -> Fields:
    """Delete the records below an offset, -1 for all; each partition in a commit of its own."""
    topics = [
        {
            "name": topic.name,
            "partitions": [
                attempted(
                    partial(_delete, broker, topic.name, one.partition_index, one.offset),
                    partition_index=one.partition_index,
                    low_watermark=_NONE,
                )
                for one in topic.partitions
            ],
        }
        for topic in request.body.topics
    ]
    return {"throttle_time": 0, "topics": topics}


def _delete(broker: Broker, name: str, number: int, offset: int) -> Fields:
    report = broker.metadata.clients_topic(name).topic.delete_records({number: offset})
    return {"low_watermark": report.log_start_offsets[number]}


API = Api(21, "DeleteRecords", 0, 2, handle)
