"""DescribeConfigs: the settings of topics, and those of the gateway, which are given when it begins."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from distlog.gateway.apis.attempts import attempted
from distlog.gateway.apis.topic_configs import described, described_broker
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
    wanted = asked.configuration_keys
    found = _all_settings(
        broker,
        asked,
        documentation=request.get("include_documentation", False),
        synonyms=request.get("include_synonyms", False),
    )
    return {"configs": [each for each in found if wanted is None or each["name"] in wanted]}


def _all_settings(broker: Broker, asked: Any, **wishes: bool) -> Iterable[Fields]:
    if asked.resource_type == TOPIC:
        return described(broker.metadata.fresh_topic(asked.resource_name).snapshot.config, **wishes)
    if asked.resource_type != BROKER:
        raise UnsupportedRequestError("only topics and brokers have settings", resource_type=asked.resource_type)
    if not asked.resource_name:
        # asks for what was changed for all brokers while they run
        return ()
    _check_this_broker(broker, asked.resource_name)
    return described_broker(broker.config, broker.metadata.defaults, **wishes)


def _check_this_broker(broker: Broker, name: str) -> None:
    this = str(broker.cluster.node.id)
    if name != this:
        raise UnsupportedRequestError("a gateway tells its own settings alone", this=this, asked=name)


API = Api(32, "DescribeConfigs", 1, 4, handle)
