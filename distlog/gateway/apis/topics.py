"""The APIs of the cluster and its topics: versions, metadata, creation, deletion, partitions and replicas."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from operator import attrgetter, itemgetter
from typing import Any

from distlog.core.commits.commit_log import check_partition_count
from distlog.core.config import TopicConfig
from distlog.core.errors import InvalidConfigError, InvalidTopicError, TopicExistsError, TopicNotFoundError
from distlog.core.topic import check_grows
from distlog.gateway.apis.configs import topic_setting_fields, without_ignored
from distlog.gateway.kafka_apis import Api, Broker, Handlers
from distlog.gateway.protocol.error_codes import (
    RefusedError,
    UnknownTopicIdError,
    error_code,
    fields_or_error,
    log_failure,
)
from distlog.gateway.protocol.messages import API_VERSIONS_KEY, ErrorCode, Fields
from distlog.gateway.security.acls import CLUSTER_NAME, Operation, ResourceType
from distlog.gateway.server.request import Request, by_topic, fields_or_errors_of_items, grouped
from distlog.gateway.topics.metadata_cache import INTERNAL_TOPICS, HostedTopic
from distlog.gateway.topics.topic_index import TopicSummary

#: Cluster features with their versions (KIP-584). Clients read from them which group protocols exist.
_FEATURES = {"group.version": 1}
#: The last version of ApiVersions whose clients refuse a supported feature with a `min_version` of 0.
_LAST_WITHOUT_SUPPORTED_FEATURES = 3
#: The first version of Metadata whose response may have null for a name.
_FIRST_WITH_NULL_NAMES = 12
#: The most partitions in a response to DescribeTopicPartitions: Kafka's `max.request.partition.size.limit`.
_MAX_PARTITIONS = 2000
#: The first version of DeleteTopics whose topics have a name or an id.
_FIRST_WITH_IDS = 6
_NAME = attrgetter("name")
#: Returns the names of all topics by their ids. They are listed once for a request.
_ListNamesById = Callable[[], Mapping[uuid.UUID, str]]


def api_versions(request: Request, broker: Broker) -> Fields:
    keys = [
        {"api_key": api.key, "min_version": api.oldest, "max_version": api.newest} for api in broker.apis.values()
    ]
    supported = [{"name": name, "min_version": 0, "max_version": level} for name, level in _FEATURES.items()]
    finalized = [
        {"name": name, "max_version_level": level, "min_version_level": level} for name, level in _FEATURES.items()
    ]
    return {
        # the body is not parsed if the gateway does not support the request's version
        "error_code": ErrorCode.unsupported_version if request.body is None else ErrorCode.none,
        "api_keys": keys,
        "supported_features": supported if request.api_version > _LAST_WITHOUT_SUPPORTED_FEATURES else [],
        "finalized_features_epoch": 0,
        "finalized_features": finalized,
    }


def metadata(request: Request, broker: Broker) -> Fields:
    brokers = [{"node_id": number, "host": host, "port": port} for number, host, port in _nodes(request, broker)]
    return {"brokers": brokers, "topics": list(_topics(request, broker)), **_cluster_fields(request, broker)}


def _nodes(request: Request, broker: Broker) -> list[tuple[int, str, int]]:
    return [(node.id, *broker.address(request, node)) for node in broker.cluster.nodes]


def _cluster_fields(request: Request, broker: Broker) -> Fields:
    fields: dict[str, Any] = {"cluster_id": broker.cluster_id, "controller_id": broker.cluster.node.id}
    if request.get("include_cluster_authorized_operations", False):
        fields["cluster_authorized_operations"] = request.rights.operations(ResourceType.CLUSTER)
    return fields


def _topics(request: Request, broker: Broker) -> Iterator[Fields]:
    topics = request.body.topics
    if topics is None or (request.api_version == 0 and not topics):  # in version 0, an empty list means all
        for name, result in broker.metadata.summaries_or_errors().items():
            if request.rights.may_describe(name):
                if isinstance(result, TopicSummary):
                    yield _topic_fields(result, request, broker)
                else:
                    yield {"error_code": error_code(result), "name": name, "is_internal": name in INTERNAL_TOPICS}
        return
    may_create = broker.config.auto_create_topics and request.get("allow_auto_topic_creation", True)
    names_by_id = cache(broker.metadata.names_by_id)
    # each topic once, since a small request that repeats a large topic could get a response of gigabytes
    for topic in {_topic_key(topic): topic for topic in topics}.values():
        topic_id, given_name = getattr(topic, "topic_id", None), requested_name(topic)
        find_or_create = partial(_requested_topic, request, broker, names_by_id, given_name, topic_id, may_create)
        response_name = given_name if request.api_version >= _FIRST_WITH_NULL_NAMES else (given_name or "")
        # an error is returned with the given name and id
        yield fields_or_error(find_or_create, name=response_name, topic_id=topic_id)


def _topic_key(topic: Any) -> object:
    name = requested_name(topic)
    return topic.topic_id if name is None else name


def requested_name(topic: Any) -> str | None:
    """Return a topic's name in Metadata, or None if only its id is given. Java sends an empty name with an id."""
    has_id = getattr(topic, "topic_id", None) is not None
    return None if has_id and not topic.name else topic.name


