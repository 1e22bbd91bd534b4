"""The APIs of topics: creation, deletion, partitions, and replicas, which the storage keeps."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from functools import partial
from operator import attrgetter
from typing import Any

from distlog.core.commits.commit_log import check_partition_count
from distlog.core.config import TopicConfig
from distlog.core.errors import DistlogError, InvalidConfigError
from distlog.core.topic import check_grows
from distlog.gateway.apis.cluster import TopicIds, check_create
from distlog.gateway.apis.configs import described, without_ignored
from distlog.gateway.broker import Api, Broker, Handlers
from distlog.gateway.protocol.frames import (
    Fields,
    InvalidAssignmentError,
    InvalidReplicationError,
    UnsupportedRequestError,
    attempted,
    attempted_once,
    by_topic,
    client_text,
    error_code,
)
from distlog.gateway.protocol.messages import ErrorCode
from distlog.gateway.security.acls import Operation, ResourceType
from distlog.gateway.server.request import Request

_DEFAULT_COUNT = -1
#: The fields of a setting in CreateTopics; DescribeConfigs has more.
_OF_SETTING = ("name", "value", "read_only", "config_source", "is_sensitive")


def create_topics(request: Request, broker: Broker) -> Fields:
    create = partial(_create, request, broker, validate_only=request.get("validate_only", False))
    return {"topics": attempted_once(create, request.body.topics, _NAME, _name_field)}


_NAME = attrgetter("name")


def _name_field(topic: Any) -> Fields:
    return {"name": topic.name}


def _create(request: Request, broker: Broker, topic: Any, *, validate_only: bool) -> Fields:
    check_create(request, topic.name)
    if empty := [config.name for config in topic.configs if config.value is None]:
        raise InvalidConfigError(f"Null value not supported for topic configs: {','.join(empty)}")
    config = TopicConfig.parse(without_ignored({config.name: config.value for config in topic.configs}))
    if (count := _count(topic)) == _DEFAULT_COUNT:
        count = broker.config.num_partitions
    fields: dict[str, Any] = {
        "num_partitions": count,
        "replication_factor": 1,
        "configs": [{name: fields[name] for name in _OF_SETTING} for fields in described(config)],
    }
    if not request.rights.might(Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, topic.name):
        # the settings are secret (KIP-525)
        code = ErrorCode.topic_authorization_failed
        fields = {"num_partitions": -1, "replication_factor": -1, "configs": None, "topic_config_error_code": code}
    if validate_only:
        broker.metadata.check_new(topic.name, count)
        return fields
    return {**fields, "topic_id": broker.metadata.create(topic.name, count, config).id}


def _count(topic: Any) -> int:
    if not topic.assignments:
        if topic.replication_factor == 0 or topic.replication_factor < _DEFAULT_COUNT:
            raise InvalidReplicationError("Replication factor must be larger than 0, or -1 to use the default value.")
        return int(topic.num_partitions)
    for field, value in (("numPartitions", topic.num_partitions), ("replication factor", topic.replication_factor)):
        if value != _DEFAULT_COUNT:
            raise UnsupportedRequestError(
                f"A manual partition assignment was specified, but {field} was not set to -1."
            )
    if {assignment.partition_index for assignment in topic.assignments} != {*range(len(topic.assignments))}:
        raise InvalidAssignmentError("partitions should be a consecutive 0-based integer sequence")
    _check_replicas(topic.assignments)
    return len(topic.assignments)


def _check_replicas(assignments: Sequence[Any]) -> None:
    for brokers in (assignment.broker_ids for assignment in assignments):
        if not brokers:
            raise InvalidAssignmentError("The manual partition assignment includes an empty replica list.")
        if len({*brokers}) < len(brokers):
            raise InvalidAssignmentError("The manual partition assignment includes a broker more than once.")


_BY_STATE = 6


def delete_topics(request: Request, broker: Broker) -> Fields:
    """Drop each topic by name or, since version 6, by id."""
    if request.api_version < _BY_STATE:
        names = dict.fromkeys(request.body.topic_names)
        responses = [attempted(partial(_drop, request, broker, name), name=name) for name in names]
    else:
        ids = TopicIds(broker)
        responses = [
            attempted(partial(_drop_state, request, broker, ids, topic), name=topic.name, topic_id=topic.topic_id)
            for topic in dict.fromkeys(request.body.topics)
        ]
    return {"responses": responses}


def _drop_state(request: Request, broker: Broker, ids: TopicIds, topic: Any) -> Fields:
    name = ids.name_of(topic.name, topic.topic_id)
    if topic.name is None:
        # the name of a topic is not for a client that knows its id only
        request.rights.check(Operation.DESCRIBE, ResourceType.TOPIC, name)
    return attempted(partial(_drop, request, broker, name, topic.topic_id), name=name)


def _drop(request: Request, broker: Broker, name: str, topic_id: uuid.UUID | None = None) -> Fields:
    request.rights.check(Operation.DELETE, ResourceType.TOPIC, name)
    dropped = broker.metadata.drop(name, topic_id)
    broker.groups.offsets.forget_topic(name)
    return {"name": name, "topic_id": dropped.id}


def create_partitions(request: Request, broker: Broker) -> Fields:
    raise_count = partial(_raise_count, request, broker, validate_only=request.body.validate_only)
    return {"results": attempted_once(raise_count, request.body.topics, _NAME, _name_field)}


def _raise_count(request: Request, broker: Broker, topic: Any, *, validate_only: bool) -> None:
    request.rights.check(Operation.ALTER, ResourceType.TOPIC, topic.name)
    check_partition_count(topic.count)
    handle = broker.metadata.clients_topic(topic.name).topic
    snapshot = handle.current.refresh()
    check_grows(snapshot, topic.count)
    added = topic.count - len(snapshot.partitions)
    # null leaves the brokers to the gateways; an empty list has none for the new partitions
    if topic.assignments is not None:
        if len(topic.assignments) != added:
            raise InvalidAssignmentError(
                f"Attempted to add {added} additional partition(s), but only {len(topic.assignments)} assignment(s)"
                " were specified."
            )
        _check_replicas(topic.assignments)
    if not validate_only:
        handle.create_partitions(topic.count)


def elect_leaders(request: Request, broker: Broker) -> Fields:
    """No requested partition needs an election; without a list, Kafka omits these partitions."""
    if code := request.rights.denied(Operation.ALTER, ResourceType.CLUSTER):
        return {"error_code": code, "replica_election_results": ()}
    topics = request.body.topic_partitions or ()
    partitions = dict.fromkeys((topic.topic, number) for topic in topics for number in topic.partitions)
    results = by_topic(
        ((name, _elected(broker, name, number)) for name, number in partitions), "partition_result", "topic"
    )
    return {"error_code": ErrorCode.none, "replica_election_results": results}


def _elected(broker: Broker, topic: str, number: int) -> Fields:
    try:
        broker.metadata.fresh_topic(topic).partition(number)
    except DistlogError as error:
        return {"partition_id": number, "error_code": error_code(error), "error_message": client_text(error)}
    message = "every gateway can lead each partition"
    return {"partition_id": number, "error_code": ErrorCode.election_not_needed, "error_message": message}


def list_partition_reassignments(request: Request, broker: Broker) -> Fields:
    return {"topics": (), **attempted(partial(request.rights.check_cluster, Operation.DESCRIBE))}


def describe_quorum(request: Request, broker: Broker) -> Fields:
    """Refuse the request as a whole: after an error for a partition the Java client retries for a minute."""
    fields: Fields = {"topics": (), "nodes": ()}
    if code := request.rights.denied(Operation.DESCRIBE, ResourceType.CLUSTER):
        return {**fields, "error_code": code, "error_message": None}
    message = "gateways have no quorum: the storage decides"
    return {**fields, "error_code": ErrorCode.invalid_request, "error_message": message}


_api = partial(Api, handlers=Handlers.TOPICS)
_CREATES = "CREATE of the topic or of the cluster; DESCRIBE_CONFIGS for its settings in the response"
APIS = (
    _api(19, "CreateTopics", 2, 7, create_topics, _CREATES),
    _api(20, "DeleteTopics", 1, 6, delete_topics, "DELETE of the topic"),
    _api(37, "CreatePartitions", 0, 3, create_partitions, "ALTER of the topic"),
    Api(43, "ElectLeaders", 0, 2, elect_leaders, "ALTER of the cluster"),
    Api(46, "ListPartitionReassignments", 0, 0, list_partition_reassignments, "DESCRIBE of the cluster"),
    Api(55, "DescribeQuorum", 0, 2, describe_quorum, "DESCRIBE of the cluster"),
)
