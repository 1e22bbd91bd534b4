"""The APIs of topics and their settings."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

from distlog.core.commits.commit_log import check_partition_count
from distlog.core.config import TopicConfig, settings
from distlog.core.errors import InvalidConfigError
from distlog.core.topics.topic import check_grows
from distlog.gateway.apis.cluster import TopicIds, attempted, grouped, only_once, topic_uuid
from distlog.gateway.broker import Api, Broker
from distlog.gateway.config import ShownSetting, gateway_settings, topic_default_settings
from distlog.gateway.protocol.frames import Fields, UnsupportedRequestError
from distlog.gateway.protocol.messages import ErrorCode
from distlog.gateway.server.request import Request

# ---
# Settings of topics, and of the gateway, in Kafka's protocol.


#: Kafka's settings of topics about replicas, tiers and old formats: they are accepted, and have no effect here.
_IGNORED = frozenset(
    {
        *("min.insync.replicas", "unclean.leader.election.enable"),
        *("follower.replication.throttled.replicas", "leader.replication.throttled.replicas"),
        *("local.retention.bytes", "local.retention.ms", "message.downconversion.enable"),
        *("message.format.version", "message.timestamp.difference.max.ms", "remote.log.copy.disable"),
        *("remote.log.delete.on.disable", "remote.storage.enable"),
    }
)
#: The source of a value: ConfigSource of Kafka's admin client.
_OF_TOPIC, _OF_BROKER, _DEFAULT = 1, 4, 5
#: ConfigType of Kafka's admin client. All of our numbers that may be large are LONG.
_BOOLEAN, _STRING, _INT, _LONG, _DOUBLE, _LIST = 1, 2, 3, 5, 6, 7
_TYPES = {bool: _BOOLEAN, int: _LONG, float: _DOUBLE, str: _STRING}
_LISTS = frozenset({"cleanup.policy"})


def without_ignored(given: Mapping[str, str | None]) -> dict[str, str | None]:
    """The settings without the ones of Kafka that have no effect here."""
    return {name: value for name, value in given.items() if name not in _IGNORED}


class _Details(NamedTuple):
    """The documentation and the synonyms of settings, where a request wants them."""

    documentation: bool = False
    synonyms: bool = False

    def fields(self, one: ShownSetting, source: int, kind: int, *, read_only: bool = False) -> Fields:
        """The fields of a setting."""
        return {
            "name": one.name,
            "value": one.value,
            "read_only": read_only,
            "config_source": source,
            "is_sensitive": False,
            "synonyms": [{"name": one.name, "value": one.value, "source": source}] if self.synonyms else [],
            "config_type": kind,
            "documentation": one.meaning if self.documentation else None,
        }


#: Without it `kafka-topics --describe --at-min-isr-partitions` fails.
_MIN_ISR = ShownSetting("min.insync.replicas", "1", True, "has no effect: the storage replicates, or not")


def described(config: TopicConfig, **wanted: bool) -> Iterator[Fields]:
    """The fields of each setting, for DescribeConfigs and CreateTopics; with one that Kafka's tools need."""
    own, values, inherited, details = config.overrides(), config.all(), dict(config.defaults), _Details(**wanted)
    for setting in settings():
        source = _OF_TOPIC if setting.name in own else _OF_BROKER if setting.name in inherited else _DEFAULT
        one = ShownSetting(setting.name, _shown(values[setting.name]), source == _DEFAULT, setting.meaning)
        kind = _LIST if setting.name in _LISTS else _TYPES[type(setting.default)]
        yield details.fields(one, source, kind)
    yield details.fields(_MIN_ISR, _DEFAULT, _INT)


def described_broker(broker: Broker, request: Request, **wanted: bool) -> Iterator[Fields]:
    """Each setting of the gateway, and the defaults of topics; none can be altered while it runs."""
    own, defaults = gateway_settings(broker.config), topic_default_settings(broker.metadata.defaults)
    # the id that it has, rather than the -1 that asks for one
    own = [each._replace(value=str(broker.cluster.node.id)) if each.name == "node.id" else each for each in own]
    # the listener as this client is told to find it; Kafka's tools look for it among the settings
    host, port = broker.address(request, broker.cluster.node)
    value = f"{broker.security_protocol}://{f'[{host}]' if ':' in host else host}:{port}"
    meaning = "where clients find this gateway; set by `--advertised`"
    advertised = ShownSetting("advertised.listeners", value, broker.config.advertised is None, meaning)
    for one in (advertised, *own, *defaults):
        source = _DEFAULT if one.is_default else _OF_BROKER
        yield _Details(**wanted).fields(one, source, _type_of(one.value), read_only=True)


def _type_of(shown: str) -> int:
    if shown in ("true", "false"):
        return _BOOLEAN
    return _LONG if shown.lstrip("-").isdigit() else _STRING


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


# ---
# CreateTopics. Replication factors are taken as they are: the storage replicates, or not.


_DEFAULT_COUNT = -1
#: The fields of a setting in CreateTopics; DescribeConfigs has more.
_OF_SETTING = ("name", "value", "read_only", "config_source", "is_sensitive")


