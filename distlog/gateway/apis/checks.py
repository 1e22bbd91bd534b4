"""The rights that each API needs, as KafkaApis checks them: one table, and the answers to clients without them.

A check sees a request before its handler does. It answers a request that its client may not send. Else it takes out
the parts that the client has no right to, has the handler do the rest, and puts the refusals into the response.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from operator import attrgetter
from typing import Any

from distlog.core.errors import TopicNotFoundError
from distlog.gateway.access_lists import Client
from distlog.gateway.apis import configs
from distlog.gateway.apis.check_parts import (
    CODES,
    OF_CLUSTER,
    OF_GROUP,
    OF_ID,
    OF_TOPIC,
    TEXTS,
    Check,
    Work,
    amend,
    amend_each,
    anyone,
    denied,
    describes,
    each_item,
    no_partitions,
    rights_with,
    split,
    whole,
    with_cluster,
)
from distlog.gateway.apis.cluster import TopicIds, requested_name, topic_key, topic_place
from distlog.gateway.broker import Broker
from distlog.gateway.groups.subscribed_topics import matches
from distlog.gateway.protocol.frames import Fields
from distlog.gateway.protocol.messages import ErrorCode
from distlog.gateway.security.acls import CLUSTER_NAME, Operation, ResourceType
from distlog.gateway.server.request import Request

_O, _R = Operation, ResourceType


def _produce(request: Request, broker: Broker, client: Client) -> Fields | None:
    body = request.body
    if body.transactional_id is not None and not client.may(_O.WRITE, _R.TRANSACTIONAL_ID, body.transactional_id):
        told = [_not_produced(OF_ID, each) for each in body.topic_data]
        refused: Fields | None = {"throttle_time": 0, "responses": told}
    else:
        may_write = partial(client.may, _O.WRITE, _R.TOPIC)
        refused = split(
            request,
            "topic_data",
            "responses",
            lambda each: (name := _name_of(broker, each, "name")) is not None and may_write(name),
            lambda each: _not_produced(_topic_code(broker, each, "name"), each),
        )
    if body.acks == 0 and (refused is not None or request.amend is not None):
        # there is no response that could tell of it
        request.ends_by = "a produce request with acks=0 is not allowed"
    return refused


def _not_produced(code: ErrorCode, topic: Any) -> Fields:
    nothing = {"base_offset": -1, "error_code": code, "error_message": TEXTS.get(code)}
    parts = [{"index": each.index, **nothing} for each in topic.partition_data]
    return {**topic_place(topic_key(topic, "name"), "name"), "partition_responses": parts}


def _name_of(broker: Broker, topic: Any, field: str) -> str | None:
    """The name of a topic that a request has by its name or its id; None for an id that no topic has now."""
    key = topic_key(topic, field)
    try:
        return key if isinstance(key, str) else broker.metadata.topic_of_id(key).name
    except Exception:
        # whatever it is: a topic that is not known is not for the client
        return None


def _topic_code(broker: Broker, topic: Any, field: str) -> ErrorCode:
    return ErrorCode.unknown_topic_id if _name_of(broker, topic, field) is None else OF_TOPIC


def _fetch(request: Request, broker: Broker, client: Client) -> Fields | None:
    may_read = partial(client.may, _O.READ, _R.TOPIC)
    return split(
        request,
        "topics",
        "responses",
        lambda each: (name := _name_of(broker, each, "topic")) is not None and may_read(name),
        lambda each: _not_fetched(_topic_code(broker, each, "topic"), each),
    )


def _not_fetched(code: ErrorCode, topic: Any) -> Fields:
    offsets = {"high_watermark": -1, "last_stable_offset": -1, "log_start_offset": -1}
    parts = [{"partition_index": each.partition, "error_code": code, **offsets} for each in topic.partitions]
    return {
        **topic_place(topic_key(topic, "topic"), "topic"),
        "partitions": [{**each, "records": b""} for each in parts],
    }


_not_listed = partial(no_partitions, OF_TOPIC, offset=-1, timestamp=-1, leader_epoch=-1)
_not_deleted = partial(no_partitions, OF_TOPIC, low_watermark=-1)


def _no_epoch(topic: Any) -> Fields:
    parts = [{"partition": each.partition, "error_code": OF_TOPIC} for each in topic.partitions]
    return {"topic": topic.topic, "partitions": parts}


def _init_producer_id(request: Request, broker: Broker, client: Client) -> Fields | None:
    name, no_producer = request.body.transactional_id, {"throttle_time": 0, "producer_id": -1, "producer_epoch": -1}
    if name is not None:
        is_allowed, code = client.may(_O.WRITE, _R.TRANSACTIONAL_ID, name), OF_ID
    else:
        # the right to write to any topic is enough (KIP-679)
        is_allowed = client.may_with_any(_O.WRITE, _R.TOPIC) or client.may_with_cluster(_O.IDEMPOTENT_WRITE)
        code = OF_CLUSTER
    return None if is_allowed else denied(code, **no_producer)


def _metadata(request: Request, broker: Broker, client: Client) -> None:
    body = request.body
    is_all = body.topics is None or (request.api_version == 0 and not body.topics)
    allowed, refused, creatable = [], list[Fields](), set[str]()
    for each in () if is_all else body.topics:
        name = requested_name(each)
        code = None if name is None else _no_metadata(request, broker, client, name, creatable)
        if code is None:
            allowed.append(each)
        else:
            refused.append({"error_code": code, "name": each.name, "partitions": ()})
    # it may be another topic that is missing when the handler looks
    request.creatable = creatable
    if refused:
        # in version 0 an empty list means all topics: none of them is shown
        request.body = body._replace(topics=tuple(allowed))
    is_refused = bool(refused) and not allowed
    amend(request, lambda fields: _shown_metadata(request, client, fields, () if is_refused else None, refused))


def _no_metadata(
    request: Request, broker: Broker, client: Client, name: str, creatable: set[str]
) -> ErrorCode | None:
    """The code for a topic that a client may not describe, or not create; `creatable` gets one that it may create."""
    if not client.may(_O.DESCRIBE, _R.TOPIC, name):
        return OF_TOPIC
    if not (broker.config.auto_create_topics and request.get("allow_auto_topic_creation", True)):
        return None
    if client.might(_O.CREATE, _R.CLUSTER, CLUSTER_NAME) or client.might(_O.CREATE, _R.TOPIC, name):
        creatable.add(name)
        return None
    try:
        broker.metadata.fresh_topic(name)
    except TopicNotFoundError:
        return None if client.may(_O.CREATE, _R.TOPIC, name) else OF_TOPIC
    except Exception:
        # the handler meets the error again, and tells of it
        return None
    return None


def _shown_metadata(
    request: Request, client: Client, fields: Fields, instead: Sequence[Fields] | None, refused: Sequence[Fields]
) -> Fields:
    topics = list[Fields]()
    for each in fields["topics"] if instead is None else instead:
        if not each["name"] or describes(client, each["name"]):
            topics.append(each)
        elif request.body.topics:
            # it was asked for by its id, which is no secret, but its name may be one
            name = None if request.api_version >= _NULL_NAME else ""
            topics.append({**each, "error_code": OF_TOPIC, "name": name, "is_internal": False, "partitions": ()})
    if request.get("include_topic_authorized_operations", False):
        topics = [
            {**each, "topic_authorized_operations": rights_with(client, _R.TOPIC, each["name"])}
            if each["error_code"] is ErrorCode.none
            else each
            for each in topics
        ]
    return _with_rights(request, client, {**fields, "topics": [*topics, *refused]})


#: From this version of Metadata on, a topic may have no name.
_NULL_NAME = 12


def _with_rights(request: Request, client: Client, fields: Fields) -> Fields:
    if not request.get("include_cluster_authorized_operations", False):
        return fields
    return {**fields, "cluster_authorized_operations": rights_with(client, _R.CLUSTER, CLUSTER_NAME)}


def _describe_cluster(request: Request, broker: Broker, client: Client) -> None:
    amend(request, partial(_with_rights, request, client))


def _create_topics(request: Request, broker: Broker, client: Client) -> Fields | None:
    if not client.might(_O.CREATE, _R.CLUSTER, CLUSTER_NAME):
        refused = split(
            request,
            "topics",
            "topics",
            lambda each: client.may(_O.CREATE, _R.TOPIC, each.name),
            lambda each: denied(OF_TOPIC, name=each.name),
        )
        if refused is not None:
            return refused
    amend_each(request, "topics", partial(_without_settings, client))
    return None


def _without_settings(client: Client, topic: Fields) -> Fields:
    """The fields of a created topic, without its settings if they are not for the client (KIP-525)."""
    if topic["error_code"] is not ErrorCode.none or client.might(_O.DESCRIBE_CONFIGS, _R.TOPIC, topic["name"]):
        return topic
    hidden = {"num_partitions": -1, "replication_factor": -1, "configs": None}
    return {**topic, **hidden, "topic_config_error_code": OF_TOPIC}


#: From this version of DeleteTopics on, topics may be given by their ids.
_BY_STATE = 6


def _delete_topics(request: Request, broker: Broker, client: Client) -> Fields | None:
    may_delete = partial(client.may, _O.DELETE, _R.TOPIC)
    if request.api_version < _BY_STATE:
        return split(
            request,
            "topic_names",
            "responses",
            may_delete,
            lambda each: denied(OF_TOPIC, name=each, topic_id=None),
        )
    ids = TopicIds(broker)
    # each id is looked for once: the handler drops the topic that was checked
    names = {each: _name_or_none(ids, each) for each in request.body.topics}

    def is_shown(topic: Any) -> bool:
        # the name of a topic is not told to a client that gave its id only
        return topic.name is not None or describes(client, names[topic] or "")

    def refusal(topic: Any) -> Fields:
        if names[topic] is None:
            unknown = {"error_code": ErrorCode.unknown_topic_id, "error_message": "There is no topic with this id."}
            return {"name": None, "topic_id": topic.topic_id, **unknown}
        return denied(OF_TOPIC, name=names[topic] if is_shown(topic) else None, topic_id=topic.topic_id)

    def is_allowed(topic: Any) -> bool:
        name = names[topic]
        return name is not None and may_delete(name) and is_shown(topic)

    refused = split(request, "topics", "responses", is_allowed, refusal)
    if refused is None:
        checked = tuple(each._replace(name=names[each]) for each in request.body.topics)
        request.body = request.body._replace(topics=checked)
    return refused


def _name_or_none(ids: TopicIds, topic: Any) -> str | None:
    try:
        return ids.name_of(topic.name, topic.topic_id)
    except Exception:
        # whatever it is: a topic that is not known is not for the client
        return None


def _settings(operation: Operation, into: str, **fields: Any) -> Work:
    """A check of settings: of a topic or a group by its name, of all else by the cluster."""

    def kind_of(resource: Any) -> ResourceType:
        return {configs.TOPIC: _R.TOPIC, configs.GROUP: _R.GROUP}.get(resource.resource_type, _R.CLUSTER)

    def is_allowed(client: Client, resource: Any) -> bool:
        if kind_of(resource) is _R.CLUSTER:
            return client.may_with_cluster(operation)
        return client.may(operation, kind_of(resource), resource.resource_name)

    def refusal(resource: Any) -> Fields:
        names = {"resource_type": resource.resource_type, "resource_name": resource.resource_name}
        return denied(CODES[kind_of(resource)], **names, **fields)

    def check(request: Request, broker: Broker, client: Client) -> Fields | None:
        return split(request, "resources", into, partial(is_allowed, client), refusal)

    return check


_TRANSACTION_KEY, _LIST = 1, 4
_NO_COORDINATOR = {"node_id": -1, "host": "", "port": -1}


def _find_coordinator(request: Request, broker: Broker, client: Client) -> Fields | None:
    kind = _R.TRANSACTIONAL_ID if request.get("key_type", 0) == _TRANSACTION_KEY else _R.GROUP
    refused = partial(denied, CODES[kind], **_NO_COORDINATOR)
    may_describe = partial(client.may, _O.DESCRIBE, kind)
    if request.api_version < _LIST:
        return None if may_describe(request.body.key) else refused(throttle_time=0)
    return split(request, "coordinator_keys", "coordinators", may_describe, lambda each: refused(key=each))


_NOT_JOINED: Fields = {"generation_id": -1, "protocol_name": "", "leader": "", "member_id": "", "members": ()}


def _list_groups(request: Request, broker: Broker, client: Client) -> None:
    def shown(group: Fields) -> Fields | None:
        return group if client.might(_O.DESCRIBE, _R.GROUP, group["group_id"]) else None

    if not client.might(_O.DESCRIBE, _R.CLUSTER, CLUSTER_NAME):
        amend_each(request, "groups", shown)


_NO_GROUP: Fields = {"group_state": "", "protocol_type": "", "protocol_data": "", "members": ()}


def _describe_groups(request: Request, broker: Broker, client: Client) -> Fields | None:
    if request.get("include_authorized_operations", False):

        def with_rights(group: Fields) -> Fields:
            return {**group, "authorized_operations": rights_with(client, _R.GROUP, group["group_id"])}

        amend_each(request, "groups", with_rights)
    return split(
        request,
        "groups",
        "groups",
        partial(client.may, _O.DESCRIBE, _R.GROUP),
        lambda each: {"group_id": each, "error_code": OF_GROUP, **_NO_GROUP},
    )


def _may_read(client: Client, topic: Any) -> bool:
    return client.may(_O.READ, _R.TOPIC, topic.name)


def _offset_commit(request: Request, broker: Broker, client: Client) -> Fields | None:
    body = request.body
    if not client.may(_O.READ, _R.GROUP, body.group_id):
        return {"throttle_time": 0, "topics": [no_partitions(OF_GROUP, each) for each in body.topics]}
    return split(request, "topics", "topics", partial(_may_read, client), partial(no_partitions, OF_TOPIC))


def _offset_delete(request: Request, broker: Broker, client: Client) -> Fields | None:
    if not client.may(_O.DELETE, _R.GROUP, request.body.group_id):
        return denied(OF_GROUP, throttle_time=0, topics=())
    return split(request, "topics", "topics", partial(_may_read, client), partial(no_partitions, OF_TOPIC))


def _offset_fetch(request: Request, broker: Broker, client: Client) -> Fields | None:
    body, told = request.body, dict[str, list[Fields]]()
    if request.get("groups") is None:
        if not client.may(_O.DESCRIBE, _R.GROUP, body.group_id):
            # version 1 has a place for the code only at the partitions
            topics = [_no_positions(OF_GROUP, each) for each in body.topics or ()]
            return {"throttle_time": 0, "error_code": OF_GROUP, "topics": topics}
        request.body = body._replace(topics=_described(client, body.group_id, body.topics, told))
        amend(request, lambda fields: _shown_positions(client, fields, told.get(body.group_id, ())))
        return None
    refused = split(
        request,
        "groups",
        "groups",
        lambda each: client.may(_O.DESCRIBE, _R.GROUP, each.group_id),
        lambda each: {"group_id": each.group_id, "error_code": OF_GROUP, "topics": ()},
    )
    if refused is None:
        groups = [
            each._replace(topics=_described(client, each.group_id, each.topics, told)) for each in request.body.groups
        ]
        request.body = request.body._replace(groups=tuple(groups))
        amend_each(request, "groups", lambda each: _shown_positions(client, each, told.get(each["group_id"], ())))
    return refused


def _described(client: Client, group: str, topics: Any, refused: dict[str, list[Fields]]) -> Any:
    """The topics of a request that may be described; the refusals of others go to `refused`. None stands for all."""
    if topics is None:
        return None
    allowed = []
    for each in topics:
        if client.may(_O.DESCRIBE, _R.TOPIC, each.name):
            allowed.append(each)
        else:
            refused.setdefault(group, []).append(_no_positions(OF_TOPIC, each))
    return tuple(allowed)


_no_positions = partial(no_partitions, committed_offset=-1, committed_leader_epoch=-1, metadata="")


def _shown_positions(client: Client, fields: Fields, refused: Sequence[Fields]) -> Fields:
    return {**fields, "topics": [*(each for each in fields["topics"] if describes(client, each["name"])), *refused]}


_NO_MEMBER: Fields = {"throttle_time": 0, "member_id": None, "member_epoch": 0, "heartbeat_interval": 0}


def _consumer_heartbeat(request: Request, broker: Broker, client: Client) -> Fields | None:
    body, pattern = request.body, request.get("subscribed_topic_regex")
    if not client.may(_O.READ, _R.GROUP, body.group_id):
        return denied(OF_GROUP, **_NO_MEMBER)
    names = set(body.subscribed_topic_names or ())
    if pattern:
        try:
            names |= matches(pattern, broker.metadata.clients_topics())
        except ValueError:
            return None  # the handler tells of it
    if not all(client.may(_O.DESCRIBE, _R.TOPIC, each) for each in names):
        return denied(OF_TOPIC, **_NO_MEMBER)
    return None


def _consumer_describe(request: Request, broker: Broker, client: Client) -> Fields | None:
    refused: Fields = {"group_state": "", "group_epoch": 0, "assignment_epoch": 0, "assignor_name": "", "members": ()}

    def shown(group: Fields) -> Fields:
        places = (each[key] for each in group["members"] for key in ("assignment", "target_assignment"))
        names = {topic["topic_name"] for each in places for topic in each["topic_partitions"]}
        names.update(name for each in group["members"] for name in each["subscribed_topic_names"])
        if all(describes(client, name) for name in names):
            return group
        return denied(OF_TOPIC, group_id=group["group_id"], **refused)

    amend_each(request, "groups", shown)
    return split(
        request,
        "group_ids",
        "groups",
        partial(client.may, _O.DESCRIBE, _R.GROUP),
        lambda each: denied(OF_GROUP, group_id=each, **refused),
    )


def _topic_partitions(request: Request, broker: Broker, client: Client) -> Fields | None:
    if not request.body.topics:
        amend_each(request, "topics", lambda each: each if describes(client, each["name"]) else None)
        return None
    refused = split(
        request,
        "topics",
        "topics",
        lambda each: client.may(_O.DESCRIBE, _R.TOPIC, each.name),
        lambda each: {"error_code": OF_TOPIC, "name": each.name, "topic_id": None, "partitions": ()},
    )
    return None if refused is None else {**refused, "next_cursor": None}


def _add_partitions(request: Request, broker: Broker, client: Client) -> Fields | None:
    topics, codes = request.body.v3_and_below_topics, list[ErrorCode]()
    if not client.may(_O.WRITE, _R.TRANSACTIONAL_ID, request.body.v3_and_below_transactional_id):
        codes = [OF_ID] * len(topics)
    else:
        codes = [ErrorCode.none if client.may(_O.WRITE, _R.TOPIC, each.name) else OF_TOPIC for each in topics]
    if not any(codes):
        return None
    results = [
        {
            "name": each.name,
            "results_by_partition": [
                {"partition_index": number, "partition_error_code": (code or ErrorCode.operation_not_attempted)}
                for number in each.partitions
            ],
        }
        for each, code in zip(topics, codes, strict=True)
    ]
    return {"throttle_time": 0, "results_by_topic_v3_and_below": results}


def _add_offsets(request: Request, broker: Broker, client: Client) -> Fields | None:
    if not client.may(_O.WRITE, _R.TRANSACTIONAL_ID, request.body.transactional_id):
        return {"throttle_time": 0, "error_code": OF_ID}
    if not client.may(_O.READ, _R.GROUP, request.body.group_id):
        return {"throttle_time": 0, "error_code": OF_GROUP}
    return None


def _txn_offset_commit(request: Request, broker: Broker, client: Client) -> Fields | None:
    body = request.body
    if not client.may(_O.WRITE, _R.TRANSACTIONAL_ID, body.transactional_id):
        return {"throttle_time": 0, "topics": [no_partitions(OF_ID, each) for each in body.topics]}
    return _offset_commit(request, broker, client)


def _write_txn_markers(request: Request, broker: Broker, client: Client) -> Fields | None:
    if client.may_with_cluster(_O.ALTER, _O.CLUSTER_ACTION):
        return None
    refuse = partial(no_partitions, OF_CLUSTER)
    return {
        "markers": [
            {"producer_id": each.producer_id, "topics": list(map(refuse, each.topics))}
            for each in request.body.markers
        ]
    }


def _describe_transactions(request: Request, broker: Broker, client: Client) -> Fields | None:
    def shown(state: Fields) -> Fields:
        return {**state, "topics": [each for each in state.get("topics", ()) if describes(client, each["topic"])]}

    amend_each(request, "transaction_states", shown)
    return split(
        request,
        "transactional_ids",
        "transaction_states",
        partial(client.may, _O.DESCRIBE, _R.TRANSACTIONAL_ID),
        lambda each: {"transactional_id": each, "error_code": OF_ID},
    )


def _list_transactions(request: Request, broker: Broker, client: Client) -> None:
    def shown(state: Fields) -> Fields | None:
        return state if client.might(_O.DESCRIBE, _R.TRANSACTIONAL_ID, state["transactional_id"]) else None

    amend_each(request, "transaction_states", shown)


_no_producers = partial(no_partitions, OF_TOPIC, error_message=TEXTS[OF_TOPIC], active_producers=())


def _alter_quotas(request: Request, broker: Broker, client: Client) -> Fields | None:
    if client.may_with_cluster(_O.ALTER_CONFIGS):
        return None
    entries = [
        denied(
            OF_CLUSTER,
            entity=[{"entity_type": part.entity_type, "entity_name": part.entity_name} for part in each.entity],
        )
        for each in request.body.entries
    ]
    return {"throttle_time": 0, "entries": entries}


def _alter_acls(array: str, into: str) -> Work:
    def check(request: Request, broker: Broker, client: Client) -> Fields | None:
        if client.may_with_cluster(_O.ALTER):
            return None
        return {"throttle_time": 0, into: [denied(OF_CLUSTER) for _ in getattr(request.body, array)]}

    return check


def _alter_users(request: Request, broker: Broker, client: Client) -> Fields | None:
    if client.may_with_cluster(_O.ALTER):
        return None
    names = dict.fromkeys(each.name for each in (*request.body.deletions, *request.body.upsertions))
    return {"throttle_time": 0, "results": [denied(OF_CLUSTER, user=each) for each in names]}


def _plain_cluster(operation: Operation, **fields: Any) -> Work:
    """A check by an operation with the cluster, for a response without the text of an error."""
    refused = {**fields, "error_code": OF_CLUSTER}
    return lambda request, broker, client: None if client.may_with_cluster(operation) else refused


_NO_RIGHT = Check("", anyone)

#: The rights that APIs need, by their keys.
CHECKS: dict[int, Check] = {
    0: Check("WRITE of the topic, and of the transactional id", _produce),
    1: Check("READ of the topic", _fetch),
    2: Check("DESCRIBE of the topic", each_item("topics", "topics", _O.DESCRIBE, _R.TOPIC, _not_listed)),
    3: Check("DESCRIBE of the topic; to create it, CREATE of it or of the cluster", _metadata),
    8: Check("READ of the group and of the topic", _offset_commit),
    9: Check("DESCRIBE of the group and of the topic", _offset_fetch),
    10: Check("DESCRIBE of the group or the transactional id", _find_coordinator),
    11: Check("READ of the group", whole(_O.READ, _R.GROUP, "group_id", **_NOT_JOINED)),
    12: Check("READ of the group", whole(_O.READ, _R.GROUP, "group_id")),
    13: Check("READ of the group", whole(_O.READ, _R.GROUP, "group_id", members=())),
    14: Check("READ of the group", whole(_O.READ, _R.GROUP, "group_id", assignment=b"")),
    15: Check("DESCRIBE of the group", _describe_groups),
    16: Check("DESCRIBE of the cluster, else only groups with DESCRIBE are told", _list_groups),
    17: _NO_RIGHT,
    18: _NO_RIGHT,
    19: Check("CREATE of the topic or of the cluster; DESCRIBE_CONFIGS to be told its settings", _create_topics),
    20: Check("DELETE of the topic", _delete_topics),
    21: Check("DELETE of the topic", each_item("topics", "topics", _O.DELETE, _R.TOPIC, _not_deleted)),
    22: Check(
        "WRITE of the transactional id; without one, IDEMPOTENT_WRITE of the cluster or WRITE of any topic",
        _init_producer_id,
    ),
    23: Check(
        "DESCRIBE of the topic", each_item("topics", "topics", _O.DESCRIBE, _R.TOPIC, _no_epoch, attrgetter("topic"))
    ),
    24: Check("WRITE of the transactional id and of the topic", _add_partitions),
    25: Check("WRITE of the transactional id, READ of the group", _add_offsets),
    26: Check("WRITE of the transactional id", whole(_O.WRITE, _R.TRANSACTIONAL_ID, "transactional_id")),
    27: Check("ALTER or CLUSTER_ACTION of the cluster", _write_txn_markers),
    28: Check("WRITE of the transactional id, READ of the group and of the topic", _txn_offset_commit),
    29: Check("DESCRIBE of the cluster", with_cluster(_O.DESCRIBE, resources=())),
    30: Check("ALTER of the cluster", _alter_acls("creations", "results")),
    31: Check("ALTER of the cluster", _alter_acls("filters", "filter_results")),
    32: Check(
        "DESCRIBE_CONFIGS of the topic or the group, or of the cluster",
        _settings(_O.DESCRIBE_CONFIGS, "results", configs=()),
    ),
    33: Check("ALTER_CONFIGS of the topic or the group, or of the cluster", _settings(_O.ALTER_CONFIGS, "responses")),
    35: Check("DESCRIBE of the cluster", with_cluster(_O.DESCRIBE, results=())),
    36: _NO_RIGHT,
    37: Check(
        "ALTER of the topic",
        each_item("topics", "results", _O.ALTER, _R.TOPIC, lambda each: denied(OF_TOPIC, name=each.name)),
    ),
    42: Check(
        "DELETE of the group",
        each_item(
            "groups_names",
            "results",
            _O.DELETE,
            _R.GROUP,
            lambda each: {"group_id": each, "error_code": OF_GROUP},
            str,
        ),
    ),
    43: Check("ALTER of the cluster", with_cluster(_O.ALTER, replica_election_results=())),
    44: Check("ALTER_CONFIGS of the topic or the group, or of the cluster", _settings(_O.ALTER_CONFIGS, "responses")),
    46: Check("DESCRIBE of the cluster", with_cluster(_O.DESCRIBE, topics=())),
    47: Check("DELETE of the group, READ of the topic", _offset_delete),
    48: Check("DESCRIBE_CONFIGS of the cluster", with_cluster(_O.DESCRIBE_CONFIGS, entries=None)),
    49: Check("ALTER_CONFIGS of the cluster", _alter_quotas),
    50: Check("DESCRIBE of the cluster", with_cluster(_O.DESCRIBE, results=())),
    51: Check("ALTER of the cluster", _alter_users),
    55: Check("DESCRIBE of the cluster", _plain_cluster(_O.DESCRIBE, error_message=None, topics=(), nodes=())),
    60: Check("", _describe_cluster),
    61: Check("READ of the topic", each_item("topics", "topics", _O.READ, _R.TOPIC, _no_producers)),
    65: Check("DESCRIBE of the transactional id; topics with DESCRIBE are told", _describe_transactions),
    66: Check("DESCRIBE of the transactional ids that are told", _list_transactions),
    68: Check("READ of the group, DESCRIBE of the topics", _consumer_heartbeat),
    69: Check("DESCRIBE of the group and of its topics", _consumer_describe),
    74: Check(
        "DESCRIBE_CONFIGS of the cluster", _plain_cluster(_O.DESCRIBE_CONFIGS, throttle_time=0, config_resources=())
    ),
    75: Check("DESCRIBE of the topic", _topic_partitions),
}
