"""IncrementalAlterConfigs: sets, resets, and changes lists in the settings of topics (KIP-339)."""

from __future__ import annotations

from functools import partial
from typing import Any

from distlog.core.config import TopicConfig
from distlog.gateway.apis.attempts import attempted
from distlog.gateway.apis.describe_configs import TOPIC
from distlog.gateway.apis.topic_configs import meaningful
from distlog.gateway.broker import Api, Broker
from distlog.gateway.protocol.error_codes import UnsupportedRequestError
from distlog.gateway.protocol.response_frame import Fields
from distlog.gateway.server.request import Request

#: AlterConfigOp.OpType of Kafka's admin client.
_SET, _DELETE, _APPEND, _SUBTRACT = range(4)


def handle(request: Request, broker: Broker) -> Fields:
    """Change each resource, in one commit of its own; with `validate_only` only look whether it could be."""
    only_look = request.body.validate_only
    responses = [
        attempted(
            partial(_alter, broker, one, only_look=only_look),
            resource_type=one.resource_type,
            resource_name=one.resource_name,
        )
        for one in request.body.resources
    ]
    return {"throttle_time": 0, "responses": responses}


def _alter(broker: Broker, asked: Any, *, only_look: bool) -> None:
    if asked.resource_type != TOPIC:
        raise UnsupportedRequestError("only topics can be altered", resource_type=asked.resource_type)
    topic = broker.metadata.fresh_topic(asked.resource_name).topic
    config = topic.snapshot.config
    changes = meaningful({each.name: _value(config, each) for each in asked.configs})
    if only_look:
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


API = Api(44, "IncrementalAlterConfigs", 0, 1, handle)
