"""The APIs of administrators: groups, transactions, producers, and replicas, whose copies the storage keeps."""

from __future__ import annotations

import threading
from functools import partial

from distlog.core.errors import DistlogError
from distlog.core.kafka.transaction_state import TransactionState, TransactionStatus
from distlog.gateway.apis.cluster import attempted, by_topic
from distlog.gateway.apis.transactions import code_of
from distlog.gateway.broker import Api, Broker
from distlog.gateway.groups.classic_group import GroupPhase
from distlog.gateway.groups.coordinator import GroupDescription
from distlog.gateway.groups.subscribed_topics import matches
from distlog.gateway.protocol.frames import Fields, client_text, error_code
from distlog.gateway.protocol.messages import ErrorCode
from distlog.gateway.security.acls import CLUSTER_NAME, Operation, ResourceType
from distlog.gateway.security.rights import NO_OPERATIONS
from distlog.gateway.server.request import Request


def list_groups(request: Request, broker: Broker) -> Fields:
    """The groups by name; states and types are compared without regard to case, as Kafka does."""
    services, rights = broker.groups, request.rights
    is_all = rights.might(Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME)
    code = ErrorCode.coordinator_load_in_progress if services.coordination.is_loading else ErrorCode.none
    states = {state.lower() for state in request.get("states_filter", ())}
    types = {type.lower() for type in request.get("types_filter", ())}
    groups = [
        {
            "group_id": group.group,
            "protocol_type": group.protocol_type,
            "group_state": group.phase.value,
            "group_type": group.type,
        }
        for group in services.admin.list()
        if (not states or group.phase.value.lower() in states) and (not types or group.type in types)
        if is_all or rights.might(Operation.DESCRIBE, ResourceType.GROUP, group.group)
    ]
    return {"throttle_time": 0, "error_code": code, "groups": groups}


def describe_groups(request: Request, broker: Broker) -> Fields:
    """The requested groups, each once; a missing one is dead, as in Kafka."""
    groups = [_described_group(request, broker, group) for group in dict.fromkeys(request.body.groups)]
    return {"throttle_time": 0, "groups": groups}


def _described_group(request: Request, broker: Broker, name: str) -> Fields:
    code, operations = request.rights.denied(Operation.DESCRIBE, ResourceType.GROUP, name), NO_OPERATIONS
    if request.get("include_authorized_operations", False):
        operations = request.rights.operations(ResourceType.GROUP, name)
    if code:
        fields = _group_fields(GroupDescription(name, GroupPhase.DEAD, "", "", (), code))
        return {**fields, "group_state": "", "authorized_operations": operations}
    return {**_group_fields(broker.groups.admin.describe(name)), "authorized_operations": operations}


def _group_fields(group: GroupDescription) -> Fields:
    return {
        "error_code": group.error,
        "group_id": group.group,
        "group_state": group.phase.value,
        "protocol_type": group.protocol_type,
        "protocol_data": group.protocol,
        "members": [
            {
                "member_id": member.id,
                "group_instance_id": member.instance_id,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "member_metadata": member.subscription,
                "member_assignment": member.assignment,
            }
            for member in group.members
        ],
    }


def delete_groups(request: Request, broker: Broker) -> None:
    """Respond when the deletion of each is durable, or was refused."""
    names, results, lock = list(dict.fromkeys(request.body.groups_names)), list[Fields](), threading.Lock()

    def add(name: str, code: ErrorCode) -> None:
        with lock:
            results.append({"group_id": name, "error_code": code})
            is_last = len(results) == len(names)
        if is_last:
            request.respond({"throttle_time": 0, "results": results})

    if not names:
        request.respond({"throttle_time": 0, "results": ()})
    for name in names:
        if code := request.rights.denied(Operation.DELETE, ResourceType.GROUP, name):
            add(name, code)
        else:
            broker.groups.admin.delete(name, partial(add, name))


_ANY = -1


def list_transactions(request: Request, broker: Broker) -> Fields:
    """All transactions, or a selection by states, producer ids, a duration in ms for which they are open, and ids."""
    code = ErrorCode.coordinator_load_in_progress if broker.transactions.is_loading else ErrorCode.none
    states, pattern = broker.transactions.coordinator.states(), request.get("transactional_id_pattern")
    if pattern:
        try:
            ids = matches(pattern, (state.transactional_id for state in states))
        except ValueError:
            code, ids = ErrorCode.invalid_regular_expression, frozenset()
        states = [state for state in states if state.transactional_id in ids]
    body, names = request.body, {status.kafka_name for status in TransactionStatus}
    state_names, producers = frozenset(body.state_filters), frozenset(body.producer_id_filters)
    started_before_ms = broker.clock() - request.get("duration_filter", _ANY)
    is_by_duration = request.get("duration_filter", _ANY) != _ANY
    return {
        "throttle_time": 0,
        "error_code": code,
        "unknown_state_filters": tuple(name for name in dict.fromkeys(body.state_filters) if name not in names),
        "transaction_states": [
            {
                "transactional_id": state.transactional_id,
                "producer_id": state.producer.id,
                "transaction_state": state.status.kafka_name,
            }
            for state in states
            if request.rights.might(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, state.transactional_id)
            and (not state_names or state.status.kafka_name in state_names)
            and (not producers or state.producer.id in producers)
            and (not is_by_duration or 0 <= state.started_ms < started_before_ms)
        ],
    }