def create_topics(request: Request, broker: Broker) -> Fields:
    """Create each topic; with `validate_only` only check whether that is possible."""
    validate_only = request.get("validate_only", False)
    return {
        "throttle_time": 0,
        "topics": [
            attempted(partial(only_once, partial(_create, broker, validate_only=validate_only), topics), name=name)
            for name, topics in grouped(request.body.topics, attrgetter("name")).items()
        ],
    }


def _create(broker: Broker, topic: Any, *, validate_only: bool) -> Fields:
    config = TopicConfig.parse(
        {
            name: value
            for name, value in without_ignored({each.name: each.value for each in topic.configs}).items()
            if value is not None
        }
    )
    count = len(topic.assignments) or topic.num_partitions
    count = broker.config.num_partitions if count == _DEFAULT_COUNT else count
    fields: dict[str, Any] = {
        "num_partitions": count,
        "replication_factor": 1,
        "configs": [{name: each[name] for name in _OF_SETTING} for each in described(config)],
    }
    if validate_only:
        broker.metadata.check_new(topic.name, count)
        return fields
    return {**fields, "topic_id": topic_uuid(broker.metadata.create(topic.name, count, config))}


CREATE_TOPICS = Api(19, "CreateTopics", 2, 7, create_topics)


# ---
# DeleteTopics: drops topics, with the positions of groups in them; vacuum deletes their files.


_BY_STATE = 6


def delete_topics(request: Request, broker: Broker) -> Fields:
    """Drop each topic, by name or, since version 6, by id."""
    if request.api_version < _BY_STATE:
        names = dict.fromkeys(request.body.topic_names)
        responses = [attempted(partial(_drop, broker, name), name=name) for name in names]
    else:
        ids = TopicIds(broker)
        responses = [
            attempted(partial(_drop_state, broker, ids, topic), name=topic.name, topic_id=topic.topic_id)
            for topic in dict.fromkeys(request.body.topics)
        ]
    return {"throttle_time": 0, "responses": responses}


def _drop_state(broker: Broker, ids: TopicIds, topic: Any) -> Fields:
    return _drop(broker, ids.name_of(topic.name, topic.topic_id), topic.topic_id)


def _drop(broker: Broker, name: str, topic_id: uuid.UUID | None = None) -> Fields:
    dropped = broker.metadata.drop(name, topic_id)
    broker.groups.offsets.forget_topic(name)
    return {"name": name, "topic_id": topic_uuid(dropped)}


DELETE_TOPICS = Api(20, "DeleteTopics", 1, 6, delete_topics)


# ---
# CreatePartitions: raises the number of a topic's partitions.


def create_partitions(request: Request, broker: Broker) -> Fields:
    """Raise each topic's number of partitions; with `validate_only` only check whether that is possible."""
    validate_only = request.body.validate_only
    results = [
        attempted(partial(only_once, partial(_raise_count, broker, validate_only=validate_only), topics), name=name)
        for name, topics in grouped(request.body.topics, attrgetter("name")).items()
    ]
    return {"throttle_time": 0, "results": results}


def _raise_count(broker: Broker, topic: Any, *, validate_only: bool) -> None:
    check_partition_count(topic.count)
    opened = broker.metadata.clients_topic(topic.name).topic
    check_grows(opened.current.refresh(), topic.count)
    if not validate_only:
        opened.create_partitions(topic.count)


CREATE_PARTITIONS = Api(37, "CreatePartitions", 0, 3, create_partitions)


# ---
# DescribeConfigs: the settings of topics, and of the gateway, which are fixed when it starts.


#: ConfigResource.Type of Kafka's admin client.
TOPIC, BROKER = 2, 4
_RESOURCE = attrgetter("resource_type", "resource_name")


def describe_configs(request: Request, broker: Broker) -> Fields:
    """The settings of each resource, each resource once: all settings, or the requested ones."""
    results = [
        attempted(
            partial(_described, request, broker, several),
            resource_type=several[0].resource_type,
            resource_name=several[0].resource_name,
            configs=(),
        )
        for several in grouped(request.body.resources, _RESOURCE).values()
    ]
    return {"throttle_time": 0, "results": results}


def _described(request: Request, broker: Broker, resources: Sequence[Any]) -> Fields:
    """The fields of one resource, with the settings that a request wants in all its places."""
    asked = [each.configuration_keys for each in resources]
    wanted = None if None in asked else frozenset().union(*asked)
    all_settings = _all_settings(
        broker,
        request,
        resources[0],
        documentation=request.get("include_documentation", False),
        synonyms=request.get("include_synonyms", False),
    )
    return {"configs": [each for each in all_settings if wanted is None or each["name"] in wanted]}