def _requested_topic(
    request: Request,
    broker: Broker,
    names_by_id: _ListNamesById,
    given_name: str | None,
    topic_id: uuid.UUID | None,
    may_create: bool,
) -> Fields:
    name = _find_name(given_name, topic_id, names_by_id)
    request.rights.check(Operation.DESCRIBE, ResourceType.TOPIC, name)
    try:
        return _topic_fields(broker.metadata.fresh_topic(name).summary, request, broker)
    except TopicNotFoundError:
        if not may_create or given_name is None:
            raise
    check_may_create(request, name)
    with suppress(TopicExistsError):
        broker.metadata.create(name, broker.config.num_partitions, TopicConfig())
    return _topic_fields(broker.metadata.fresh_topic(name).summary, request, broker)


def check_may_create(request: Request, name: str) -> None:
    """Raise AccessDeniedError unless the client may create this topic, or all topics of the cluster."""
    if not request.rights.allows(Operation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME):
        request.rights.check(Operation.CREATE, ResourceType.TOPIC, name)


def _find_name(name: str | None, topic_id: uuid.UUID | None, names_by_id: _ListNamesById) -> str:
    if name is not None:
        return name
    if topic_id is None or topic_id not in names_by_id():
        raise UnknownTopicIdError("there is no topic with this id", topic_id=topic_id)
    return names_by_id()[topic_id]


def _topic_fields(summary: TopicSummary, request: Request, broker: Broker) -> Fields:
    fields = {
        "name": summary.name,
        "topic_id": uuid.UUID(summary.topic_id),
        "is_internal": summary.name in INTERNAL_TOPICS,
        "partitions": _partition_fields(summary, range(summary.partitions), broker),
    }
    if request.get("include_topic_authorized_operations", False):
        fields["topic_authorized_operations"] = request.rights.operations(ResourceType.TOPIC, summary.name)
    return fields


def _partition_fields(summary: TopicSummary, numbers: range, broker: Broker) -> list[Fields]:
    # leader epochs are left out: gateways elect no leaders, and clients check epochs only if they get one
    leaders = broker.cluster.leaders(summary.topic_id, summary.partitions)
    return [
        {
            "partition_index": number,
            "leader_id": leaders[number],
            "replica_nodes": (leaders[number],),
            "isr_nodes": (leaders[number],),
        }
        for number in numbers
    ]