def describe_transactions(request: Request, broker: Broker) -> Fields:
    """The requested transactions; an unknown id gets an error."""
    ids, rights = list(dict.fromkeys(request.body.transactional_ids)), request.rights
    denied = {id_: rights.denied(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, id_) for id_ in ids}
    states_by_id, allowed = dict[str, TransactionState](), [id_ for id_ in ids if not denied[id_]]

    def read_states() -> None:
        states_by_id.update(
            {state.transactional_id: state for state in broker.transactions.coordinator.states(allowed)}
        )

    code = code_of(read_states, fenced=ErrorCode.producer_fenced)
    missing = ErrorCode.transactional_id_not_found if code is ErrorCode.none else code
    states = [
        _transaction_fields(request, states_by_id[id_])
        if id_ in states_by_id
        else {"transactional_id": id_, "error_code": denied[id_]}
        if denied[id_]
        else {"transaction_start_time": -1, "transactional_id": id_, "error_code": missing}
        for id_ in ids
    ]
    return {"throttle_time": 0, "transaction_states": states}


def _transaction_fields(request: Request, state: TransactionState) -> Fields:
    topics: dict[str, list[int]] = {}
    for topic, number in sorted(
        partition for partition in state.partitions if request.rights.describes(partition[0])
    ):
        topics.setdefault(topic, []).append(number)
    return {
        "error_code": ErrorCode.none,
        "transactional_id": state.transactional_id,
        "transaction_state": state.status.kafka_name,
        "transaction_timeout": state.timeout_ms,
        "transaction_start_time": state.started_ms,
        "producer_id": state.producer.id,
        "producer_epoch": state.producer.epoch,
        "topics": [{"topic": name, "partitions": tuple(numbers)} for name, numbers in topics.items()],
    }


#: The fields of a producer in the response, by their names in an entry of a producer snapshot.
_NAMES = {
    "producer_id": "producer_id",
    "producer_epoch": "producer_epoch",
    "last_sequence": "last_sequence",
    "last_timestamp": "last_timestamp",
    "coordinator_epoch": "coordinator_epoch",
    "transaction_first_offset": "current_txn_start_offset",
}


def describe_producers(request: Request, broker: Broker) -> Fields:
    """The producers that each partition knows."""
    requested = dict[str, dict[int, None]]()
    for topic in request.body.topics:
        # each once: a partition may have many producers
        requested.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))

    def described(name: str, number: int) -> Fields:
        work = partial(_producers, request, broker, name, number)
        return attempted(work, partition_index=number, active_producers=[])

    topics = [
        {"name": name, "partitions": [described(name, number) for number in numbers]}
        for name, numbers in requested.items()
    ]
    return {"throttle_time": 0, "topics": topics}


def _producers(request: Request, broker: Broker, topic: str, number: int) -> Fields:
    request.rights.check(Operation.READ, ResourceType.TOPIC, topic)
    entries = broker.metadata.fresh_topic(topic).partition(number).producers()
    return {"active_producers": [{field: int(entry[name]) for name, field in _NAMES.items()} for entry in entries]}


def elect_leaders(request: Request, broker: Broker) -> Fields:
    """No requested partition needs an election; without a list, Kafka omits these partitions."""
    if code := request.rights.denied(Operation.ALTER, ResourceType.CLUSTER):
        return {"throttle_time": 0, "error_code": code, "replica_election_results": ()}
    topics = request.body.topic_partitions or ()
    partitions = dict.fromkeys((topic.topic, number) for topic in topics for number in topic.partitions)
    results = by_topic(
        ((name, _elected(broker, name, number)) for name, number in partitions), "partition_result", "topic"
    )
    return {"throttle_time": 0, "error_code": ErrorCode.none, "replica_election_results": results}


def _elected(broker: Broker, topic: str, number: int) -> Fields:
    try:
        broker.metadata.fresh_topic(topic).partition(number)
    except DistlogError as error:
        return {"partition_id": number, "error_code": error_code(error), "error_message": client_text(error)}
    message = "every gateway can lead each partition"
    return {"partition_id": number, "error_code": ErrorCode.election_not_needed, "error_message": message}


def list_partition_reassignments(request: Request, broker: Broker) -> Fields:
    """None."""
    return {"throttle_time": 0, "topics": (), **attempted(partial(request.rights.check_cluster, Operation.DESCRIBE))}


def describe_quorum(request: Request, broker: Broker) -> Fields:
    """An error for the request as a whole: after one for a partition the Java client asks again for a minute."""
    fields: Fields = {"topics": (), "nodes": ()}
    if code := request.rights.denied(Operation.DESCRIBE, ResourceType.CLUSTER):
        return {**fields, "error_code": code, "error_message": None}
    message = "gateways have no quorum: the storage decides"
    return {**fields, "error_code": ErrorCode.invalid_request, "error_message": message}


APIS = (
    Api(16, "ListGroups", 0, 5, list_groups, "DESCRIBE of the cluster, else only groups with DESCRIBE are listed"),
    Api(15, "DescribeGroups", 0, 5, describe_groups, "DESCRIBE of the group"),
    Api(42, "DeleteGroups", 0, 2, delete_groups, "DELETE of the group"),
    Api(66, "ListTransactions", 0, 2, list_transactions, "DESCRIBE of each listed transactional id"),
    Api(
        65,
        "DescribeTransactions",
        0,
        0,
        describe_transactions,
        "DESCRIBE of the transactional id; only topics with DESCRIBE are listed",
    ),
    Api(61, "DescribeProducers", 0, 0, describe_producers, "READ of the topic"),
    Api(43, "ElectLeaders", 0, 2, elect_leaders, "ALTER of the cluster"),
    Api(46, "ListPartitionReassignments", 0, 0, list_partition_reassignments, "DESCRIBE of the cluster"),
    Api(55, "DescribeQuorum", 0, 2, describe_quorum, "DESCRIBE of the cluster"),
)
