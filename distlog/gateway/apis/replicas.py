"""The APIs of replicas and of the quorum of controllers: here the storage keeps the copies, and no node controls."""

from __future__ import annotations

from distlog.core.errors import DistlogError
from distlog.gateway.apis.cluster import once
from distlog.gateway.broker import Api, Broker
from distlog.gateway.protocol.frames import Fields, client_text, error_code
from distlog.gateway.protocol.messages import ErrorCode
from distlog.gateway.server.request import Request

# ---
# ElectLeaders: each partition has the leader that it should have.


def elect_leaders(request: Request, broker: Broker) -> Fields:
    """No requested partition needs an election; without a list, Kafka leaves such partitions out."""
    topics = request.body.topic_partitions or ()
    places = once((topic.topic, number, None) for topic in topics for number in topic.partitions)
    results = [
        {"topic": name, "partition_result": [_elected(broker, name, number) for number in numbers]}
        for name, numbers in places.items()
    ]
    return {"throttle_time": 0, "error_code": ErrorCode.none, "replica_election_results": results}


def _elected(broker: Broker, topic: str, number: int) -> Fields:
    try:
        broker.metadata.fresh_topic(topic).partition(number)
    except DistlogError as error:
        return {"partition_id": number, "error_code": error_code(error), "error_message": client_text(error)}
    message = "every gateway can lead each partition"
    return {"partition_id": number, "error_code": ErrorCode.election_not_needed, "error_message": message}


ELECT_LEADERS = Api(43, "ElectLeaders", 0, 2, elect_leaders)


# ---
# ListPartitionReassignments: nothing moves from one gateway to another.


def list_partition_reassignments(request: Request, broker: Broker) -> Fields:
    """None."""
    return {"throttle_time": 0, "error_code": ErrorCode.none, "error_message": None, "topics": ()}


LIST_PARTITION_REASSIGNMENTS = Api(46, "ListPartitionReassignments", 0, 0, list_partition_reassignments)


# ---
# DescribeQuorum: there is no log of metadata that controllers share.


def describe_quorum(request: Request, broker: Broker) -> Fields:
    """An error for the request as a whole: after one for a partition the Java client asks again for a minute."""
    message = "gateways have no quorum: the storage decides"
    return {"error_code": ErrorCode.invalid_request, "error_message": message, "topics": (), "nodes": ()}


DESCRIBE_QUORUM = Api(55, "DescribeQuorum", 0, 2, describe_quorum)

#: The APIs of this module.
APIS = (ELECT_LEADERS, LIST_PARTITION_REASSIGNMENTS, DESCRIBE_QUORUM)