def describe_topic_partitions(request: Request, broker: Broker) -> Fields:
    body, limit = request.body, request.body.response_partition_limit
    cursor_topic, cursor_partition = "", 0
    if body.cursor is not None:
        cursor_topic, cursor_partition = body.cursor.topic_name, max(0, body.cursor.partition_index)
    remaining = min(limit, _MAX_PARTITIONS) if limit > 0 else _MAX_PARTITIONS
    topics, next_cursor = list[Fields](), None
    requested_names = {topic.name for topic in body.topics}
    names = sorted(requested_names or filter(request.rights.may_describe, broker.metadata.summaries_or_errors()))
    for name in (name for name in names if name >= cursor_topic):
        if not remaining:
            next_cursor = {"topic_name": name, "partition_index": 0}
            break
        start = cursor_partition if name == cursor_topic else 0
        read = partial(_fields_from, request, broker, name, start, remaining)
        fields = fields_or_error(read, name=name, partitions=())
        # the cursor is a field of the response, not of the topic
        next_cursor = fields.get("next_cursor")
        topics.append({field: value for field, value in fields.items() if field != "next_cursor"})
        remaining -= len(fields["partitions"])
        if next_cursor is not None:
            break
    return {"topics": topics, "next_cursor": next_cursor}


def _fields_from(request: Request, broker: Broker, name: str, start: int, most: int) -> Fields:
    """Return the topic with up to `most` partitions from `start` on, and the cursor of the next partition or None."""
    request.rights.check(Operation.DESCRIBE, ResourceType.TOPIC, name)
    summary = broker.metadata.fresh_topic(name).summary
    end = min(summary.partitions, start + most)
    # return empty lists as a broker does, since the Java client fails for null, which the protocol allows
    no_elr = {"eligible_leader_replicas": (), "last_known_elr": ()}
    partitions = [{**partition, **no_elr} for partition in _partition_fields(summary, range(start, end), broker)]
    next_cursor = {"topic_name": name, "partition_index": end} if end < summary.partitions else None
    fields = _topic_fields(summary._replace(partitions=0), request, broker)  # its partitions are added below
    return {**fields, "partitions": partitions, "next_cursor": next_cursor}


def describe_cluster(request: Request, broker: Broker) -> Fields:
    brokers = [{"broker_id": number, "host": host, "port": port} for number, host, port in _nodes(request, broker)]
    return {"brokers": brokers, **_cluster_fields(request, broker)}


def describe_log_dirs(request: Request, broker: Broker) -> Fields:
    if code := request.rights.check_code(Operation.DESCRIBE, ResourceType.CLUSTER):
        return {"error_code": code}
    topics = list(_topics_of_log_dir(request, broker))
    return {"results": [{"log_dir": broker.metadata.root.url, "topics": topics}]}


def _topics_of_log_dir(request: Request, broker: Broker) -> Iterator[Fields]:
    if request.body.topics is None:
        for hosted in broker.metadata.all_topics().values():
            yield _partition_sizes(hosted, range(len(hosted.snapshot.partitions)))
        return
    partitions = dict.fromkeys((topic.topic, number) for topic in request.body.topics for number in topic.partitions)
    for name, requested in grouped(partitions, itemgetter(0)).items():
        # missing topics are left out, as in Kafka, and so are unreadable topics
        try:
            hosted = broker.metadata.fresh_topic(name)
        except (TopicNotFoundError, InvalidTopicError):
            continue
        except Exception as error:
            log_failure(error, f"topic {name}")
            continue
        yield _partition_sizes(hosted, [number for _, number in requested])


def _partition_sizes(hosted: HostedTopic, numbers: Iterable[int]) -> Fields:
    partitions = list[Fields]()
    for number in numbers:
        if not 0 <= number < len(hosted.snapshot.partitions):
            continue
        try:
            size = hosted.partition(number).visible_end(committed=False).log_bytes
        except Exception as error:
            log_failure(error, f"partition {number} of topic {hosted.name}")
            continue
        partitions.append({"partition_index": number, "partition_size": size})
    return {"name": hosted.name, "partitions": partitions}


#: The number of partitions or replicas by which a client requests the default.
_DEFAULT_COUNT = -1
#: The fields of a setting in CreateTopics, which are fewer than in DescribeConfigs.
_SETTING_FIELDS = ("name", "value", "read_only", "config_source", "is_sensitive")


def create_topics(request: Request, broker: Broker) -> Fields:
    create = partial(_create, request, broker, validate_only=request.get("validate_only", False))
    return {"topics": fields_or_errors_of_items(create, request.body.topics, _NAME, _name_field)}


