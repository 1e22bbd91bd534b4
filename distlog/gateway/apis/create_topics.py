"""CreateTopics. Replication factors are taken as they are: the storage replicates, or not."""

from __future__ import annotations

from functools import partial
from typing import Any

from distlog.core.config import TopicConfig
from distlog.gateway.apis.attempts import attempted
from distlog.gateway.apis.metadata import topic_uuid
from distlog.gateway.apis.topic_configs import described, meaningful
from distlog.gateway.broker import Api, Broker
from distlog.gateway.protocol.response_frame import Fields
from distlog.gateway.server.request import Request

_DEFAULT = -1
#: What is told of a setting; DescribeConfigs tells more.
_OF_SETTING = ("name", "value", "read_only", "config_source", "is_sensitive")


def handle(request: Request, broker: Broker) -> Fields:
    """Create each topic; with `validate_only` only look whether it could be created."""
    only_look = request.get("validate_only", False)
    return {
        "throttle_time": 0,
        "topics": [
            attempted(partial(_create, broker, topic, only_look=only_look), name=topic.name)
            for topic in request.body.topics
        ],
    }


def _create(broker: Broker, asked: Any, *, only_look: bool) -> Fields:
    config = TopicConfig.parse(
        {
            name: value
            for name, value in meaningful({each.name: each.value for each in asked.configs}).items()
            if value is not None
        }
    )
    count = len(asked.assignments) or asked.num_partitions
    count = broker.config.num_partitions if count == _DEFAULT else count
    told: dict[str, Any] = {
        "num_partitions": count,
        "replication_factor": 1,
        "configs": [{name: each[name] for name in _OF_SETTING} for each in described(config)],
    }
    if only_look:
        broker.metadata.check_new(asked.name, count)
        return told
    return {**told, "topic_id": topic_uuid(broker.metadata.create(asked.name, count, config))}


API = Api(19, "CreateTopics", 2, 7, handle)
