"""The APIs of topic, gateway and group settings, and of client quotas (KIP-546)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

from distlog.core.config import TopicConfig, settings
from distlog.core.errors import InvalidConfigError
from distlog.gateway.config import ShownSetting, gateway_settings, setting_text, topic_default_settings
from distlog.gateway.kafka_apis import Api, Broker, Handlers
from distlog.gateway.protocol.error_codes import RefusedError, fields_or_error
from distlog.gateway.protocol.messages import ErrorCode, Fields
from distlog.gateway.root_records import check_quotas
from distlog.gateway.security.acls import CLUSTER_NAME, Operation, ResourceType
from distlog.gateway.server.fairness import CLIENT_ID, USER, Entity
from distlog.gateway.server.request import Request, fields_or_errors_of_items, grouped

#: Kafka's topic settings for replicas, tiers and old formats. They are accepted, but have no effect.
_IGNORED = {"min.insync.replicas", "unclean.leader.election.enable"}
_IGNORED |= {"follower.replication.throttled.replicas", "leader.replication.throttled.replicas"}
_IGNORED |= {"local.retention.bytes", "local.retention.ms", "remote.log.copy.disable"}
_IGNORED |= {"remote.log.delete.on.disable", "remote.storage.enable"}
_IGNORED |= {"message.downconversion.enable", "message.format.version", "message.timestamp.difference.max.ms"}
#: The source of a value: ConfigSource of Kafka's admin client.
_TOPIC_VALUE, _BROKER_VALUE, _DEFAULT, _GROUP_VALUE = 1, 4, 5, 8
#: ConfigType of Kafka's admin client. Numbers that may be large are LONG.
_BOOLEAN, _STRING, _INT, _LONG, _DOUBLE, _LIST = 1, 2, 3, 5, 6, 7
_TYPE_OF_CLASS = {bool: _BOOLEAN, int: _LONG, float: _DOUBLE, str: _STRING}
_LISTS = frozenset({"cleanup.policy"})


def without_ignored(values: Mapping[str, str | None]) -> dict[str, str | None]:
    return {name: value for name, value in values.items() if name not in _IGNORED}


def _setting_fields(
    setting: ShownSetting,
    source: int,
    kind: int,
    *,
    read_only: bool = False,
    documentation: bool = False,
    synonyms: bool = False,
) -> Fields:
    return {
        "name": setting.name,
        "value": setting.value,
        "read_only": read_only,
        "config_source": source,
        "is_sensitive": False,
        "synonyms": [{"name": setting.name, "value": setting.value, "source": source}] if synonyms else [],
        "config_type": kind,
        "documentation": setting.meaning if documentation else None,
    }


#: `kafka-topics --describe --at-min-isr-partitions` needs this setting.
_MIN_ISR = ShownSetting("min.insync.replicas", "1", True, "has no effect: replication is up to the storage")


def topic_setting_fields(config: TopicConfig, **options: bool) -> Iterator[Fields]:
    """Yield the fields of each setting of a topic; `options` are passed to `_setting_fields`."""
    overrides, values, broker_values = config.overrides(), config.all(), dict(config.defaults)
    for setting in settings():
        source = _BROKER_VALUE if setting.name in broker_values else _DEFAULT
        source = _TOPIC_VALUE if setting.name in overrides else source
        shown = ShownSetting(setting.name, setting_text(values[setting.name]), source == _DEFAULT, setting.meaning)
        kind = _LIST if setting.name in _LISTS else _TYPE_OF_CLASS[type(setting.default)]
        yield _setting_fields(shown, source, kind, **options)
    yield _setting_fields(_MIN_ISR, _DEFAULT, _INT, **options)


def _broker_setting_fields(broker: Broker, request: Request, **options: bool) -> Iterator[Fields]:
    # node.id=-1 means the lowest free id: show the id that the gateway has
    own_settings = [
        setting._replace(value=str(broker.cluster.node.id)) if setting.name == "node.id" else setting
        for setting in gateway_settings(broker.config)
    ]
    # add the address by which this client finds the gateway, since Kafka's tools expect it among the settings
    host, port = broker.address(request, broker.cluster.node)
    value = f"{broker.security_protocol}://{f'[{host}]' if ':' in host else host}:{port}"
    meaning = "where clients find this gateway; set by `--advertised`"
    advertised = ShownSetting("advertised.listeners", value, broker.config.advertised is None, meaning)
    for setting in (advertised, *own_settings, *topic_default_settings(broker.metadata.defaults)):
        source = _DEFAULT if setting.is_default else _BROKER_VALUE
        is_number = setting.value.lstrip("-").isdigit()
        kind = _BOOLEAN if setting.value in ("true", "false") else (_LONG if is_number else _STRING)
        yield _setting_fields(setting, source, kind, read_only=True, **options)


def _group_setting_fields(broker: Broker, group: str, **options: bool) -> Iterator[Fields]:
    if not group:
        raise RefusedError("Group name must not be empty")
    broker.configs.refresh()
    overrides = broker.configs.groups.overrides(group)
    for setting in broker.configs.groups.all_settings(group):
        source = _DEFAULT if setting.is_default else _BROKER_VALUE
        source = _GROUP_VALUE if setting.name in overrides else source
        yield _setting_fields(setting, source, _INT, **options)


#: ConfigResource.Type of Kafka's admin client.
TOPIC, BROKER, _LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
_LISTED_TYPES = (TOPIC, BROKER, _LOGGER, CLIENT_METRICS, GROUP)
#: This version of ListConfigResources lists only client metrics resources, which the gateway does not have.
_CLIENT_METRICS_VERSION = 0
#: By type of resource: why its settings cannot be altered, or do not exist.
_REFUSAL_REASONS = {
    BROKER: "The settings of a gateway are read-only: change its server.properties or --config, and start it again",
    _LOGGER: "A gateway has no dynamic log levels",
    CLIENT_METRICS: "This server takes no metrics of clients (KIP-714)",
}
_RESOURCE = attrgetter("resource_type", "resource_name")


def describe_configs(request: Request, broker: Broker) -> Fields:
    results = [
        fields_or_error(_describe_once, request, broker, equal_resources, **_resource_fields(equal_resources[0]))
        for equal_resources in grouped(request.body.resources, _RESOURCE).values()
    ]
    return {"results": results}


def _resource_fields(resource: Any) -> Fields:
    return {"resource_type": resource.resource_type, "resource_name": resource.resource_name}


def _check_rights(request: Request, operation: Operation, resource: Any) -> None:
    kind = {TOPIC: ResourceType.TOPIC, GROUP: ResourceType.GROUP}.get(resource.resource_type, ResourceType.CLUSTER)
    name = CLUSTER_NAME if kind is ResourceType.CLUSTER else resource.resource_name
    request.rights.check(operation, kind, name)


def _describe_once(request: Request, broker: Broker, equal_resources: Sequence[Any]) -> Fields:
    """Return the settings of a resource that the request may name several times; all if a key list is null."""
    key_lists = [resource.configuration_keys for resource in equal_resources]
    keys = None if None in key_lists else frozenset().union(*key_lists)
    all_settings = _all_settings(broker, request, equal_resources[0])
    return {"configs": [fields for fields in all_settings if keys is None or fields["name"] in keys]}


def _all_settings(broker: Broker, request: Request, resource: Any) -> Iterable[Fields]:
    kind, name = resource.resource_type, resource.resource_name
    _check_rights(request, Operation.DESCRIBE_CONFIGS, resource)
    details = {detail: request.get(f"include_{detail}", False) for detail in ("documentation", "synonyms")}
    if kind == TOPIC:
        return topic_setting_fields(broker.metadata.fresh_topic(name).snapshot.config, **details)
    if kind == GROUP:
        return _group_setting_fields(broker, name, **details)
    if kind == CLIENT_METRICS:
        return ()
    if kind != BROKER:
        raise RefusedError(_REFUSAL_REASONS.get(kind, f"Unknown resource type {kind}"))
    if not name:
        # without a name, the request is for the dynamic settings of all brokers, which gateways do not have
        return ()
    own_id = str(broker.cluster.node.id)
    if name != own_id:
        raise RefusedError(f"Unexpected broker id, expected {own_id} or empty string, but received {name}")
    return _broker_setting_fields(broker, request, **details)


def list_config_resources(request: Request, broker: Broker) -> Fields:
    """List topics, live gateways and groups with settings of their own, or only resources of requested types."""
    if code := request.rights.check_code(Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER):
        return {"error_code": code}
    types = set(request.get("resource_types", ()))
    if types - {*_LISTED_TYPES}:
        return {"error_code": ErrorCode.unsupported_version}
    names: dict[int, Iterable[str]] = {}
    if request.api_version > _CLIENT_METRICS_VERSION:
        types = types or {*_LISTED_TYPES}
        if TOPIC in types:
            names[TOPIC] = broker.metadata.summaries_or_errors()
        if BROKER in types:
            names[BROKER] = [str(node.id) for node in broker.cluster.nodes]
        if GROUP in types:
            broker.configs.refresh()
            names[GROUP] = broker.configs.groups.names
    resources = [{"resource_name": name, "resource_type": kind} for kind, listed in names.items() for name in listed]
    return {"config_resources": resources}


# IncrementalAlterConfigs sets and resets single settings of topics and groups, and changes lists (KIP-339).
# AlterConfigs replaces all settings (KIP-133). Kafka has deprecated it.

#: AlterConfigOp.OpType of Kafka's admin client.
_SET, _DELETE, _APPEND, _SUBTRACT = range(4)


class _CurrentSettings(NamedTuple):
    #: The names of the settings that the resource sets itself.
    overrides: Iterable[str]
    #: The items of the settings that are lists, which APPEND and SUBTRACT change.
    list_values: Mapping[str, Sequence[str]] = {}


#: Returns the new values by setting, None for the default, from the current settings and a requested resource.
_ChangesOf = Callable[[_CurrentSettings, Any], dict[str, str | None]]


def alter_configs(changes_of: _ChangesOf, request: Request, broker: Broker) -> Fields:
    alter = partial(_alter, request, broker, changes_of, validate_only=request.body.validate_only)
    return {"responses": fields_or_errors_of_items(alter, request.body.resources, _RESOURCE, _resource_fields)}


def _alter(request: Request, broker: Broker, changes_of: _ChangesOf, resource: Any, *, validate_only: bool) -> None:
    _check_rights(request, Operation.ALTER_CONFIGS, resource)
    if len({config.name for config in resource.configs}) < len(resource.configs):
        raise RefusedError("Error due to duplicate config keys")
    if resource.resource_type == TOPIC:
        _alter_topic(broker, changes_of, resource, validate_only=validate_only)
    elif resource.resource_type == GROUP:
        _alter_group(broker, changes_of, resource, validate_only=validate_only)
    else:
        unknown = f"Unknown resource type {resource.resource_type}"
        raise RefusedError(_REFUSAL_REASONS.get(resource.resource_type, unknown))


def _alter_topic(broker: Broker, changes_of: _ChangesOf, resource: Any, *, validate_only: bool) -> None:
    topic = broker.metadata.client_topic(resource.resource_name).topic
    config = topic.snapshot.config
    list_values = {"cleanup.policy": str(config.cleanup_policy).split(",")}
    changes = without_ignored(changes_of(_CurrentSettings(config.overrides(), list_values), resource))
    if validate_only:
        config.changed(changes)  # raises InvalidConfigError for an invalid change
    elif changes:
        topic.alter_config(changes)


def _alter_group(broker: Broker, changes_of: _ChangesOf, resource: Any, *, validate_only: bool) -> None:
    group, configs = resource.resource_name, broker.configs
    if not group:
        raise RefusedError("Default group resources are not allowed.")
    configs.refresh()
    current = _CurrentSettings(configs.groups.overrides(group))
    changes = configs.groups.parse_changes(group, changes_of(current, resource))
    if not validate_only:
        configs.alter_group(group, changes)


def _incremental(current: _CurrentSettings, resource: Any) -> dict[str, str | None]:
    return {change.name: _changed_value(current, change) for change in resource.configs}


def _changed_value(current: _CurrentSettings, change: Any) -> str | None:
    operation = change.config_operation
    if operation == _DELETE:
        return None
    if operation not in (_SET, _APPEND, _SUBTRACT):
        raise RefusedError(f"Unknown operation type {operation} of {change.name}")
    _check_not_null([change])
    if operation == _SET:
        return str(change.value)
    if change.name not in current.list_values:
        verb = "APPEND to" if operation == _APPEND else "SUBTRACT from"
        raise InvalidConfigError(f"Can't {verb} key {change.name} because its type is not LIST.")
    items = str(change.value).split(",")
    remaining = [item for item in current.list_values[change.name] if item not in items]
    return ",".join([*remaining, *items] if operation == _APPEND else remaining)


def _replacement(current: _CurrentSettings, resource: Any) -> dict[str, str | None]:
    _check_not_null(resource.configs)
    return {**dict.fromkeys(current.overrides), **{config.name: config.value for config in resource.configs}}


def _check_not_null(changes: Iterable[Any]) -> None:
    if null_names := [change.name for change in changes if change.value is None]:
        raise RefusedError(f"Null value not supported for : {','.join(null_names)}")


#: How a component of a filter matches the name of a user or client id: an exact name, the default, or any name.
_EXACT, _DEFAULT_NAME, _ANY = range(3)
#: The entity type of quotas for IP addresses. kafka-configs requests them, but the gateway has none.
_IP = "ip"


def describe_client_quotas(request: Request, broker: Broker) -> Fields:
    return fields_or_error(_describe_quotas, request, broker, entries=None)


def _describe_quotas(request: Request, broker: Broker) -> Fields:
    """Return the quotas of matching entities. A `strict` filter matches no entity that has further types."""
    request.rights.check_cluster(Operation.DESCRIBE_CONFIGS)
    _check_filter(request.body.components)
    broker.configs.refresh()
    entries = [
        {"entity": _entity_fields(entity), "values": [{"key": key, "value": quota} for key, quota in values.items()]}
        for entity, values in broker.configs.quotas.items()
        if _matches(entity, request.body.components, request.body.strict)
    ]
    return {"entries": entries}


def _check_filter(components: Sequence[Any]) -> None:
    types = [component.entity_type for component in components]
    for component in components:
        if component.entity_type not in (USER, CLIENT_ID, _IP):
            raise RefusedError(f"Unsupported entity type {component.entity_type}")
        if types.count(component.entity_type) > 1:
            raise RefusedError(f"Entity type {component.entity_type} cannot appear more than once in the filter.")
        if component.match_type not in (_EXACT, _DEFAULT_NAME, _ANY):
            raise RefusedError(f"Unknown match type {component.match_type}")
        if component.match_type == _EXACT and component.match is None:
            raise RefusedError("Request specified MATCH_TYPE_EXACT, but set match string to null.")
    if _IP in types and len(types) > 1:
        raise RefusedError("An IP filter component cannot be combined with others.")


def _matches(entity: Entity, components: Sequence[Any], strict: bool) -> bool:
    names_by_type = dict(entity.parts)
    if strict and len(names_by_type) > len(components):
        return False
    for component in components:
        if component.entity_type not in names_by_type:
            return False
        # the default entity has the name None
        name = component.match if component.match_type == _EXACT else None
        if component.match_type != _ANY and names_by_type[component.entity_type] != name:
            return False
    return True


def _entity_fields(entity: Entity) -> list[Fields]:
    return [{"entity_type": kind, "entity_name": name} for kind, name in entity.parts]


def alter_client_quotas(request: Request, broker: Broker) -> Fields:
    alter = partial(_alter_quotas, request, broker, validate_only=request.body.validate_only)
    entries = fields_or_errors_of_items(
        alter, request.body.entries, _entity, lambda entry: {"entity": _entity_fields(_entity(entry))}
    )
    return {"entries": entries}


def _entity(entry: Any) -> Entity:
    return Entity.of({component.entity_type: component.entity_name for component in entry.entity})


def _alter_quotas(request: Request, broker: Broker, entry: Any, *, validate_only: bool) -> None:
    request.rights.check_cluster(Operation.ALTER_CONFIGS)
    entity = _entity(entry)
    changes = {op.key: None if op.remove else op.value for op in entry.ops}
    try:
        if len(changes) < len(entry.ops):
            text = "the request changes a quota of an entity more than once: change each quota once"
            raise RefusedError(text, quotas=",".join(changes))
        check_quotas(entity, changes)
    except ValueError as error:
        # as in Kafka, the code is INVALID_REQUEST, although a setting is wrong
        raise RefusedError(str(error)) from None
    if not validate_only:
        broker.configs.alter_quotas(entity, changes)


_DESCRIBE_RIGHT = "DESCRIBE_CONFIGS of the topic or the group, or of the cluster"
_ALTER_RIGHT = "ALTER_CONFIGS of the topic or the group, or of the cluster"
APIS = (
    Api(44, "IncrementalAlterConfigs", 0, 1, partial(alter_configs, _incremental), _ALTER_RIGHT, Handlers.TOPICS),
    Api(33, "AlterConfigs", 0, 2, partial(alter_configs, _replacement), _ALTER_RIGHT, Handlers.TOPICS),
    Api(32, "DescribeConfigs", 1, 4, describe_configs, _DESCRIBE_RIGHT),
    Api(74, "ListConfigResources", 0, 1, list_config_resources, "DESCRIBE_CONFIGS of the cluster"),
    Api(48, "DescribeClientQuotas", 0, 1, describe_client_quotas, "DESCRIBE_CONFIGS of the cluster"),
    Api(49, "AlterClientQuotas", 0, 1, alter_client_quotas, "ALTER_CONFIGS of the cluster"),
)