def _name_field(topic: Any) -> Fields:
    return {"name": topic.name}


def _create(request: Request, broker: Broker, topic: Any, *, validate_only: bool) -> Fields:
    check_may_create(request, topic.name)
    if null_names := [config.name for config in topic.configs if config.value is None]:
        raise InvalidConfigError(f"Null value not supported for topic configs: {','.join(null_names)}")
    config = TopicConfig.parse(without_ignored({config.name: config.value for config in topic.configs}))
    if (count := _checked_partition_count(topic)) == _DEFAULT_COUNT:
        count = broker.config.num_partitions
    fields: dict[str, Any] = {
        "num_partitions": count,
        "replication_factor": 1,
        "configs": [{name: setting[name] for name in _SETTING_FIELDS} for setting in topic_setting_fields(config)],
    }
    if not request.rights.allows(Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, topic.name):
        code = ErrorCode.topic_authorization_failed  # for the settings, which the client may not read (KIP-525)
        fields = {"num_partitions": -1, "replication_factor": -1, "configs": None, "topic_config_error_code": code}
    if validate_only:
        broker.metadata.check_new(topic.name, count)
        return fields
    return {**fields, "topic_id": broker.metadata.create(topic.name, count, config).id}


def _checked_partition_count(topic: Any) -> int:
    if not topic.assignments:
        if topic.replication_factor == 0 or topic.replication_factor < _DEFAULT_COUNT:
            text = "Replication factor must be larger than 0, or -1 to use the default value."
            raise RefusedError(text, code=ErrorCode.invalid_replication_factor)
        return int(topic.num_partitions)
    for field, value in (("numPartitions", topic.num_partitions), ("replication factor", topic.replication_factor)):
        if value != _DEFAULT_COUNT:
            raise RefusedError(f"A manual partition assignment was specified, but {field} was not set to -1.")
    if {assignment.partition_index for assignment in topic.assignments} != {*range(len(topic.assignments))}:
        raise _invalid_assignment("partitions should be a consecutive 0-based integer sequence")
    _check_replicas(topic.assignments)
    return len(topic.assignments)


def _invalid_assignment(text: str) -> RefusedError:
    return RefusedError(text, code=ErrorCode.invalid_replica_assignment)


def _check_replicas(assignments: Sequence[Any]) -> None:
    for assignment in assignments:
        if not assignment.broker_ids:
            raise _invalid_assignment("The manual partition assignment includes an empty replica list.")
        if len({*assignment.broker_ids}) < len(assignment.broker_ids):
            raise _invalid_assignment("The manual partition assignment includes a broker more than once.")


def delete_topics(request: Request, broker: Broker) -> Fields:
    if request.api_version < _FIRST_WITH_IDS:
        names = dict.fromkeys(request.body.topic_names)
        responses = [fields_or_error(_drop, request, broker, name, name=name) for name in names]
    else:
        names_by_id = cache(broker.metadata.names_by_id)
        responses = [
            fields_or_error(
                partial(_drop_by_name_or_id, request, broker, names_by_id, topic),
                name=topic.name,
                topic_id=topic.topic_id,
            )
            for topic in dict.fromkeys(request.body.topics)
        ]
    return {"responses": responses}


def _drop_by_name_or_id(request: Request, broker: Broker, names_by_id: _ListNamesById, topic: Any) -> Fields:
    name = _find_name(topic.name, topic.topic_id, names_by_id)
    if topic.name is None:
        # the name must not be revealed to a client that has only the id
        request.rights.check(Operation.DESCRIBE, ResourceType.TOPIC, name)
    # return an error with `name`, since the caller knows only the topic's id if the request has no name
    return fields_or_error(_drop, request, broker, name, topic.topic_id, name=name)


def _drop(request: Request, broker: Broker, name: str, topic_id: uuid.UUID | None = None) -> Fields:
    request.rights.check(Operation.DELETE, ResourceType.TOPIC, name)
    dropped = broker.metadata.drop(name, topic_id)
    broker.groups.offsets.delete_topic(name)
    return {"name": name, "topic_id": dropped.id}


