"""DescribeConfigs: the settings of topics. The gateway's own are those of its command, so a broker has none here."""

from __future__ import annotations

from functools import partial
from typing import Any

from distlog.gateway.apis.attempts import attempted
from distlog.gateway.apis.topic_configs import described
from distlog.gateway.broker import Api, Broker
from distlog.gateway.protocol.error_codes import UnsupportedRequestError
from distlog.gateway.protocol.response_frame import Fields
from distlog.gateway.server.request import Request

#: ConfigResource.Type of Kafka's admin client.
TOPIC, BROKER = 2, 4


def handle(request: Request, broker: Broker) -> Fields:
    """The settings of each resource, all or those asked for."""
    results = [
        attempted(
            partial(_described, request, broker, one),
            resource_type=one.resource_type,
            resource_name=one.resource_name,
            configs=(),
        )
        for one in request.body.resources
    ]
    return {"throttle_time": 0, "results": results}


def _described(request: Request, broker: Broker, asked: Any) -> Fields:
    if asked.resource_type == BROKER:
        return {}
    if asked.resource_type != TOPIC:
        raise UnsupportedRequestError("only topics and brokers have settings", resource_type=asked.resource_type)
    config = broker.metadata.fresh_topic(asked.resource_name).snapshot.config
    wanted = asked.configuration_keys
    found = described(
        config,
        documentation=request.get("include_documentation", False),
        synonyms=request.get("include_synonyms", False),
    )
    return {"configs": [each for each in found if wanted is None or each["name"] in wanted]}


API = Api(32, "DescribeConfigs", 1, 4, handle)
