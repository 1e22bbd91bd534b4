"""DescribeProducers: who has written to partitions, and since when their transactions are open there (KIP-664)."""

from __future__ import annotations

from functools import partial

from distlog.gateway.apis.attempts import attempted
from distlog.gateway.broker import Api, Broker
from distlog.gateway.protocol.response_frame import Fields
from distlog.gateway.server.request import Request

#: What is told of a producer, by the name that an entry of a producer snapshot has for it.
_NAMES = {
    "producer_id": "producer_id",
    "producer_epoch": "producer_epoch",
    "last_sequence": "last_sequence",
    "last_timestamp": "last_timestamp",
    "coordinator_epoch": "coordinator_epoch",
    "transaction_first_offset": "current_txn_start_offset",
}


def handle(request: Request, broker: Broker) -> Fields:
    """The producers that each partition knows."""
    topics = [
        {
            "name": topic.name,
            "partitions": [
                attempted(partial(_known, broker, topic.name, number), partition_index=number, active_producers=[])
                for number in topic.partition_indexes
            ],
        }
        for topic in request.body.topics
    ]
    return {"throttle_time": 0, "topics": topics}


def _known(broker: Broker, topic: str, number: int) -> Fields:
    entries = broker.metadata.fresh_topic(topic).partition(number).producers()
    return {"active_producers": [{told: int(each[name]) for name, told in _NAMES.items()} for each in entries]}


API = Api(61, "DescribeProducers", 0, 0, handle)