def create_partitions(request: Request, broker: Broker) -> Fields:
    add_partitions = partial(_add_partitions, request, broker, validate_only=request.body.validate_only)
    return {"results": fields_or_errors_of_items(add_partitions, request.body.topics, _NAME, _name_field)}


def _add_partitions(request: Request, broker: Broker, topic: Any, *, validate_only: bool) -> None:
    request.rights.check(Operation.ALTER, ResourceType.TOPIC, topic.name)
    check_partition_count(topic.count)
    stored_topic = broker.metadata.client_topic(topic.name).topic
    snapshot = stored_topic.current.refresh()
    check_grows(snapshot, topic.count)
    added = topic.count - len(snapshot.partitions)
    # null lets gateways choose brokers; an empty list is refused, since it assigns none to the new partitions
    if topic.assignments is not None:
        if len(topic.assignments) != added:
            raise _invalid_assignment(
                f"Attempted to add {added} additional partition(s), but only {len(topic.assignments)} assignment(s)"
                " were specified."
            )
        _check_replicas(topic.assignments)
    if not validate_only:
        stored_topic.create_partitions(topic.count)


def elect_leaders(request: Request, broker: Broker) -> Fields:
    """Answer ELECTION_NOT_NEEDED for each requested partition. As in Kafka, a request for all gets an empty list."""
    if code := request.rights.check_code(Operation.ALTER, ResourceType.CLUSTER):
        return {"error_code": code}
    topics = request.body.topic_partitions or ()
    partitions = dict.fromkeys((topic.topic, number) for topic in topics for number in topic.partitions)
    results = ((name, fields_or_error(_election, broker, name, n, partition_id=n)) for name, n in partitions)
    return {"replica_election_results": by_topic(results, "partition_result", "topic")}


def _election(broker: Broker, topic: str, number: int) -> Fields:
    broker.metadata.fresh_topic(topic).partition(number)
    return {"error_code": ErrorCode.election_not_needed, "error_message": "every gateway can lead each partition"}


def list_partition_reassignments(request: Request, broker: Broker) -> Fields:
    """Check only the rights: the response lists nothing, since gateways have no reassignments."""
    return fields_or_error(request.rights.check_cluster, Operation.DESCRIBE)


def describe_quorum(request: Request, broker: Broker) -> Fields:
    """Refuse the whole request, since the Java client retries for a minute after an error of a partition."""
    if code := request.rights.check_code(Operation.DESCRIBE, ResourceType.CLUSTER):
        return {"error_code": code, "error_message": None}
    return {"error_code": ErrorCode.invalid_request, "error_message": "gateways have no quorum: the storage decides"}


_changing_api = partial(Api, handlers=Handlers.TOPICS)  # in the threads for changes of topics
_CREATES = "CREATE of the topic or of the cluster; DESCRIBE_CONFIGS for its settings in the response"
APIS = (  # the last text of an API has the rights for the documentation
    Api(API_VERSIONS_KEY, "ApiVersions", 0, 4, api_versions, ""),
    Api(3, "Metadata", 0, 12, metadata, "DESCRIBE of the topic; to create it, CREATE of the topic or the cluster"),
    Api(75, "DescribeTopicPartitions", 0, 0, describe_topic_partitions, "DESCRIBE of the topic"),
    Api(60, "DescribeCluster", 0, 1, describe_cluster, ""),
    Api(35, "DescribeLogDirs", 1, 4, describe_log_dirs, "DESCRIBE of the cluster"),
    _changing_api(19, "CreateTopics", 2, 7, create_topics, _CREATES),
    _changing_api(20, "DeleteTopics", 1, 6, delete_topics, "DELETE of the topic"),
    _changing_api(37, "CreatePartitions", 0, 3, create_partitions, "ALTER of the topic"),
    Api(43, "ElectLeaders", 0, 2, elect_leaders, "ALTER of the cluster"),
    Api(46, "ListPartitionReassignments", 0, 0, list_partition_reassignments, "DESCRIBE of the cluster"),
    Api(55, "DescribeQuorum", 0, 2, describe_quorum, "DESCRIBE of the cluster"),
)