def _all_settings(broker: Broker, request: Request, resource: Any, **details: bool) -> Iterable[Fields]:
    if resource.resource_type == TOPIC:
        return described(broker.metadata.fresh_topic(resource.resource_name).snapshot.config, **details)
    if resource.resource_type != BROKER:
        raise UnsupportedRequestError("only topics and brokers have settings", resource_type=resource.resource_type)
    if not resource.resource_name:
        # no name stands for dynamic settings of all brokers, of which there are none
        return ()
    this = str(broker.cluster.node.id)
    if resource.resource_name != this:
        raise UnsupportedRequestError(
            "a gateway shows only its own settings", this=this, requested=resource.resource_name
        )
    return described_broker(broker, request, **details)


DESCRIBE_CONFIGS = Api(32, "DescribeConfigs", 1, 4, describe_configs)


# ---
# ListConfigResources: the topics and brokers that have settings (KIP-1142).


#: In version 0 a client asks for resources of metrics, of which there are none.
_METRICS_ALONE = 0


def list_config_resources(request: Request, broker: Broker) -> Fields:
    """The topics and the live gateways, or one of both kinds."""
    types = set(request.get("resource_types", ())) or {TOPIC, BROKER}
    kinds_and_names: list[tuple[int, str]] = []
    if request.api_version > _METRICS_ALONE:
        if TOPIC in types:
            kinds_and_names += [(TOPIC, name) for name in broker.metadata.facts_or_errors()]
        if BROKER in types:
            kinds_and_names += [(BROKER, str(node.id)) for node in broker.cluster.nodes]
    resources = [{"resource_name": name, "resource_type": kind} for kind, name in kinds_and_names]
    return {"throttle_time": 0, "error_code": ErrorCode.none, "config_resources": resources}


LIST_CONFIG_RESOURCES = Api(74, "ListConfigResources", 0, 1, list_config_resources)


# ---
# IncrementalAlterConfigs: sets, resets, and changes lists in the settings of topics (KIP-339). AlterConfigs, which
# Kafka has deprecated, replaces all of them (KIP-133).


#: AlterConfigOp.OpType of Kafka's admin client.
_SET, _DELETE, _APPEND, _SUBTRACT = range(4)


def incremental_alter_configs(request: Request, broker: Broker) -> Fields:
    """Change each resource, in one commit of its own; with `validate_only` only check whether that is possible."""
    return _alter_each(
        request, broker, lambda config, resource: {each.name: _value(config, each) for each in resource.configs}
    )


def alter_configs(request: Request, broker: Broker) -> Fields:
    """Give each resource these settings and no others, as `incremental_alter_configs` changes them."""
    return _alter_each(request, broker, _replaced)


#: The new values of settings, by their names, of a topic's config and a resource in a request; None for the default.
_Changes = Callable[[TopicConfig, Any], dict[str, str | None]]


def _alter_each(request: Request, broker: Broker, changes: _Changes) -> Fields:
    alter = partial(_alter, broker, changes, validate_only=request.body.validate_only)
    responses = [
        attempted(
            partial(only_once, alter, several),
            resource_type=several[0].resource_type,
            resource_name=several[0].resource_name,
        )
        for several in grouped(request.body.resources, _RESOURCE).values()
    ]
    return {"throttle_time": 0, "responses": responses}


def _alter(broker: Broker, changes_of: _Changes, resource: Any, *, validate_only: bool) -> None:
    if resource.resource_type != TOPIC:
        raise UnsupportedRequestError("only topics can be altered", resource_type=resource.resource_type)
    topic = broker.metadata.clients_topic(resource.resource_name).topic
    config = topic.snapshot.config
    changes = without_ignored(changes_of(config, resource))
    if validate_only:
        config.changed(changes)
    elif changes:
        topic.alter_config(changes)


def _value(config: TopicConfig, change: Any) -> str | None:
    if change.config_operation == _SET:
        return str(change.value)
    if change.config_operation == _DELETE:
        return None
    if change.config_operation not in (_APPEND, _SUBTRACT) or change.name != "cleanup.policy":
        raise UnsupportedRequestError("only lists can be appended to, and cleanup.policy is the only one")
    items, changed = str(config.cleanup_policy).split(","), str(change.value).split(",")
    kept = [item for item in items if item not in changed]
    return ",".join([*kept, *changed] if change.config_operation == _APPEND else kept)


def _replaced(config: TopicConfig, resource: Any) -> dict[str, str | None]:
    if empty := [each.name for each in resource.configs if each.value is None]:
        raise InvalidConfigError("settings without a value: leave them out for their defaults", settings=empty)
    return {**dict.fromkeys(config.overrides()), **{each.name: each.value for each in resource.configs}}


INCREMENTAL_ALTER_CONFIGS = Api(44, "IncrementalAlterConfigs", 0, 1, incremental_alter_configs)
ALTER_CONFIGS = Api(33, "AlterConfigs", 0, 2, alter_configs)

#: The APIs that change topics, and all APIs of this module.
CHANGING_APIS = (CREATE_TOPICS, DELETE_TOPICS, CREATE_PARTITIONS, INCREMENTAL_ALTER_CONFIGS, ALTER_CONFIGS)
APIS = (*CHANGING_APIS, DESCRIBE_CONFIGS, LIST_CONFIG_RESOURCES)
